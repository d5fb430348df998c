"""A ledger: any process reads the verdict on a cascade, with nothing but its id."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import ArgumentError, CascadeCancelled, UsageError
from quiesce.mesh import Hop, Ledger, Settled, SettledWithLosses, Unknown
from tests.unit.mesh.replicas import nothing, town

if TYPE_CHECKING:
    from pathlib import Path

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
            assert await ledger.bury(own.incarnation, "it was unplugged", force=True)
            assert not await ledger.bury(own.incarnation, "again", force=True)
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
