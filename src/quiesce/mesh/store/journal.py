"""The journal: what a node has to know after a restart, in a file, written before it is acted upon.

A line a record (see records.py), in one `write` a batch. Not SQLite: a commit there costs three
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

import errno
import os
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quiesce.core import arguments
from quiesce.errors import ArgumentError, JournalBroken, JournalInUse, QuiesceError, UsageError
from quiesce.mesh.protocol.facts import Counted
from quiesce.mesh.store.record_format import lines_of, record_line, record_of

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: nodes without a journal work there
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from types import ModuleType

    from quiesce.mesh.protocol.facts import Record

__all__ = ["Draft", "Journal"]

DURABILITIES = ("process", "power")
_HEAD = b"quiesce journal 1\n"
_LARGE = 1024 * 1024
_WRONG_PLACE = frozenset((
    errno.EACCES, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENODEV, errno.ENOENT, errno.ENOTDIR,
    errno.ENXIO, errno.EPERM, errno.EROFS,
))  # fmt: skip


class Journal:
    """A journal in a file.

    Args:
        path: The file; it is made if it is not there, and only its owner may read it.
        durability: `"process"`: what is written outlives the process. `"power"`: and the machine's
            power; each write then waits for the disk.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: str = "process") -> None:
        """Describe it; `open` makes the file."""
        self.path: Path = _path(path)
        self.syncs: bool = arguments.one_of("durability", durability, DURABILITIES) == "power"
        """Whether each write waits for the disk."""
        self._lock: int | None = None
        self._file: int | None = None
        self.size: int = 0
        """How many bytes it has."""
        self.lines: int = 0
        """How many lines it had when it was opened."""
        self.count: int = 0
        """How many records were ever written into it: those that a draft has left out, too."""
        self._spoiled = ""  # why nothing may be written any more
        self._is_torn = False  # whether a write that failed has left a part of a line
        self._draft: Draft | None = None

    def open(self) -> list[Record]:
        """Open the file, and give what it has: see `open_into`."""
        records: list[Record] = []
        self.open_into(records.extend)
        return records

    def open_into(self, take: Callable[[Iterable[Record]], object]) -> None:
        """Open the file, and have what it has taken, as it is read: all of it may be much.

        *Raises*: `JournalInUse` if another has it; `JournalBroken` if it is not a journal, is not
        as it was written, or cannot be taken; `UsageError` if there cannot be a journal at its path.
        """
        if self._lock is not None:
            message = f"the journal {self.path} is open already"
            raise UsageError(message)
        try:
            self._read_into(take)
        except QuiesceError:
            raise
        except OSError as error:
            if error.errno not in _WRONG_PLACE:
                raise
            message = (
                f"the journal {self.path} cannot be opened ({error.strerror}): name a file in a folder in which this"
                " process may make files"
            )
            raise UsageError(message) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, these records are no history
            # Without its cause: that of a KeyError is the id of an edge, and this is logged.
            kind = type(error).__name__
            message = f"the journal {self.path} tells of things that cannot have happened ({kind})"
            raise JournalBroken(message) from None

    def _read_into(self, take: Callable[[Iterable[Record]], object]) -> None:
        self.path = self.path.resolve()  # by whatever name: it has one lock, and stays the file
        try:
            self._lock = self._take_lock()
            self._draft_path.unlink(missing_ok=True)  # of a process that died at it
            with closing(self._read()) as records:  # now, not when it is collected
                take(records)
        except BaseException:  # also of one who has had all of it
            self.close()
            raise

    def _take_lock(self) -> int:
        if not self.path.parent.is_dir():
            message = f"there is no folder for the journal {self.path}: make it first"
            raise UsageError(message)
        if self.path.is_dir():
            message = (
                f"the journal must be a file, and {self.path} is a directory: name a file in it, like"
                f" {self.path / 'agent.journal'}"
            )
            raise UsageError(message)
        if self.path.exists() and not self.path.is_file():
            message = (
                f"the journal {self.path} must be a file, and is a device, a pipe or a socket: name a file in a"
                " folder in which this process may make files"
            )
            raise UsageError(message)
        if fcntl is None:
            message = (
                f"the journal {self.path} cannot be locked: this platform has no fcntl, so that two"
                " processes could write it. Run the node without a journal here"
            )
            raise UsageError(message)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            message = f"another node has the journal {self.path}: give each, and each process, one of its own"
            raise JournalInUse(message) from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _read(self) -> Generator[Record, None, None]:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(self._file, "rb", closefd=False) as file:
            head = file.read(len(_HEAD))
            if head != _HEAD and _HEAD.startswith(head):  # new, or its process has died at it
                os.ftruncate(self._file, 0)
                self.size = self.count = 0
                self._append(_HEAD)
                self._sync_folder()
                return
            if head != _HEAD:
                message = (
                    f"{self.path} is not a journal of this version of quiesce. Name another file, or run the version"
                    " that has written it. Or move the file away, if you can do without: cascades that its node took"
                    " part in are unknown then"
                )
                raise JournalBroken(message)
            self.size, self.count = len(head), 0
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self.size)  # (3)
                    return
                record = self._record(number, line)
                self.lines = number
                self.count = record.records if type(record) is Counted else self.count + 1
                yield record
                self.size += len(line)

    def _record(self, number: int, line: bytes) -> Record:
        try:
            return record_of(line)
        except (LookupError, RecursionError, TypeError, ValueError, QuiesceError) as error:
            message = (
                f"line {number} of the journal {self.path} is not as it was written ({error}). What"
                " this node had begun is not known: move the file away if you can do without, and"
                " cascades that it took part in are unknown"
            )
            raise JournalBroken(message) from error

    def write(self, records: Sequence[Record]) -> None:
        """Write records; they last when this returns (1)."""
        if len(records) == 1:  # as nearly always
            self._append(record_line(records[0]))
        elif records:
            self._append(lines_of(records))
        self.count += len(records)
        if self._draft is not None:
            self._draft.follow(records)

    def _opened(self) -> int:
        if self._spoiled:
            message = f"the journal {self.path} {self._spoiled}: nothing may follow it"
            raise JournalBroken(message)
        if self._file is None:
            message = f"the journal {self.path} is not open"
            raise UsageError(message)
        if self._is_torn:
            try:
                self._mend(self._file)
            except OSError as error:
                message = (
                    f"the journal {self.path} has a part of a line at its end, which cannot be removed"
                    f" ({error}): nothing may follow it"
                )
                raise JournalBroken(message) from error
        return self._file

    def _append(self, data: bytes) -> None:
        """Write all of it, or none: a part would be a line in the midst that is not whole."""
        file, before = self._file, self.size
        if file is None or self._spoiled or self._is_torn:
            file = self._opened()  # which says what is wrong
        try:
            size = os.write(file, data)
            if size != len(data):
                _write_all(file, data[size:])
                size = len(data)
            if self.syncs:
                os.fdatasync(file)
        except BaseException:
            self._is_torn = True
            with suppress(OSError):  # else what was written next would be the rest of that line
                self._mend(file)
            raise
        self.size = before + size

    def _mend(self, file: int) -> None:
        """Remove what a write that failed has left at the end; the lock is kept: this process is not dead."""
        os.ftruncate(file, self.size)
        self._is_torn = False

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
        """Drop the draft, and delete its file."""
        if self._draft is not None:
            self._draft.drop()

    def _sync_folder(self) -> None:
        if self.syncs:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        os.fdatasync(self._opened())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.drop_draft()
        for number in (self._file, self._lock):  # the lock last
            if number is not None:
                os.close(number)
        self._file = self._lock = None
        self._spoiled, self._is_torn = "", False


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
        """Add these records; they become lines at once, and are written later."""
        self._lines.append(lines_of(records))

    def follow(self, records: Iterable[Record]) -> None:
        """Add what the journal was given in this step, as far as it is wanted."""
        self.add(self._follow(records))

    @property
    def waiting(self) -> int:
        """How many bytes are to be put into the file."""
        return sum(map(len, self._lines))

    def take(self) -> bytes:
        """Return what is to be put into the file next."""
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
        if data and journal.syncs:
            os.fdatasync(new)
        self._path.replace(journal.path)
        old_size = journal.size
        journal._file, journal.size, journal._draft = new, self._size + len(data), None
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


def _path(given: object) -> Path:
    if isinstance(given, str | os.PathLike) and Path(given).name:
        return Path(given).absolute()  # wherever the process goes
    message = f"journal must be the path of a file, not {given!r}"
    raise ArgumentError(message)


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
