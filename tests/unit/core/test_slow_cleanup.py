"""A cleanup that takes its time is left alone until the deadline, wherever it takes place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from tests.stress import CANCELLED, SCHEDULING, lasting, timed_close, turns
from tests.sweeping import WakeUps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine


async def in_finally(seconds: float, log: list[str]) -> None:
    """Clean up in `finally`."""
    try:
        await anyio.sleep_forever()
    finally:
        await lasting(seconds)
        log.append("clean")


async def in_except(seconds: float, log: list[str]) -> None:
    """Clean up in `except`."""
    try:
        await anyio.sleep_forever()
    except CANCELLED:
        await lasting(seconds)
        log.append("clean")
        raise


async def in_a_context(seconds: float, log: list[str]) -> None:
    """Clean up in an `__aexit__`."""

    class Tidy:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            await in_a_helper(seconds, log)

    async with Tidy():
        await anyio.sleep_forever()


async def in_a_helper(seconds: float, log: list[str]) -> None:
    """Clean up in a function that knows nothing of the cancellation."""
    for _ in range(4):
        await lasting(seconds / 4)
    log.append("clean")


async def in_a_generator(seconds: float, log: list[str]) -> None:
    """Clean up in an async generator that is being read."""

    async def numbers() -> Any:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            await lasting(seconds)
            log.append("clean")

    async for _ in numbers():
        pass


async def in_a_task_group(seconds: float, log: list[str]) -> None:
    """Clean up in a child of a task group."""
    async with anyio.create_task_group() as group:
        group.start_soon(in_finally, seconds, log)


async def in_a_nested_scope(seconds: float, log: list[str]) -> None:
    """Clean up in a job of a scope of one's own."""
    async with Scope("nested") as nested:
        nested.spawn(in_finally, seconds, log)
        await anyio.sleep_forever()


PORTABLE = [
    in_finally,
    in_except,
    in_a_context,
    in_a_generator,
    in_a_task_group,
    in_a_nested_scope,
]


async def clean_up(cleanup: Callable[[float, list[str]], Awaitable[None]], backend: str) -> None:
    """Close a scope with a job in that cleanup, and see that it was let finish."""
    log: list[str] = []
    seconds = 0.1 if backend == "uvloop" else 3.0

    async def job() -> None:
        await cleanup(seconds, log)

    scope = await Scope.open("a")
    scope.spawn(job, name="job")
    await turns()
    report = await scope.aclose(cleanup=4)
    assert log == ["clean"]
    assert [lost.name for lost in report.cancelled if lost.scope == "a"] == ["job"]
    assert seconds <= report.seconds + 0.01
    assert report.seconds < seconds + (3 if backend == "uvloop" else 0.3)


@pytest.mark.parametrize("cleanup", PORTABLE)
async def test_a_slow_cleanup_is_let_finish(
    cleanup: Callable[[float, list[str]], Awaitable[None]], backend: str
) -> None:
    """A job that is cleaning up is not cancelled again, wherever it does that."""
    await clean_up(cleanup, backend)


async def in_a_task(seconds: float, log: list[str]) -> None:
    """Clean up in a task that the job waits for."""
    await asyncio.create_task(in_finally(seconds, log))


async def in_gathered_tasks(seconds: float, log: list[str]) -> None:
    """Clean up in one of the tasks of a `gather`."""
    await asyncio.gather(in_finally(seconds, log), turns(1))


async def in_a_wait_for(seconds: float, log: list[str]) -> None:
    """Clean up under `wait_for`, which is a task of its own on Python 3.11."""
    await asyncio.wait_for(in_finally(seconds, log), 60)


async def in_an_asyncio_task_group(seconds: float, log: list[str]) -> None:
    """Clean up in a child of asyncio's own task group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(in_finally(seconds, log))


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize(
    "cleanup", [in_a_task, in_gathered_tasks, in_a_wait_for, in_an_asyncio_task_group]
)
async def test_a_slow_cleanup_in_a_task_of_the_job_is_let_finish(
    cleanup: Callable[[float, list[str]], Awaitable[None]], backend: str
) -> None:
    """A job that waits for a task that is cleaning up has not swallowed anything."""
    await clean_up(cleanup, backend)


async def test_a_close_that_waits_for_a_cleanup_does_not_spin(backend: str) -> None:
    """It looks a few times whether the job goes on with its work, and sleeps in between."""
    wake_ups = WakeUps()
    for _ in range(10):
        scope = await Scope.open("a")
        scope.spawn(in_finally, 0.05, [])
        await turns()
        with wake_ups.counted(backend):
            await scope.aclose(cleanup=4)
    assert 0 < wake_ups.count < 10 * 25


async def test_a_job_that_was_cleaning_up_before_the_close_is_let_finish(backend: str) -> None:
    """A job that somebody cancelled a moment ago is not cancelled again by the close."""
    log: list[str] = []
    seconds = 0.1 if backend == "uvloop" else 3.0
    scope = await Scope.open("a")
    job = scope.spawn(in_finally, seconds, log)
    await turns()
    job.cancel()
    await turns()
    report = await scope.aclose(cleanup=4)
    assert log == ["clean"]
    assert not report.stuck


async def test_an_endless_cleanup_is_cut_short_at_the_deadline(backend: str) -> None:
    """At the deadline a cleanup is cancelled as well, where it can be."""
    log = []

    async def endless() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            try:
                await anyio.sleep_forever()
            finally:
                log.append("cut short")

    scope = await Scope.open("a")
    scope.spawn(endless, name="endless")
    await turns()
    report, seconds = await timed_close(scope, 0.1)
    assert log == ["cut short"]
    assert seconds < 0.1 + SCHEDULING[backend]
    assert [lost.name for lost in report.cancelled] == ["endless"]
    assert not report.stuck


async def test_a_shielded_cleanup_that_outlives_the_deadline_is_reported_and_completes(
    backend: str,
) -> None:
    """Nobody breaks a shield: what is behind it is stuck, and ends in its own time."""
    log = []
    release = anyio.Event()

    async def shielded() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await behind_a_shield(backend, release.wait)
            log.append("clean")

    scope = await Scope.open("a")
    scope.spawn(shielded, name="shielded")
    await turns()
    report, seconds = await timed_close(scope, 0.05)
    assert seconds == pytest.approx(0.05, abs=SCHEDULING[backend])
    assert [lost.name for lost in report.stuck] == ["shielded"]
    release.set()
    await turns()
    assert log == ["clean"]


async def behind_a_shield(backend: str, fn: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Shield a wait as one does there."""
    if backend == "trio":
        with anyio.CancelScope(shield=True):
            await fn()
        return
    task = asyncio.ensure_future(fn())
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
