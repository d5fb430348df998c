"""For how long it is remembered that a message never will run: as long as one may come that was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from quiesce.errors import EdgeRefused
from quiesce.mesh import Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.transport import links
from tests.stress import lasting
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop, Node, Settlement

EDGE = b"e" * 12
in_virtual_time = pytest.mark.backends("asyncio", "trio")


class Late:
    """A message of which the receiver was asked before it came."""

    def __init__(self, world: World) -> None:
        """Record the world."""
        self._world = world
        self.ran: list[str] = []
        self.header = ""

    async def begin(self, node: Node) -> Settlement:
        """Begin to hand over the message, and return what is said of it meanwhile."""
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                self.header = handing.header
        return await cascade.settled(5)

    async def arrive(self) -> None:
        """Deliver the message, at last."""
        await self._world.deliver("b", self.header, self.handle)

    async def handle(self, hop: Hop) -> None:
        """Work on it."""
        self.ran.append(hop.mark)


@in_virtual_time
@pytest.mark.parametrize("moved", [-299, 0, 299])
@pytest.mark.parametrize("keep", [100, 300, 3600])
async def test_what_was_said_to_never_run_does_not(
    keep: float, moved: float, tmp_path: Path
) -> None:
    """Whenever it comes; also if clocks differ as far as they may, and its sender keeps it for less."""
    async with World(tmp_path) as world:
        node, other = await world.add("a", keep_seconds=keep), await world.add("b")
        other.opened.engine.horizon.wall = lambda: world.wall + moved
        late = Late(world)
        assert isinstance(await late.begin(node), Settled)
        for _ in range(60):
            await lasting(200)
            world.wall += 200
            await late.arrive()
        assert late.ran == []


@in_virtual_time
async def test_never_is_not_said_of_a_message_that_may_come_for_longer_than_it_is_remembered(
    tmp_path: Path,
) -> None:
    """It does come, and runs: so it was not said that it would not."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a", keep_seconds=9000), await world.add("b")
        late = Late(world)
        found = await late.begin(node)
        await lasting(8800)
        world.wall += 8800
        await late.arrive()
        assert len(late.ran) == 1
        assert isinstance(found, Unknown)
        assert "remembers messages for less time" in str(found)


@pytest.mark.parametrize(
    ("keep", "said"),
    [(None, "never"), (3600, "never"), (0, "never"), (3601, "not now"), (1e9, "not now")],
)
async def test_a_question_says_how_long_a_message_may_take(
    keep: float | None, said: str, tmp_path: Path
) -> None:
    """Or it is an hour; what is known of it otherwise is said as ever."""
    async with World(tmp_path) as world:
        other = await world.add("b")
        async with other.cascade("c"):
            (known,) = other.opened.running_hops
            asks = ((EDGE, False), (known, False))
            body = codec.call_body(NodeCall("", (), asks, keep=keep))
            reply = json.loads(await other.serve_call("/quiesce/receipts", body))
        assert reply["answers"] == [[EDGE.hex(), said], [known.hex(), "working"]]


async def test_a_node_that_keeps_ids_for_less_does_not_say_never_to_a_sender_that_gives_no_time(
    tmp_path: Path,
) -> None:
    """It cannot know for how long the message may come."""
    async with World(tmp_path) as world:
        other = await world.add("b", keep_seconds=3599)
        body = codec.call_body(NodeCall("", (), ((EDGE, False),)))
        reply = json.loads(await other.serve_call("/quiesce/receipts", body))
        assert reply["answers"] == [[EDGE.hex(), "not now"]]


@pytest.mark.parametrize(("keep", "said"), [(3600, "never"), (9000, "not-now")])
async def test_a_message_refused_unread_stays_refused_for_as_long_as_it_is_remembered(
    keep: float, said: str, tmp_path: Path
) -> None:
    """The time is in its header."""
    async with World(tmp_path) as world:
        node, other = await world.add("a", keep_seconds=keep), await world.add("b")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                told = await links.refuse_message(other, handing.header)
        assert told == f"00-{handing.mark};s={said}"
        with pytest.raises(EdgeRefused):
            other.handle(handing.header)
        assert await links.refuse_message(other, "rubbish") is None
