"""The store of a replica: claims that are cancelled, and what is left when it closes."""

from __future__ import annotations

import asyncio
import gc
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.errors import ReplicaBuried, StoreLost
from quiesce.mesh.protocol.facts import Begun, Over
from quiesce.mesh.store.record_rows import RecordRows
from quiesce.mesh.store.rows import Notice
from quiesce.mesh.store.shared_store import SharedStore
from quiesce.mesh.store.sqlite_database import SqliteDatabase
from tests.loops import let_others_run
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import Gate, replica_of, store_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from quiesce.mesh.store.rows import Batch, EdgeRow

pytestmark = pytest.mark.real_time

EDGE, CASCADE = b"e" * 16, b"c" * 16
BEGUN = Begun(EDGE, CASCADE, "", None)


class Forgetful(Gate):
    """A file whose answer to the first change is lost, and that remembers the batches."""

    def __init__(self, path: Path, *, lost: int = 0) -> None:
        """Begin with all open."""
        super().__init__(path)
        self.lost = lost
        self.batches: list[Batch] = []

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write, and lose the answer to some."""
        self.batches.append(batch)
        found = await super().apply(batch)
        if self.lost:
            self.lost -= 1
            message = "the answer was lost"
            raise StoreLost(message)
        return found


def brief_store(database: SqliteDatabase) -> SharedStore:
    """Return a store for which nobody waits for long, and whose clock goes on."""
    now = itertools.count(1000)
    rows = RecordRows("a", "a1", lambda: float(next(now)), lambda: 60.0)
    return SharedStore(database, replica_of("a1"), rows, within=0.05)


@asynccontextmanager
async def writing(
    database: SqliteDatabase, store: SharedStore | None = None, *, within: float = 30.0
) -> AsyncIterator[SharedStore]:
    """Open a store that writes."""
    store = store or store_in(database, within=within)
    async with store.opened(), anyio.create_task_group() as group:
        group.start_soon(store.write)
        yield store
        group.cancel_scope.cancel()


async def cancelled_when_won(store: SharedStore) -> asyncio.Task[Any]:
    """Return a claim that is cancelled in the step in which it is won."""
    claiming = asyncio.ensure_future(store.claim(BEGUN))
    await asyncio.sleep(0)
    store.notify([Notice("b1", "cancel", EDGE)])
    store.when_written(lambda: (claiming.cancel(), None)[1])
    return claiming


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_claim_that_is_won_while_its_request_is_cancelled_is_given_back(
    tmp_path: Path,
) -> None:
    """Nobody runs its message, so its row must not say that somebody does: a copy may run."""
    async with writing(SqliteDatabase(tmp_path / "rows.db")) as store:
        claiming = await cancelled_when_won(store)
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await store.written()
        assert await store.find("hop", [EDGE]) == {}
        assert store.rows.is_empty
        assert await store.claim(BEGUN) is None


async def test_a_message_that_is_given_back_may_be_claimed_at_once(tmp_path: Path) -> None:
    """A copy that comes before the row was removed wins, and its row stays."""
    async with writing(SqliteDatabase(tmp_path / "rows.db")) as store:
        assert await store.claim(BEGUN) is None
        store.rows.give_back(store.rows.claim_of(BEGUN))
        assert await store.claim(BEGUN) is None
        await store.written()
        assert list(await store.find("hop", [EDGE])) == [EDGE]


async def test_claims_that_wait_when_a_store_closes_end_with_it(tmp_path: Path) -> None:
    """A request does not wait for a store that nobody writes any more, and leaves no row behind."""
    database = SqliteDatabase(tmp_path / "rows.db")
    store, lost = store_in(database), list[BaseException]()

    async def claim() -> None:
        try:
            await store.claim(BEGUN)
        except StoreLost as error:
            lost.append(error)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group, store.opened():
            store.notify([Notice("b1", "cancel", EDGE)])
            group.start_soon(claim)
            await let_others_run()
        assert len(lost) == 1
        other = SqliteDatabase(tmp_path / "rows.db")
        await other.open()
        assert await other.find("hop", [EDGE]) == {}
        assert [one.state for one in await other.replicas("a")] == ["left"]
        await other.close()


def kept(kind: str) -> int:
    """Return how many objects of a class there are."""
    return sum(type(one).__name__ == kind for one in gc.get_objects())


async def test_claims_are_not_kept_while_the_store_is_lost(tmp_path: Path) -> None:
    """However many messages come and are refused meanwhile, no claim of them is left."""
    store = store_in(SqliteDatabase(tmp_path / "rows.db"), within=0.001)
    gc.collect()
    before = kept("_Claim")
    for number in range(10):  # nobody writes
        with pytest.raises(StoreLost):
            await store.claim(Begun(bytes([number]) * 16, CASCADE, "", None))
    gc.collect()
    assert kept("_Claim") <= before + 1  # that of the last error


async def test_a_notice_that_is_asked_for_again_is_written_once(tmp_path: Path) -> None:
    """Senders repeat themselves while the store is lost, and the memory does not grow by that."""
    database = SqliteDatabase(tmp_path / "rows.db")
    async with writing(database) as store:
        for _ in range(5):
            store.notify([Notice("b1", "cancel", EDGE)])
        await store.written()
        assert len(await database.notices(["b1"])) == 1


async def test_a_close_says_that_records_were_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that does not answer keeps no process from its end, and the loss is in the log."""
    monkeypatch.setattr("quiesce.mesh.store.shared_store._FLUSH_SECONDS", 0.05)
    gate = Gate(tmp_path / "rows.db")
    store = store_in(gate)
    with anyio.fail_after(20):
        async with store.opened():
            gate.may_write = anyio.Event()
            store.notify([Notice("b1", "cancel", EDGE)])
    assert "has closed without writing its last records" in caplog.text


