"""Replicas behind one address: a message runs once, and any replica knows what the others know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import ReplicaBuried, UsageError
from quiesce.mesh import Hop, Patience, Settled, SettledWithLosses
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import deliver, nothing, town

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real_time


async def test_a_message_runs_in_one_replica_and_its_copy_in_none(tmp_path: Path) -> None:
    """A copy that reaches another replica is refused, and the answer tells the truth about the first one."""
    ran: list[str] = []

    async def run(hop: Hop) -> None:
        ran.append(hop.mark)

    async with town(tmp_path) as here:
        root, first, second = await here.add("a"), await here.add("b"), await here.add("b")
        async with root.cascade("trip") as cascade:
            header = await here.hand(first, run)
            told = await deliver(second, header, run)
            again = await deliver(first, header, run)
        assert len(ran) == 1
        assert "s=closed" in told
        assert "s=closed" in again
        assert isinstance(await cascade.settled(30), Settled)


async def test_copies_at_the_same_time_run_once(tmp_path: Path) -> None:
    """Of many copies that reach all replicas at the same time, one runs."""
    ran: list[str] = []
    told: list[str] = []

    async def run(hop: Hop) -> None:
        ran.append(hop.mark)
        await anyio.lowlevel.checkpoint()

    async with town(tmp_path) as here:
        root = await here.add("a")
        replicas = [await here.add("b") for _ in range(3)]

        async def copy(number: int, header: str) -> None:
            told.append(await deliver(replicas[number % 3], header, run))

        async with root.cascade("trip") as cascade:
            hop = cascade_hop()
            async with hop.delegate("http://b") as handing, anyio.create_task_group() as group:
                for number in range(12):
                    group.start_soon(copy, number, handing.header)
            handing.in_doubt()
        assert len(ran) == 1
        assert all("s=closed" in one or "s=working" in one for one in told)
        verdict = await cascade.settled(30)
        assert isinstance(verdict, Settled), verdict


def cascade_hop() -> Hop:
    """Return the hop of the block that the test is in."""
    from quiesce.mesh.runtime.hop import current_hop  # noqa: PLC0415 - beside its use

    hop = current_hop()
    assert hop is not None
    return hop


async def test_a_receipt_reaches_the_replica_that_waits_for_it(tmp_path: Path) -> None:
    """The receipt of work that outlives the answer comes to any replica, and wakes the one that has sent the message."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, _, agent = await here.add("a"), await here.add("a"), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        done.set()
        verdict = await cascade.settled(30)
        assert isinstance(verdict, Settled), verdict
        assert verdict.receipt.hops == 2


