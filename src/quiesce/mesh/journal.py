"""The journal: what a node has to know after a restart, in a file, written before it is acted upon.

A line a record, each with a checksum, in one `write` a batch. Not SQLite: a commit there costs three
times as much, and every request pays for two; nothing is ever looked up here, it is all read at the start.
What holds:

1. What `write` has returned from is there after the death of the process; after the loss of power too,
   with `durability="power"`.
2. One process at a time has the file. It is locked until the process ends: whoever opens it knows that
   the one before is dead.
3. A last line that is not whole was not returned from, and is dropped. Anything else that is not as it
   was written is refused: a node that forgets without knowing would run things twice.
4. A draft (a smaller file) takes the place of the file in one step. Until then the file has everything,
   and after it the draft has: whoever dies in between leaves one or the other, whole.
5. What is slow about a draft (to write it, to sync it, to be rid of a file) is done in threads.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import zlib
from contextlib import suppress
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.errors import JournalBroken, JournalInUse, QuiesceError, UsageError
from quiesce.mesh import wire
from quiesce.mesh.facts import Begun, Closed, EdgeClosed, Ended, Over, Sent, Tallied
from quiesce.mesh.receipt import ENDS, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.facts import Record

__all__ = ["Draft", "Journal"]

_HEAD = b"quiesce journal 0\n"
_LARGE = 1024 * 1024
_SPACE = 9  # a checksum of eight digits, and a space


class Journal:
    """A journal in a file.

    Args:
        path: The file; it is made if it is not there, and only its owner may read it.
        durability: `"process"`: what is written outlives the process. `"power"`: and the machine's
            power; each write then waits for the disk.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: str = "process") -> None:
        """Describe it; `open` makes the file."""
        self.path: Path = Path(path)
        self._syncs = arguments.one_of("durability", durability, ("process", "power")) == "power"
        self._lock: int | None = None
        self._file: int | None = None
        self._size = 0
        self._spoiled = ""  # why nothing may be written any more
        self._draft: Draft | None = None

    def open(self) -> list[Record]:
        """Open the file, and give what it has.

        *Raises*: `JournalInUse` if another process has it; `JournalBroken` if it is not a journal, or
        is not as it was written; `UsageError` if its folder is not there.
        """
        if self._lock is not None:
            message = f"the journal {self.path} is open already"
            raise UsageError(message)
        try:
            self._lock = self._take_lock()
            self._draft_path.unlink(missing_ok=True)  # of a process that died at it
            return self._read()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> int:
        if not self.path.parent.is_dir():
            message = f"there is no folder for the journal {self.path}: make it first"
            raise UsageError(message)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            message = f"another process has the journal {self.path}: give each node one of its own"
            raise JournalInUse(message) from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _read(self) -> list[Record]:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(self._file, "rb", closefd=False) as file:
            data = file.read()
        if data != _HEAD and _HEAD.startswith(data):  # new, or its process has died at it
            os.ftruncate(self._file, 0)
            self._size = 0
            self._append(_HEAD)
            self._sync_folder()
            return []
        if not data.startswith(_HEAD):
            message = f"{self.path} is not a journal of this version of quiesce"
            raise JournalBroken(message)
        *lines, torn = data.split(b"\n")
        records = [self._record(number, line) for number, line in enumerate(lines[1:], start=2)]
        self._size = len(data) - len(torn)
        if torn:
            os.ftruncate(self._file, self._size)  # (3)
        return records

    def _record(self, number: int, line: bytes) -> Record:
        try:
            if line[:_SPACE] != b"%08x " % zlib.crc32(line[_SPACE:] + b"\n"):
                message = "its checksum is another"
                raise ValueError(message)  # noqa: TRY301 - told as all the others are
            return _decode(json.loads(line[_SPACE:]))
        except (LookupError, RecursionError, TypeError, ValueError, QuiesceError) as error:
            message = (
                f"line {number} of the journal {self.path} is not as it was written ({error}). What"
                " this node had begun is not known: move the file away if you can do without, and"
                " cascades that it took part in are unknown"
            )
            raise JournalBroken(message) from error

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._size

    def write(self, records: Iterable[Record]) -> None:
        """Write records; they last when this returns (1)."""
        if self._draft is not None:
            records = tuple(records)  # they are read twice
        data = b"".join(map(_line, records))
        if data:
            self._append(data)
            if self._draft is not None:
                self._draft.follow(records)

    def _opened(self) -> int:
        if self._spoiled:
            message = f"the journal {self.path} {self._spoiled}: nothing may follow it"
            raise JournalBroken(message)
        if self._file is None:
            message = f"the journal {self.path} is not open"
            raise UsageError(message)
        return self._file

    def _append(self, data: bytes) -> None:
        """Write all of it, or none: a part would be a line in the midst that is not whole."""
        file, before = self._file, self._size
        if file is None or self._spoiled:
            file = self._opened()  # which says what is wrong
        try:
            size = os.write(file, data)
            if size != len(data):
                _write_all(file, data[size:])
                size = len(data)
        except BaseException:
            try:
                os.ftruncate(file, before)
            except OSError:
                # What was written next would be taken for the rest of that line. The lock is kept:
                # this process is not dead.
                self._spoiled = "has a part of a line at its end"
            raise
        self._size = before + size
        if self._syncs:
            os.fdatasync(file)

    @property
    def _draft_path(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def draft(self, follow: Callable[[Iterable[Record]], Iterable[Record]]) -> Draft:
        """Begin a file that may take the place of this one (4).

        Args:
            follow: Is given what is written from now on, and gives what the draft is to have of it.
        """
        self._opened()
        if self._draft is not None:
            message = f"the journal {self.path} has a draft already"
            raise UsageError(message)
        self._draft = draft = Draft(self, self._draft_path, follow)
        return draft

    def drop_draft(self) -> None:
        """Have no draft, and nothing left of it."""
        if self._draft is not None:
            self._draft.drop()

    def _sync_folder(self) -> None:
        if self._syncs:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Let go of the file; it may be called again."""
        self.drop_draft()
        for number in (self._file, self._lock):  # the lock last
            if number is not None:
                os.close(number)
        self._file = self._lock = None
        self._spoiled = ""


class Draft:
    """A file that is to take the place of a journal's.

    Its lines are made in the event loop, where nothing changes meanwhile, and are written by `put`, in a
    thread. It may be dropped at any time, also while a thread is at it: the last of both closes the file,
    so that no thread ever writes to one of the same number that somebody else has opened since.
    """

    def __init__(
        self,
        journal: Journal,
        path: Path,
        follow: Callable[[Iterable[Record]], Iterable[Record]],
    ) -> None:
        self._journal = journal
        self._path = path
        self._follow = follow
        self._lines = [_HEAD]
        self._size = 0
        self._busy = threading.Lock()  # a thread has the file
        self.is_dropped: bool = False
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file: int | None = os.open(path, flags, 0o600)

    # In the event loop.

    def add(self, records: Iterable[Record]) -> None:
        """Have these records, too; they are made lines at once, and written later."""
        self._lines.append(b"".join(map(_line, records)))

    def follow(self, records: Iterable[Record]) -> None:
        """Have what the journal has been given in this step, as far as it is wanted."""
        self.add(self._follow(records))

    @property
    def waiting(self) -> int:
        """How many bytes are to be put into the file."""
        return sum(map(len, self._lines))

    def take(self) -> bytes:
        """Give what is to be put into the file next."""
        data = b"".join(self._lines)
        self._lines.clear()
        return data

    def replace(self) -> None:
        """Take the place of the journal's file, in this step.

        What was put last was synced. What came since is little: it lasts as any other write does. So
        only with `durability="power"` does this wait for the disk, as each write does then.
        """
        journal, new = self._journal, self._file
        old = journal._opened()
        assert new is not None  # noqa: S101 - it was not dropped, or the journal has another, or none
        data = self.take()
        _write_all(new, data)
        if data and journal._syncs:
            os.fdatasync(new)
        self._path.replace(journal.path)
        old_size = journal._size
        journal._file, journal._size, journal._draft = new, self._size + len(data), None
        self._file = None
        _let_go(old, old_size)
        try:
            journal._sync_folder()
        except BaseException:
            # Its name may still be that of the file before, which has nothing of what comes now.
            journal._spoiled = "may not be the one that is found after a loss of power"
            raise

    def drop(self) -> None:
        """Leave nothing of it."""
        if not self.is_dropped and self._file is not None:
            self.is_dropped = True
            self._journal._draft = None
            self._path.unlink(missing_ok=True)
            self._close()

    # In a thread.

    def put(self, data: bytes, *, sync: bool) -> None:
        """Write what `take` has given; with `sync`, all of it is on the disk then."""
        try:
            with self._busy:
                if self._file is not None:
                    _write_all(self._file, data)
                    self._size += len(data)
                    if sync:
                        os.fdatasync(self._file)
        finally:
            if self.is_dropped:  # `drop` has said so before it looked whether somebody is at it
                self._close()

    def _close(self) -> None:
        """Close the file of a draft that was dropped, unless a thread has it: then that one does."""
        if self._busy.acquire(blocking=False):
            file, self._file = self._file, None
            self._busy.release()
            if file is not None:
                _let_go(file, self._size)


def _let_go(file: int, size: int) -> None:
    """Close a file that has no name any more; a large one in a thread, for all it has is freed then."""
    if size >= _LARGE:
        thread = threading.Thread(
            target=os.close, args=(file,), name="quiesce journal", daemon=True
        )
        with suppress(RuntimeError):  # there may be no more of them
            thread.start()
            return
    os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


# How records are written.


def _one_of(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) not in kinds:
            message = "a value of another kind"
            raise TypeError(message)
        return value

    return check


def _status(value: Any) -> Any:
    if value not in ENDS:
        message = "a status that is none"
        raise ValueError(message)
    return value


def _time(value: Any) -> Any:
    if value is not None and not wire.is_time(value):
        message = "a time that is none"
        raise ValueError(message)
    return value


def _packed(value: Any) -> Any:
    return None if value is None else pack(wire.receipt_of(value))


_FORMS: dict[str, tuple[type, tuple[Callable[[Any], Any], ...]]] = {
    "begun": (
        Begun,
        (bytes.fromhex, bytes.fromhex, _one_of(str), _one_of(str, NoneType), _one_of(bool)),
    ),
    "sent": (Sent, (bytes.fromhex, bytes.fromhex, _one_of(str))),
    "edge closed": (EdgeClosed, (bytes.fromhex, wire.receipt_of)),
    "tallied": (Tallied, (bytes.fromhex, wire.receipt_of)),
    "ended": (Ended, (bytes.fromhex, _status, _time, _one_of(str))),
    "closed": (Closed, (bytes.fromhex, wire.receipt_of)),
    "over": (Over, (bytes.fromhex, _packed)),
}


def _line(record: Record) -> bytes:
    data = _TEXTS[type(record)](record)
    return b"%08x %s" % (zlib.crc32(data), data)


# JSON, written by hand: every request waits for two lines, and this takes a fifth of the time.


def _begun(record: Begun) -> bytes:
    reply = "null" if record.reply is None else quoted(record.reply)
    return (
        f'["begun","{record.edge.hex()}","{record.cascade.hex()}",{quoted(record.parent)},{reply},'
        f"{'true' if record.is_root else 'false'}]\n"
    ).encode()


def _sent(record: Sent) -> bytes:
    return f'["sent","{record.hop.hex()}","{record.edge.hex()}",{quoted(record.to)}]\n'.encode()


def _ended(record: Ended) -> bytes:
    seconds = "null" if record.seconds is None else repr(record.seconds)
    what = f'"{record.status}",{seconds},{quoted(record.why)}'
    return f'["ended","{record.edge.hex()}",{what}]\n'.encode()


def _with_receipt(name: str) -> Callable[[Any], bytes]:
    form = b'["%s","%%s",%%s]\n' % name.encode()
    return lambda record: form % (record.edge.hex().encode(), pack(record.receipt))


def _over(record: Over) -> bytes:
    packed = b"null" if record.packed is None else record.packed
    return b'["over","%s",%s]\n' % (record.edge.hex().encode(), packed)


_TEXTS: dict[type, Callable[[Any], bytes]] = {
    Begun: _begun,
    Sent: _sent,
    EdgeClosed: _with_receipt("edge closed"),
    Tallied: _with_receipt("tallied"),
    Ended: _ended,
    Closed: _with_receipt("closed"),
    Over: _over,
}


def _decode(found: list[Any]) -> Record:
    name, *values = found
    kind, parsers = _FORMS[name]
    record: Record = kind(*(parse(value) for parse, value in zip(parsers, values, strict=True)))
    return record
