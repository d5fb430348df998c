"""Child processes: a child that a handler leaves running holds the hop until the child has exited.

The replacements cover `subprocess`, `multiprocessing`, event loops that start children themselves, and forks by `os`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core import libraries
from quiesce.core.python_private import get_frame
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

_INTERPRETERS = ("bash", "node", "perl", "pypy", "python", "ruby", "sh")
_WORKER = "anyio.to_process"
"""The program of anyio's worker processes. Their calls are awaited, and the processes are kept for later calls."""


def by_popen(init: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of `subprocess.Popen.__init__`."""

    def started(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if current.get() is not None:
            target, name = _program(self.args)
            follow(self.pid, calling_frame(), target, self, name)

    return started


def by_loop(start: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return the replacement of `subprocess_exec` and `subprocess_shell` of a loop that does not use `Popen`."""

    async def started(factory: Any, *args: Any, **options: Any) -> Any:
        frame = calling_frame()
        transport, protocol = await start(factory, *args, **options)
        target, name = _program(args)
        follow(transport.get_pid(), frame, target, transport, name)
        return transport, protocol

    return started


def by_process(start: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of `multiprocessing.Process.start`."""

    def started(self: Any) -> None:
        if current.get() is None:
            start(self)
            return
        target = target_of(self._target or self.run)  # `start` drops the target
        start(self)
        # A pool starts processes for all its calls. Then the frame is the pool's, and only the calls are followed.
        frame = libraries.frame_behind_call(get_frame(1), "start")
        follow(self.pid, frame, target, self, self.name)

    return started


def by_fork(fork: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of a function of `os` that starts a process and returns its id."""

    def forked(*args: Any, **options: Any) -> Any:
        made = fork(*args, **options)
        number = made[0] if isinstance(made, tuple) else made
        if number and current.get() is not None:
            follow(number, libraries.frame_behind_call(get_frame(1), fork.__name__), None)
        return made

    return forked


if hasattr(os, "register_at_fork"):  # not on Windows
    # A child does not work for a hop of its parent.
    os.register_at_fork(after_in_child=partial(current.set, None))


def _program(args: Any) -> tuple[str | None, str | None]:
    """Return two names by which `Node(services=…)` can declare a child; messages suggest the first.

    The second name is the program. The first is the same, or for an interpreter its script or module, because `python`
    would declare every child.
    """
    given = [args] if isinstance(args, str | bytes | os.PathLike) else args
    words: list[str] = [os.fsdecode(one) for one in given]
    words = words[0].split() if len(words) == 1 else words
    if not words:
        return None, None
    name = os.path.basename(words[0])  # noqa: PTH119 - of a command line
    script = _script(words) if name.startswith(_INTERPRETERS) else None
    return script or name, name


def _script(words: list[str]) -> str | None:
    """Return the name of the script or module that an interpreter runs; None if there is none."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, None)
        if word in {"-c", "-e"}:
            return None
        if word in {"-W", "-X"}:
            next(rest, None)
        elif not word.startswith("-"):
            return os.path.basename(word)  # noqa: PTH119 - as above
    return None


def follow(
    number: int | None,
    frame: FrameType | None,
    target: str | None,
    child: object = None,
    *names: str | None,
) -> None:
    """Hold the running code's hop until the child process with this id has exited."""
    hop = hop_now()
    if (
        hop is None
        or number is None
        or target == _WORKER
        or is_declared(hop, frame, target, *names)
    ):
        return
    try:
        exit_fd = open_exit_fd(number)
    except ProcessLookupError:
        return  # the child has exited, and other code has waited for it
    except OSError:
        hop.untracked("process", f"{number} started at {frame_place(frame)}")
        return
    name = str(number) if target is None else f"{number} ({target})"
    hold = Followed(hop, "process", name, frame, child, target=target)
    if hop.backend.here():
        _watch(hop, number, exit_fd, hold)
    else:
        hop.backend.post(_watch, hop, number, exit_fd, hold)


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

    stops.append(watch_exit(hop.backend, pid, exit_fd, exited))
