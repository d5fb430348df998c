"""What a replica does for the others: heartbeats, heirs, notices, and the rows that nobody needs any more."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.errors import StoreLost
from quiesce.mesh.store import replica_watch
from quiesce.mesh.store.replica_watch import ReplicaWatch
from quiesce.mesh.store.rows import Batch, EdgeRow, Notice
from tests.loops import let_others_run
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import Gate, replica_of, store_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from quiesce.mesh.store.shared_store import SharedStore

pytestmark = pytest.mark.real_time

EDGE = b"e" * 16


class Watched:
    """The watch of replica `a3`, and what it has heard and adopted."""

    def __init__(self, store: SharedStore, fence: Any = None) -> None:
        """Begin with nothing."""
        self.store = store
        self.heard: list[Notice] = []
        self.adopted: list[EdgeRow] = []
        self.watch = ReplicaWatch(store, self.heard.extend, self.adopted.extend, fence)


class Fickle(Gate):
    """A file that cannot be read at times, and in which another replica may be quicker."""

    is_unreadable = False
    quicker = ""
    beats = 0

    async def beat(self, incarnation: str) -> None:
        """Record a heartbeat, and count it."""
        await super().beat(incarnation)
        self.beats += 1

    async def owned(self, owner: str) -> list[EdgeRow]:
        """Return the rows of an incarnation, if the file can be read."""
        if self.is_unreadable:
            message = "the test has taken it away"
            raise StoreLost(message)
        return await super().owned(owner)

    async def inherit(self, incarnation: str, heir: str, before: str) -> bool:
        """Make another one the heir first, if the test says so."""
        if self.quicker:
            await super().inherit(incarnation, self.quicker, before)
        return await super().inherit(incarnation, heir, before)


@asynccontextmanager
async def watching(database: Gate, *others: str, fence: Any = None) -> AsyncIterator[Watched]:
    """Open the store of replica `a3`, in which others are enrolled, each with one row."""
    store = store_in(database, "a3")
    async with store.opened():
        for number, name in enumerate(others):
            await database.enroll(replica_of(name))
            await database.apply(Batch(name, puts=[row(number, name)]))
        yield Watched(store, fence)


def row(number: int, owner: str, **fields: Any) -> EdgeRow:
    """Return a row of an incarnation."""
    key = bytes([number]) * 16
    return EdgeRow(
        key=key, side="hop", agent="a", owner=owner, cascade=b"c" * 16, began_at=1.0, **fields
    )


async def heirs(database: Gate) -> dict[str, str]:
    """Return the heir of each replica."""
    return {one.incarnation: one.heir for one in await database.replicas("a")}


async def test_a_lease_counts_from_the_sending_of_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the answer takes, the replica ends before the others believe that it has."""
    now, given = [100.0], list[float]()

    class Fence:
        def kill_in(self, seconds: float) -> None:
            """Keep the time."""
            given.append(seconds)

    class Late(Gate):
        async def beat(self, incarnation: str) -> None:
            """Record a heartbeat, and answer late."""
            await super().beat(incarnation)
            now[0] += 4.0

    monkeypatch.setattr(replica_watch, "_now_of_leases", lambda: now[0])
    async with (
        watching(Late(tmp_path / "rows.db"), fence=Fence()) as a3,
        anyio.create_task_group() as group,
    ):
        group.start_soon(a3.watch.beat)
        await until(lambda: given)
        group.cancel_scope.cancel()
    assert given[0] == 6.0  # of a lease of 10 s


async def test_nothing_is_inherited_from_the_living(tmp_path: Path) -> None:
    """A replica that is silent is not declared dead, and keeps its rows."""
    database = Gate(tmp_path / "rows.db")
    async with watching(database, "a1") as a3:
        await a3.watch.look()
        assert a3.adopted == []
        assert {one.state for one in await database.replicas("a")} == {"alive"}


async def test_the_rows_of_the_dead_are_inherited_once(tmp_path: Path) -> None:
    """The heir reads them when it becomes the heir, and not with each heartbeat."""
    database = Gate(tmp_path / "rows.db")
    async with watching(database, "a1") as a3:
        await database.end("a1", is_dead=True)
        await a3.watch.look()
        await a3.watch.look()
        assert a3.adopted == [row(0, "a1")]
        assert (await heirs(database))["a1"] == "a3"


