"""The failure of an adopted task that nobody asks for is given to the scope's own function, too."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

from quiesce import Scope
from tests.stress import Raising, turns

pytestmark = pytest.mark.backends("asyncio", "uvloop")


def plain_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make tasks as a program's own factory would."""
    return asyncio.Task(coro, loop=loop, **options)


async def fail(number: int = 0) -> None:
    """Fail at the first step."""
    raise ValueError(number)


class Handler:
    """A scope's own function, which keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str | None]] = []
        self.threads: set[int] = set()

    def __call__(self, job: Any, error: BaseException) -> None:
        """Handle a failure."""
        assert isinstance(error, ValueError)
        self.calls.append((job.kind, job.name, job.where))
        self.threads.add(threading.get_ident())


async def drop(count: int = 1) -> None:
    """Start tasks that fail, and forget them."""
    for number in range(count):
        asyncio.create_task(fail(number), name="dropped")  # noqa: RUF006 - that is the point
    await turns(3)


async def test_a_function_hears_of_a_task_that_was_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is called when the task is collected, long before the close, and has thereby handled it."""
    handler = Handler()
    async with Scope("a", adopt=True, on_error=handler) as scope:
        await drop()
        gc.collect()
        await turns()
        ((kind, name, where),) = handler.calls
        assert (kind, name) == ("task", "dropped")
        assert str(where).startswith(__file__)
        assert not scope.failed_entries
    assert scope.report is not None
    assert (scope.report.ok, scope.report.handled, len(handler.calls)) == (True, 1, 1)
    assert not caplog.records


@pytest.mark.parametrize("factory", [None, plain_factory])
async def test_a_function_hears_at_the_close_of_a_task_that_is_kept(factory: Any) -> None:
    """Until then somebody may still ask; then nobody has, and the function is called."""
    handler = Handler()
    loop = asyncio.get_running_loop()
    async with Scope("a", adopt=True, on_error=handler) as scope:
        loop.set_task_factory(factory)
        kept = asyncio.create_task(fail(), name="kept")
        asked = asyncio.create_task(fail(), name="asked")
        loop.set_task_factory(None)
        await turns()
        assert isinstance(asked.exception(), ValueError)
        assert not handler.calls
    assert [name for _, name, _ in handler.calls] == ["kept"]
    assert kept.done()
    assert scope.report is not None
    assert (scope.report.ok, scope.report.handled) == (True, 1)


async def test_a_function_hears_of_what_is_collected_just_before_the_close() -> None:
    """What has not been told when the closing ends is told then, and is in the report."""
    handler = Handler()
    async with Scope("a", adopt=True, on_error=handler) as scope:
        kept = [asyncio.create_task(fail())]
        await scope.idle()
        gc.collect()
        kept.clear()  # no turn of the loop from here on
        assert (len(scope.unheard_failures), handler.calls) == (1, [])
        report = await scope.aclose()
        assert (len(handler.calls), report.handled, report.ok) == (1, 1, True)


async def test_a_function_hears_in_the_event_loops_thread() -> None:
    """Collection may happen in any thread; the function is called where everything else is."""
    handler = Handler()
    async with Scope("a", adopt=True, on_error=handler) as scope:
        gc.disable()
        try:
            tasks = [asyncio.create_task(fail())]
            await scope.idle()
            thread = threading.Thread(target=tasks.clear)
            thread.start()
            thread.join()
            assert not handler.calls
            await turns()
        finally:
            gc.enable()
        assert handler.threads == {threading.get_ident()}


async def test_a_function_that_fails_does_not_lose_the_failure_of_a_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it raises is logged, and the task's failure is in the report after all."""

    def handle(_: object, __: BaseException) -> None:
        raise KeyError

    async with Raising(ExceptionGroup) as caught, Scope("a", adopt=True, on_error=handle) as scope:
        await drop()
        gc.collect()
        await turns()
        assert len(scope.failed_entries) == 1
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert any(record.levelno >= logging.ERROR for record in caplog.records)


async def test_without_a_function_the_scope_says_and_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As before: it is logged with the line that started it, and it does not cancel the others."""
    async with Raising(ExceptionGroup), Scope("a", adopt=True, on_error="cancel") as scope:
        await drop()
        gc.collect()
        assert scope.state == "open"
    assert "no task asked for its result" in caplog.text
    assert scope.report is not None
    assert [entry.name for entry in scope.report.failed] == ["dropped"]


@pytest.mark.backends("asyncio")
async def test_thousands_of_failures_take_no_memory() -> None:
    """A scope that lives as long as its program keeps nothing of what its function has handled."""
    count = 0

    def handle(_: object, __: BaseException) -> None:
        nonlocal count
        count += 1

    async with Scope("a", adopt=True, on_error=handle) as scope:
        await drop(500)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(9):
            await drop(500)
        gc.collect()
        await turns()
        assert len(gc.get_objects()) < before + 500
        assert (count, scope.failed_entries) == (5000, [])
    assert scope.report is not None
    assert (scope.report.handled, scope.report.ok) == (5000, True)
