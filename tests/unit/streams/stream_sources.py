"""Generators that the tests of streams read, and what those tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import sniffio

from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from quiesce import Job, Scope
    from quiesce.streams.stream import Stream


def pump_of(scope: Scope) -> Any:
    """Return the pump of the only stream that is read in a scope."""
    (pump,) = scope.list_own_resources()
    return pump


def job_of(scope: Scope) -> Any:
    """Return the job of the only stream that is read in a scope."""
    pump = pump_of(scope)
    (job,) = (job for job, held in scope.holds.items() if held is pump)
    return job


def this_task() -> object:
    """Name the running task."""
    return anyio.get_current_task().id


class Counter:
    """A generator of numbers that keeps a diary of its life."""

    def __init__(self, count: int = 10) -> None:
        """Return the numbers below `count`."""
        self.count = count
        self.diary: list[str] = []
        self.tasks: set[object] = set()
        self.hold_up = anyio.Event()  # a step waits for it, if it was told to
        self.slow_from = count  # the step that waits
        self.cleanup_turns = 3
        self.fail_at = -1

    async def __call__(self) -> AsyncIterator[int]:
        """Count."""
        self._note("began")
        try:
            for number in range(self.count):
                if number >= self.slow_from:
                    await self.hold_up.wait()
                if number == self.fail_at:
                    raise KeyError(number)
                self._note(f"gave {number}")
                yield number
        finally:
            with anyio.CancelScope(shield=True):
                await turns(self.cleanup_turns)
            self._note("cleaned up")

    def _note(self, what: str) -> None:
        self.tasks.add(this_task())
        self.diary.append(what)

    @property
    def cleaned_up(self) -> bool:
        """Whether its `finally` has run to the end, and nothing has run in another task."""
        return self.diary[-1:] == ["cleaned up"] and len(self.tasks) == 1


async def begin_to_read(scope: Scope, source: Stream[Any]) -> Job[Any]:
    """Start a job that waits for the next item, and returns what comes or is raised."""
    job = scope.spawn(outcome_of, source.__anext__)
    await turns(3)
    assert not job.done()
    return job


async def cancelled_read(source: Stream[Any]) -> None:
    """Begin to read, and be cancelled."""
    with anyio.CancelScope() as cancel_scope:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_soon, cancel_scope)
            await anext(source)
    assert cancel_scope.cancelled_caught


async def cancel_soon(cancel_scope: anyio.CancelScope, after: int = 4) -> None:
    """Cancel after a few turns."""
    with anyio.CancelScope(shield=True):
        await turns(after)
    cancel_scope.cancel()


async def outcome_of(fn: Callable[[], Coroutine[Any, Any, Any]]) -> object:
    """Return what a call gives or raises."""
    try:
        return await fn()
    except Exception as error:
        return error


def on_trio() -> bool:
    """Return whether this is trio."""
    return sniffio.current_async_library() == "trio"
