"""Batches of calls that wait at the same time, written in one commit.

A commit costs the server about the same for one row as for a hundred. So while one commit is under way, the calls
behind it gather, and the first of them writes for all. No task is needed: each call waits for its turn, and finds its
batch written, or writes. A commit that a call leaves unfinished, cancelled or out of time, is gone on with by the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from quiesce.mesh.store.nats_changes import BYTES_MAX, MESSAGES_MAX, Attempts, cost_of, keys_of
from quiesce.mesh.store.nats_link import NotNowError
from quiesce.mesh.store.rows import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.mesh.store.nats_changes import Writer
    from quiesce.mesh.store.rows import EdgeRow

__all__: list[str] = []


class _Member:
    """The batch of one call."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.lost: dict[bytes, EdgeRow] | None = None
        self.error: Exception | None = None
        self.is_waited_for = True

    @property
    def is_done(self) -> bool:
        return self.lost is not None or self.error is not None


class _Group:
    """What is written in one commit."""

    def __init__(self, members: list[_Member]) -> None:
        self.members = members
        self.attempts = Attempts(_merged([one.batch for one in members]))

    def without_cancelled(self) -> _Group | None:
        """Return the group without calls that wait no more, unless it may have been written already."""
        if self.attempts.lost or all(one.is_waited_for for one in self.members):
            return self
        members = [one for one in self.members if one.is_waited_for]
        return _Group(members) if members else None


class Groups:
    """The calls that wait to be written."""

    def __init__(self, writer: Writer) -> None:
        """Write with this writer."""
        self._writer = writer
        self._turn = asyncio.Lock()
        self._waiting: deque[_Member] = deque()
        self._group: _Group | None = None

    def start(self) -> None:
        """Take turns in the event loop that runs now."""
        self._turn = asyncio.Lock()

    def join(self, parts: Iterable[Batch]) -> list[_Member]:
        """Add batches to the waiting ones; `finish` waits for each."""
        members = [_Member(part) for part in parts]
        self._waiting += members
        return members

    def leave(self, members: list[_Member]) -> None:
        """Take back batches, unless they are written or being written."""
        for member in members:
            member.is_waited_for = False
            if member in self._waiting:
                self._waiting.remove(member)

    async def finish(self, member: _Member) -> dict[bytes, EdgeRow]:
        """Wait until a batch is written; return the rows of lost claims.

        *Raises*: `ReplicaBuried`, `UsageError`; `NotNowError`: call it again.
        """
        async with self._turn:
            while not member.is_done:
                group = self._group.without_cancelled() if self._group else None
                self._group = group or self._next()
                await self._commit(self._group)
                self._group = None
        if member.error is not None:
            raise member.error
        return member.lost or {}

    async def _commit(self, group: _Group) -> None:
        try:
            lost = await self._writer.commit(group.attempts)
        except NotNowError:
            raise  # the group stays: the next call goes on with it
        except Exception as error:  # noqa: BLE001 - each call raises it
            for one in group.members:
                one.error = error
        else:
            for one in group.members:
                keys = {row.key for row in one.batch.claims}
                one.lost = {key: row for key, row in lost.items() if key in keys}

    def _next(self) -> _Group:
        """Return the first of the waiting batches, with those behind it that go with it."""
        first = self._waiting.popleft()
        members, keys = [first], keys_of(first.batch)
        messages, size = cost_of(first.batch)
        while self._waiting and self._waiting[0].batch.owner == first.batch.owner:
            batch = self._waiting[0].batch
            more, larger = cost_of(batch)
            messages, size = messages + more, size + larger
            if messages > MESSAGES_MAX or size > BYTES_MAX or not keys.isdisjoint(keys_of(batch)):
                break  # also what changes the same row: it comes later
            keys |= keys_of(batch)
            members.append(self._waiting.popleft())
        return _Group(members)


def _merged(batches: list[Batch]) -> Batch:
    merged = Batch(batches[0].owner)
    for one in batches:
        merged.claims += one.claims
        merged.puts += one.puts
        merged.notices += one.notices
        merged.drops += one.drops
        merged.handled += one.handled
    return merged
