"""A function that subscribes to a node hears of everything that the node has recorded."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import mesh
from quiesce.errors import ArgumentError
from tests.loops import let_others_run
from tests.unit.mesh.meshing import World, fails, nothing
from tests.unit.mesh.replicas import Gate, town
from tests.unit.mesh.test_replicas import cascade_hop

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import NodeEvent


def kinds(events: list[NodeEvent]) -> list[str]:
    """Return the names of the types of events."""
    return [type(event).__name__ for event in events]


async def test_the_events_of_a_cascade_come_in_order(tmp_path: Path) -> None:
    """The root hears of its cascade and of the messages it sends, and the agent of the hop."""
    async with World(tmp_path) as world:
        root, agent = await world.add("a"), await world.add("b")
        above: list[NodeEvent] = []
        below: list[NodeEvent] = []
        root.subscribe(above.append)
        agent.subscribe(below.append)
        async with root.cascade("trip") as cascade:
            await world.hand("b", nothing)
        assert (await cascade.settled(1)).ok
        assert kinds(above) == ["CascadeBegun", "EdgeSent", "EdgeEnded", "CascadeEnded"]
        assert kinds(below) == ["HopBegun", "HopEnded"]
        begun, sent, ended, last = above
        assert isinstance(begun, mesh.CascadeBegun)
        assert (begun.name, begun.node, begun.cascade) == ("trip", "a", cascade.id)
        assert isinstance(sent, mesh.EdgeSent)
        assert (sent.to, sent.parent) == ("http://b", begun.mark)
        assert isinstance(ended, mesh.EdgeEnded)
        assert (ended.mark, ended.cascade, ended.receipt.status) == (sent.mark, cascade.id, "done")
        assert isinstance(last, mesh.CascadeEnded)
        assert last.receipt.hops == 2
        hop = below[0]
        assert isinstance(hop, mesh.HopBegun)
        assert (hop.mark, hop.parent, hop.cascade) == (sent.mark, begun.mark, cascade.id)


async def test_a_failed_hop_says_how_it_ended(tmp_path: Path) -> None:
    """The event of a hop has its receipt."""
    async with World(tmp_path) as world:
        root, agent = await world.add("a"), await world.add("b")
        below: list[NodeEvent] = []
        agent.subscribe(below.append)
        async with root.cascade("trip"):
            await world.hand("b", fails)
        ended = below[-1]
        assert isinstance(ended, mesh.HopEnded)
        assert ended.receipt.failed == 1


async def test_a_subscriber_that_joins_late_hears_of_open_work(tmp_path: Path) -> None:
    """The end of a cascade that began before the subscription is told; after the subscription has ended, nothing is."""
    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        events: list[NodeEvent] = []
        async with root.cascade("trip") as cascade:
            remove = root.subscribe(events.append)
            await world.hand("b", nothing)
        assert kinds(events) == ["EdgeSent", "EdgeEnded", "CascadeEnded"]
        assert {getattr(event, "cascade", None) for event in events} == {cascade.id}
        remove()
        remove()
        assert root.opened.events is None
        async with root.cascade("another"):
            pass
        assert len(events) == 3


async def test_a_subscriber_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged, and the others are told."""
    events: list[NodeEvent] = []

    def fail(_: NodeEvent) -> None:
        raise LookupError

    async with World() as world:
        root = await world.add("a")
        root.subscribe(fail)
        root.subscribe(events.append)
        async with root.cascade("trip") as cascade:
            pass
        assert await cascade.settled(1, require="participants")
        assert kinds(events) == ["CascadeBegun", "CascadeEnded"]
    assert "a subscriber of node 'a' failed" in caplog.text


@pytest.mark.real_time
async def test_an_event_is_told_when_it_has_lasted(tmp_path: Path) -> None:
    """What a subscriber has heard of is true after any crash."""
    gate, events = Gate(tmp_path / "mesh.db"), list["NodeEvent"]()
    async with town(tmp_path) as here:
        root = await here.add("a", store=gate)
        root.subscribe(events.append)

        async def hand() -> None:
            async with cascade_hop().delegate("http://b") as handing:
                handing.not_sent()

        async with root.cascade("trip") as cascade:
            gate.may_write = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(hand)
                await let_others_run()
                assert kinds(events) == ["CascadeBegun"]
                gate.may_write.set()
            assert kinds(events)[:2] == ["CascadeBegun", "EdgeSent"]
        assert await cascade.settled(30)


@pytest.mark.real_time
async def test_replicas_that_join_and_leave_are_told(tmp_path: Path) -> None:
    """A replica hears of the others, and not of itself; each end of a cascade is told once."""
    joined, gone = anyio.Event(), anyio.Event()
    events: list[NodeEvent] = []

    def hear(event: NodeEvent) -> None:
        events.append(event)
        if isinstance(event, mesh.ReplicaJoined):
            joined.set()
        if isinstance(event, mesh.ReplicaGone):
            gone.set()

    async with town(tmp_path) as here:
        root = here.make("a")
        root.subscribe(hear)
        await root.open()
        other = await here.add("a", replica="a-1")
        async with root.cascade("trip") as cascade:
            pass
        assert (await cascade.settled(30)).ok
        with anyio.fail_after(60):
            await joined.wait()
        await other.aclose()
        with anyio.fail_after(60):
            await gone.wait()
    assert [kind for kind in kinds(events) if "Cascade" in kind] == ["CascadeBegun", "CascadeEnded"]
    (came,) = [event for event in events if isinstance(event, mesh.ReplicaJoined)]
    assert came.replica == "a-1"
    (left,) = [event for event in events if isinstance(event, mesh.ReplicaGone)]
    assert (left.replica, left.is_dead) == ("a-1", False)


def test_a_node_that_is_dropped_is_freed_at_once() -> None:
    """A node is not a part of a cycle, which only the garbage collector would free."""
    node = mesh.Node("a")
    node.subscribe(print)
    gone = weakref.ref(node)
    gc.disable()
    try:
        del node
        assert gone() is None
    finally:
        gc.enable()


def test_only_a_function_subscribes() -> None:
    """Anything else is a mistake of the caller."""
    with pytest.raises(ArgumentError, match="subscribe"):
        mesh.Node("a").subscribe("print")  # type: ignore[arg-type]  # wrong on purpose