async def test_a_claim_that_was_given_up_does_not_show_when_the_store_is_back(
    tmp_path: Path,
) -> None:
    """A message that was refused while the store was lost is never seen as one that somebody works on."""
    gate = Gate(tmp_path / "rows.db")
    gate.is_lost = True
    async with writing(gate, within=0.05) as store:
        with pytest.raises(StoreLost):
            await store.claim(BEGUN)
        before = gate.failures
        await until(lambda: gate.failures > before + 1)
        gate.is_lost = False
        await until(lambda: store.error is None)
        assert gate.claimed == []


async def states_in(path: Path) -> tuple[list[bytes], list[str], int]:
    """Return what a store has after its processes have gone: rows, states of replicas, and the number of notices."""
    other = SqliteDatabase(path)
    await other.open()
    try:
        rows = [*await other.find("hop", [EDGE])]
        states = [str(one.state) for one in await other.replicas("a")]
        return rows, states, len(await other.notices(["b1"]))
    finally:
        await other.close()


async def test_a_claim_whose_answer_was_lost_is_won(tmp_path: Path) -> None:
    """The second try finds the row of the first one, which is its own: nobody else runs the message."""
    async with writing(Forgetful(tmp_path / "rows.db", lost=1)) as store:
        assert await store.claim(BEGUN) is None
        assert not store.rows.is_empty


async def test_a_change_that_fails_is_written_again(tmp_path: Path) -> None:
    """Whoever waits learns in time that the store is lost, and the records are written when it is back."""
    gate = Gate(tmp_path / "rows.db")
    gate.is_lost = True
    async with writing(gate, brief_store(gate)) as store:
        store.add([BEGUN])
        with pytest.raises(StoreLost, match="has not written for"):
            await store.written()
        assert store.error is not None
        gate.is_lost = False
        await until(lambda: store.error is None)
        await store.written()
        assert list(await store.find("hop", [EDGE])) == [EDGE]


async def test_a_claim_that_is_not_answered_in_time_is_not_won(tmp_path: Path) -> None:
    """A claim ends with an error while the store is lost, and is given back when the store is there again."""
    gate = Gate(tmp_path / "rows.db")
    gate.may_write = anyio.Event()
    async with writing(gate, brief_store(gate)) as store:
        with pytest.raises(StoreLost, match="has not written for"):
            await store.claim(BEGUN)
        gate.may_write.set()
        while await store.find("hop", [EDGE]) or not store.rows.is_empty or store.rows.is_changed:
            await let_others_run()
        assert await store.claim(BEGUN) is None


async def test_a_claim_that_is_cancelled_on_its_way_is_given_back(tmp_path: Path) -> None:
    """It is won when nobody waits for it any more, so its row goes with the next change."""
    gate = Forgetful(tmp_path / "rows.db")
    gate.may_write = anyio.Event()
    async with writing(gate) as store:
        async with anyio.create_task_group() as group:
            group.start_soon(store.claim, BEGUN)
            await until(lambda: gate.batches)
            group.cancel_scope.cancel()
        gate.may_write.set()
        await until(lambda: len(gate.batches) == 2)
        await store.written()
        assert await store.find("hop", [EDGE]) == {}


async def test_a_claim_that_is_cancelled_before_it_is_written_never_is(tmp_path: Path) -> None:
    """A refusal for good that nobody waits for is not in the store, where it could not be taken back."""
    gate = Forgetful(tmp_path / "rows.db")
    gate.may_write = anyio.Event()
    async with writing(gate) as store:
        store.notify([Notice("b1", "cancel", EDGE)])
        await until(lambda: gate.batches)
        async with anyio.create_task_group() as group:
            group.start_soon(store.claim, Over(EDGE))
            await let_others_run()
            group.cancel_scope.cancel()
        gate.may_write.set()
        await store.written()
        assert await store.claim(BEGUN) is None


