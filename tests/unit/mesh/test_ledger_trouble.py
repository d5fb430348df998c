"""What a ledger does while the store is lost, and what it says of replicas that are silent or dead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import StoreLost
from quiesce.mesh import Hop, Ledger, Settled
from quiesce.mesh.store.rows import Batch, EdgeRow
from quiesce.mesh.store.sqlite_database import SqliteDatabase
from tests.unit.mesh.replicas import replica_of, town

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from quiesce.mesh.store.rows import Side

pytestmark = pytest.mark.real_time


class Shaky(SqliteDatabase):
    """A file that cannot be read at first."""

    failures = 2

    async def find(self, side: Side, keys: Iterable[bytes]) -> dict[bytes, EdgeRow]:
        """Find rows, after some failures."""
        if self.failures:
            self.failures -= 1
            message = "the test has taken it away"
            raise StoreLost(message)
        return await super().find(side, keys)


async def test_a_ledger_waits_for_a_store_that_is_lost_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a verdict may still come, a failure of the store is not the end of the wait."""
    monkeypatch.setattr("quiesce.mesh.ledger._READ_SECONDS", 0.01)
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        database, found = Shaky(tmp_path / "mesh.db"), list[object]()

        async def read() -> None:
            found.append(await Ledger(database).settled(cascade.id, 30))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            while database.failures:
                await anyio.lowlevel.checkpoint()
            done.set()
        assert isinstance(found[0], Settled)


async def test_a_replica_that_is_silent_is_complained_of(tmp_path: Path) -> None:
    """It is named while it is neither heard of nor proven dead, and if it has left work, after its death until it has an heir."""
    database = SqliteDatabase(tmp_path / "mesh.db")
    ledger = Ledger(database, makes=True)
    async with ledger:
        await database.enroll(replica_of("a1"))
        await database.enroll(replica_of("a2"))
        row = EdgeRow(
            key=bytes(16), side="hop", agent="a", owner="a1", cascade=bytes(16), began_at=1.0
        )
        await database.apply(Batch("a1", puts=[row]))
        assert await ledger.complaints() == []
        await database.end("a1", is_dead=True, why="it was unplugged")
        (found,) = await ledger.complaints()
        assert "(it was unplugged), and no replica has taken over" in found
        await database.inherit("a1", "a2", "")
        assert await ledger.complaints() == []
        await database.end("a2", is_dead=False)
        (found,) = await ledger.complaints()
        assert found.startswith("replica a1 of a (a1) is dead")
        await database.enroll(replace(replica_of("a3"), lease=-1.0))
        assert any(
            "replica a3 of a (a3) was not heard of" in one for one in await ledger.complaints()
        )
