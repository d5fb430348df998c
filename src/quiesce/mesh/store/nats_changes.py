"""The messages by which a batch changes the stream of a shared store, and the commit of them.

All messages of a commit are there, or none is. It is taken only if each row is as this process knows it, and if the
replica has not ended: so nothing is written for a replica that another one has declared dead. The last message is the
replica's own, with the name of the commit. So a commit without an answer is repeated without harm: only one of both can
succeed, and the entry says which it was.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quiesce.errors import ReplicaBuried, UsageError
from quiesce.mesh.store.nats_link import NotNowError, RefusedError
from quiesce.mesh.store.nats_subjects import pack_notice, pack_row, unpack_entry, unpack_row
from quiesce.mesh.store.rows import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh.store.nats_link import NatsLink
    from quiesce.mesh.store.nats_stream import NatsStream, Stored
    from quiesce.mesh.store.nats_subjects import ReplicaEntry, Subjects
    from quiesce.mesh.store.rows import EdgeRow

__all__: list[str] = []

Message = tuple[str, bytes, dict[str, str]]

_CONFLICTS = frozenset({10071, 10164})  # another message was first
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_TOO_LARGE = 10199
_CONFLICTS_MAX = 4  # until the next attempt is made after a pause
MESSAGES_MAX = 960  # in a commit; the server takes 1000
BYTES_MAX = 16 * 2**20
_KNOWN_MAX = 20_000
_TOMBSTONE_SECONDS = 60


def tombstone(subject: str, expected: int | None = None) -> Message:
    """Return the message that removes the one before it, and that the server removes a minute later."""
    headers = {"Nats-TTL": str(_TOMBSTONE_SECONDS)}
    if expected is not None:
        headers[_EXPECTED] = str(expected)
    return subject, b"", headers


def only_after(subject: str, data: bytes, expected: int) -> Message:
    """Return a message that the server takes only if the one before it has this sequence."""
    return subject, data, {_EXPECTED: str(expected)}


_COSTS = (("claims", 2), ("puts", 3), ("notices", 1), ("drops", 2), ("handled", 1))


def _size(one: object) -> int:
    return len(getattr(one, "body", b"")) + 512


def cost_of(batch: Batch) -> tuple[int, int]:
    """Return of how many messages and bytes a batch consists at most."""
    messages = size = 0
    for name, cost in _COSTS:
        changes = getattr(batch, name)
        messages += cost * len(changes)
        size += sum(map(_size, changes))
    return messages, size


def keys_of(batch: Batch) -> set[tuple[str, bytes]]:
    """Return the rows that a batch changes. Claims return what is lost by key, so the keys of claims count alone."""
    keys: set[tuple[str, bytes]] = {(row.side, row.key) for row in (*batch.claims, *batch.puts)}
    return keys | {("claim", row.key) for row in batch.claims} | set(batch.drops)


def parts_of(batch: Batch) -> Iterator[Batch]:
    """Return a batch in parts that fit into one commit each: as a rule, one part."""
    part, messages, size = Batch(batch.owner), 1, 0
    for name, cost in _COSTS:
        for one in getattr(batch, name):
            if messages + cost > MESSAGES_MAX or size + _size(one) > BYTES_MAX:
                yield part
                part, messages, size = Batch(batch.owner), 1, 0
            getattr(part, name).append(one)
            messages, size = messages + cost, size + _size(one)
    yield part


@dataclass(slots=True)
class _Known:
    """What this process knows of a row's place: sequence and index entry. It need not be true any more."""

    number: int
    index: str
    """Empty: there is no row."""


@dataclass(slots=True)
class _Plan:
    """The messages of one attempt."""

    messages: list[Message] = field(default_factory=list)
    places: dict[str, tuple[int, str]] = field(default_factory=dict)
    """For each row's subject: the place of its message, and its index entry."""
    lost: dict[bytes, EdgeRow] = field(default_factory=dict)


class Attempts:
    """The attempts to write one batch, by which a later one learns what became of those before."""

    def __init__(self, batch: Batch) -> None:
        """Name the first attempt."""
        self.batch = batch
        self.name: str = secrets.token_hex(8)
        self.lost: dict[str, dict[bytes, EdgeRow]] = {}
        """For each attempt, by name: the rows of lost claims."""

    def begin(self, lost: dict[bytes, EdgeRow]) -> str:
        """Return a name for the next attempt."""
        name = f"{self.name}.{len(self.lost)}"
        self.lost[name] = lost
        return name


