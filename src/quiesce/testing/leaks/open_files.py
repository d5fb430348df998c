"""Find open file descriptors, and files of unix sockets."""

from __future__ import annotations

import gc
import io
import os
import socket
import stat
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce.processes import watchdog
from quiesce.testing.leaks.findings import Finding
from quiesce.testing.leaks.started_at import is_machinery

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from quiesce.testing.leaks.births import Birth
    from quiesce.testing.leaks.instrument import StartWatch

_FOLDER = "/proc/self/fd"
_FOLDER_ELSEWHERE = "/dev/fd"
_HINT = "run Python with -X tracemalloc=20 to see where it was opened"


_ANONYMOUS = frozenset({"eventfd", "eventpoll", "io_uring", "kqueue", "pipe", "socket"})
# libuv opens /dev/null with the first stream of a loop and keeps it until the loop is closed, as a
# reserve for when the program has run out of descriptors.
_SPARE = "null"

# libffi, by which ctypes makes callbacks, opens its own file with the first callback and never closes it.
_FFI = "libffi.so"

_STANDARD = frozenset("012")  # tools that capture output replace these at any time


class File(NamedTuple):
    """An open file descriptor; device and inode tell it from another one of the same number."""

    number: int
    device: int
    inode: int


def folder() -> str:
    """Return the folder in which the system lists the open file descriptors."""
    return _FOLDER if sys.platform == "linux" else _FOLDER_ELSEWHERE


def present_files() -> dict[File, File]:
    """Return the open file descriptors."""
    found: dict[File, File] = {}
    for name in os.listdir(folder()):  # noqa: PTH208 - must be quick: every look calls it
        if name in _STANDARD:
            continue
        with suppress(OSError):  # the descriptor that listed the folder is closed by now
            seen = os.fstat(int(name))
            file = File(int(name), seen.st_dev, seen.st_ino)
            found[file] = file
    return found


def without_kept(files: Iterable[File], loops: Iterable[asyncio.AbstractEventLoop]) -> list[File]:
    """Leave out descriptors that Python or quiesce shares, and those of open event loops."""
    watcher = watchdog.watcher
    numbers: set[Any] = {watcher.pipe, getattr(watcher.table, "fd", None)}
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    numbers.add(getattr(getattr(tracker, "_resource_tracker", None), "_fd", None))
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    numbers.update(getattr(server, f"_forkserver_{name}", None) for name in ("alive_fd", "address"))
    for loop in loops:
        for name in ("_selector", "_ssock", "_csock"):
            with suppress(AttributeError, ValueError):  # another kind of loop, or a closed one
                numbers.add(getattr(loop, name).fileno())
    return [file for file in files if file.number not in numbers]


def findings(
    files: Iterable[File], watch: StartWatch, *, ownerless: bool, spares: int
) -> dict[File, Finding]:
    """Describe file descriptors that were left. Slow: it goes through all objects to find the owners.

    `ownerless` tells whether to report descriptors without a Python owner that are not files.
    `spares` is the number of event loops that may keep one descriptor of /dev/null in reserve.
    """
    wanted = {file.number: file for file in files}
    owners = _owners(wanted.keys()) if wanted else {}
    found = {
        file: _finding(number, owners.get(number), watch.births) for number, file in wanted.items()
    }
    for number, file in sorted(wanted.items()):
        if spares and number not in owners and found[file].name == _SPARE:
            del found[file]
            spares -= 1
    return {
        file: finding
        for file, finding in found.items()
        if (ownerless or file.number in owners or finding.name not in _ANONYMOUS)
        and (file.number in owners or not finding.name.startswith(_FFI))
        and (file.number in owners or _is_there(file.number))
    }


def _is_there(number: int) -> bool:
    """Return whether a descriptor is still open; a closed one cannot be described."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _owners(numbers: Iterable[int]) -> dict[int, Any]:
    """Find the Python objects that hold these file descriptors."""
    wanted = set(numbers)
    found: dict[int, Any] = {}
    for thing in gc.get_objects():
        # By type: a weak proxy pretends to have its target's class, and raises if the target is gone.
        if issubclass(type(thing), (socket.socket, io.FileIO)):
            with suppress(Exception):
                number = thing.fileno()
                if number in wanted:
                    found[number] = thing
    return found


def _finding(number: int, owner: Any, births: Mapping[object, Birth]) -> Finding:
    try:
        target = str(Path(folder(), str(number)).readlink())
    except OSError:
        target = ""
    name = _name_of(number, target)
    details = [f"number {number}"]
    if target.startswith("/"):
        details.append(target)
    if isinstance(owner, socket.socket):
        with suppress(OSError):
            details.append(f"bound to {owner.getsockname()!r}")
        with suppress(OSError):
            details.append(f"connected to {owner.getpeername()!r}")
    birth = births.get(owner) if isinstance(owner, socket.socket) else None
    where = (None if birth is None else birth.where) or _traced(owner)
    if where is None and not tracemalloc.is_tracing():
        details.append(_HINT)
    maker = None if birth is None else birth.thread
    return Finding("file", name, where, "; ".join(details), thread=maker)


def _name_of(number: int, target: str) -> str:
    """Return a name for a descriptor without numbers that change."""
    if target.startswith("/"):
        return Path(target).name
    if target.startswith("anon_inode:"):
        return target.removeprefix("anon_inode:").strip("[]")
    if ":" in target:
        return target.partition(":")[0]
    with suppress(OSError):
        mode = os.fstat(number).st_mode
        return "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else "file"
    return "file"


def _traced(owner: Any) -> str | None:
    """Return the line that made an object, if tracemalloc has recorded it."""
    traceback = tracemalloc.get_object_traceback(owner) if owner is not None else None
    if traceback is None:
        return None
    files = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    frames = list(traceback)[::-1]
    for frame in frames:
        if not is_machinery(files.get(frame.filename, "")):
            return f"{frame.filename}:{frame.lineno}"
    return f"{frames[0].filename}:{frames[0].lineno}"


# --- unix sockets -------------------------------------------------------------------------------


def socket_files(births: Mapping[str, Birth]) -> dict[str, Birth]:
    """Return the files of bound unix sockets that still exist."""
    found: dict[str, Birth] = {}
    for path, birth in list(births.items()):
        with suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                found[path] = birth
    return found


def socket_finding(path: str, birth: Birth) -> Finding:
    """Describe a unix socket's file that was left."""
    return Finding("socket", Path(path).name, birth.where, path)
