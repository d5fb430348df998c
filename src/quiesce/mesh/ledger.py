"""What any process can learn from a shared store, with nothing but the id of a cascade.

```python
verdict = await Ledger("sqlite:///var/lib/mesh.db").settled(cascade_id, within=60)
```

A ledger reads, and changes nothing, with two exceptions. If the replica that has begun the cascade is proven dead and no
other replica of its agent lives, `settled` takes over its work, as another replica would. And `bury` is an operator's word.
"""

from __future__ import annotations

import re
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from quiesce.core import arguments
from quiesce.core.current import detached
from quiesce.errors import ArgumentError, StoreLost, UsageError
from quiesce.mesh.protocol.receipt import Note, Receipt, edge_mark
from quiesce.mesh.runtime.node import Node
from quiesce.mesh.runtime.progress import Busy, MeshFrontier
from quiesce.mesh.runtime.settlement import Settlement, Unknown, settlement_of
from quiesce.mesh.store.record_rows import first_record, receipt_of_row, status_of_ended
from quiesce.mesh.store.replica_identity import proof_of_death, this_replica
from quiesce.mesh.store.store_address import store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType

    from quiesce.mesh.runtime.settlement import Require
    from quiesce.mesh.store.database import Database
    from quiesce.mesh.store.rows import EdgeRow, Replica

__all__ = ["Ledger", "RecordedCascade"]

_READ_SECONDS = 1.0
_NOTES_MAX = 64


@dataclass(frozen=True)
class RecordedCascade:
    """A cascade in a shared store."""

    id: str
    name: str
    agent: str
    """The agent that has begun it."""
    state: Literal["open", "settled"]
    """`settled`: it has a verdict, which `Ledger.settled()` returns at once."""
    began_at: float
    """In seconds since 1970, by the clock of its agent."""
    age: float
    """How many seconds ago it began."""

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.id}  {self.state:7}  {self.age:8.1f} s  {self.agent}  {self.name}"


