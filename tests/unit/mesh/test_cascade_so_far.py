"""The counts of a verdict that is not final yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quiesce.mesh import Patience, Unknown
from tests.unit.mesh.meshing import World, here, until

if TYPE_CHECKING:
    from quiesce.mesh import Hop


@pytest.mark.backends("asyncio", "trio")  # whose time costs nothing
async def test_messages_of_other_agents_that_are_not_closed_are_counted_as_unknown() -> None:
    """As the tree shows them, and not only the messages of the cascade's own program."""

    async def handler(__: Hop) -> None:
        for _ in range(7):
            with here().delegate("http://c"):  # and there is nobody
                pass

    async with World() as world:
        node = await world.add("a", patience=Patience())
        other = await world.add("b", patience=Patience())
        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        await until(lambda: not other.opened.running_hops)
        found = await cascade.settled(10)
        assert isinstance(found, Unknown)
        assert "s, 9 hops, 8 unknown\n" in str(found)  # the message to b, and those to c
        async with node.cascade("busy") as cascade:
            await world.hand("b", handler)
            found = await cascade.settled(10)
        assert "s, 9 hops, 9 unknown\n" in str(found)  # a is at work, too
