"""The store of a replica: claims that are cancelled, and what is left when it closes."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.errors import StoreLost
from quiesce.mesh.protocol.facts import Begun
from quiesce.mesh.store.rows import Notice
from quiesce.mesh.store.sqlite_database import SqliteDatabase
from tests.loops import let_others_run
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import Gate, store_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from quiesce.mesh.store.shared_store import SharedStore

pytestmark = pytest.mark.real_time

EDGE, CASCADE = b"e" * 16, b"c" * 16
BEGUN = Begun(EDGE, CASCADE, "", None)


@asynccontextmanager
async def writing(database: SqliteDatabase, *, within: float = 30.0) -> AsyncIterator[SharedStore]:
    """Open a store that writes."""
    store = store_in(database, within=within)
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
