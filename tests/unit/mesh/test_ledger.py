"""A ledger: any process reads the verdict on a cascade, with nothing but its id."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import ArgumentError, CascadeCancelled, StoreLost, UsageError
from quiesce.mesh import Hop, Ledger, Settled, SettledWithLosses, Unknown
from quiesce.mesh.store.sqlite_database import SqliteDatabase
from tests.unit.mesh.replicas import nothing, replica_of, town

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from quiesce.mesh.store.rows import EdgeRow, Side

pytestmark = pytest.mark.real_time


async def test_any_process_reads_a_verdict(tmp_path: Path) -> None:
    """While the cascade runs the ledger waits; afterwards it answers at once, also when the nodes are closed."""
    done = anyio.Event()
    found: list[object] = []

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)

        async def read() -> None:
            found.append(await Ledger(here.store).settled(cascade.id))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            done.set()
        assert isinstance(await cascade.settled(30), Settled)
        await here.close()
        again = await Ledger(here.store).settled(cascade.id, 30)
        assert isinstance(again, Settled)
        assert again.name == "trip"
        assert found == [again]
        assert again.receipt.hops == 2


async def test_an_open_verdict_names_the_agent_and_the_replica(tmp_path: Path) -> None:
    """When the time is over, the verdict says who works on what, in which replica."""

    async def leave(hop: Hop) -> None:
        hop.spawn(anyio.sleep_forever)

    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b", replica="b-7")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        async with Ledger(here.store) as ledger:
            verdict = await ledger.settled(cascade.id, 0.2)
            assert isinstance(verdict, Unknown)
            assert not verdict.is_final
            assert "when b ends its work" in str(verdict)
            assert "in replica b-7" in str(verdict)
            assert {one.agent for one in await ledger.replicas()} == {"a", "b"}
            assert (
                len(await ledger.replicas()) == 2
            )  # the ledger does not take part while they live
            frontier = await ledger.frontier(cascade.id)
            assert [one.state for one in frontier.busy] == ["at work"]
            (entry,) = await ledger.cascades()
            assert (entry.id, entry.name, entry.agent, entry.state) == (
                cascade.id,
                "trip",
                "a",
                "open",
            )


async def test_a_dead_root_has_a_verdict(tmp_path: Path) -> None:
    """If the root is declared dead and its agent has no other replica, the ledger itself follows the cascade to its end."""
    done, has_begun = anyio.Event(), anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b")
        cascade = root.cascade("trip")

        async def begin() -> None:
            with suppress(CascadeCancelled):  # at the end, because the replica may not go on
                async with cascade:
                    await here.hand(agent, leave)
                    has_begun.set()
                    await anyio.sleep_forever()

        async with anyio.create_task_group() as group, Ledger(here.store) as ledger:
            group.start_soon(begin)
            await has_begun.wait()
            (own,) = [one for one in await ledger.replicas() if one.agent == "a"]
            here.replicas["a"].clear()
            assert await ledger.bury(own.incarnation, "it was unplugged")
            assert not await ledger.bury(own.incarnation, "again")
            assert isinstance(await ledger.settled(cascade.id, 0.3), Unknown)
            done.set()
            verdict = await ledger.settled(cascade.id, 30)
        assert isinstance(verdict, SettledWithLosses), verdict
        assert {note.name: note.status for note in verdict.receipt.notes} == {
            "a": "lost",
            "b": "done",
        }


async def test_a_replica_that_has_closed_is_followed_at_once(tmp_path: Path) -> None:
    """A replica that closes while its messages are open leaves them to the others: nothing of it is lost."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        await root.aclose()
        done.set()
        verdict = await Ledger(here.store).settled(cascade.id, 30)
        assert isinstance(verdict, Settled), verdict


async def test_a_cascade_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A wrong id does not wait: the error says what to check."""
    async with town(tmp_path) as here:
        await here.add("a")
        with pytest.raises(UsageError, match="has no cascade 0123"):
            await Ledger(here.store).settled("0123456789abcdef" * 2)
        with pytest.raises(ArgumentError, match="32 hexadecimal digits"):
            await Ledger(here.store).settled("trip")


def test_a_file_of_one_process_has_no_ledger(tmp_path: Path) -> None:
    """A journal belongs to its node alone, and the error names a store that can be shared."""
    with pytest.raises(ArgumentError, match="sqlite:///path"):
        Ledger(str(tmp_path / "a.journal"))


async def test_rows_are_removed_when_their_time_is_over(tmp_path: Path) -> None:
    """Rows of ended messages stay as long as copies may come, and are removed after that; open ones never are."""
    async with town(tmp_path) as here:
        root, agent = await here.add("a", keep_seconds=60), await here.add("b", keep_seconds=60)
        async with root.cascade("trip") as cascade:
            await here.hand(agent, nothing)
        assert isinstance(await cascade.settled(30), Settled)
        assert await Ledger(here.store).prune() == 0
        assert isinstance(await Ledger(here.store).settled(cascade.id), Settled)


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
    """It is named while it is neither heard of nor proven dead, and after its death until it has an heir."""
    database = SqliteDatabase(tmp_path / "mesh.db")
    ledger = Ledger(database)
    async with ledger:
        await database.enroll(replica_of("a1"))
        await database.enroll(replica_of("a2"))
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
