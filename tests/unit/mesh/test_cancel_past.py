"""Cancelling, past an agent that is dead: whoever has sent to it tells those below it to end, in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import RemoteProtocolError
from quiesce.mesh import Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import WORKING
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply
from tests.unit.mesh.meshing import HASTE, World, here, until
from tests.unit.mesh.test_engine import CASCADE, ONE, ROOT, TWO, new

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop


async def begun(world: World, names: str) -> Cascade:
    """Begin a cascade along some nodes, each of which answers at once, and wait until the first knows of all.

    The work of the last one never ends.
    """

    async def go(hop: Hop, rest: str) -> None:
        if rest:
            await world.hand(rest[0], lambda below: go(below, rest[1:]))
        else:
            hop.spawn(anyio.sleep_forever)

    async with world.nodes["a"].cascade("c") as cascade:
        await go(here(), names)
        root, detector = here().record.edge, world.nodes["a"].opened.engine.detector
    wanted = {f"http://{name}" for name in names}
    await until(lambda: wanted <= {to for _, to in detector.known.follows(root)})
    return cascade


@pytest.mark.parametrize("names", ["bc", "bcd"])
async def test_a_cancel_passes_agents_that_are_dead(names: str, tmp_path: Path) -> None:
    """The last one is told by the first; the verdict waits for those between, and says who was told."""
    async with World(tmp_path) as world:
        for name in f"a{names}":
            await world.add(name, patience=replace(HASTE, give_up=60.0))
        cascade = await begun(world, names)
        last, dead = world.nodes[names[-1]], {f"http://{name}" for name in names[:-1]}
        world.lines.cut |= {*dead, "http://a"}  # nor do they tell the first one anything
        await cascade.cancel()
        await until(lambda: not last.opened.running_hops)
        early = await cascade.settled(0.5)
        assert isinstance(early, Unknown)
        assert not early.is_final
        assert f"; told to end below it: http://{names[-1]}" in str(early), early
        world.lines.cut.clear()
        found = await cascade.settled(5)
        assert isinstance(found, Settled), found
        assert (found.receipt.cancelled, found.receipt.hops) == (1, len(names) + 1)


@pytest.mark.backends(
    "asyncio", "trio"
)  # in virtual time: it is given up after a while, not before
async def test_an_agent_that_is_not_a_peer_is_not_called_but_named(tmp_path: Path) -> None:
    """The address comes from another agent: who chose it freely would have a node call any server."""
    async with World(tmp_path) as world:
        await world.add("a", peers=["http://b"])
        await world.add("b")
        last = await world.add("c")
        cascade = await begun(world, "bc")
        world.lines.cut |= {"http://a", "http://b"}
        await cascade.cancel()
        early = await cascade.settled(0.5)
        assert isinstance(early, Unknown)
        assert "not told to end below it: http://c" in str(early)
        assert len(last.opened.running_hops) == 1
        assert not any(b"true" in body for to, _, body in world.lines.calls if to == "http://c")
        found = await cascade.settled(10)
        assert isinstance(found, Unknown)
        assert found.is_final
        assert "it may not have been told to end" in str(found)


async def test_edges_below_are_disclosed_only_to_callers_that_know_the_edge(tmp_path: Path) -> None:
    """It has the ids of other edges: whoever knows one may end it."""
    async with World(tmp_path) as world:
        for name in "abc":
            await world.add(name)
        await begun(world, "bc")
        node = world.nodes["b"]
        (record,) = world.nodes["a"].opened.engine.known.hop_records.values()
        ((edge, sent),) = record.edges.items()
        below = node.opened.engine.called(NodeCall("", (), ((edge, False),)), 0.0).below
        assert below == tuple((edge, *one) for one in sent.below)
        strange = bytes.fromhex(edge_mark(edge) * 2)
        for call in (NodeCall("", (), ()), NodeCall("", (), ((strange, True),))):
            reply = codec.parse_reply(codec.reply_body(node.opened.engine.called(call, 0.0)))
            assert reply.below == ()


def test_an_agent_cannot_report_on_the_edges_of_another() -> None:
    """Only the agent that an edge was sent to says what follows from it."""
    engine = new()
    hop = engine.begin(ROOT, CASCADE, 0.0)
    engine.send(hop, ONE, "one", 0.0)
    engine.sent(ONE, "is taken", 0.0)
    engine.known.learn(ONE, "other", ((TWO, "http://x"),))
    assert [*engine.known.follows(ONE)] == []
    engine.known.learn(ONE, "one", ((TWO, "http://x"),))
    assert [*engine.known.follows(ONE)] == [(TWO, "http://x")]


def test_a_cancel_is_delivered_once_to_each_node_that_answers() -> None:
    """The dead one is tried again and again; those below it were told, and are not asked any more."""
    engine = new()
    hop = engine.begin(ROOT, CASCADE, 0.0)
    engine.send(hop, ONE, "http://one", 0.0)
    engine.sent(ONE, "is taken", 0.0)
    (call,) = engine.due(30.0)
    engine.replied(call, NodeReply((), ((ONE, WORKING),), below=((ONE, TWO, "http://two"),)), 30.0)
    engine.cancel(hop, 31.0)
    called: list[str] = []
    now = 31.0
    while now < 300.0:
        for call in engine.due(now):
            called.append(call.to)
            if call.to == "http://one":
                engine.failed(call, now)
            else:
                assert call.asks == ((TWO, True),)
                engine.replied(call, NodeReply((), ((TWO, WORKING),)), now)
        now = engine.next_at()
    assert called.count("http://one") > 5
    assert called.count("http://two") == 1
    assert engine.passed(ONE) == ({"http://two"}, set())


@pytest.mark.parametrize(
    "below",
    [7, [7], [["00" * 12, "11" * 12]], [["00" * 12, "1", "http://b"]], [["00" * 12, "11" * 12, "file:///x"]]],
)  # fmt: skip
def test_what_follows_is_two_edges_and_an_address(below: object) -> None:
    """Anything else makes it no reply."""
    good = codec.dumps({"v": 0, "below": [["00" * 12, "11" * 12, "http://b"]]})
    assert codec.parse_reply(good).below == ((bytes(12), b"\x11" * 12, "http://b"),)
    with pytest.raises(RemoteProtocolError):
        codec.parse_reply(codec.dumps({"v": 0, "below": below}))
