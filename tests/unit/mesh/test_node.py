"""A node: what it is made of, its life, and what becomes of hops and receipts when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import ArgumentError, Scope, ScopeClosed, UsageError
from quiesce.core.roots import roots
from quiesce.errors import EdgeRefused, JournalInUse, LocalProtocolError, RemoteProtocolError
from quiesce.mesh import Memory, Node, Patience, Settled, Unknown
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import World, here, leaves, nothing, questions

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


# What it is made of.


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://a"},
        {"url": "a"},
        {"url": "http://a?b"},
        {"url": "http://user:secret@a"},
        {"url": "http://a:port"},
        {"url": 7},
        {"peers": "http://b"},
        {"peers": ["b"]},
        {"peers": None},
        {"durability": "none", "store": "x"},
        {"keep_seconds": -1},
        {"keep_seconds": float("nan")},
        {"keep_seconds": float("inf")},  # it could be written, and not be read
        {"services": "loop"},
        {"name": None},
        {"name": ""},
        {"url": "http://0.0.0.0:8000"},
        {"url": "http://[::]:8000"},
        {"store": 5},
        {"store": ""},
        {"store": "."},
        {"durability": "disk"},
        {"patience": 5},
        {"patience": {"give_up": 3}},
        {"transport": "http"},
        {"hops_max": "many"},
        {"hops_max": 0},
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any]) -> None:
    """When it is made, not when it is opened."""
    with pytest.raises((ArgumentError, LocalProtocolError)):
        Node(**({"name": "a"} | options))


def test_a_node_shows_its_name_state_and_hops() -> None:
    """Before it is open, too."""
    assert repr(Node("a", url="http://a/")) == "<Node 'a' new or closed, 0 hops>"
    assert Node("a", url="http://a/").url == "http://a"


# Its life.


async def test_a_node_is_open_in_its_block() -> None:
    """Before and after that it takes nothing."""
    node = Node("a", url="http://a", transport=Memory())
    with pytest.raises(UsageError, match="not open"):
        node.cascade("c")
    async with node:
        with pytest.raises(UsageError, match="already open"):
            await node.open()
        async with node.cascade("c") as cascade:
            assert len(node.frontier().in_flight) == 1
        assert isinstance(await cascade.settled(1), Settled)
    with pytest.raises(UsageError, match="not open"):
        node.cascade("d")
    assert not roots


async def test_a_node_may_be_opened_again(tmp_path: Path) -> None:
    """As often as one likes; it goes on from its journal."""
    async with World(tmp_path) as world:
        node = world.make("a")
        for _ in range(3):
            await node.open()
            async with node.cascade("c") as cascade:
                pass
            assert (await cascade.settled(1)).ok
            assert (await node.drain(1)).ok
            assert node.recovered == ()


async def test_a_block_that_fails_cancels_what_is_worked_on() -> None:
    """As that of a scope does."""
    node = Node("a", transport=Memory())

    async def fail() -> None:
        async with node:
            async with node.cascade("c"):
                here().spawn(anyio.sleep_forever)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert not node.opened.running_hops


async def test_a_scope_around_it_closes_it(tmp_path: Path) -> None:
    """Then its journal is free, its address as well, and who waits is told."""
    async with World(tmp_path) as world:
        node = world.make("a")
        async with Scope("program"):
            await node.open()
            async with node.cascade("c") as cascade:
                with here().delegate("http://b") as handing:
                    handing.in_doubt()
        assert isinstance(await cascade.settled(), Unknown)
        assert repr(node) == "<Node 'a' new or closed, 0 hops>"
        await node.open()
        assert len(node.recovered) == 1


async def test_what_is_opened_in_vain_leaves_nothing(tmp_path: Path) -> None:
    """Neither scope, nor journal, nor address."""
    async with World(tmp_path) as world:
        first, second = await world.add("a"), world.make("a")
        with pytest.raises(JournalInUse):
            await second.open()
        third = world.make("a", store=tmp_path / "other")
        with pytest.raises(UsageError, match="another node is open at http://a"):
            await third.open()
        assert sorted(root.name for root in roots) == ["node a", "servers"]
        await first.drain(1)
        await third.open()
        await third.drain(1)
        await second.open()
        await second.drain(1)


async def test_two_nodes_of_a_process_hand_to_each_other() -> None:
    """Also from one to itself; each hop is its own."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        seen: list[tuple[str, str]] = []

        async def again(hop: Hop) -> None:
            seen.append((hop.mesh_node.name, here().mark))
            assert here() is hop
            if len(seen) < 4:
                await world.hand("ba"[len(seen) % 2], again)

        async with node.cascade("c") as cascade:
            await world.hand("a", again)
        found = await cascade.settled(1, require="participants")
        assert [name for name, _ in seen] == ["a", "a", "b", "a"]
        assert found.receipt.hops == 5
        assert len(set(seen)) == 4


# A drain.