class Ledger:
    """Reads the shared store of a mesh, from any process.

    Every method may be called without opening the ledger: it then connects for that call. `async with` keeps the
    connection.

    Args:
        store: The address of the store, as the nodes have it.
        makes: Whether to make the file of the store if it does not exist.
    """

    def __init__(self, store: str | Database, *, makes: bool = False) -> None:
        """Describe the store; nothing is opened."""
        journal, database = store_of(store, durability="process")
        if database is None:
            name = "None" if journal is None else str(journal.path)
            message = (
                f"a ledger needs a store that several processes share, and {name} is not one: only its own node can read"
                " a file. Give the nodes a store like sqlite:///path"
            )
            raise ArgumentError(message)
        self._store = store
        self._database = database
        self._makes = makes
        self._users = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._stack.enter_async_context(self._connected())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self._stack.aclose()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Database]:
        if not self._users:
            self._check_is_there()
            await self._database.open()
        self._users += 1
        try:
            yield self._database
        finally:
            self._users -= 1
            if not self._users:
                with anyio.CancelScope(shield=True):  # bounded by the database
                    await self._database.close()

    @property
    def label(self) -> str:
        """The address, without credentials."""
        return self._database.label

    def _check_is_there(self) -> None:
        """Raise `UsageError` if the store is a file that does not exist: a reader does not make one."""
        path = getattr(self._database, "path", None)
        if path is not None and not path.exists() and not self._makes:
            message = (
                f"there is no store at {self.label}: check the path, or make the store with `python -m quiesce.mesh init"
                f" {self.label}`"
            )
            raise UsageError(message)

    # Verdicts.

    async def settled(
        self, cascade: str, within: float | None = None, *, require: Require = "full"
    ) -> Settlement:
        """Wait until a cascade has ended in every agent, or until that cannot be known; return the verdict.

        Args:
            cascade: The id of the cascade (`Cascade.id`).
            within: How many seconds to wait. After that the verdict is `Unknown`, and says who is missing. None: wait for
                as long as it takes.
            require: As that of `Cascade.settled()`.

        *Cancel safety*: may be cancelled at any time; the cascade goes on.

        *Raises*: `UsageError` if the store does not have the cascade; `StoreLost` if it does not answer.
        """
        cascade_id = _id_of(cascade)
        arguments.one_of("require", require, ("full", "participants"))
        seconds = None if within is None else arguments.seconds("within", within)
        async with self._connected() as database:
            root = await self._root(database, cascade_id)
            with anyio.move_on_after(seconds):
                receipt = await self._receipt(database, root)
                return _verdict(root, receipt, require)
            return await self._so_far(database, root)

    async def _root(self, database: Database, cascade: bytes) -> EdgeRow:
        for row in await database.cascade(cascade):
            if row.root is not None:
                return row
        message = (
            f"the store {database.label} has no cascade {cascade.hex()}: check the id, and that its agent has this store."
            " The store forgets a cascade some time after its end"
        )
        raise UsageError(message)

    async def _receipt(self, database: Database, root: EdgeRow) -> Receipt:
        """Wait for the receipt of a cascade's root."""
        receipt = receipt_of_row(root)
        if receipt is not None:
            return receipt
        news = [anyio.Event()]

        def wake() -> None:
            news[0].set()

        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            with detached():
                group.start_soon(database.run, wake)
            is_taken = not isinstance(
                self._store, str
            )  # without an address no other node can be opened
            while receipt is None:
                try:
                    found = await database.find("hop", [root.key])
                    receipt = receipt_of_row(found.get(root.key, root))
                    if receipt is None and not is_taken and await _is_orphan(database, root):
                        await stack.enter_async_context(_caretaker(root.agent, self._store))
                        is_taken = True
                        news[0].set()  # it may have written the receipt already
                except StoreLost:
                    pass  # it may be back before the time is over
                if receipt is None:
                    with anyio.move_on_after(_READ_SECONDS):
                        await news[0].wait()
                    news[0] = anyio.Event()
            group.cancel_scope.cancel()
            return receipt
        raise AssertionError  # the block never swallows an exception

    async def _so_far(self, database: Database, root: EdgeRow) -> Unknown:
        """Return an `Unknown` verdict with what the store knows, and who is missing."""
        entries, missing = _open_work(
            await database.cascade(root.cascade), await database.replicas()
        )
        notes = tuple(
            Note(one.mark, one.parent, one.name, "unknown", one.seconds, one.what)
            for one in entries[:_NOTES_MAX]
        )
        receipt = Receipt("unknown", hops=len(entries), unknown=len(entries), notes=notes)
        took = max(0.0, time.time() - root.began_at)
        return Unknown(root.root or "", root.cascade.hex(), receipt, took, missing=tuple(missing))

    async def frontier(self, cascade: str) -> MeshFrontier:
        """Return the hops of a cascade that have not ended, as the store has them.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `UsageError` if the store does not have the cascade; `StoreLost`.
        """
        cascade_id = _id_of(cascade)
        async with self._connected() as database:
            root = await self._root(database, cascade_id)
            rows = await database.cascade(cascade_id)
            entries, _ = _open_work(rows, await database.replicas())
            return MeshFrontier(root.root or "", tuple(entries))

    async def cascades(self, most: int = 100) -> list[RecordedCascade]:
        """Return the newest cascades, newest first.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `StoreLost`.
        """
        arguments.size("most", most)
        async with self._connected() as database:
            now = time.time()
            return [
                RecordedCascade(
                    row.cascade.hex(), row.root or "", row.agent, "open" if row.state == "open" else "settled",
                    row.began_at, max(0.0, now - row.began_at),
                )
                for row in await database.roots(most)
            ]  # fmt: skip

    # Replicas.

    async def replicas(self) -> list[Replica]:
        """Return the incarnations of all replicas that the store remembers.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `StoreLost`.
        """
        async with self._connected() as database:
            return await database.replicas()

    async def bury(self, incarnation: str, why: str, *, force: bool = False) -> bool:
        """Declare a replica dead, because you know that its process has ended. Return False if it was not alive.

        A replica whose lease is not over is refused, unless `force` is set.

        Another replica of its agent takes over. If the process is still running, its work may go on unseen: a verdict
        may then say that the work is lost while it still runs.

        *Cancel safety*: if cancelled, the replica may be declared dead.

        *Raises*: `UsageError` if the replica was heard of in its lease; `StoreLost`.
        """
        reason = f"an operator says so: {arguments.name('why', why)}"
        async with self._connected() as database:
            for one in await database.replicas():
                is_heard = one.state == "alive" and one.age < one.lease
                if one.incarnation == incarnation and is_heard and not force:
                    message = (
                        f"replica {one.name} of {one.agent} was heard of {one.age:.0f} s ago, so it runs: end its process"
                        f" first, and wait {one.lease:g} s"
                    )
                    raise UsageError(message)
            return await database.end(incarnation, is_dead=True, why=reason)

    async def complaints(self) -> list[str]:
        """Return what is wrong with the replicas of this store, each as a sentence with what to do.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `UsageError` if the store cannot be used as it is; `StoreLost`.
        """
        async with self._connected() as database:
            replicas = await database.replicas()
            dead = [one.incarnation for one in replicas if one.state == "dead"]
            with_work = {incarnation for incarnation in dead if await database.owned(incarnation)}
        alive = {one.incarnation for one in replicas if one.state == "alive"}
        found: list[str] = []
        for one in replicas:
            name = f"replica {one.name} of {one.agent} ({one.incarnation})"
            if one.state == "alive" and one.age > one.lease:
                found.append(
                    f"{name} was not heard of for {one.age:.0f} s, and it is not proven that it has ended. Start the same"
                    " replica again. If you know that its process has ended, bury it"
                )
            elif one.incarnation in with_work and one.heir not in alive:
                found.append(
                    f"{name} is dead ({one.why}), and no replica has taken over. Start a replica of {one.agent}"
                )
        return found

    async def prune(self) -> int:
        """Remove all rows that are not needed any more; return their number. Nodes do this by themselves, too.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `StoreLost`.
        """
        removed = 0
        async with self._connected() as database:
            while count := await database.prune(time.time()):
                removed += count
        return removed

    def __repr__(self) -> str:
        """Return the address, without credentials."""
        return f"<Ledger {self.label}>"


