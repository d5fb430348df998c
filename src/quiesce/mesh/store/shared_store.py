"""The store of a node whose replicas share it: writes the node's records as rows, and hears of the other replicas.

The node goes on while its records are being written, and waits only where it must: before a message leaves, before a
handler runs, before an answer leaves, before a verdict is told. All records of that moment are written together, so one
change of the database serves many messages. Rules:

1. `written` returns only when all records that were added before have lasted.
2. Changes are written in their order. If a change fails, it is repeated until it succeeds, or until this replica is
   declared dead.
3. A claim that nobody waits for any more is given back when it was won, so that a copy of the message may run.
4. Every wait is bounded by `within`, and ends with `StoreLost`. The records stay, and are written when the store is back.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.tree import logger
from quiesce.errors import ReplicaBuried, StoreLost
from quiesce.mesh.store.rows import Batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from quiesce.mesh.protocol.facts import Begun, Over, Record
    from quiesce.mesh.store.database import Database
    from quiesce.mesh.store.record_rows import RecordRows
    from quiesce.mesh.store.rows import EdgeRow, Notice, Replica, Side

__all__: list[str] = []

_CLAIMS_MAX = 500  # in one change
_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0
_FLUSH_SECONDS = 5.0  # for the last change, when the node closes


class _Claim:
    """A claim of one row, until the database has answered."""

    __slots__ = ("done", "error", "is_abandoned", "is_won", "row", "there")

    def __init__(self, row: EdgeRow) -> None:
        self.row = row
        self.done = anyio.Event()
        self.there: EdgeRow | None = None  # the row of another claim that came before
        self.error: BaseException | None = None
        self.is_won = False
        self.is_abandoned = False


class SharedStore:
    """Writes the records of one incarnation of a node.

    Args:
        database: Where the rows are.
        replica: This incarnation.
        rows: Its rows.
        within: How many seconds a message waits for the store.
    """

    def __init__(
        self, database: Database, replica: Replica, rows: RecordRows, *, within: float
    ) -> None:
        """Prepare; `opened` connects."""
        self.database: Database = database
        self.replica: Replica = replica
        self.rows: RecordRows = rows
        self.error: StoreLost | None = None
        """Why the last change failed; None if it was written."""
        self.buried: ReplicaBuried | None = None
        """Set when this incarnation was declared dead: it writes nothing any more."""
        self.on_buried: Callable[[], None] = lambda: None
        self.has_stopped: Callable[[], bool] = lambda: False
        """Whether no work of this incarnation runs any more; set by the node."""
        self._within = within
        self._claims: dict[_Claim, None] = {}  # that no change has yet, oldest first
        self._claiming: dict[bytes, _Claim] = {}
        self._notices: dict[Notice, None] = {}  # each once, however often it is asked for
        self._handled: list[int] = []
        self._work = anyio.Event()
        # The number of the change that is being collected, and of the last one that was written.
        self._collecting = 1
        self._last_written = 0
        # By the number of a change: set when it was written, or never will be. So a task is woken once.
        self._turns: dict[int, anyio.Event] = {}
        self._actions: deque[tuple[int, Callable[[], None]]] = deque()
        self._in_flight: tuple[Batch, list[_Claim]] | None = None
        self._is_tried = False  # whether the change in flight was written before, perhaps
        self._has_left = False

    # What the node calls.

    def add(self, records: Iterable[Record]) -> None:
        """Write records, soon."""
        self.rows.add(records)
        self.ring()

    def notify(self, notices: Iterable[Notice]) -> None:
        """Write notices to other replicas, soon."""
        self._notices.update(dict.fromkeys(notices))
        self.ring()

    def handled(self, numbers: Iterable[int]) -> None:
        """Remove notices together with the records that were added because of them."""
        self._handled += numbers
        self.ring()

    def ring(self) -> None:
        """Wake the task that writes."""
        self._work.set()

    @property
    def _has_changes(self) -> bool:
        return bool(self.rows.is_changed or self._notices or self._handled)

    @property
    def _target(self) -> int:
        """The number of the change after which everything added so far has lasted."""
        return self._collecting if self._has_changes else self._collecting - 1

    def when_written(self, action: Callable[[], None]) -> None:
        """Call a function when all records that were added so far have lasted; in this step if they have."""
        target = self._target
        if target <= self._last_written:
            action()
        else:
            self._actions.append((target, action))

    async def written(self) -> None:
        """Wait until all records that were added so far have lasted (1).

        *Cancel safety*: may be cancelled at any time; the records are written all the same.

        *Raises*: `StoreLost` if that takes too long; `ReplicaBuried` if this replica was declared dead.
        """
        target = self._target
        if target <= self._last_written:
            return
        if self.buried is None:
            turn = self._turns.get(target)
            if turn is None:
                turn = self._turns[target] = anyio.Event()
            with anyio.move_on_after(self._within):
                await turn.wait()
        if target <= self._last_written:
            return
        raise self.lost() if self.buried is None else self._new_buried(self.buried)

    def lost(self) -> StoreLost:
        """Return the error for a wait that took too long."""
        why = f": {self.error}" if self.error is not None else ""
        message = f"the store {self.database.label} has not written for {self._within:g} s{why}"
        return StoreLost(message)

    def _closing(self) -> StoreLost:
        return StoreLost(f"the store {self.database.label} is being closed together with its node")

    @staticmethod
    def _new_buried(error: ReplicaBuried) -> ReplicaBuried:
        return ReplicaBuried(error.incarnation, error.why)

    async def claim(self, record: Begun | Over) -> EdgeRow | None:
        """Claim an edge for its first record. Return None if it was won, else the row that is there.

        *Cancel safety*: if cancelled, the edge is not claimed, or is given back (3).

        *Raises*: `StoreLost`, `ReplicaBuried`.
        """
        key = record.edge
        with anyio.move_on_after(self._within):
            while (before := self._claiming.get(key)) is not None:
                await before.done.wait()  # of the same process: then the row is there
            if self._has_left:
                raise self._closing()
            claim = self._claiming[key] = _Claim(self.rows.claim_of(record))
            self._claims[claim] = None
            self.ring()
            try:
                await claim.done.wait()
            except BaseException:
                self._abandon(claim)
                raise
            if claim.error is not None:
                raise claim.error
            return claim.there
        raise self.lost()

    def _abandon(self, claim: _Claim) -> None:
        """Return a claim to all when it is won, or now if it was won in this step (3)."""
        claim.is_abandoned = True
        if claim in self._claims:  # while the store is lost, there may be many
            del self._claims[claim]
            self._decide(claim, None, is_written=False)
        elif claim.is_won and claim.row.state == "open":
            self.rows.give_back(claim.row)
            self.ring()

    async def find(self, side: Side, keys: Iterable[bytes]) -> dict[bytes, EdgeRow]:
        """Return the rows of one side with these keys, by key."""
        return await self.database.find(side, keys)

    # Writing.

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect, and enroll this incarnation; at the end write what is left, and leave."""
        try:
            await self.database.open()
            await self.database.enroll(self.replica)
            try:
                yield
            finally:
                with anyio.move_on_after(_FLUSH_SECONDS, shield=True) as flush:
                    await self._leave()
                if flush.cancelled_caught:
                    self._tell_unwritten(f"the store has not answered for {_FLUSH_SECONDS:g} s")
        finally:
            with anyio.CancelScope(shield=True):  # bounded by the database
                await self.database.close()

    async def _leave(self) -> None:
        self._has_left = True
        self._end_claims()
        try:
            while self._in_flight is not None or self._has_changes:
                await self._write_next()
            if self.rows.is_empty:
                await self.database.end(self.replica.incarnation, is_dead=False)
            elif (
                self.has_stopped()
            ):  # what is left waits for others: another replica may go on with it at once
                why = "it has closed, while messages that it has sent were open"
                await self.database.end(self.replica.incarnation, is_dead=True, why=why)
        except (StoreLost, ReplicaBuried) as error:
            self._tell_unwritten(str(error))

    def _tell_unwritten(self, why: str) -> None:
        text = "replica %s of %r has closed without writing its last records: %s"
        logger.error(text, self.replica.name, self.replica.agent, why)

    async def write(self) -> None:
        """Write all changes as they come, until cancelled."""
        pause = _RETRY_FIRST
        while self.buried is None:
            await self._work.wait()
            self._work = anyio.Event()
            while self._in_flight is not None or self._has_changes or self._claims:
                try:
                    await self._write_next()
                    pause = _RETRY_FIRST
                except StoreLost as error:
                    self._note_trouble(error)
                    self._leave_out_abandoned()
                    await anyio.sleep(pause)
                    pause = min(2 * pause, _RETRY_MOST)
                except ReplicaBuried as error:
                    self.bury(error)
                    return

    async def _write_next(self) -> None:
        if self._in_flight is None:
            self._in_flight = self._collect()
        batch, claims = self._in_flight
        is_again, self._is_tried = self._is_tried, True
        there = await self.database.apply(batch)
        self._in_flight, self._is_tried = None, False
        if self.error is not None:
            logger.warning("the store %s writes again", self.database.label)
            self.error = None
        for claim in claims:
            found = there.get(claim.row.key)
            if is_again and found == claim.row:
                found = None  # the first try was written, and its answer was lost
            self._decide(claim, found)
        self._last_written = self._collecting - 1
        self._advance()

    def _collect(self) -> tuple[Batch, list[_Claim]]:
        batch = Batch(self.replica.incarnation)
        # This change removes the row of a message that was given back, before it can be claimed again.
        free = (one for one in self._claims if not self.rows.is_given_back(one.row.key))
        claims = list(islice(free, _CLAIMS_MAX))
        for claim in claims:
            del self._claims[claim]
        batch.claims = [claim.row for claim in claims]
        self.rows.take_changes(batch)
        batch.notices, self._notices = list(self._notices), {}
        batch.handled, self._handled = self._handled, []
        self._collecting += 1
        return batch, claims

    def _leave_out_abandoned(self) -> None:
        """Leave claims that nobody waits for out of a change, if it is certain that nothing of it was written.

        Else other replicas would see their rows for a moment, and say that this replica works on the messages.
        """
        if self._in_flight is not None and getattr(self.database, "rolls_back", False):
            batch, claims = self._in_flight
            for claim in [one for one in claims if one.is_abandoned]:
                claims.remove(claim)
                batch.claims.remove(claim.row)
                self._decide(claim, None, is_written=False)

    def _decide(self, claim: _Claim, there: EdgeRow | None, *, is_written: bool = True) -> None:
        """End a claim, with the row that is there if it was lost."""
        row = claim.row
        claim.there = there
        if there is None and is_written:
            claim.is_won = True
            self.rows.claimed(row)
            if claim.is_abandoned and row.state == "open":
                self.rows.give_back(row)  # (3)
        self._claiming.pop(row.key, None)
        claim.done.set()

    def _advance(self) -> None:
        """Wake the tasks that wait, and do what had to wait."""
        for number in list(self._turns):
            if number <= self._last_written or self.buried is not None:
                self._turns.pop(number).set()
        while self._actions and self._actions[0][0] <= self._last_written:
            _, action = self._actions.popleft()
            action()

    def _end_claims(self) -> None:
        """End the claims that wait while the store is closed: those under way are given back when they are won."""
        for claim in self._claims:
            claim.error = self._closing()
            self._claiming.pop(claim.row.key, None)
            claim.done.set()
        self._claims.clear()
        for claim in self._in_flight[1] if self._in_flight else ():
            claim.is_abandoned = True
            claim.error = self._closing()
            claim.done.set()

    def _note_trouble(self, error: StoreLost) -> None:
        if self.error is None:
            text = (
                "%s. Messages wait up to %g s, and are refused after that. It tries again by itself"
            )
            logger.log(logging.ERROR, text, error, self._within)
        self.error = error

    def bury(self, error: ReplicaBuried) -> None:
        """Record that this incarnation was declared dead, and wake all tasks that wait for the store."""
        if self.buried is not None:
            return
        self.buried = error
        logger.critical("replica %s of %r: %s", self.replica.name, self.replica.agent, error)
        claims = [*self._claims, *(self._in_flight[1] if self._in_flight else ())]
        self._claims.clear()
        self._in_flight = None
        for claim in claims:
            claim.error = self._new_buried(error)
            self._claiming.pop(claim.row.key, None)
            claim.done.set()
        self._advance()
        self.on_buried()

    def __repr__(self) -> str:
        """Return the address and the replica."""
        return f"<SharedStore {self.database.label} {self.replica.name}>"


def describe_replica(replica: Any) -> str:
    """Return a replica in words, for messages."""
    where = f", process {replica.pid}" if replica.pid else ""
    return (
        f"replica {replica.name} of {replica.agent}{where}, last heard of {replica.age:.0f} s ago"
    )