class Writer:
    """Writes batches, one after the other. What is known of rows spares it reading them before."""

    def __init__(self, link: NatsLink, stream: NatsStream, subjects: Subjects) -> None:
        """Write to this stream."""
        self._link = link
        self._stream = stream
        self._subjects = subjects
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._entries: OrderedDict[str, ReplicaEntry] = OrderedDict()
        self.notices: OrderedDict[int, str] = OrderedDict()
        """The subjects of notices that were read, by number."""

    def note_notice(self, number: int, subject: str) -> None:
        """Remember the subject of a notice."""
        self.notices[number] = subject
        if len(self.notices) > _KNOWN_MAX:
            self.notices.popitem(last=False)

    async def entry(self, incarnation: str) -> ReplicaEntry | None:
        """Read the entry of a replica."""
        subject, end = self._subjects.entry(incarnation), self._subjects.end(incarnation)
        found = await self._stream.last([subject, end])
        return entry_of(found.get(subject), found.get(end))

    async def commit(self, attempts: Attempts) -> dict[bytes, EdgeRow]:
        """Write what fits into one commit. Return the rows of lost claims.

        *Raises*: `ReplicaBuried`, `NotNowError`: the same attempts are to be made again.
        """
        batch = attempts.batch
        entry = self._entries.pop(batch.owner, None)
        handled = [await self._notice_subject(number) for number in batch.handled]
        rows: dict[str, Stored] | None = {} if self._knows_all(batch) else None
        for _ in range(_CONFLICTS_MAX):
            if entry is None:
                entry = await self._alive(batch.owner, attempts)
                if entry.batch in attempts.lost:
                    return attempts.lost[entry.batch]  # it was written, and the answer was lost
            if rows is None:
                rows = await self._read_rows(batch)
            plan = self._plan(batch, rows, [one for one in handled if one], attempts.name)
            new = replace(entry, batch=attempts.begin(plan.lost))
            plan.messages.append((self._subjects.entry(batch.owner), new.pack(), {}))
            self._expect(plan.messages, batch.owner, entry.number)
            try:
                last = await self._link.publish(plan.messages)
            except RefusedError as error:
                raise_if_useless(error)
                entry = rows = None
                continue
            self._stream.note(last)
            new.number = last
            self._keep(batch.owner, new)
            self._note(plan, last)
            return plan.lost
        raise NotNowError("others change the same rows at the same time")

    def _expect(self, messages: list[Message], owner: str, number: int) -> None:
        """Expect that the replica has not ended, and if there is a place for it, that nothing was written since.

        A message has one expectation. The first one without any gets that about the end; the last message, which is
        the replica's own, is one. If it is needed for that, all others have an expectation, so that they are written
        once.
        """
        headers = next(one for _, _, one in messages if _EXPECTED not in one)
        headers |= {_EXPECTED: "0", f"{_EXPECTED}-Subject": self._subjects.end(owner)}
        messages[-1][2].setdefault(_EXPECTED, str(number))

    async def _alive(self, incarnation: str, attempts: Attempts) -> ReplicaEntry:
        entry = await self.entry(incarnation)
        if entry is None:
            raise ReplicaBuried(incarnation)
        if entry.replica.state != "alive" and entry.batch not in attempts.lost:
            raise ReplicaBuried(incarnation, entry.replica.why)
        return entry

    def _keep(self, owner: str, entry: ReplicaEntry) -> None:
        self._entries[owner] = entry
        if len(self._entries) > 100:  # noqa: PLR2004 - a process has one or a few
            self._entries.popitem(last=False)

    def _row_subjects(self, batch: Batch) -> list[str]:
        rows = {self._subjects.row(row.side, row.key): None for row in (*batch.claims, *batch.puts)}
        rows |= {self._subjects.row(side, key): None for side, key in batch.drops}
        return list(rows)

    def _knows_all(self, batch: Batch) -> bool:
        """Return whether a commit can be tried without reading: claims are of rows that are new, as a rule."""
        changed = [self._subjects.row(row.side, row.key) for row in batch.puts]
        changed += [self._subjects.row(side, key) for side, key in batch.drops]
        claimed = (self._known.get(self._subjects.row(row.side, row.key)) for row in batch.claims)
        return all(subject in self._known for subject in changed) and not any(
            one and one.index for one in claimed
        )

    async def _read_rows(self, batch: Batch) -> dict[str, Stored]:
        """Read the rows that a batch changes."""
        subjects = self._row_subjects(batch)
        found = await self._stream.last(subjects, all_of_them=True)
        rows = {subject: one for subject, one in found.items() if one.data}
        for subject in subjects:
            one = found.get(subject)
            index = self._subjects.index(unpack_row(one.data)) if one and one.data else ""
            self._known[subject] = _Known(one.number if one else 0, index)
        return rows

    async def _notice_subject(self, number: int) -> str | None:
        subject = self.notices.get(number) or await self._stream.subject_of(number)
        return subject if subject and self._subjects.is_notice(subject) else None

    # The messages.

    def _plan(
        self, batch: Batch, rows: dict[str, Stored], handled: list[str], attempt_name: str
    ) -> _Plan:
        """Return the messages of a commit: of several changes of one row, only the last."""
        plan = _Plan()
        changes: dict[str, EdgeRow | None] = {}
        for row in batch.claims:
            subject = self._subjects.row(row.side, row.key)
            there = changes.get(subject)
            if there is None and subject in rows:
                there = unpack_row(rows[subject].data)
            if there is None:
                changes[subject] = row
            else:
                plan.lost[row.key] = there
        changes |= {self._subjects.row(row.side, row.key): row for row in batch.puts}
        changes |= {self._subjects.row(*drop): None for drop in batch.drops}
        for subject, change in changes.items():
            self._add(plan, subject, change)
        for number, notice in enumerate(batch.notices):
            subject = self._subjects.notice(notice.owner, attempt_name, number)
            plan.messages.append((subject, pack_notice(notice), {}))
        plan.messages += [tombstone(subject) for subject in dict.fromkeys(handled)]
        return plan

    def _add(self, plan: _Plan, subject: str, row: EdgeRow | None) -> None:
        known = self._known.get(subject) or _Known(0, "")
        index = "" if row is None else self._subjects.index(row)
        if row is None and not known.index:
            return
        plan.places[subject] = (len(plan.messages), index)
        if row is None:
            plan.messages.append(tombstone(subject, known.number))
        else:
            plan.messages.append(only_after(subject, pack_row(row), known.number))
        if known.index and known.index != index:
            plan.messages.append(tombstone(known.index))
        if index and known.index != index:
            plan.messages.append((index, b"1", {}))

    def _note(self, plan: _Plan, last: int) -> None:
        """Remember where the rows are now: the messages of a commit follow one another in the stream."""
        first = last - len(plan.messages) + 1
        for subject, (place, index) in plan.places.items():
            self._known[subject] = _Known(first + place, index)
            self._known.move_to_end(subject)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def remove(self, rows: dict[str, Stored]) -> None:
        """Remove rows if they are as they were read.

        *Raises*: `RefusedError` if one is not.
        """
        messages: list[Message] = []
        for subject, one in rows.items():
            messages.append(tombstone(subject, one.number))
            messages.append(tombstone(self._subjects.index(unpack_row(one.data))))
            self._known.pop(subject, None)
        self._stream.note(await self._link.publish(messages))


def entry_of(found: Stored | None, end: Stored | None) -> ReplicaEntry | None:
    """Return the entry of a replica, of its two messages."""
    if found is None:
        return None
    if end is None:
        return unpack_entry(found.data, found.number, b"", 0)
    return unpack_entry(found.data, found.number, end.data, end.number)


def raise_if_useless(error: RefusedError) -> None:
    """Raise, unless the server has refused a message only because another one was first."""
    if error.code == _TOO_LARGE:
        raise UsageError(
            f"the NATS server takes batches that are too small ({error}): raise max_msgs to 1000 in the block"
            " `limits { batch }` of `jetstream` in its configuration"
        ) from None
    if error.code not in _CONFLICTS:
        raise NotNowError(str(error)) from None
