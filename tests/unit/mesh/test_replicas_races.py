"""What replicas do for each other: what the dead have left is not lost, and nobody waits for the dead for ever."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import StoreLost
from quiesce.mesh import Hop, Patience, Settled, Unknown
from quiesce.mesh.protocol.codec import parse_request_header
from quiesce.mesh.protocol.receipt import edge_key
from quiesce.mesh.store import replica_watch
from quiesce.mesh.store.replica_watch import ReplicaWatch
from quiesce.mesh.store.rows import Batch, Notice
from quiesce.mesh.store.sqlite_database import SqliteDatabase
from tests.loops import let_others_run
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import Gate, deliver, nothing, replica_of, store_in, town

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.real_time

EDGE = b"e" * 16


async def incarnation_of(database: SqliteDatabase, agent: str, name: str) -> str:
    """Return the incarnation of a replica."""
    (found,) = [one for one in await database.replicas(agent) if one.name == name]
    return found.incarnation


@asynccontextmanager
async def looking(folder: Path) -> AsyncIterator[SqliteDatabase]:
    """Open the store of a town, as an operator does."""
    database = SqliteDatabase(folder / "mesh.db")
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def test_what_a_dead_replica_has_left_is_not_forgotten_before_its_heir_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica than the heir keeps the entry and the notices, however long ago the death was."""
    monkeypatch.setattr(replica_watch, "_FORGET_SECONDS", -1.0)
    database = SqliteDatabase(tmp_path / "rows.db")
    store = store_in(database, "a3")
    async with store.opened():
        for name in ("a1", "a2", "old"):
            await database.enroll(replica_of(name))
        await database.apply(Batch("a2", notices=[Notice("a1", "receipt", EDGE)]))
        for name in ("a1", "old"):
            await database.end(name, is_dead=True)
            await database.inherit(name, "a2", "")
        watch = ReplicaWatch(store, lambda _: None, lambda _: None)
        with anyio.move_on_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(watch.beat)
                while "old" in [one.incarnation for one in await database.replicas("a")]:
                    await let_others_run()
                group.cancel_scope.cancel()
        assert sorted(one.incarnation for one in await database.replicas("a")) == ["a1", "a2", "a3"]
        assert len(await database.notices(["a1"])) == 1


async def test_a_receipt_that_comes_before_the_rows_of_a_dead_replica_is_not_lost(
    tmp_path: Path,
) -> None:
    """The heir reads notices for the dead only when it has the rows that they are about."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    gate = Gate(tmp_path / "mesh.db")
    async with town(tmp_path) as here, looking(tmp_path) as database:
        first = await here.add("a", replica="a-1")
        heir, agent = await here.add("a", replica="a-2", store=gate), await here.add("b")
        async with first.cascade("trip"):
            await here.hand(agent, leave)
        await first.opened.written()
        gate.may_own = anyio.Event()
        dead = await incarnation_of(database, "a", "a-1")
        await database.end(dead, is_dead=True, why="an operator says so")
        await until(lambda: gate.asks_for_owned)
        done.set()
        while not await database.notices([dead]):
            await let_others_run()
        before = gate.reads
        await until(lambda: gate.reads > before + 1)
        gate.may_own.set()
        await until(lambda: heir.recovered)
        verdict = await heir.recovered[0].settled(30)
        assert isinstance(verdict, Settled), verdict


async def test_a_program_whose_replica_was_declared_dead_does_not_wait_for_a_verdict(
    tmp_path: Path,
) -> None:
    """The verdict comes to another replica, so this one says that it does not know it."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here, looking(tmp_path) as database:
        root, agent = await here.add("a", replica="a-1"), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        await database.end(await incarnation_of(database, "a", "a-1"), is_dead=True)
        with anyio.fail_after(30):
            assert isinstance(await cascade.settled(), Unknown)
        done.set()


async def test_an_agent_that_is_dead_as_a_whole_is_given_up(tmp_path: Path) -> None:
    """The rows of an agent say that it works, but nobody there does: its sender does not wait for ever."""

    async def leave(hop: Hop) -> None:
        hop.spawn(anyio.sleep_forever)

    async with town(tmp_path) as here, looking(tmp_path) as database:
        patience = Patience(retry_first=0.02, retry_most=0.1, ask_every=0.2, give_up=1.0)
        root, agent = await here.add("a", patience=patience), await here.add("b", replica="b-1")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        await database.end(await incarnation_of(database, "b", "b-1"), is_dead=True)
        with anyio.fail_after(30):
            verdict = await cascade.settled()
        assert isinstance(verdict, Unknown)


async def test_a_cascade_begins_when_its_row_has_lasted(tmp_path: Path) -> None:
    """The block does not run before: after a crash, the next process would not know of the cascade."""
    gate, begun = Gate(tmp_path / "mesh.db"), anyio.Event()
    async with town(tmp_path) as here:
        root = await here.add("a", store=gate)
        gate.may_write = anyio.Event()

        async def begin() -> None:
            async with root.cascade("trip"):
                begun.set()

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            await let_others_run()
            assert not begun.is_set()
            gate.may_write.set()
        assert begun.is_set()


async def test_a_cascade_does_not_begin_without_its_store(tmp_path: Path) -> None:
    """Nothing is left of it in the node, and no process finds it later."""
    gate = Gate(tmp_path / "mesh.db")
    async with town(tmp_path) as here:
        root = await here.add("a", store=gate, store_seconds=0.05)
        gate.is_lost = True
        with pytest.raises(StoreLost):
            async with root.cascade("trip"):
                pytest.fail("it began")
        await until(lambda: not root.opened.running_hops)
        gate.is_lost = False


async def test_the_ids_of_closed_messages_are_forgotten(tmp_path: Path) -> None:
    """A sender needs the id of a message until the message is closed, and keeps it no longer."""
    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b")
        async with root.cascade("trip") as cascade:
            header = await here.hand(agent, nothing)
        assert isinstance(await cascade.settled(30), Settled)
        shared = root.opened.shared
        assert shared is not None
        assert not shared.names.is_known(edge_key(parse_request_header(header).edge))


async def test_a_copy_does_not_take_the_id_of_a_message_that_waits(tmp_path: Path) -> None:
    """The receipt of a message, a copy of which has come in the meantime, is posted to a sender in another store."""
    done, elsewhere = anyio.Event(), tmp_path / "other"
    elsewhere.mkdir()

    async def last(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        slow = Patience(retry_first=0.02, ask_in_doubt=60.0, ask_every=3600.0)
        root = await here.add("a", store=f"sqlite://{elsewhere / 'mesh.db'}", patience=slow)
        middle, end = await here.add("b"), await here.add("c")

        async def pass_on(_: Hop) -> None:
            await here.hand(end, last)

        async with root.cascade("trip") as cascade:
            header = await here.hand(middle, pass_on)
        assert "s=working" in await deliver(middle, header, nothing)
        done.set()
        assert isinstance(await cascade.settled(30), Settled)
