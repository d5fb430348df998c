"""Who is still busy, in every agent: told to people, whatever agents are not reached or lie."""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import PeerLost, RemoteProtocolError
from quiesce.mesh import Busy, MeshFrontier, Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport.node_transport import NoMesh
from tests.stress import turns
from tests.unit.mesh.meshing import Lines, NoRoom, World, here, leaves, nothing, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop

PROBE = "/quiesce/probe"


async def begun(world: World) -> Cascade:
    """Begin a cascade in which a waits, b waits for c, and c and d are at work."""
    for name in "abcd":
        await world.add(name)

    async def mid(_: Hop) -> None:
        await world.hand("c", leaves)

    async with world.nodes["a"].cascade("trip") as cascade:
        await world.hand("b", mid)
        await world.hand("d", leaves)
    await until(
        lambda: (
            not world.nodes["a"].opened.running_hops and not world.nodes["b"].opened.running_hops
        )
    )
    return cascade


async def test_a_frontier_is_the_tree_of_busy_agents() -> None:
    """Each with what it is at, and for how long."""
    async with World() as world:
        cascade = await begun(world)
        found = await cascade.frontier()
        states = {entry.name: entry.state for entry in found.entries}
        assert states == {"a": "waits", "b": "waits", "c": "at work", "d": "at work"}
        assert {entry.name for entry in found.busy} == {"c", "d"}
        lines = str(found).splitlines()
        assert lines[0] == "cascade 'trip': 2 at work"
        assert lines[1] == "└─ a  waits"
        assert any(re.match(r"   [│ ]  └─ c  at work  \d+\.\d s  \(job ", line) for line in lines)
        text = json.dumps(found.to_json())
        assert "sleep_forever" in text
        await cascade.cancel()
        assert isinstance(await cascade.settled(5, require="participants"), Settled)
        ended = await cascade.frontier()
        assert ended.entries == ()
        assert str(ended) == "cascade 'trip': nobody at work"


async def test_inside_of_the_block_it_is_the_block() -> None:
    """With more than three things in flight, the others are counted."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            for number in range(4):
                here().spawn(anyio.sleep_forever, name=f"job {number}")
            (entry,) = (await cascade.frontier()).entries
            assert entry.state == "at work"
            assert entry.what.endswith(" and 2 more")
        await cascade.cancel()


@pytest.mark.parametrize("name", ["b", "c", "d"])
async def test_an_unreached_agent_is_named(name: str) -> None:
    """With why, in the place where it is in the tree."""
    async with World() as world:
        cascade = await begun(world)
        world.lines.cut.add(f"http://{name}")
        found = await cascade.frontier()
        (lost,) = (entry for entry in found.entries if entry.state == "not reached")
        assert lost.name == f"http://{name}"
        assert lost.what == f"the line to http://{name} is cut"
        assert lost in found.busy
        assert str(found).startswith("cascade 'trip': 1 at work, 1 not reached\n")
        (parent,) = (entry for entry in found.entries if entry.mark == lost.parent)
        assert parent.name == ("b" if name == "c" else "a")


@pytest.mark.backends("asyncio", "trio")
async def test_a_silent_agent_is_named_in_time() -> None:
    """Those above still have the time to tell."""

    class Silent(Lines):
        async def call(self, to: str, path: str, body: bytes) -> bytes:
            if to == "http://c" and path == PROBE:
                await anyio.sleep_forever()
            return await super().call(to, path, body)

    async with World() as world:
        world.lines = Silent()
        cascade = await begun(world)
        began = anyio.current_time()
        found = await cascade.frontier(within=2.0)
        assert anyio.current_time() - began <= 2.0
        (lost,) = (entry for entry in found.entries if entry.state == "not reached")
        assert (lost.name, lost.what) == ("http://c", "no answer")
        assert "d" in {entry.name for entry in found.busy}


@pytest.mark.parametrize("error", [RuntimeError("http://x"), PeerLost("gone"), OSError(5, "x")])
async def test_an_error_of_a_transport_does_not_hide_other_agents(error: Exception) -> None:
    """It is one line in the tree."""

    class Broken(Lines):
        async def call(self, to: str, path: str, body: bytes) -> bytes:
            if to == "http://d" and path == PROBE:
                raise error
            return await super().call(to, path, body)

    async with World() as world:
        world.lines = Broken()
        cascade = await begun(world)
        found = await cascade.frontier()
        assert [entry.state for entry in found.entries].count("not reached") == 1
        assert {"b", "c"} <= {entry.name for entry in found.entries}


@pytest.mark.parametrize("name", ["closed", "broken"])
async def test_a_node_that_takes_no_calls_is_not_reached(name: str) -> None:
    """Though it is there."""
    async with World() as world:
        cascade = await begun(world)
        if name == "closed":
            await world.nodes["d"].aclose(1)
            assert isinstance(await cascade.settled(0), Unknown)
            return
        NoRoom(world.nodes["d"])
        found = await cascade.frontier()
        (lost,) = (entry for entry in found.entries if entry.state == "not reached")
        assert lost.name == "http://d"


@pytest.mark.parametrize(
    "entry",
    [
        7,
        [],
        ["m", "p", "n", "s", None],
        ["m", "p", "n", "s", "1", ""],
        ["m", "p", "n", "s", True, ""],
        ["m", "p", "n", "s", -1, ""],
        ["m", "p", "n", "s", 10**400, ""],
        ["m", "p", "n" * 5000, "s", None, ""],
        ["m", 1, "n", "s", None, ""],
    ],
)
async def test_what_is_no_entry_is_not_taken(entry: object) -> None:
    """The node that tells it is not reached, then; and it can be printed."""

    class Lying(Lines):
        async def call(self, to: str, path: str, body: bytes) -> bytes:
            if to == "http://d" and path == PROBE:
                return json.dumps({"v": 0, "busy": [entry]}).encode()
            return await super().call(to, path, body)

    async with World() as world:
        world.lines = Lying()
        cascade = await begun(world)
        found = await cascade.frontier()
        assert [one.state for one in found.entries].count("not reached") == 1
        assert "http://d  not reached" in str(found)


def test_what_a_forger_has_put_in_a_circle_ends() -> None:
    """It is drawn once, or not at all."""
    entries = (
        Busy("a", "b", "one", "at work", 1.0),
        Busy("b", "a", "two", "waits"),
        Busy("c", "c", "self", "at work"),
        Busy("d", "", "root", "waits"),
        Busy("e", "d", "below", "not reached", None, "why"),
        Busy("d", "d", "again", "waits"),
    )
    text = str(MeshFrontier("c", entries))
    assert text.count("root") == 1
    assert "below  not reached  (why)" in text
    assert len(text.splitlines()) <= 1 + len(entries)


async def test_watching_ends_when_it_has_settled() -> None:
    """At once, not at the next look."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        await until(lambda: not node.opened.running_hops)
        seen: list[int] = []
        async with aclosing(cascade.watch(every=0.02)) as watching:
            async for frontier in watching:
                seen.append(len(frontier.busy))
                if len(seen) == 3:
                    break
        assert seen == [1, 1, 1]

        async def end() -> None:
            await turns(5)
            gate.set()

        async with Scope("ending") as scope:
            scope.spawn(end)
            with anyio.fail_after(5):
                assert len([frontier async for frontier in cascade.watch(every=1000)]) == 1
        assert (await cascade.settled(1, require="participants")).ok


