"""A program that owns processes, and is killed by a test: `python owner_programs.py WAY BACKEND`."""

from __future__ import annotations

import os
import signal
import sys

import anyio

from quiesce import Scope
from quiesce.resources.process import Process, start_process
from quiesce.resources.ready import Line

FAMILY = "trap '' TERM; sleep 60 & setsid sleep 60 & echo ready; sleep 60; sleep 60"
"""It has a child in its group, and one that has left it."""


async def tell(*processes: Process, helper: int = 0) -> None:
    """Have the test know of the processes, and wait to be killed."""
    sys.stdout.write(f"{helper} {' '.join(str(process.pid) for process in processes)}\n")
    sys.stdout.flush()
    await anyio.sleep(30)


async def before_ready() -> None:
    """Be killed while a process is starting."""

    async def never(process: Process) -> None:
        await process.lines.line_matching("ready")
        await tell(process)

    await start_process(["sh", "-c", FAMILY], ready=never)


async def after_ready() -> None:
    """Be killed while processes run."""
    first = await start_process(["sh", "-c", FAMILY], ready=Line("ready"))
    second = await start_process(["sleep", "60"])
    await tell(first, second)


async def during_drain() -> None:
    """Be killed while processes are being stopped."""
    async with Scope("inner") as scope:
        first = await start_process(["sh", "-c", FAMILY], ready=Line("ready"), grace=30)
        scope.spawn(first.stop, name="stop")
        while first.state != "stopping":
            await anyio.lowlevel.checkpoint()
        await tell(first)


async def after_a_fork() -> None:
    """Be killed while a fork of this very program, which has its files, lives on."""
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
    for fn in (before_ready, after_ready, during_drain, after_a_fork, without_closing)
}


async def main() -> None:
    """Run it."""
    async with Scope("outer"):
        await WAYS[sys.argv[1]]()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[2])
