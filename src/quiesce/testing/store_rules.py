"""What each database of a shared store must do, as checks that run against any of them.

```python
@pytest.mark.parametrize("rule", database_rules(), ids=lambda rule: rule.__name__)
async def test_my_database(rule, tmp_path):
    await rule(lambda: MyDatabase(tmp_path / "rows"))
```

Each rule gets a function that returns a new `Database` for the same, empty store: one for each process that the rule
plays. Nothing here depends on a test runner or on an event loop.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from quiesce.errors import ReplicaBuried
from quiesce.mesh.store.rows import Batch, EdgeRow, Notice, Replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from quiesce.mesh.store.database import Database
    from quiesce.mesh.store.rows import RowState, Side

    Make = Callable[[], Database]
    Rule = Callable[[Make], Awaitable[None]]

__all__ = ["database_rules"]

_WITHIN = 60.0  # seconds, a guard: no rule takes a tenth of it
_CASCADE = bytes(range(16))
_DAY = 86_400.0
_OLD = 0.2  # seconds since a heartbeat


class RuleBrokenError(AssertionError):
    """A database does not keep a rule; the message says which."""


def _check(holds: object, rule: str) -> None:
    if not holds:
        raise RuleBrokenError(rule)


def _key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def _row(number: int, owner: str = "a1", **fields: object) -> EdgeRow:
    made = EdgeRow(
        key=_key(number),
        side="hop",
        agent="hotel",
        owner=owner,
        cascade=_CASCADE,
        began_at=1000.0 + number,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]  # fields of a row


def _replica(incarnation: str, agent: str = "hotel", **fields: object) -> Replica:
    made = Replica(incarnation=incarnation, agent=agent, name=f"{agent}-0", lease=10.0)
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]  # fields of a replica


@asynccontextmanager
async def _processes(make: Make, *owners: str) -> AsyncIterator[list[Database]]:
    """Open one database for each incarnation, and enroll the incarnations."""
    opened: list[Database] = []
    async with AsyncExitStack() as stack:
        with anyio.fail_after(_WITHIN):
            for owner in owners:
                database = make()
                stack.push_async_callback(database.close)
                await database.open()
                await database.enroll(_replica(owner))
                opened.append(database)
            yield opened


# Claims.


async def one_claim_is_won(make: Make) -> None:
    """Of several processes that claim the same rows at the same time, each row goes to exactly one."""
    owners = ["a1", "a2", "a3"]
    won: dict[bytes, list[str]] = {}
    lost: dict[bytes, set[str]] = {}
    async with _processes(make, *owners) as databases:

        async def claim(database: Database, owner: str, number: int) -> None:
            there = await database.apply(Batch(owner, claims=[_row(number, owner)]))
            if there:
                lost.setdefault(_key(number), set()).add(there[_key(number)].owner)
            else:
                won.setdefault(_key(number), []).append(owner)

        async with anyio.create_task_group() as group:
            for number in range(40):
                for database, owner in zip(databases, owners, strict=True):
                    group.start_soon(claim, database, owner, number)
    for number in range(40):
        winners = won.get(_key(number), [])
        _check(len(winners) == 1, f"one process wins a row, not {len(winners)}")
        _check(lost[_key(number)] == set(winners), "the losers learn the winner")


async def a_lost_claim_returns_the_row(make: Make) -> None:
    """A process that loses a claim gets the row that is there, with every field as it was written."""
    full = _row(
        1, state="closed", root="it's a \"trip\" to Zürich; --", keep_until=2000.5, above=_key(7),
        body=bytes(range(256)) * 300,
    )  # fmt: skip
    async with _processes(make, "a1", "a2") as (first, second):
        await first.apply(Batch("a1", claims=[full]))
        there = await second.apply(Batch("a2", claims=[_row(1, "a2"), _row(2, "a2")]))
        _check(there == {_key(1): full}, "the row that is there is returned as it was written")
        found = await first.find("hop", [_key(1), _key(2)])
        _check(found[_key(1)] == full, "a lost claim changes nothing")
        _check(found[_key(2)].owner == "a2", "the other claims of the batch are won")


async def a_batch_may_be_written_again(make: Make) -> None:
    """A batch whose answer was lost is written again, with the same result."""
    batch = Batch(
        "a1", claims=[_row(1)], puts=[_row(2), _row(3, side="sent", above=_key(1))], drops=[("hop", _key(9))]
    )  # fmt: skip
    async with _processes(make, "a1") as (database,):
        await database.apply(batch)
        there = await database.apply(batch)
        _check(there[_key(1)] == _row(1), "a repeated claim is answered with the row that it made")
        rows = await database.cascade(_CASCADE)
        _check(len(rows) == 3, "a repeated batch adds nothing")  # noqa: PLR2004 - the rows above


# Rows.


async def rows_are_replaced_and_removed(make: Make) -> None:
    """A put replaces the row of its key and side; a drop removes it; the other side stays."""
    async with _processes(make, "a1") as (database,):
        await database.apply(Batch("a1", puts=[_row(1), _row(1, side="sent", body=b"sent")]))
        await database.apply(Batch("a1", puts=[_row(1, state="closed", body=b"new")]))
        found = await database.find("hop", [_key(1), _key(2)])
        _check(found == {_key(1): _row(1, state="closed", body=b"new")}, "a put replaces")
        await database.apply(Batch("a1", drops=[("hop", _key(1))]))
        _check(await database.find("hop", [_key(1)]) == {}, "a drop removes")
        sent = await database.find("sent", [_key(1)])
        _check(sent[_key(1)].body == b"sent", "the two sides of an edge are apart")


async def large_batches_are_written(make: Make) -> None:
    """A batch may have a thousand rows, and is found as a whole."""
    rows = [_row(number, body=b"x" * 200) for number in range(1000)]
    async with _processes(make, "a1") as (database,):
        await database.apply(Batch("a1", puts=rows))
        found = await database.find("hop", (row.key for row in rows))
        _check(found == {row.key: row for row in rows}, "all rows are found")


async def an_owner_has_its_open_rows(make: Make) -> None:
    """`owned` returns the rows of one incarnation, on both sides, that are not over."""
    async with _processes(make, "a1", "a2") as (first, second):
        states: list[tuple[Side, RowState]] = [
            ("hop", "open"),
            ("sent", "open"),
            ("hop", "closed"),
            ("hop", "over"),
        ]
        rows = [_row(number, side=side, state=state) for number, (side, state) in enumerate(states)]
        await first.apply(Batch("a1", puts=rows))
        await second.apply(Batch("a2", puts=[_row(9, "a2")]))
        owned = await second.owned("a1")
        _check(
            sorted(owned, key=lambda row: row.began_at) == rows[:3],
            "rows of others, and those that are over, are left out",
        )
        await second.apply(Batch("a2", puts=[_row(0, "a2")]))
        _check(
            {row.key for row in await first.owned("a2")} == {_key(0), _key(9)},
            "a put changes the owner",
        )


async def cascades_are_found(make: Make) -> None:
    """All rows of a cascade are found by its id, and the newest cascades by their roots."""
    async with _processes(make, "a1") as (database,):
        other = bytes(16)
        rows = [
            _row(1, root="first"),
            _row(2, side="sent"),
            _row(3, cascade=other, root=""),
            _row(4, root="last"),
        ]
        await database.apply(Batch("a1", puts=rows))
        found = await database.cascade(_CASCADE)
        _check(
            {row.key for row in found} == {_key(1), _key(2), _key(4)}, "rows of one cascade alone"
        )
        roots = await database.roots(2)
        _check(
            [row.key for row in roots] == [_key(4), _key(3)],
            "the newest first, at most as many as asked for",
        )


async def rows_are_pruned(make: Make) -> None:
    """Only rows whose time is over are removed, and at most as many as asked for."""
    now = time.time()
    async with _processes(make, "a1") as (database,):
        old = [_row(number, state="over", keep_until=now - _DAY) for number in range(5)]
        kept = [_row(7, state="over", keep_until=now + _DAY), _row(8)]
        await database.apply(Batch("a1", puts=[*old, *kept]))
        _check(await database.prune(now, 3) == 3, "at most as many as asked for")  # noqa: PLR2004 - asked for
        _check(await database.prune(now, 100) == 2, "the rest the next time")  # noqa: PLR2004 - of five
        _check(await database.prune(now, 100) == 0, "then none")
        left = await database.cascade(_CASCADE)
        _check({row.key for row in left} == {_key(7), _key(8)}, "rows that are needed stay")


async def rows_outlive_the_process(make: Make) -> None:
    """What was written is there after all processes have closed the store, and the store keeps its time of birth."""
    before = time.time() - _DAY  # the clock of the store may be another one
    async with _processes(make, "a1") as (database,):
        born = await database.born_at()
        _check(before < born < before + 2 * _DAY, "the store says when its tables were made")
        await database.apply(
            Batch("a1", claims=[_row(1)], notices=[Notice("a2", "cancel", _key(1))])
        )
    async with _processes(make, "a2") as (database,):
        _check(await database.born_at() == born, "the tables are not made again")
        _check(await database.find("hop", [_key(1)]) == {_key(1): _row(1)}, "rows stay")
        _check(len(await database.notices(["a2"])) == 1, "notices stay")
        _check(
            {one.incarnation for one in await database.replicas()} == {"a1", "a2"}, "replicas stay"
        )


async def changes_side_by_side(make: Make) -> None:
    """Many tasks may use one database at the same time."""
    async with _processes(make, "a1") as (database,):

        async def change(number: int) -> None:
            await database.apply(Batch("a1", puts=[_row(number)]))
            found = await database.find("hop", [_key(number)])
            _check(found == {_key(number): _row(number)}, "a task finds what it has written")

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(change, number)
        _check(len(await database.owned("a1")) == 60, "no change is lost")  # noqa: PLR2004 - tasks


async def a_cancelled_change_is_whole_or_absent(make: Make) -> None:
    """A change that is cancelled is there as a whole or not at all, and the database can still be used."""
    async with _processes(make, "a1") as (database,):
        for number in range(0, 40, 2):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await database.apply(Batch("a1", puts=[_row(number), _row(number + 1)]))
            found = await database.find("hop", [_key(number), _key(number + 1)])
            _check(len(found) in {0, 2}, "both rows of a cancelled batch are there, or none")
        await database.apply(Batch("a1", puts=[_row(100)]))
        _check(
            await database.find("hop", [_key(100)]), "the database can be used after a cancellation"
        )


# Notices.


async def notices_come_in_order(make: Make) -> None:
    """Notices come to their owner alone, oldest first, until they are handled."""
    async with _processes(make, "a1", "a2") as (first, second):
        sent = [
            Notice("a2", "receipt", _key(1), b'{"s":"done"}'),
            Notice("a2", "cancel", _key(2)),
            Notice("a3", "cancel", _key(3)),
        ]
        await first.apply(Batch("a1", notices=sent))
        await first.apply(Batch("a1", notices=[Notice("a2", "cancel", _key(4))]))
        found = await second.notices(["a2"])
        seen = [(one.owner, one.kind, one.key, one.body) for one in found]
        expected = [("a2", one.kind, one.key, one.body) for one in sent[:2]] + [
            ("a2", "cancel", _key(4), b"")
        ]
        _check(seen == expected, "the notices of one owner, in the order of writing")
        await second.apply(Batch("a2", handled=[found[0].number, found[2].number]))
        left = await second.notices(["a2", "a3"])
        _check(
            [one.key for one in left] == [_key(2), _key(3)], "only those that were handled are gone"
        )


async def a_change_wakes_others(make: Make) -> None:
    """A process that listens is woken after another one has written a notice for it."""
    async with _processes(make, "a1", "a2") as (first, second):
        woken = [anyio.Event()]

        def wake() -> None:
            woken[0].set()

        async with anyio.create_task_group() as group:
            group.start_soon(second.run, wake)
            for number in range(5):
                while not woken[0].is_set():  # the listener may need a moment to begin
                    await first.apply(Batch("a1", notices=[Notice("a2", "cancel", _key(number))]))
                    with anyio.move_on_after(0.5):
                        await woken[0].wait()
                woken[0] = anyio.Event()
            group.cancel_scope.cancel()


# Replicas.


async def replicas_are_listed(make: Make) -> None:
    """An incarnation is listed with its fields, for its agent and among all, and a heartbeat makes it young."""
    full = _replica(
        "b1", "bank", host="machine 4026531836", boot="0f", pid=4711, started=123456789, fences=True
    )  # fmt: skip
    async with _processes(make, "a1") as (database,):
        await database.enroll(full)
        found = await database.replicas("bank")
        _check(
            [dataclasses.replace(one, age=0.0) for one in found] == [full], "every field is kept"
        )
        _check({one.incarnation for one in await database.replicas()} == {"a1", "b1"}, "all agents")
        await anyio.sleep(_OLD)
        began = time.monotonic()
        await database.beat("b1")
        (one,) = await database.replicas("bank")
        took = time.monotonic() - began
        _check(0.0 <= one.age < took + _OLD / 2, "the age counts from the last heartbeat")


async def a_dead_replica_writes_nothing(make: Make) -> None:
    """After an incarnation was declared dead, none of its changes is written."""
    async with _processes(make, "a1", "a2") as (first, second):
        await first.apply(Batch("a1", puts=[_row(1)], notices=[Notice("a1", "cancel", _key(1))]))
        (notice,) = await first.notices(["a1"])
        _check(await second.end("a1", is_dead=True, why="its process has ended"), "it was alive")
        late = Batch(
            "a1", claims=[_row(2)], puts=[_row(3)], notices=[Notice("a2", "cancel", _key(1))],
            drops=[("hop", _key(1))], handled=[notice.number],
        )  # fmt: skip
        try:
            await first.apply(late)
        except ReplicaBuried as error:
            _check("its process has ended" in str(error), "the error says why")
        else:
            _check(holds=False, rule="a dead incarnation is refused")
        _check(
            {row.key for row in await second.cascade(_CASCADE)} == {_key(1)},
            "no row is written or removed",
        )
        _check(not await second.notices(["a2"]), "no notice is written")
        _check(await second.notices(["a1"]), "no notice is handled")
        try:
            await first.beat("a1")
        except ReplicaBuried:
            pass
        else:
            _check(holds=False, rule="a heartbeat of a dead incarnation is refused")


async def an_unknown_replica_writes_nothing(make: Make) -> None:
    """An incarnation that was never enrolled, or has left, writes nothing."""
    async with _processes(make, "a1") as (database,):
        _check(await database.end("a1", is_dead=False), "it was alive")
        for owner in ("a1", "nobody"):
            try:
                await database.apply(Batch(owner, puts=[_row(1, owner)]))
            except ReplicaBuried:
                pass
            else:
                _check(holds=False, rule="only an incarnation that is alive writes")
        _check(not await database.cascade(_CASCADE), "nothing was written")


async def a_replica_ends_once(make: Make) -> None:
    """Of several that declare an incarnation dead, or of it leaving, one succeeds."""
    async with _processes(make, "a1", "a2", "a3") as (first, second, third):
        ended: list[str] = []

        async def end(database: Database, name: str, *, is_dead: bool) -> None:
            if await database.end("a1", is_dead=is_dead, why=name):
                ended.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: end(first, "itself", is_dead=False))
            group.start_soon(lambda: end(second, "second", is_dead=True))
            group.start_soon(lambda: end(third, "third", is_dead=True))
        _check(len(ended) == 1, f"one succeeds, not {len(ended)}")
        state = next(one for one in await first.replicas() if one.incarnation == "a1")
        _check(
            state.state == ("left" if ended == ["itself"] else "dead"),
            "its state is that of the one",
        )
        _check(not await second.end("nobody", is_dead=True), "an unknown incarnation does not end")


async def one_heir_takes_over(make: Make) -> None:
    """A dead incarnation has one heir at a time, and a dead heir has a next one."""
    async with _processes(make, "a1", "a2", "a3") as (first, second, third):
        _check(not await second.inherit("a1", "a2", ""), "the living have no heirs")
        await first.end("a1", is_dead=True)
        taken: list[str] = []

        async def take(database: Database, heir: str) -> None:
            if await database.inherit("a1", heir, ""):
                taken.append(heir)

        async with anyio.create_task_group() as group:
            group.start_soon(take, second, "a2")
            group.start_soon(take, third, "a3")
        _check(len(taken) == 1, f"one process takes over, not {len(taken)}")
        _check(await third.inherit("a1", "a4", taken[0]), "the next heir names the one before")
        state = next(one for one in await first.replicas() if one.incarnation == "a1")
        _check(state.heir == "a4", "the heir is listed")


async def only_the_dead_are_forgotten(make: Make) -> None:
    """An incarnation is removed with its notices, unless it is alive."""
    async with _processes(make, "a1", "a2") as (first, second):
        await first.apply(Batch("a1", notices=[Notice("a2", "cancel", _key(1))]))
        await first.forget("a2")
        _check(len(await first.replicas()) == 2, "the living stay")  # noqa: PLR2004 - a1 and a2
        await second.end("a2", is_dead=False)
        await first.forget("a2")
        _check({one.incarnation for one in await first.replicas()} == {"a1"}, "others go")
        _check(not await first.notices(["a2"]), "with their notices")


def database_rules() -> list[Rule]:
    """Return the rules. Each is an async function that raises `AssertionError` if a database does not keep it."""
    return [
        one_claim_is_won,
        a_lost_claim_returns_the_row,
        a_batch_may_be_written_again,
        rows_are_replaced_and_removed,
        large_batches_are_written,
        an_owner_has_its_open_rows,
        cascades_are_found,
        rows_are_pruned,
        rows_outlive_the_process,
        changes_side_by_side,
        a_cancelled_change_is_whole_or_absent,
        notices_come_in_order,
        a_change_wakes_others,
        replicas_are_listed,
        a_dead_replica_writes_nothing,
        an_unknown_replica_writes_nothing,
        a_replica_ends_once,
        one_heir_takes_over,
        only_the_dead_are_forgotten,
    ]
