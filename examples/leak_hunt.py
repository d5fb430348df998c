"""Hunt a leak: a worker that loses its tasks, three ways to find that out, and the repair.

`guard` looks at what a program leaves, `sweep` cancels it at each of its awaits, and `assert_gate`
puts work into it just before it is closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import quiesce
from quiesce.testing import GateFailed, LeakError, assert_gate, guard, sweep

W = TypeVar("W")
Work = Callable[[], Coroutine[Any, Any, None]]
Start = Callable[[], Awaitable[W]]
Close = Callable[[W], Awaitable[object]]


async def listen() -> None:
    """Wait for messages that do not come."""
    await asyncio.Event().wait()


class Careless:
    """A worker that cancels its tasks at the end, and does not wait for them."""

    def __init__(self) -> None:
        """Start without tasks."""
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls) -> "Careless":
        """Make a worker."""
        return cls()

    def start(self, work: Work) -> None:
        """Start a task."""
        self._tasks.append(asyncio.create_task(work()))

    async def close(self) -> None:
        """Cancel all tasks, without waiting for them."""
        for task in self._tasks:
            task.cancel()

    @classmethod
    async def use(cls) -> None:
        """Open a worker, start a task, and close the worker."""
        worker = await cls.open()
        worker.start(listen)
        await asyncio.sleep(0.01)
        await worker.close()


class Careful:
    """The same worker, with a scope for its tasks."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Keep the tasks in `scope`."""
        self._scope = scope

    @classmethod
    async def open(cls) -> "Careful":
        """Make a worker."""
        return cls(await quiesce.Scope.open("worker"))

    def start(self, work: Work) -> None:
        """Start a task."""
        self._scope.spawn(work)

    async def close(self) -> quiesce.Report:
        """Stop all tasks, and return what was cut short."""
        return await self._scope.aclose(cleanup=1)

    @classmethod
    async def use(cls) -> None:
        """Open a worker, start a task, and close the worker whatever happens."""
        worker = await cls.open()
        try:
            worker.start(listen)
            await asyncio.sleep(0.01)
        finally:
            await worker.close()


async def use_guarded(use: Work) -> None:
    """Use a worker, and have the guard look for what is left."""
    try:
        async with guard():
            await use()
        print("  guard: nothing is left")
    except LeakError as error:
        for finding in error.findings:
            line = Path(finding.where or "nowhere").name
            late = ", gone moments later" if finding.late else ""
            print(f"  guard: a {finding.kind} is left, {finding.name}, started at {line}{late}")


def sweep_through(use: Work) -> None:
    """Cancel at each await of the use of a worker."""
    swept = sweep(use, cancel="native", clock="mock")
    print(f"  sweep: {swept.runs} runs, {len(swept.failures)} failed")
    for failure in swept.failures:
        print(f"    {failure.id}: {', '.join(fault.label for fault in failure.faults)}")


async def try_gate(start: Start[W], close: Close[W], put: Callable[[W, Work], None]) -> None:
    """Start a task in a worker, and close the worker."""
    try:
        gate = await assert_gate(start, close, by=put)
    except GateFailed as error:
        gate = error.gate
    for row in gate.rows:
        print(f"  gate: {row.kind}: {row.verdict}")


if __name__ == "__main__":
    print("Careless:")
    asyncio.run(use_guarded(Careless.use))
    sweep_through(Careless.use)
    asyncio.run(try_gate(Careless.open, Careless.close, Careless.start))
    print("Careful:")
    asyncio.run(use_guarded(Careful.use))
    sweep_through(Careful.use)
    asyncio.run(try_gate(Careful.open, Careful.close, Careful.start))