async def test_a_root_without_an_address_hears_of_the_end_at_once(tmp_path: Path) -> None:
    """A program that nobody can call gets the receipts of its messages through the store."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        slow = Patience(
            retry_first=600, ask_in_doubt=600, ask_every=600
        )  # nothing is asked for in time
        root, agent = (
            await here.add("a", url=None, patience=slow),
            await here.add("b", patience=slow),
        )
        async with root.cascade("trip") as cascade, cascade_hop().delegate("http://b") as handing:
            handing.answered(await deliver(agent, handing.header, leave))
        done.set()
        verdict = await cascade.settled(30)
        assert isinstance(verdict, Settled), verdict


async def test_a_cascade_through_replicas_is_cancelled(tmp_path: Path) -> None:
    """A request to end reaches the replica that works, whichever replica it comes to."""

    async def work(hop: Hop) -> None:
        hop.spawn(anyio.sleep_forever)

    async with town(tmp_path) as here:
        root = await here.add("a")
        agents = [await here.add("b") for _ in range(3)]
        async with root.cascade("trip") as cascade:
            for agent in agents:
                await here.hand(agent, work)
        await cascade.cancel()
        verdict = await cascade.settled(30)
        assert verdict.receipt.cancelled == 3
        assert verdict.receipt.unknown == 0


async def test_a_question_of_any_replica_is_answered_by_any(tmp_path: Path) -> None:
    """An edge that never came to any replica is refused for good in all of them."""
    async with town(tmp_path) as here:
        root, first, second = await here.add("a"), await here.add("b"), await here.add("b")
        async with root.cascade("trip") as cascade, cascade_hop().delegate("http://b") as handing:
            header = handing.header
        verdict = await cascade.settled(30)
        assert verdict.receipt.undelivered == 1
        assert verdict.receipt.unknown == 0
        for agent in (first, second):
            assert "s=never" in await deliver(agent, header, nothing)


async def test_the_same_replica_started_again_takes_over(tmp_path: Path) -> None:
    """What the earlier process was working on is lost, its edges are followed to their end, and it may not go on."""
    done = anyio.Event()

    async def last(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, old = await here.add("a"), await here.add("b", replica="b-0")
        below = await here.add("c")

        async def middle(hop: Hop) -> None:
            hop.spawn(anyio.sleep_forever)
            await here.hand(below, last)

        async with root.cascade("trip") as cascade:
            await here.hand(old, middle)
        here.replicas["b"].remove(old)
        new = await here.add("b", replica="b-0")
        done.set()
        verdict = await cascade.settled(30)
        assert isinstance(verdict, SettledWithLosses), verdict
        assert verdict.receipt.lost == 1
        assert {note.name: note.status for note in verdict.receipt.notes} == {
            "a": "done",
            "b": "lost",
            "c": "done",
        }
        assert new.health.ok
        await until(lambda: not old.health.ok)
        with pytest.raises(ReplicaBuried):
            old.cascade("another")


async def test_a_root_that_comes_back_finds_its_cascade(tmp_path: Path) -> None:
    """The replica that starts again has the cascades of the earlier process by name, and gets their verdicts."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        old, agent = await here.add("a", replica="a-0"), await here.add("b")
        async with old.cascade("trip"):
            await here.hand(agent, leave)
        await old.opened.written()  # that the block has ended
        here.replicas["a"].remove(old)
        new = await here.add("a", replica="a-0")
        (cascade,) = new.recovered
        assert cascade.name == "trip"
        done.set()
        verdict = await cascade.settled(30)
        assert isinstance(verdict, Settled), verdict


async def test_a_message_is_not_sent_before_its_record_has_lasted(tmp_path: Path) -> None:
    """With a shared store, the header of a message can be read only when the message may leave."""
    async with town(tmp_path) as here:
        root = await here.add("a")
        async with root.cascade("trip") as cascade:
            with cascade_hop().delegate("http://b") as handing:
                with pytest.raises(UsageError, match=r"async with hop\.delegate"):
                    _ = handing.header
                handing.not_sent()
        assert isinstance(await cascade.settled(30), Settled)


async def test_an_old_process_does_not_bury_the_one_that_took_its_name(tmp_path: Path) -> None:
    """It may run on for a moment after the start of the new one, and look after the others."""
    async with town(tmp_path) as here:
        old, new = await here.add("b", replica="b-0"), await here.add("b", replica="b-0")
        assert old.opened.shared is not None
        await old.opened.shared.watch.look()
        assert new.opened.shared is not None
        await new.opened.shared.store.database.beat(new.opened.shared.store.replica.incarnation)
        await until(lambda: not old.health.ok)
        assert new.health.ok


async def test_rows_are_over_when_their_answers_have_left(tmp_path: Path) -> None:
    """A message whose receipt was in its answer leaves nothing behind that would stay for ever."""

    async def hand_on(_: Hop) -> None:
        await here.hand(last, nothing)

    async with town(tmp_path) as here:
        root, middle, last = await here.add("a"), await here.add("b"), await here.add("c")
        async with root.cascade("trip") as cascade:
            await here.hand(middle, hand_on)
        assert isinstance(await cascade.settled(30), Settled)
        for node in (root, middle, last):
            assert node.opened.shared is not None
            store = node.opened.shared.store
            await store.written()
            assert store.rows.is_empty
        rows = await store.database.cascade(bytes.fromhex(cascade.id))
        assert [row.state for row in rows] == ["over"] * 3
        assert all(row.keep_until for row in rows)