async def test_a_drain_lets_hops_end_and_takes_no_others() -> None:
    """What comes meanwhile is refused, and its sender told so; nothing new is begun."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        async with Scope("program") as scope:
            job = scope.spawn(other.drain)
            await turns(3)
            async with node.cascade("late") as late:
                await world.hand("b", nothing)
            assert [note.status for note in (await late.settled(1)).receipt.notes] == [
                "done",
                "refused",
            ]
            begin = other.cascade("d")
            with pytest.raises(ScopeClosed):
                await begin.__aenter__()
            assert other.opened.engine.known.roots() == []
            assert not job.done()
            gate.set()
            report = await job
        assert report.ok, report
        found = await cascade.settled(1, require="participants")
        assert found.ok
        assert found.receipt.cancelled == 0  # it was done: nobody has cut it short


async def test_a_drain_that_takes_too_long_cancels() -> None:
    """And says so to the sender."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        report = await other.drain(0.05)
        assert len(report.cancelled) == 1
        found = await cascade.settled(1, require="participants")
        assert isinstance(found, Settled)
        assert found.receipt.cancelled == 1


@pytest.mark.parametrize("way", ["node", "scope"])
@pytest.mark.parametrize("how", ["drain", "aclose"])
async def test_a_node_is_not_closed_before_its_receipts_are_posted(way: str, how: str) -> None:
    """A line that is cut for a moment costs nothing: the receipt is there before the node is gone."""
    async with World() as world:
        node = await world.add("a")
        program = await Scope.open("program")
        async with Scope("opening"):
            other = world.make("b")
            program_token = program.spawn(other.open)
            await program_token
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        world.lines.cut.add("http://a")
        closer = other if way == "node" else program

        async def close() -> None:
            await (closer.aclose(3) if how == "aclose" else closer.drain(0.05))

        async with Scope("closing") as scope:
            job = scope.spawn(close)
            with anyio.move_on_after(0.3):
                await job
            assert not job.done()
            assert not other.opened.running_hops
            assert other.opened.engine.unposted == 1
            world.lines.cut.clear()
            await job
        assert other.opened.engine.unposted == 0
        found = await cascade.settled(1, require="participants")
        assert isinstance(found, Settled)
        assert found.receipt.cancelled == 1
        await program.aclose(1)


@pytest.mark.backends("asyncio", "trio")  # their time jumps
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("way", ["work ended in the grace", "work was cut", "aclose", "by a scope"])
async def test_an_untaken_receipt_is_waited_for_while_work_may_clean_up(
    journal: bool,  # noqa: FBT001 - a case
    way: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For `cleanup` seconds, and then it is a loss, unless there is a journal; the report says which."""
    async with World(tmp_path if journal else None) as world:
        node, other = await world.add("a"), world.make("b", patience=Patience())
        program = await Scope.open("program")
        await program.spawn(other.open)
        async with node.cascade("c"):
            await world.hand("b", leaves)
        world.lines.cut.add("http://a")
        began = anyio.current_time()
        if way == "work ended in the grace":
            for hop in list(other.opened.running_hops.values()):
                hop.cancel_work()
            report = await other.drain(60, cleanup=7)
        elif way == "work was cut":
            report = await other.drain(1, cleanup=6)
        elif way == "aclose":
            report = await other.aclose(7)
        else:
            report = await program.aclose(7)
        took = anyio.current_time() - began
        assert 6.9 <= took < 8
        to = "to http://a (the line to http://a is cut). "
        assert f"node 'b': 1 receipt was not posted before the node closed: {to}" in caplog.text
        assert ("open it again with its journal" in caplog.text) is journal
        assert ("The node has no journal, so it is lost" in caplog.text) is not journal
        assert [item.name for item in report.undelivered] == ([] if journal else ["to be posted"])
        await program.aclose()


@pytest.mark.backends("asyncio", "trio")  # their time jumps
@pytest.mark.parametrize("is_back", [False, True])
async def test_a_drain_does_not_wait_for_the_next_retry_of_a_receipt(
    *, is_back: bool, tmp_path: Path
) -> None:
    """It tries at once, and for `cleanup` seconds: the next retry may be half a minute away."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", patience=Patience())
        async with node.cascade("c"):
            await world.hand("b", leaves)
        world.lines.cut.add("http://a")
        for hop in list(other.opened.running_hops.values()):
            hop.cancel_work()
        with anyio.move_on_after(100):  # of virtual time
            await anyio.Event().wait()
        if is_back:
            world.lines.cut.clear()
        began = anyio.current_time()
        report = await other.drain(60, cleanup=7)
        took = anyio.current_time() - began
        assert took < 1 if is_back else 6.9 <= took < 8
        assert report.ok


async def test_a_question_is_answered_before_the_node_is_gone() -> None:
    """A sender without an address waits for an answer: it gets it."""
    async with World() as world:
        node, other = await world.add("a", url=None), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        await turns(10)
        assert questions(other) == 1
        await other.drain(0.05)
        found = await cascade.settled(0.5, require="participants")
        assert isinstance(found, Settled)
        assert found.receipt.cancelled == 1


