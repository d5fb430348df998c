"""The ways to start a program and wait for its end: the standard library, other libraries, and quiesce.

Each starts the same program, which does nothing, and waits until it is reaped and its files are
closed. The wiring is the same for all: nothing to read, and either no output at all, or a pipe for
each output that is read to its end. Everything else is each library's default, so quiesce's
children have a session of their own, and its lifeline watches them. Two rows show what the session
alone costs: little on a quiet machine, but on a busy machine Linux may make a
new session wait for its share (`sched_autogroup_enabled`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

import anyio

import quiesce
from benchmarks._harness import OURS, run_fresh
from benchmarks._packages import Package

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from typing import Any, Literal, TypeVar

    T = TypeVar("T")

    Wiring = Literal["discard", "pipes"]
    Start = Callable[[Wiring], Awaitable[int]]
    Room = Callable[[], AbstractAsyncContextManager[object]]

OUTPUTS: dict[Wiring, int] = {"discard": DEVNULL, "pipes": PIPE}
PROGRAM = shutil.which("true") or "true"

POPEN, ASYNCIO, ANYIO, TRIO = "Popen, blocking", "asyncio", "anyio", "trio"
POPEN_SESSION, ASYNCIO_SESSION = "Popen, own session", "asyncio, own session"
UVLOOP, OURS_ON_TRIO = "asyncio, on uvloop", f"{OURS} on trio"
PACKAGES = tuple(Package(name, name) for name in ("asyncio", "uvloop", "anyio", "trio"))


def run_on(loop: str, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one piece in its own event loop: asyncio's, uvloop's or trio's."""
    if loop != "trio":
        return run_fresh(loop, main)
    import trio  # noqa: PLC0415 - optional

    gc.collect()
    return trio.run(main)


def has_loop(loop: str) -> bool:
    """Return whether this event loop is installed."""
    return find_spec(loop) is not None


def watcher_of_asyncio() -> str:
    """Return the name of asyncio's default way to wait for an exit, in this Python."""
    if sys.version_info >= (3, 12) and hasattr(os, "pidfd_open"):
        return "PidfdChildWatcher"
    return "ThreadedChildWatcher"


# --- one program, from its start to its end; the exit code --------------------------------------


async def start_blocking(wiring: Wiring, *, session: bool = False) -> int:
    """Block until the program has ended, which shows the time of the operating system itself."""
    out = OUTPUTS[wiring]
    with subprocess.Popen(  # noqa: ASYNC220, S603 - on purpose
        [PROGRAM], stdin=DEVNULL, stdout=out, stderr=out, start_new_session=session
    ) as process:
        if wiring == "pipes":
            process.communicate()
        return process.wait()


async def start_asyncio(wiring: Wiring, *, session: bool = False) -> int:
    """Start the program with asyncio; on uvloop, with uvloop's own subprocesses."""
    out = OUTPUTS[wiring]
    process = await asyncio.create_subprocess_exec(
        PROGRAM, stdin=DEVNULL, stdout=out, stderr=out, start_new_session=session
    )
    if wiring == "pipes":
        await process.communicate()
    return await process.wait()


async def start_anyio(wiring: Wiring) -> int:
    """Start the program with anyio."""
    out = OUTPUTS[wiring]
    if wiring == "pipes":
        done = await anyio.run_process([PROGRAM], stdin=DEVNULL, stdout=out, stderr=out)
        return done.returncode
    async with await anyio.open_process(
        [PROGRAM], stdin=DEVNULL, stdout=out, stderr=out
    ) as process:
        return await process.wait()


async def start_trio(wiring: Wiring) -> int:
    """Start the program with trio."""
    import trio  # noqa: PLC0415 - optional

    if wiring == "pipes":
        done = await trio.run_process(
            [PROGRAM], stdin=DEVNULL, capture_stdout=True, capture_stderr=True
        )
        return done.returncode
    process = await trio.lowlevel.open_process(
        [PROGRAM], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
    )
    return await process.wait()


async def start_quiesce(wiring: Wiring) -> int:
    """Start the program with quiesce, in the current scope."""
    process = await quiesce.start_process([PROGRAM], logs="keep" if wiring == "pipes" else wiring)
    return await process.wait()


# --- many at once -------------------------------------------------------------------------------


async def at_once_asyncio(start: Start, count: int) -> None:
    """Start many programs in a task group of asyncio."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_one(start))


async def at_once_anyio(start: Start, count: int) -> None:
    """Start many programs in a task group of anyio; on trio, that is a nursery."""
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(_one, start)


async def at_once_quiesce(start: Start, count: int) -> None:
    """Start many programs in the current scope."""
    scope = quiesce.current_scope()
    assert scope is not None
    for job in [scope.spawn(_one, start) for _ in range(count)]:
        await job


async def _one(start: Start) -> None:
    code = await start("discard")
    assert code == 0


@dataclass(frozen=True)
class Starter:
    """A way to start a program, and the event loop that it needs."""

    name: str
    loop: str
    start: Start
    at_once: Callable[[Start, int], Awaitable[None]] | None = None
    room: Room = nullcontext


def starters(backend: str) -> dict[str, Starter]:
    """Return the starters that are installed; quiesce runs in the backend's event loop.

    The base is asyncio in its own event loop, also if quiesce runs on uvloop, because asyncio's loop
    starts programs faster.
    """

    def scope() -> quiesce.Scope:
        return quiesce.Scope("benchmark")

    everyone = (
        Starter(POPEN, "asyncio", start_blocking),
        Starter(ASYNCIO, "asyncio", start_asyncio, at_once_asyncio),
        Starter(POPEN_SESSION, "asyncio", partial(start_blocking, session=True)),
        Starter(ASYNCIO_SESSION, "asyncio", partial(start_asyncio, session=True)),
        Starter(OURS, backend, start_quiesce, at_once_quiesce, scope),
        Starter(OURS_ON_TRIO, "trio", start_quiesce, at_once_quiesce, scope),
        Starter(ANYIO, backend, start_anyio, at_once_anyio),
        Starter(TRIO, "trio", start_trio, at_once_anyio),
        Starter(UVLOOP, "uvloop", start_asyncio, at_once_asyncio),
    )
    return {each.name: each for each in everyone if has_loop(each.loop)}