# Being asked.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"v":1,"edges":[]}',
        b'{"v":0,"edges":{}}',
        b'{"v":0,"edges":["00"]}',
        b'{"v":0,"edges":[],"within":"1"}',
        b'{"v":0,"edges":[],"within":true}',
        b'{"v":0,"edges":[],"within":NaN}',
        b'{"v":0,"edges":[],"within":Infinity}',
        b'{"v":0,"edges":[],"within":-1}',
        b'{"v":0,"edges":[],"within":1%s}' % (b"0" * 400),
    ],
)
async def test_what_is_no_question_is_refused(body: bytes) -> None:
    """As a call that is none."""
    async with World() as world:
        await world.add("b")
        with pytest.raises(RemoteProtocolError):
            await world.lines.call("http://b", PROBE, body)


async def test_a_caller_that_does_not_know_an_edge_learns_nothing() -> None:
    """There is no answer to a question about edges that are not there; asking leaves nothing."""
    async with World() as world:
        node = await world.add("b")
        async with node.cascade("c"):
            pass
        body = codec.dumps({"v": 0, "edges": ["00" * 12]})
        assert json.loads(await world.lines.call("http://b", PROBE, body)) == {"v": 0, "busy": []}
        assert not node.opened.engine.detector.knows(bytes(12))


async def test_a_question_reaches_each_node_below_once() -> None:
    """However often an edge is in it."""
    async with World() as world:
        await begun(world)
        node = world.nodes["b"]
        (edge,) = node.opened.engine.known.hop_records
        world.lines.calls.clear()
        body = codec.dumps({"v": 0, "edges": [edge.hex()] * 900})
        found: Any = json.loads(await world.lines.call("http://b", PROBE, body))
        assert {entry[2] for entry in found["busy"]} == {"b", "c"}
        assert len([to for to, path, _ in world.lines.calls if path == PROBE]) == 2


@pytest.mark.backends("asyncio", "trio")
async def test_a_question_takes_no_longer_than_ten_seconds() -> None:
    """Whatever it says."""

    class Silent(Lines):
        async def call(self, to: str, path: str, body: bytes) -> bytes:
            if to == "http://c" and path == PROBE:
                await anyio.sleep_forever()
            return await super().call(to, path, body)

    async with World() as world:
        world.lines = Silent()
        await begun(world)
        (edge,) = world.nodes["b"].opened.engine.known.hop_records
        body = codec.dumps({"v": 0, "edges": [edge.hex()], "within": 1e9})
        began = anyio.current_time()
        await world.lines.call("http://b", PROBE, body)
        assert anyio.current_time() - began <= 10


async def test_a_receipt_that_rode_and_cannot_be_posted_does_not_spoil_the_answer(
    tmp_path: Path,
) -> None:
    """A copy came while it was worked on: so it is posted as well, to where there is no node."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def waits(_: Hop) -> None:
            await gate.wait()

        async def nowhere(to: str, path: str, body: bytes) -> bytes:
            del path, body
            raise NoMesh(to)

        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                job = world.servers.spawn(world.serve, "b", handing.header, waits)
                await turns()
                assert "working" in await world.deliver("b", handing.header, nothing)
                world.lines.call = nowhere  # type: ignore[method-assign]  # every line is cut
                gate.set()
                assert "closed" in await job
                await until(lambda: other.opened.engine.trouble(handing.edge_id))
                body = codec.dumps({"v": 0, "edges": [handing.edge_id.hex()], "within": 0.1})
                told = json.loads(await other.serve_call(PROBE, body))
        assert [entry[3] for entry in told["busy"]] == ["waits"]