async def test_a_copy_wins_when_the_first_request_is_cancelled(tmp_path: Path) -> None:
    """A second claim in the same process waits for the first, and does not lose to a row that is given back."""
    gate, found, scope = Forgetful(tmp_path / "rows.db"), list[object](), anyio.CancelScope()
    before = gate.may_write = anyio.Event()

    async with writing(gate) as store:

        async def leave() -> None:
            with scope:
                found.append(await store.claim(BEGUN))

        async def stay() -> None:
            found.append(await store.claim(BEGUN))

        store.notify([Notice("b1", "cancel", EDGE)])
        await until(lambda: gate.batches)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(leave)
                await let_others_run()
                group.start_soon(stay)
                await let_others_run()
                gate.may_write = anyio.Event()
                before.set()
                await until(lambda: len(gate.batches) == 2)  # with the first claim
                scope.cancel()
                await let_others_run()
                gate.may_write.set()
        assert found == [None]
        await store.written()
        assert list(await store.find("hop", [EDGE])) == [EDGE]


async def test_of_two_claims_at_the_same_time_of_the_clock_one_is_won(tmp_path: Path) -> None:
    """Rows that are equal, because a clock is coarse, are still the rows of two claims."""
    found: list[EdgeRow | None] = []

    async with writing(SqliteDatabase(tmp_path / "rows.db")) as store:

        async def claim() -> None:
            found.append(await store.claim(BEGUN))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(claim)
                group.start_soon(claim)
        assert found == [None, store.rows.claim_of(BEGUN)]


async def test_all_waits_end_when_a_replica_is_declared_dead(tmp_path: Path) -> None:
    """Nothing of it is written any more, and what had to wait for that does not happen."""
    gate, buried, done = Gate(tmp_path / "rows.db"), list[str](), list[str]()
    gate.may_write = anyio.Event()

    async with writing(gate) as store:

        async def wait(name: str) -> None:
            try:
                await (store.claim(BEGUN) if name == "claim" else store.written())
            except ReplicaBuried as error:
                buried.append(f"{name}: {error.why}")

        store.notify([Notice("b1", "cancel", EDGE)])
        store.when_written(lambda: done.append("told"))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(wait, "claim")
                group.start_soon(wait, "written")
                await let_others_run()
                store.bury(ReplicaBuried("a1", "it was unplugged"))
        gate.may_write.set()
    assert sorted(buried) == ["claim: it was unplugged", "written: it was unplugged"]
    assert done == []


async def test_what_is_left_is_written_when_a_store_closes(tmp_path: Path) -> None:
    """The last records of a node, which nobody waited for, are in the store when it has closed."""
    store = store_in(SqliteDatabase(tmp_path / "rows.db"))
    async with store.opened():
        store.notify([Notice("b1", "cancel", EDGE)])
    assert await states_in(tmp_path / "rows.db") == ([], ["left"], 1)


@pytest.mark.parametrize(("work", "state"), [("stopped", "dead"), ("running", "alive")])
async def test_open_rows_are_left_to_others_when_all_work_has_stopped(
    tmp_path: Path, work: str, state: str
) -> None:
    """A replica that has closed with work that still runs is not dead: its messages must not be reported as lost."""
    async with writing(SqliteDatabase(tmp_path / "rows.db")) as store:
        store.has_stopped = lambda: work == "stopped"
        assert await store.claim(BEGUN) is None
    assert await states_in(tmp_path / "rows.db") == ([EDGE], [state], 0)


async def test_a_claim_under_way_when_a_store_closes_is_given_back(tmp_path: Path) -> None:
    """Its request ends at once, so nobody will run its message here."""
    gate, lost = Forgetful(tmp_path / "rows.db"), list[BaseException]()
    gate.may_write = anyio.Event()
    store = store_in(gate)

    async def claim() -> None:
        try:
            await store.claim(BEGUN)
        except StoreLost as error:
            lost.append(error)
            gate.may_write.set()

    with anyio.fail_after(20):
        async with (
            anyio.create_task_group() as group,
            store.opened(),
            anyio.create_task_group() as writer,
        ):
            writer.start_soon(store.write)
            group.start_soon(claim)
            await until(lambda: gate.batches)
            writer.cancel_scope.cancel()
    assert len(lost) == 1
    assert await states_in(tmp_path / "rows.db") == ([], ["left"], 0)


async def test_a_claim_after_a_store_has_closed_does_not_wait(tmp_path: Path) -> None:
    """Nobody would write it."""
    store = store_in(SqliteDatabase(tmp_path / "rows.db"))
    async with store.opened():
        pass
    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(StoreLost, match="is being closed together with its node"):
            await store.claim(BEGUN)
    assert not scope.cancelled_caught