async def test_a_drain_that_is_cancelled_closes() -> None:
    """The cancellation is passed on when the node is closed."""
    async with World() as world:
        node = await world.add("b")
        async with node.cascade("c"):
            here().spawn(anyio.sleep_forever)
        with anyio.move_on_after(0.05) as scope:
            await node.drain(None)
        assert scope.cancelled_caught
        assert node.own_scope is None
        await node.open()


async def test_a_node_may_be_drained_from_one_of_its_own_hops(tmp_path: Path) -> None:
    """It does not wait for itself; its hop has not ended before it has, so its end is known later."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        reports: list[Any] = []

        gate = anyio.Event()

        async def stop() -> None:
            reports.append(await other.drain(1))
            await gate.wait()

        async def handler(hop: Hop) -> None:
            hop.spawn(stop)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        began = anyio.current_time()
        assert isinstance(await cascade.settled(0.3), Unknown)
        (report,) = reports
        assert report.ok
        gate.set()
        await turns(20)
        assert other.own_scope is None
        assert anyio.current_time() - began < 0.9  # nobody has waited for himself
        await other.open()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.hops == 2


# What comes.


async def test_a_message_is_worked_on_once(tmp_path: Path) -> None:
    """A copy is told how it stands: while it is worked on, and when it has ended."""
    ran: list[str] = []

    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            ran.append(hop.mark)
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                first = await world.deliver("b", handing.header, handler)
                copy = await world.deliver("b", handing.header, handler)
                assert first == copy == f"00-{handing.mark};s=working"
                handing.answered(first)
        gate.set()
        assert (await cascade.settled(1)).ok
        again = await world.deliver("b", handing.header, handler)
        assert again == f"00-{handing.mark};s=unknown"
        assert ran == [handing.mark]


async def test_the_sender_of_a_copy_is_to_ask_if_that_of_the_first_was() -> None:
    """Else its sender would wait for a receipt that nobody posts."""
    async with World() as world:
        node, _ = await world.add("a", url="http://elsewhere"), await world.add("b")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                for _ in range(2):
                    told = await world.deliver("b", handing.header, leaves)
                    assert told == f"00-{handing.mark};s=working;d=ask"


@pytest.mark.parametrize(
    ("moved", "taken"),
    [
        (0.0, True),
        (-290.0, True),
        (-310.0, True),
        (-86_000.0, True),
        (-87_000.0, False),
        (3600.0 + 290.0, True),
        (3600.0 + 310.0, False),
    ],
)
async def test_a_sender_may_be_a_day_ahead_and_an_hour_behind(
    moved: float,
    taken: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
) -> None:
    """Beyond that a message is refused: its copies could come after it was forgotten."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        other.opened.engine.horizon.wall = lambda: world.wall + moved
        async with node.cascade("c") as cascade:
            await world.hand("b", nothing)
        found = await cascade.settled(1)
        assert (found.receipt.hops == 2) == taken
        # Of one that comes too early it cannot be said that it never will run.
        assert found.ok == (moved > -86_400)


async def test_a_sender_that_keeps_messages_for_longer_is_taken(tmp_path: Path) -> None:
    """The message is remembered for as long as its copies may come."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a", keep_seconds=9000.0), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", nothing)
        found = await cascade.settled(1)
        assert found.ok, found


@pytest.mark.backends("asyncio", "trio")
async def test_a_message_is_remembered_for_as_long_as_it_may_come(tmp_path: Path) -> None:
    """Whenever a copy comes, it is refused: as known, or as too late."""
    ran: list[str] = []

    async def handler(hop: Hop) -> None:
        ran.append(hop.mark)

    async with World(tmp_path) as world:
        node, other = await world.add("a", keep_seconds=100), await world.add("b", keep_seconds=100)
        other.opened.engine.horizon.wall = lambda: world.wall - 299  # late, as far as it may be
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(await world.deliver("b", handing.header, handler))
        assert (await cascade.settled(1)).ok
        for _ in range(60):
            await lasting(20)
            world.wall += 20
            with pytest.raises(EdgeRefused):
                other.handle(handing.header)
        assert len(ran) == 1
        await lasting(3000)
        assert not other.opened.engine.known.over_receipts
        assert not other.opened.engine.known.long_over_receipts


async def test_too_many_at_once_are_refused(tmp_path: Path) -> None:
    """Their sender asks, and knows then that they are never worked on."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", hops_max=2)
        async with node.cascade("c") as cascade:
            for _ in range(5):
                await world.hand("b", leaves)
        assert len(other.opened.running_hops) == 2
        await cascade.cancel()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.hops == 3


async def test_what_is_not_of_the_protocol_begins_nothing() -> None:
    """Neither a hop, nor a note of it."""
    async with World() as world:
        node = await world.add("a")
        for text in ("", "00", "x" * 5000, b"\xff"):
            with pytest.raises(RemoteProtocolError):
                node.handle(text)
        assert not node.opened.running_hops
        assert not node.opened.engine.known.over_receipts
