"""Child processes: one that a handler leaves running holds the hop until it has exited."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quiesce.mesh.routes.following import Followed, caller, hop_now, is_declared, place_of
from quiesce.resources.reaping import open_exit_fd, watch_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from quiesce.mesh.hop import Hop

__all__: list[str] = []


def by_popen(init: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `subprocess.Popen.__init__`."""

    def started(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        follow(self, caller())

    return started


def by_loop(start: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return what stands in for `subprocess_exec` and `subprocess_shell` of a loop with a way of its own."""

    async def started(*args: Any, **options: Any) -> Any:
        frame = caller()
        transport, protocol = await start(*args, **options)
        follow(transport, frame, transport.get_pid())
        return transport, protocol

    return started


def by_process(start: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `multiprocessing.Process.start`."""

    def started(self: Any) -> None:
        start(self)
        follow(self, caller())

    return started


def follow(child: Any, frame: FrameType | None, pid: int | None = None) -> None:
    """Hold the running code's hop until a child has exited."""
    hop = hop_now()
    number = child.pid if pid is None else pid
    if hop is None or number is None or is_declared(hop, frame):
        return
    try:
        exit_fd = open_exit_fd(number)
    except ProcessLookupError:
        return  # it has exited, and was waited for
    except OSError:
        hop.untracked("process", f"{number} started at {place_of(frame)}")
        return
    hold = Followed(hop, "process", str(number), frame, child)
    if hop._backend.here():
        _watch(hop, number, exit_fd, hold)
    else:
        hop._backend.post(_watch, hop, number, exit_fd, hold)


def _watch(hop: Hop, pid: int, exit_fd: int | None, hold: Followed) -> None:
    stops: list[Callable[[], None]] = []

    def exited() -> None:
        for stop in stops:
            stop()
        stops.clear()
        if exit_fd is not None:
            with suppress(OSError):
                os.close(exit_fd)
        hold.release()

    stops.append(watch_exit(hop._backend, pid, exit_fd, exited))
