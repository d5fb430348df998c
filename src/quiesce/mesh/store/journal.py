"""The journal: a file with the records that a node needs after a restart. A node writes a record before it acts on it.

Each record is a line (see `record_format`), and each batch is one `write`. The journal is not SQLite: a commit there
costs three times as much, and every request needs two. The node reads the whole file when it opens, and never looks
anything up in it. These guarantees hold:

1. When `write` has returned, the records survive the death of the process. With `durability="power"`, they also survive
   a loss of power.
2. One process at a time has the file. The file is locked until that process ends, so a process that opens the file
   knows that the process before it has ended.
3. An incomplete last line comes from a `write` that did not return, and is dropped. Any other damage is an error: a node
   that has forgotten messages without knowing it would run work twice.
4. A draft (a smaller file) replaces the file in one step. Before that step the file is complete, and after it the draft
   is. A process that dies at any moment leaves one of them, complete.
5. The slow operations of a draft (to write it, to sync it, to free the old file) run in threads.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quiesce.core import arguments
from quiesce.core.lock_files import close_lock_file, open_lock_file
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
_MOVE_AWAY = "To start without this history, move the file away: cascades in which the node took part are then unknown"
_WRONG_PLACE = frozenset((
    errno.EACCES, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENODEV, errno.ENOENT, errno.ENOTDIR,
    errno.ENXIO, errno.EPERM, errno.EROFS,
))  # fmt: skip


class Journal:
    """A journal in a file.

    Args:
        path: The file. It is created if it does not exist, and only its owner may read it.
        durability: With `"process"`, written records survive the process. With `"power"`, they also survive a loss of
            power, and each write waits for the disk.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: str = "process") -> None:
        """Describe the journal; `open` makes the file."""
        self.path: Path = _path(path)
        self.syncs: bool = arguments.one_of("durability", durability, DURABILITIES) == "power"
        """Whether each write waits for the disk."""
        self._lock: int | None = None
        self.file: int | None = None
        self.size: int = 0
        """The size of the file in bytes."""
        self.lines: int = 0
        """The number of lines at the time of opening."""
        self.count: int = 0
        """The number of records ever written, including records that compactions have left out."""
        self.spoiled_reason: str = ""  # why the journal must not be written any more
        self._is_torn = False  # whether a failed write has left a part of a line
        self.current_draft: Draft | None = None

    def open(self) -> list[Record]:
        """Open the file, and return its records; see `open_into`."""
        records: list[Record] = []
        self.open_into(records.extend)
        return records

    def open_into(self, take: Callable[[Iterable[Record]], object]) -> None:
        """Open the file, and pass its records to `take` as they are read, because there may be many.

        *Raises*: `JournalInUse` if another node has the file; `JournalBroken` if the file is not a journal, is damaged or
        is inconsistent; `UsageError` if a journal cannot exist at this path.
        """
        if self._lock is not None:
            message = f"the journal {self.path} is open already: open it once, or close it first"
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
        except Exception as error:  # noqa: BLE001 - any failure of `take` means that the records are inconsistent
            # The cause is left out, because this is logged and a KeyError shows the id of an edge.
            kind = type(error).__name__
            message = f"the journal {self.path} is inconsistent: its records contradict each other ({kind}). {_MOVE_AWAY}"
            raise JournalBroken(message) from None

    def _read_into(self, take: Callable[[Iterable[Record]], object]) -> None:
        # Follow links, so that all names of the file share one lock.
        self.path = self.path.resolve()
        try:
            self._lock = self._take_lock()
            # Left by a process that died during a compaction.
            self._draft_path.unlink(missing_ok=True)
            with closing(self._read()) as records:  # close the generator at once
                take(records)
        except BaseException:  # also if `take` fails after the last record
            self.close()
            raise

    def _take_lock(self) -> int:
        if not self.path.parent.is_dir():
            message = f"the folder of the journal {self.path} does not exist: make it first"
            raise UsageError(message)
        if self.path.is_dir():
            message = (
                f"the journal must be a file, but {self.path} is a directory: name a file in the directory, like"
                f" {self.path / 'agent.journal'}"
            )
            raise UsageError(message)
        if self.path.exists() and not self.path.is_file():
            message = (
                f"the journal {self.path} must be a file, but is a device, a pipe or a socket: name a file in a"
                " folder in which this process may make files"
            )
            raise UsageError(message)
        if fcntl is None:
            message = (
                f"the journal {self.path} cannot be locked against other processes, because this platform does not have"
                " fcntl. Run the node without a journal here"
            )
            raise UsageError(message)
        lock = open_lock_file(f"{self.path}.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            close_lock_file(lock)
            message = f"another node has the journal {self.path}: give each node, in each process, a journal of its own"
            raise JournalInUse(message) from None
        except BaseException:
            close_lock_file(lock)
            raise
        return lock

    def _read(self) -> Generator[Record, None, None]:
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(self.file, "rb", closefd=False) as file:
            head = file.read(len(_HEAD))
            # A new file, or its process died while making it.
            if head != _HEAD and _HEAD.startswith(head):
                os.ftruncate(self.file, 0)
                self.size = self.count = 0
                self._append(_HEAD)
                self.sync_folder()
                return
            if head != _HEAD:
                message = (
                    f"{self.path} is not a journal of this version of quiesce. Name another file, or run the version"
                    f" that has written it. {_MOVE_AWAY}"
                )
                raise JournalBroken(message)
            self.size, self.count = len(head), 0
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    os.ftruncate(self.file, self.size)  # (3)
                    return
                record = self.read_line(number, line)
                self.lines = number
                self.count = record.records if type(record) is Counted else self.count + 1
                yield record
                self.size += len(line)

    def read_line(self, number: int, line: bytes) -> Record:
        """Return the record in a line of the file. The number of the line is for the error.

        *Raises*: `JournalBroken` if the line is damaged.
        """
        try:
            return record_of(line)
        except (LookupError, RecursionError, TypeError, ValueError, QuiesceError) as error:
            message = f"line {number} of the journal {self.path} is damaged ({error}). {_MOVE_AWAY}"
            raise JournalBroken(message) from error

    def write(self, records: Sequence[Record]) -> None:
        """Write records. They are durable when this returns (1)."""
        if len(records) == 1:  # the usual case
            self._append(record_line(records[0]))
        elif records:
            self._append(lines_of(records))
        self.count += len(records)
        if self.current_draft is not None:
            self.current_draft.follow(records)

    def get_open_file(self) -> int:
        if self.spoiled_reason:
            message = f"the journal {self.path} cannot be written: it {self.spoiled_reason}. Restart the node"
            raise JournalBroken(message)
        if self.file is None:
            message = f"the journal {self.path} is not open: call open() first"
            raise UsageError(message)
        if self._is_torn:
            try:
                self._mend(self.file)
            except OSError as error:
                message = (
                    f"the journal {self.path} cannot be written: a failed write has left a part of a line, and removing"
                    f" that part fails ({error})"
                )
                raise JournalBroken(message) from error
        return self.file

    def _append(self, data: bytes) -> None:
        """Write all of `data` or nothing: a part would leave an incomplete line in the middle of the file."""
        file, before = self.file, self.size
        if file is None or self.spoiled_reason or self._is_torn:
            file = self.get_open_file()  # mends the file, or raises
        try:
            size = os.write(file, data)
            if size != len(data):
                _write_all(file, data[size:])
                size = len(data)
            if self.syncs:
                os.fdatasync(file)
        except BaseException:
            self._is_torn = True
            with suppress(OSError):  # otherwise the next write would continue that line
                self._mend(file)
            raise
        self.size = before + size

    def _mend(self, file: int) -> None:
        """Remove the part of a line that a failed write has left at the end of the file."""
        os.ftruncate(file, self.size)
        self._is_torn = False

    @property
    def _draft_path(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def draft(self, follow: Callable[[Iterable[Record]], Iterable[Record]]) -> Draft:
        """Begin a draft that may replace this file (4).

        Args:
            follow: A function that gets the records written from now on, and returns those that the draft needs.
        """
        self.get_open_file()
        if self.current_draft is not None:
            message = f"the journal {self.path} has a draft already: replace or drop that one first"
            raise UsageError(message)
        self.current_draft = draft = Draft(self, self._draft_path, follow)
        return draft

    def drop_draft(self) -> None:
        """Drop the draft, and delete its file."""
        if self.current_draft is not None:
            self.current_draft.drop()

    def sync_folder(self) -> None:
        if self.syncs:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def sync(self) -> None:
        """Wait until all written records are on the disk."""
        os.fdatasync(self.get_open_file())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.drop_draft()
        if self.file is not None:
            os.close(self.file)
        if self._lock is not None:  # release the lock last
            close_lock_file(self._lock)
        self.file = self._lock = None
        self.spoiled_reason, self._is_torn = "", False


class Draft:
    """A smaller file that is to replace a journal's file.

    The event loop makes the draft's lines, in steps in which the node's knowledge does not change. `put` writes the lines
    in a thread. The draft may be dropped at any time, also while a thread writes. Then the thread closes the file, so that
    it never writes to another file that has got the same descriptor.
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
        self._busy = threading.Lock()  # held while a thread writes
        self.is_dropped: bool = False
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file: int | None = os.open(path, flags, 0o600)

    # Methods for the event loop.

    def add(self, records: Iterable[Record]) -> None:
        """Add records. Their lines are made now and written later."""
        self._lines.append(lines_of(records))

    def follow(self, records: Iterable[Record]) -> None:
        """Add the records that the journal gets in this step, as far as the draft needs them."""
        self.add(self._follow(records))

    @property
    def waiting(self) -> int:
        """The number of bytes that wait to be put into the file."""
        return sum(map(len, self._lines))

    def take(self) -> bytes:
        """Remove and return the bytes to put into the file next."""
        data = b"".join(self._lines)
        self._lines.clear()
        return data

    def replace(self) -> None:
        """Replace the journal's file, in this step.

        The last `put` has synced the draft, so only a few records are left to write. They are as durable as any other
        write: this waits for the disk only with `durability="power"`.
        """
        journal, new = self._journal, self._file
        old = journal.get_open_file()
        assert new is not None  # noqa: S101 - the journal's current draft is not dropped
        data = self.take()
        _write_all(new, data)
        if data and journal.syncs:
            os.fdatasync(new)
        self._path.replace(journal.path)
        old_size = journal.size
        journal.file, journal.size, journal.current_draft = new, self._size + len(data), None
        self._file = None
        _close_unnamed(old, old_size)
        try:
            journal.sync_folder()
        except BaseException:
            # On the disk, the name may still belong to the old file, which does not get later records.
            journal.spoiled_reason = "may be lost in a loss of power, as its folder was not synced"
            raise

    def drop(self) -> None:
        """Delete the draft."""
        if not self.is_dropped and self._file is not None:
            self.is_dropped = True
            self._journal.current_draft = None
            self._path.unlink(missing_ok=True)
            self._close()

    # Methods for a thread.

    def put(self, data: bytes, *, sync: bool) -> None:
        """Write data from `take`. With `sync`, wait until the whole draft is on the disk."""
        try:
            with self._busy:
                if self._file is not None:
                    _write_all(self._file, data)
                    self._size += len(data)
                    if sync:
                        os.fdatasync(self._file)
        finally:
            if self.is_dropped:  # `drop` sets this before it tests whether a thread writes
                self._close()

    def _close(self) -> None:
        """Close the file of a dropped draft. If a thread is writing to it, that thread closes it."""
        if self._busy.acquire(blocking=False):
            file, self._file = self._file, None
            self._busy.release()
            if file is not None:
                _close_unnamed(file, self._size)


def _path(given: object) -> Path:
    if isinstance(given, str | os.PathLike) and Path(given).name:
        return Path(given).absolute()  # the process may change its directory later
    message = f"journal must be the path of a file, not {given!r}"
    raise ArgumentError(message)


def _close_unnamed(file: int, size: int) -> None:
    """Close a file that has lost its name. Closing a large one frees its blocks, so that is done in a thread."""
    if size >= _LARGE:
        thread = threading.Thread(
            target=os.close, args=(file,), name="quiesce journal", daemon=True
        )
        with suppress(RuntimeError):  # the limit of threads is reached
            thread.start()
            return
    os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
