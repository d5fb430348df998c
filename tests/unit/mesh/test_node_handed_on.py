"""A node that is closed while others work on what it handed on: it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.mesh.meshing import World, leaves, nothing

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_node_that_is_drained_says_what_it_leaves_open_elsewhere(
    count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, journal: bool
) -> None:
    """Nothing that it owned is lost, and the verdict waits for its next process, if that has a journal."""
    caplog.set_level("INFO")
    async with World(tmp_path if journal else None) as world:
        node, middle = await world.add("a"), await world.add("b")
        await world.add("c")

        async def hands_on(_: Hop) -> None:
            await world.hand("c", nothing)
            for _number in range(count):
                await world.hand("c", leaves)

        async with node.cascade("c"):
            await world.hand("b", hands_on)
        assert (await middle.drain(60)).ok
        said = [line for line in caplog.messages if "handed on" in line]
        if not count:
            assert said == []
            return
        what = (
            "1 message that it handed on has"
            if count == 1
            else f"{count} messages that it handed on have"
        )
        (line,) = said
        assert line.startswith(f"node 'b': {what} not ended")
        assert ("start this node again with its journal" in line) is journal
        assert ("stays unknown" in line) is not journal


async def test_a_node_says_nothing_of_messages_of_its_own_cascades(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The program that began them asks for them, or does not."""
    caplog.set_level("INFO")
    async with World() as world:
        node = await world.add("a")
        await world.add("b")
        async with node.cascade("c"):
            await world.hand("b", leaves)
        await node.drain(60)
        assert "handed on" not in caplog.text
