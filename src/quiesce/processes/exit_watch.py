"""Notices the exit of a process without waiting for the end of a pipe.

On Linux the exit makes a pidfd readable, and the event loop watches the pidfd as it watches a socket.
On systems without pidfds (a kernel before 5.3, macOS), a thread for each process waits in `waitid`,
without reaping the process. Neither way uses signals or asyncio's child watchers. Only the
process's owner reaps.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import logger
from quiesce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend


def open_exit_fd(pid: int) -> int | None:
    """Open a pidfd, which is readable after the process's exit; return None if the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:  # an old kernel or a sandbox
            return None
        raise


def watch_exit(
    backend: Backend, pid: int, exit_fd: int | None, call: Callable[[], None]
) -> Callable[[], None]:
    """Call `call` in the loop when the process has exited; return a function that ends the watch."""
    if exit_fd is not None:
        return watch_readable(backend, exit_fd, call)
    wanted = [call]

    def wait() -> None:
        with suppress(ChildProcessError):  # other code has reaped the process, so it has exited
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        backend.post(lambda: wanted and wanted[0]())

    threading.Thread(target=wait, name=f"quiesce exit of {pid}", daemon=True).start()
    return wanted.clear


def has_exited(pid: int, exit_fd: int | None) -> bool:
    """Return whether the process has exited by now."""
    if exit_fd is not None:
        poll = select.poll()  # select() cannot watch descriptors above 1023
        poll.register(exit_fd, select.POLLIN)
        return bool(poll.poll(0))
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def watch_readable(backend: Backend, fd: int, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` in the loop whenever `fd` is readable; return a function that ends the watch.

    The caller must end the watch before it closes `fd`.
    """
    if backend.name == "trio":
        return _watch_on_trio("wait_readable", fd, call)
    loop: Any = backend.loop
    loop.add_reader(fd, call)
    return lambda: None if loop.is_closed() else loop.remove_reader(fd)


def watch_writable(backend: Backend, fd: int, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` in the loop whenever `fd` is writable; return a function that ends the watch.

    The caller must end the watch before it closes `fd`.
    """
    if backend.name == "trio":
        return _watch_on_trio("wait_writable", fd, call)
    loop: Any = backend.loop
    loop.add_writer(fd, call)
    return lambda: None if loop.is_closed() else loop.remove_writer(fd)


def _watch_on_trio(way: str, fd: int, call: Callable[[], None]) -> Callable[[], None]:
    import trio  # noqa: PLC0415 - it may not be installed

    wait = getattr(trio.lowlevel, way)
    wanted = [call]

    async def watch() -> None:
        # Shielded, so that only the process's owner ends the watch.
        with trio.CancelScope(shield=True), suppress(trio.ClosedResourceError):
            while wanted:
                await wait(fd)
                if wanted:
                    _guarded(call)

    def stop() -> None:
        if wanted:
            wanted.clear()
            trio.lowlevel.notify_closing(fd)

    try:
        trio.lowlevel.spawn_system_task(watch, name=f"quiesce {way} {fd}")
    except RuntimeError as error:  # trio.run is ending, and has closed its system nursery
        message = "trio is shutting down: no process can start any more"
        raise UsageError(message) from error
    return stop


def _guarded(call: Callable[[], None]) -> None:
    """Call `call`, and log its exception, which would otherwise end the whole run of trio."""
    try:
        call()
    except Exception:  # noqa: BLE001 - it is logged
        logger.exception("a callback raised: this is a defect of quiesce, please report it")
