"""Rows in a stream of NATS JetStream, for processes of several machines.

A batch is one commit of the stream, with index entries for the rows and with the entry of the replica (see
`nats_changes`). Nothing is deleted on the write path: tombstones replace what is removed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from quiesce.errors import ReplicaBuried, StoreLost, UsageError
from quiesce.mesh.store.nats_changes import (
    Writer,
    entry_of,
    only_after,
    parts_of,
    raise_if_useless,
    tombstone,
)
from quiesce.mesh.store.nats_groups import Groups
from quiesce.mesh.store.nats_link import NatsLink, NotNowError, RefusedError, persist
from quiesce.mesh.store.nats_stream import NatsStream
from quiesce.mesh.store.nats_subjects import (
    ReplicaEntry,
    Subjects,
    read_address,
    unpack_notice,
    unpack_row,
)
from quiesce.mesh.store.rows import Batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from quiesce.mesh.store.nats_changes import Message
    from quiesce.mesh.store.nats_stream import Stored
    from quiesce.mesh.store.rows import EdgeRow, Notice, Replica, Side

__all__: list[str] = []

_T = TypeVar("_T")
_log = logging.getLogger("quiesce.mesh")

_WAKE_SECONDS = 0.01  # between two wake-ups of other processes
_HEAD_BYTES = 4096  # of a message: its headers, and the fields of a row beside its body
_PRUNED_AT_ONCE = 300  # rows in one commit
_ATTEMPTS = 4  # of a question without an answer, within the time limit
_ATTEMPT_SECONDS_MAX = 2.5
_NUMBER_DIGITS_MAX = 20
_UNANSWERED_MAX = (
    12  # questions, in two seconds: a cluster that starts has a leader by then, as a rule
)
_NO_JETSTREAM = (
    "no JetStream answers for the store {}: it is not enabled on the servers or for the account, or its cluster has no"
    " leader yet. Put a `jetstream` block with a `store_dir` into the configuration of the servers"
)
_NOT_ENABLED = frozenset({10039, 10076})  # for the account, on the server
_NOT_CLUSTERED = 10074
_UNSYNCED = (
    "the store %s does not say whether its servers write to the disk before they acknowledge, and a client of NATS"
    " cannot see it. By default they do so every two minutes: a loss of power, or of a majority of the servers, then"
    " loses what was acknowledged. Set `sync_interval: always` in the `jetstream` block of their configuration, and add"
    " ?sync=always to the address of the store"
)


class NatsDatabase:
    """Rows in a stream of NATS JetStream. Needs nats-server 2.12, nats-py 2.15, and asyncio.

    Args:
        address: `nats://user:password@host:4222,host:4222/bucket?replicas=3&sync=always`. The bucket is `quiesce` if
            there is none. `replicas`: on how many servers the rows are kept. `sync=always` states that all servers
            have `sync_interval: always`.
        seconds: The time limit of each method.
    """

    def __init__(self, address: str, *, seconds: float = 10.0) -> None:
        """Describe the store; `open` connects."""
        self._address = read_address(address)
        self._seconds = seconds
        self._subjects = Subjects(self._address.bucket)
        self._link = NatsLink(self._address, min(seconds / _ATTEMPTS, _ATTEMPT_SECONDS_MAX))
        self._link.on_connected.append(self._note_connected)
        self._stream = NatsStream(self._link, self._address, self._subjects)
        self._writer = Writer(self._link, self._stream, self._subjects)
        self._groups = Groups(self._writer)
        self._me = secrets.token_hex(4)
        self._changed: asyncio.Event | None = None
        self._wake: Callable[[], None] | None = None
        self._has_warned = False

    @property
    def is_one_machine(self) -> bool:
        """Whether only processes of one machine can use the store."""
        return False

    @property
    def label(self) -> str:
        """The address for messages, without credentials."""
        return self._address.label

    async def _do(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a step until it has an answer, within the time limit."""
        why = "no answer"

        async def noted() -> _T:
            nonlocal why
            try:
                return await step()
            except NotNowError as error:
                why = str(error)
                raise

        try:
            async with asyncio.timeout(self._seconds):
                return await persist(noted)
        except TimeoutError:
            why = self._link.last_trouble or why
        except RefusedError as error:
            why = self._address.without_secrets(str(error))
        message = (
            f"the store {self.label} cannot be used now: it has not done in {self._seconds:g} seconds what was asked"
            f" ({why}). The call may be repeated"
        )
        raise StoreLost(message)

    async def open(self) -> None:
        """Connect, and make the stream if there is none."""
        if "trio" in sys.modules and sys.modules["trio"].lowlevel.in_trio_run():
            raise UsageError(
                "a store in NATS needs asyncio or uvloop, because its client does: with trio, use a store in an SQLite"
                " file, or run the program with asyncio"
            )
        if not self._link.is_open:
            self._link.start()
            self._groups.start()
        try:
            await self._do(self._open)
        except BaseException:
            await self._link.close()
            raise
        if not self._address.is_synced and not self._has_warned:
            self._has_warned = True
            _log.warning(_UNSYNCED, self.label)

    async def born_at(self) -> float:
        """Return when the stream was made."""
        return self._stream.born_at

    async def _open(self) -> None:
        try:
            await self._stream.open()
        except RefusedError as error:
            self._explain(error)
            raise NotNowError(str(error)) from None
        except NotNowError:
            if self._link.denied:
                raise UsageError(
                    f"the user of the store {self.label} may not use it: {self._link.denied}. Grant the permissions"
                    " that the page on stores in NATS lists"
                ) from None
            if self._link.unanswered > _UNANSWERED_MAX:
                raise UsageError(_NO_JETSTREAM.format(self.label)) from None
            raise

    def _explain(self, error: RefusedError) -> None:
        """Raise an error that says what to do, if waiting does not help."""
        text = self._address.without_secrets(str(error))
        if error.code == 0:
            raise UsageError(
                f"the servers of the store {self.label} refuse its user or password ({text}): correct them in the"
                " address of the store"
            ) from None
        if error.code in _NOT_ENABLED:
            raise UsageError(_NO_JETSTREAM.format(self.label)) from None
        if error.code == _NOT_CLUSTERED:
            raise UsageError(
                f"the server of the store {self.label} has no cluster, so it cannot keep"
                f" {self._address.replicas} copies ({text}): leave out `replicas` in the address of the store"
            ) from None

    async def run(self, wake: Callable[[], None]) -> None:
        """Call `wake` after changes by other processes and after each reconnect; tell others of changes here."""
        self._changed, self._wake = asyncio.Event(), wake
        try:
            await self._do(lambda: self._link.listen(self._subjects.wake, self._on_wake))
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._tell()
                await asyncio.sleep(_WAKE_SECONDS)
        finally:
            self._changed = self._wake = None
            self._link.deafen(self._subjects.wake)

    def _on_wake(self, payload: bytes) -> None:
        """Note how far the stream goes, so that no read ends before what the wake-up is about."""
        sender, _, number = payload.partition(b" ")
        if sender == self._me.encode() or self._wake is None:
            return
        if number.isdigit() and len(number) <= _NUMBER_DIGITS_MAX:
            self._stream.note(int(number))
        self._wake()

    def _note_connected(self) -> None:
        if self._wake is not None:
            self._wake()

    async def _tell(self) -> None:
        payload = f"{self._me} {self._stream.seen}".encode()
        await self._link.tell(self._subjects.wake, payload)

    async def _note_change(self) -> None:
        """Wake other processes."""
        if self._changed is not None:
            self._changed.set()
        else:
            await self._tell()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._link.close()

    # Rows.

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write a batch. Return the rows of lost claims, by key.

        A batch of up to 300 rows is written in one step, a larger one in several, in the order of its fields.
        """
        self._check_sizes(batch)
        lost = await self._write(batch)
        await self._note_change()
        return lost

    def _check_sizes(self, batch: Batch) -> None:
        """Raise if a row is too large: the server would end the connection, and others' rows would fail with it."""
        bodies = [row.body for row in (*batch.claims, *batch.puts)]
        for body in (*bodies, *(one.body for one in batch.notices)):
            if len(body) + _HEAD_BYTES > self._link.largest:
                raise UsageError(
                    f"a row of {len(body)} bytes is larger than the servers of the store {self.label} take:"
                    f" they take {self._link.largest} bytes, of which quiesce needs {_HEAD_BYTES}. Raise max_payload in"
                    " their configuration"
                )

    async def _write(self, batch: Batch) -> dict[bytes, EdgeRow]:
        members = self._groups.join(parts_of(batch))

        async def step() -> dict[bytes, EdgeRow]:
            lost: dict[bytes, EdgeRow] = {}
            for member in members:
                lost |= await self._groups.finish(member)
            return lost

        try:
            return await self._do(step)
        finally:
            self._groups.leave(members)

    async def find(self, side: Side, keys: Iterable[bytes]) -> dict[bytes, EdgeRow]:
        """Return the rows of one side with these keys, by key."""
        subjects = [self._subjects.row(side, key) for key in keys]
        found = await self._do(lambda: self._stream.last(subjects))
        rows = (unpack_row(one.data) for one in found.values())
        return {row.key: row for row in rows}

    async def owned(self, owner: str) -> list[EdgeRow]:
        """Return the rows of an incarnation that are not over."""
        rows = await self._do(lambda: self._found_by(self._subjects.owned(owner)))
        return [row for row in rows if row.owner == owner and row.state != "over"]

    async def cascade(self, cascade: bytes) -> list[EdgeRow]:
        """Return all rows of a cascade."""
        rows = await self._do(lambda: self._found_by(self._subjects.cascade(cascade)))
        return [row for row in rows if row.cascade == cascade]

    async def _found_by(self, *filters: str) -> list[EdgeRow]:
        """Return the rows that index entries find, oldest first."""
        entries = await self._stream.last(filters)
        return await self._rows_of(entries)

    async def _rows_of(self, entries: Iterable[str]) -> list[EdgeRow]:
        subjects = dict.fromkeys(self._subjects.row_of(entry) for entry in entries)
        found = await self._stream.last(subjects) if subjects else {}
        rows = [unpack_row(one.data) for one in found.values()]
        return sorted(rows, key=lambda row: row.began_at)

    async def roots(self, most: int) -> list[EdgeRow]:
        """Return the first hops of the newest cascades."""

        async def step() -> list[EdgeRow]:
            names = await self._stream.names(self._subjects.roots)
            names.sort(key=lambda name: name.rpartition(".")[2], reverse=True)
            rows: list[EdgeRow] = []
            for first in range(0, len(names), max(most, 1)):  # some names are those of tombstones
                rows += await self._rows_of(names[first : first + most])
                rows = [row for row in rows if row.root is not None]
                if len(rows) >= most:
                    break
            return sorted(rows, key=lambda row: row.began_at, reverse=True)[:most]

        return await self._do(step)

    async def notices(self, owners: Iterable[str]) -> list[Notice]:
        """Return the notices for some incarnations, oldest first."""
        filters = [self._subjects.notices(owner) for owner in owners]
        if not filters:
            return []
        found = await self._do(lambda: self._stream.last(filters))
        notices = [unpack_notice(one.data, one.number) for one in found.values()]
        for one in found.values():
            self._writer.note_notice(one.number, one.subject)
        return sorted(notices, key=lambda notice: notice.number)

    async def prune(self, now: float, most: int = 1000) -> int:
        """Remove rows that are not needed any more; return their number."""
        removed = 0

        async def step() -> int:
            nonlocal removed
            entries = await self._stream.last(self._subjects.expired(now))
            subjects = list(dict.fromkeys(self._subjects.row_of(entry) for entry in entries))
            for first in range(0, len(subjects), _PRUNED_AT_ONCE):
                old = await self._expired(subjects[first : first + _PRUNED_AT_ONCE], now)
                some = dict(list(old.items())[: most - removed])
                if some:
                    await self._remove(some)
                    removed += len(some)
                if removed >= most:
                    break
            return removed

        return await self._do(step)

    async def _expired(self, subjects: list[str], now: float) -> dict[str, Stored]:
        found = await self._stream.last(subjects)
        keep = {subject: unpack_row(one.data).keep_until for subject, one in found.items()}
        return {
            subject: one
            for subject, one in found.items()
            if (until := keep[subject]) is not None and until < now
        }

    async def _remove(self, rows: dict[str, Stored]) -> None:
        try:
            await self._writer.remove(rows)
        except RefusedError as error:
            raise_if_useless(error)
            raise NotNowError("others change the same rows at the same time") from None

    # Replicas.

    async def enroll(self, replica: Replica) -> None:
        """Add an incarnation."""
        replica = replace(replica, state="alive", age=0.0, heir="", why="")
        subject = self._subjects.entry(replica.incarnation)

        async def step() -> None:
            entry = await self._writer.entry(replica.incarnation)
            if entry is None:
                found = (await self._stream.last([subject], all_of_them=True)).get(subject)
                expected = found.number if found else 0
                await self._publish([only_after(subject, ReplicaEntry(replica).pack(), expected)])
            elif entry.replica.state != "alive":
                raise ReplicaBuried(replica.incarnation, entry.replica.why)
            elif entry.replica != replica:
                raise UsageError(
                    f"the store {self.label} has another replica of the name {replica.incarnation}: each start of"
                    " a process needs a random name"
                )

        await self._do(step)
        await self._note_change()

    async def beat(self, incarnation: str) -> None:
        """Record that an incarnation is alive."""
        await self._write(Batch(incarnation))

    async def replicas(self, agent: str | None = None) -> list[Replica]:
        """Return the incarnations of an agent, or of all agents."""

        async def step() -> list[Replica]:
            now = await self._stream.catch_up()  # by the clock that has dated the messages, too
            found = await self._stream.last(self._subjects.entries)
            replicas: list[Replica] = []
            for subject, one in found.items():
                if self._subjects.is_entry(subject):
                    entry = entry_of(one, found.get(self._subjects.end_of(subject)))
                    if entry is not None:
                        age = max(0.0, now - one.written_at)
                        replicas.append(replace(entry.replica, age=age))
            return replicas

        replicas = await self._do(step)
        return [one for one in replicas if agent is None or one.agent == agent]

    async def _change_state(
        self, incarnation: str, change: Callable[[Replica], Replica | None]
    ) -> bool:
        """Change the entry of a replica. Return False if `change` returns None."""
        name = secrets.token_hex(8)

        async def step() -> bool:
            entry = await self._writer.entry(incarnation)
            if entry is None:
                return False
            if entry.change == name:
                return True  # it was written, and the answer was lost
            changed = change(entry.replica)
            if changed is None:
                return False
            new = replace(entry, replica=changed, change=name)
            subject = self._subjects.end(incarnation)
            await self._publish([only_after(subject, new.pack_end(), entry.end_number)])
            return True

        is_changed = await self._do(step)
        await self._note_change()
        return is_changed

    async def end(self, incarnation: str, *, is_dead: bool, why: str = "") -> bool:
        """Record that an incarnation is dead, or has left."""

        def change(replica: Replica) -> Replica | None:
            if replica.state != "alive":
                return None
            return replace(replica, state="dead" if is_dead else "left", why=why)

        return await self._change_state(incarnation, change)

    async def inherit(self, incarnation: str, heir: str, before: str) -> bool:
        """Make `heir` the heir of a dead incarnation, if its heir is `before`."""

        def change(replica: Replica) -> Replica | None:
            if replica.state != "dead" or replica.heir != before:
                return None
            return replace(replica, heir=heir)

        return await self._change_state(incarnation, change)

    async def forget(self, incarnation: str) -> None:
        """Remove an incarnation that is not alive."""

        async def step() -> None:
            entry = await self._writer.entry(incarnation)
            if entry is None or entry.replica.state == "alive":
                return
            notices = list(await self._stream.last([self._subjects.notices(incarnation)]))
            for first in range(0, len(notices), _PRUNED_AT_ONCE):
                some = notices[first : first + _PRUNED_AT_ONCE]
                await self._publish([tombstone(subject) for subject in some])
            both = [self._subjects.entry(incarnation), self._subjects.end(incarnation)]
            await self._publish([tombstone(subject) for subject in both])

        await self._do(step)

    async def _publish(self, messages: list[Message]) -> None:
        try:
            self._stream.note(await self._link.publish(messages))
        except RefusedError as error:
            raise_if_useless(error)
            raise NotNowError("another process has changed the replica at the same time") from None