async def test_a_dead_heir_has_an_heir(tmp_path: Path) -> None:
    """Who inherits from it inherits from all that it has inherited from."""
    database = Gate(tmp_path / "rows.db")
    async with watching(database, "a1", "a2") as a3:
        await database.end("a1", is_dead=True)
        await database.inherit("a1", "a2", "")
        await a3.watch.look()
        assert a3.adopted == []
        await database.end("a2", is_dead=True)
        await a3.watch.look()
        assert sorted(one.key for one in a3.adopted) == [row(n, "").key for n in range(2)]


async def test_only_the_heir_adopts(tmp_path: Path) -> None:
    """Of two replicas that want to inherit, the second leaves the rows alone."""
    database = Fickle(tmp_path / "rows.db")
    async with watching(database, "a1", "a2") as a3:
        await database.end("a1", is_dead=True)
        database.quicker = "a2"
        await a3.watch.look()
        assert a3.adopted == []
        assert (await heirs(database))["a1"] == "a2"


async def test_an_heir_that_could_not_read_tries_again(tmp_path: Path) -> None:
    """It is the heir already, so nobody else would read the rows."""
    database = Fickle(tmp_path / "rows.db")
    async with watching(database, "a1") as a3:
        await database.end("a1", is_dead=True)
        database.is_unreadable = True
        with pytest.raises(StoreLost):
            await a3.watch.look()
        database.is_unreadable = False
        await a3.watch.look()
        assert a3.adopted == [row(0, "a1")]


async def test_a_heartbeat_that_is_refused_buries_the_replica(tmp_path: Path) -> None:
    """A replica learns with its next heartbeat that it was declared dead, also if it writes nothing."""
    database = Gate(tmp_path / "rows.db")
    async with watching(database) as a3:
        await database.end("a3", is_dead=True, why="it was unplugged")
        with anyio.fail_after(20):
            await a3.watch.beat()
        assert a3.store.buried is not None
        assert a3.store.buried.why == "it was unplugged"


async def test_a_notice_is_heard_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices are looked for without a wake-up, too, and stay in the store until the next change of their owner."""
    monkeypatch.setattr(replica_watch, "_READ_SECONDS", 0.005)
    database = Gate(tmp_path / "rows.db")
    async with watching(database, "a1") as a3:
        await database.apply(Batch("a1", notices=[Notice("a3", "cancel", EDGE)]))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(a3.watch.read)
                await until(lambda: database.reads > 3)
                assert [one.key for one in a3.heard] == [EDGE]
                assert len(await database.notices(["a3"])) == 1
                group.start_soon(a3.store.write)
                while await database.notices(["a3"]):
                    await let_others_run()
                group.cancel_scope.cancel()
        assert len(a3.heard) == 1


async def test_an_heir_is_listed_as_the_heir_while_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes late for the dead is read by the next heir, too, because their entries say who was the last one."""
    monkeypatch.setattr(replica_watch, "_FORGET_SECONDS", -1.0)
    monkeypatch.setattr(replica_watch, "BEATS", 1000)
    database = Fickle(tmp_path / "rows.db")
    async with watching(database) as a3:
        for name in ("a1", "old"):
            await database.enroll(replica_of(name))
            await database.end(name, is_dead=name == "a1")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(a3.watch.beat)
                await until(lambda: database.beats > 1)
                group.cancel_scope.cancel()
        assert await heirs(database) == {"a1": "a3", "a3": ""}


async def test_replicas_remove_what_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose time is over go, however many there are, and a replica that has just left is still listed."""
    monkeypatch.setattr(replica_watch, "_PRUNE_MOST", 2)
    monkeypatch.setattr(replica_watch, "BEATS", 1000)
    database = Fickle(tmp_path / "rows.db")
    async with watching(database, "a1") as a3:
        old = [row(number, "a1", state="over", keep_until=1.0) for number in range(5)]
        await database.apply(Batch("a1", puts=[*old, row(9, "a1", state="over", keep_until=9e9)]))
        await database.end("a1", is_dead=False)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(a3.watch.beat)
                await until(lambda: database.beats > 1)  # all of the first round is done
                group.cancel_scope.cancel()
        assert [one.key for one in await database.cascade(b"c" * 16)] == [row(9, "").key]
        assert sorted(await heirs(database)) == ["a1", "a3"]
