"""Child processes: one that a handler leaves running holds the hop until it has exited."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from sys import _getframe
from typing import TYPE_CHECKING, Any

from quiesce.core import libraries
from quiesce.core.tree import current
from quiesce.mesh.routes.following import (
    Followed,
    calling_frame,
    frame_place,
    hop_now,
    is_declared,
    target_of,
)
from quiesce.processes.exit_watch import open_exit_fd, watch_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


def by_popen(init: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `subprocess.Popen.__init__`."""

    def started(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if current.get() is not None:
            follow(self.pid, calling_frame(), _program(self.args), self)

    return started


def by_loop(start: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return what stands in for `subprocess_exec` and `subprocess_shell` of a loop with a way of its own."""

    async def started(factory: Any, *args: Any, **options: Any) -> Any:
        frame = calling_frame()
        transport, protocol = await start(factory, *args, **options)
        follow(transport.get_pid(), frame, _program(args), transport)
        return transport, protocol

    return started


def by_process(start: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `multiprocessing.Process.start`."""

    def started(self: Any) -> None:
        if current.get() is None:
            start(self)
            return
        target = target_of(self._target or self.run)  # of which the start keeps nothing
        start(self)
        # Pools start processes for all calls: the frame is theirs then, and it is the calls that are followed.
        frame = libraries.frame_behind_call(_getframe(1), "start")
        follow(self.pid, frame, target, self, self.name)

    return started


def by_fork(fork: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for functions of `os` that start a process: the number that they return is followed."""

    def forked(*args: Any, **options: Any) -> Any:
        made = fork(*args, **options)
        number = made[0] if isinstance(made, tuple) else made
        if number and current.get() is not None:
            follow(number, libraries.frame_behind_call(_getframe(1), fork.__name__), None)
        return made

    return forked


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        after_in_child=partial(current.set, None)
    )  # a child works for no hop of its parent


def _program(args: Any) -> str | None:
    """Return the name of the program that a child runs, by which `Node(services=…)` declares it."""
    first = args if isinstance(args, str | bytes | os.PathLike) else next(iter(args), "")
    words = os.fsdecode(first).split(maxsplit=1)
    return os.path.basename(words[0]) if words else None  # noqa: PTH119 - of a command line


def follow(
    number: int | None,
    frame: FrameType | None,
    target: str | None,
    child: object = None,
    *names: str,
) -> None:
    """Hold the running code's hop until a child has exited."""
    hop = hop_now()
    if hop is None or number is None or is_declared(hop, frame, target, *names):
        return
    try:
        exit_fd = open_exit_fd(number)
    except ProcessLookupError:
        return  # it has exited, and was waited for
    except OSError:
        hop.untracked("process", f"{number} started at {frame_place(frame)}")
        return
    name = str(number) if target is None else f"{number} ({target})"
    hold = Followed(hop, "process", name, frame, child, target=target)
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
