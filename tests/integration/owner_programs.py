"""A program that owns processes, and is killed by a test.

`python owner_programs.py WAY BACKEND [MEANS]`
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio

from quiesce import Scope, current_scope
from quiesce.processes import process_spawn, watchdog
from quiesce.processes.process import Process, start_process
from quiesce.processes.readiness.probe import Line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAMILY = "trap '' TERM; sleep 60 & setsid sleep 60 & echo ready; sleep 60; sleep 60"
"""It has a child in its group, and one that has left it."""

KINDS = """
sleep 60 & echo group $!
env -i sleep 60 & echo unmarked $!
setsid sleep 60 & echo session $!
env -i setsid sleep 60 & echo stranger $!
echo leader $$
exec sleep 60
"""
"""It has children of every kind: in its group or not, with the mark or not."""


async def tell(*processes: Process, helper: int = 0) -> None:
    """Print the process ids for the test, and wait to be killed."""
    sys.stdout.write(f"{helper} {' '.join(str(process.pid) for process in processes)}\n")
    sys.stdout.flush()
    await anyio.sleep(30)


async def before_ready() -> None:
    """Wait to be killed while a process is starting."""

    async def never(process: Process) -> None:
        await process.lines.line_matching("ready")
        await tell(process)

    await start_process(["sh", "-c", FAMILY], ready=never)


async def after_ready() -> None:
    """Wait to be killed while processes run."""
    first = await start_process(["sh", "-c", FAMILY], ready=Line("ready"))
    second = await start_process(["sleep", "60"])
    await tell(first, second)


async def during_drain() -> None:
    """Wait to be killed while processes are being stopped."""
    async with Scope("inner") as scope:
        first = await start_process(["sh", "-c", FAMILY], ready=Line("ready"), grace=30)
        scope.spawn(first.stop, name="stop")
        while first.state != "stopping":
            await anyio.lowlevel.checkpoint()
        await tell(first)


async def during_drain_of_many() -> None:
    """Wait to be killed while a scope waits for the grace of several."""
    outer = current_scope()
    assert outer is not None
    async with Scope("inner") as scope:
        many = [
            await start_process(["sh", "-c", FAMILY], ready=Line("ready"), grace=30, service=True)
            for _ in range(3)
        ]
        outer.spawn(scope.drain, name="drain")
        while any(process.state != "stopping" for process in many):
            await anyio.lowlevel.checkpoint()
        await tell(*many)


async def in_the_first_fork() -> None:
    """Stop after the fork of the very first process, before anything else was done, and wait to be killed."""
    spawn = process_spawn.spawn

    def fork_and_stop(*args: Any, **options: Any) -> process_spawn.SpawnedChild:
        child = spawn(*args, **options)
        sys.stdout.write(f"0 {child.pid}\n")
        sys.stdout.flush()
        signal.pause()
        return child

    process_spawn.spawn = fork_and_stop
    await start_process(["sh", "-c", FAMILY])


async def by_kinds() -> None:
    """Start children of every kind, with some of the means to end them out of order, and wait to be killed."""
    means = sys.argv[3]
    if means == "table alone":
        scan = "return any("
        assert watchdog.WATCHER.count(scan) == 1
        watchdog.WATCHER = watchdog.WATCHER.replace(scan, "return False and any(")
    if means == "mark alone":
        watchdog.Table.add = lambda *_: False  # type: ignore[method-assign]  # as if it were full
    process = await start_process(["sh", "-c", KINDS])
    words = [line async for line in limited(process, 5)]
    watcher = watchdog.watcher.pid
    assert watcher is not None
    if means in {"nobody", "another watcher"}:
        os.kill(watcher, signal.SIGKILL)
        os.waitid(os.P_PID, watcher, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it was killed
    if means == "another watcher":
        await start_process(["sleep", "60"])
        assert watchdog.watcher.pid != watcher
        watcher = watchdog.watcher.pid
    sys.stdout.write(f"{' '.join(words)} watcher {watcher}\n")
    sys.stdout.flush()
    await anyio.sleep(30)


async def limited(process: Process, number: int) -> AsyncIterator[str]:
    """Return the first lines that a process writes."""
    async for line in process.stdout:
        yield line
        number -= 1
        if number == 0:
            return


async def after_a_fork() -> None:
    """Wait to be killed while a fork of this very program, which has its files, lives on."""
    first = await start_process(["sh", "-c", FAMILY], ready=Line("ready"))
    fork = os.fork()
    if fork == 0:
        for number in (0, 1, 2):
            os.close(number)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        signal.sigwait({signal.SIGUSR1})  # for ever: the test kills it
        os._exit(0)
    await tell(first, helper=fork)


async def without_closing() -> None:
    """Leave by the hardest way that is no signal."""
    first = await start_process(["sh", "-c", FAMILY], ready=Line("ready"))
    sys.stdout.write(f"0 {first.pid}\n")
    sys.stdout.flush()
    os._exit(0)


WAYS = {
    fn.__name__: fn
    for fn in (
        before_ready,
        after_ready,
        during_drain,
        during_drain_of_many,
        in_the_first_fork,
        after_a_fork,
        without_closing,
        by_kinds,
    )
}


async def main() -> None:
    """Run it."""
    async with Scope("outer"):
        await WAYS[sys.argv[1]]()


if __name__ == "__main__":
    uvloop = sys.argv[2] == "uvloop"
    anyio.run(
        main,
        backend="asyncio" if uvloop else sys.argv[2],
        backend_options={"use_uvloop": True} if uvloop else {},
    )