async def _is_orphan(database: Database, root: EdgeRow) -> bool:
    """Return whether no replica can go on with a cascade, and it is proven that its own process will not."""
    replicas = await database.replicas(root.agent)
    own = this_replica("", None, lease=1.0, fences=False)
    living = [
        one
        for one in replicas
        if one.state == "alive"
        and not proof_of_death(one, own, is_one_machine=database.is_one_machine)
    ]
    return not living and bool(replicas)


@asynccontextmanager
async def _caretaker(agent: str, store: Any) -> AsyncIterator[None]:
    """Go on with the work of the dead replicas of an agent, inside the block."""
    node = Node(agent, store=store)
    node.is_telling_drain = False
    await node.open()
    try:
        yield
    finally:
        await node.aclose()


def _id_of(cascade: object) -> bytes:
    if isinstance(cascade, str) and re.fullmatch(r"[0-9a-f]{32}", cascade):
        return bytes.fromhex(cascade)
    message = f"cascade must be the id of a cascade, 32 hexadecimal digits like Cascade.id, not {cascade!r}"
    raise ArgumentError(message)


def _verdict(root: EdgeRow, receipt: Receipt, require: Require) -> Settlement:
    return settlement_of(
        receipt, name=root.root or "", cascade=root.cascade, seconds=None, require=require
    )


def _open_work(rows: list[EdgeRow], replicas: Iterable[Replica]) -> tuple[list[Busy], list[str]]:
    """Return the hops of a cascade that have not ended, and what is missing for the verdict, as sentences."""
    owners = {one.incarnation: one for one in replicas}
    hops = {row.key for row in rows if row.side == "hop"}
    entries: list[Busy] = []
    missing: list[str] = []
    now = time.time()
    for row in rows:
        if row.state != "open":
            continue
        mark, seconds = edge_mark(row.key), max(0.0, now - row.began_at)
        first = first_record(row)
        if row.side == "hop":
            waits = status_of_ended(row) is not None
            doing = "waits for the messages that it has sent" if waits else "is at work"
            held = _held_by(row, owners)
            parent = getattr(first, "parent", "")
            entries.append(
                Busy(mark, parent, row.agent, "waits" if waits else "at work", seconds, held)
            )
            if not waits:
                missing.append(
                    f"when {row.agent} ends its work on message {mark}: it {doing} for {seconds:.1f} s, {held}"
                )
        elif row.key not in hops:
            to = getattr(first, "to", "")
            entries.append(
                Busy(mark, edge_mark(row.above), to, "not reached", seconds, "not in this store")
            )
            missing.append(
                f"whether {to} has ended message {mark} of {row.agent}: it does not share this store, and {row.agent} has"
                " not got its receipt"
            )
    return entries, missing


def _held_by(row: EdgeRow, owners: dict[str, Replica]) -> str:
    owner = owners.get(row.owner)
    if owner is None:
        return f"in replica {row.owner}, which the store does not know"
    if owner.state == "dead":
        return f"in replica {owner.name}, which is dead ({owner.why}), and no other replica has taken over yet: start one"
    if owner.age > owner.lease:
        return (
            f"in replica {owner.name}, not heard of for {owner.age:.0f} s. It is not proven that its code has stopped:"
            f" start the same replica again, or, if you know that it has ended, bury {owner.incarnation}"
        )
    return f"in replica {owner.name}"
