"""Seeing that a process has exited, without waiting for the end of any pipe.

On Linux the exit makes a pidfd readable, and the event loop watches it as it watches a socket.
Where there is none (a kernel before 5.3, macOS), a thread for each process waits in `waitid` and
leaves the corpse where it is. Neither uses signals or the child watchers of asyncio, and the one
who reaps is always the process's owner.
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
    """Open a file that is readable once the process has exited; None where there is no such."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:  # an old kernel, a sandbox
            return None
        raise


def watch_exit(
    backend: Backend, pid: int, exit_fd: int | None, call: Callable[[], None]
) -> Callable[[], None]:
    """Call `call` in the loop when the process has exited; return the way to stop."""
    if exit_fd is not None:
        return watch_readable(backend, exit_fd, call)
    wanted = [call]

    def wait() -> None:
        with suppress(ChildProcessError):  # reaped by somebody else: it has ended
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        backend.post(lambda: wanted and wanted[0]())

    threading.Thread(target=wait, name=f"quiesce exit of {pid}", daemon=True).start()
    return wanted.clear


def has_exited(pid: int, exit_fd: int | None) -> bool:
    """Return whether it has exited, at this moment."""
    if exit_fd is not None:
        poll = select.poll()  # select() knows no numbers above 1023
        poll.register(exit_fd, select.POLLIN)
        return bool(poll.poll(0))
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def watch_readable(backend: Backend, fd: int, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` in the loop whenever `fd` is readable; return the way to stop.

    That must be called before `fd` is closed.
    """
    if backend.name == "trio":
        return _watch_on_trio("wait_readable", fd, call)
    loop: Any = backend.loop
    loop.add_reader(fd, call)
    return lambda: None if loop.is_closed() else loop.remove_reader(fd)


def watch_writable(backend: Backend, fd: int, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` in the loop whenever `fd` is writable; return the way to stop, as above."""
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
        # Shielded: what was started is watched to its end, and the owner stops the watching.
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
    except RuntimeError as error:  # trio.run is ending: its system nursery is closed
        message = "trio is shutting down: nothing new may start"
        raise UsageError(message) from error
    return stop


def _guarded(call: Callable[[], None]) -> None:
    """Call, and let nothing out: it would end the whole run of trio."""
    try:
        call()
    except Exception:  # noqa: BLE001 - logged; others depend on this task
        logger.exception("a callback of quiesce failed")
