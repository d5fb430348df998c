"""A failure that a callback has only looked at is counted; one that a task received is not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from functools import partial
from typing import Any

import pytest
import uvloop

from quiesce import Scope
from tests.stress import turns

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def fail() -> None:
    """Fail after a step."""
    await asyncio.sleep(0)
    message = "on purpose"
    raise ValueError(message)


def look(task: asyncio.Task[Any]) -> None:
    """Look at an error, as code that logs it does."""
    assert isinstance(task.exception(), ValueError)


async def run(use: Any, *, on_error: Any = "collect") -> Scope:
    """Run code that starts a task which fails, in a scope that adopts."""
    scope = await Scope.open("app", adopt=True, on_error=on_error)
    await scope.spawn(use)
    await turns()
    await scope.drain(grace=None)
    return scope


def failed(scope: Scope) -> list[str]:
    """List the names of what has failed in a scope."""
    assert scope.report is not None
    return [item.name for item in scope.report.failed]


def ask(task: asyncio.Task[Any]) -> None:
    """Ask for the result, as code that logs the error does."""
    try:
        task.result()
    except ValueError:
        pass
    else:
        pytest.fail("it must be raised")


@pytest.mark.parametrize("look", [look, ask])
@pytest.mark.parametrize("kept", [True, False])
async def test_a_failure_that_a_callback_looked_at_is_counted(
    caplog: pytest.LogCaptureFixture, look: Any, *, kept: bool
) -> None:
    """A library reads the exception to log it: the report has the failure, and asyncio is quiet."""
    tasks = list[asyncio.Task[None]]()

    async def use() -> None:
        task = asyncio.create_task(fail(), name="failing")
        task.add_done_callback(look)
        if kept:
            tasks.append(task)
        del task
        await turns()
        gc.collect()

    scope = await run(use)
    assert (failed(scope), caplog.messages) == (["failing"], [])


async def test_a_failure_that_a_callback_looked_at_is_for_the_scopes_function() -> None:
    """The scope's own function handles it, as any other failure."""
    heard = list[BaseException]()

    async def use() -> None:
        asyncio.create_task(fail()).add_done_callback(look)

    scope = await run(use, on_error=lambda _, error: heard.append(error))
    assert scope.report is not None
    assert (len(heard), scope.report.handled, failed(scope)) == (1, 1, [])


@pytest.mark.parametrize("look", [look, ask])
@pytest.mark.parametrize("way", ["await", "shield", "gather", "wait", "task group", "later"])
async def test_a_failure_that_a_task_received_is_not_counted(way: str, look: Any) -> None:
    """A callback looks at it first, and then a task that awaits it gets it."""

    async def use() -> None:
        if way == "task group":
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail()).add_done_callback(look)
            return
        task = asyncio.create_task(fail())
        task.add_done_callback(look)
        try:
            if way == "gather":
                await asyncio.gather(task)
            elif way == "wait":
                await asyncio.wait([task])
                assert task.exception() is not None
            elif way == "shield":
                await asyncio.shield(task)
            else:
                await (turns() if way == "later" else task)
                await task
        except ValueError:
            pass

    assert failed(await run(use)) == []


async def test_a_failure_that_a_callback_passes_on_is_not_counted() -> None:
    """A callback gives the error to a future that a task awaits."""

    def pass_on(future: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        error = task.exception()
        assert error is not None
        future.set_exception(error)

    async def use() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.create_task(fail()).add_done_callback(partial(pass_on, future))
        with pytest.raises(ValueError, match="on purpose"):
            await future

    assert failed(await run(use)) == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_failure_that_a_task_receives_is_not_counted_whichever_code_runs_the_loop(
    new_loop: Any,
) -> None:
    """The frames of uvloop are not to be seen: the code that runs the loop is not taken for a callback."""

    async def use() -> None:
        with pytest.raises(ValueError, match="on purpose"):
            await asyncio.create_task(fail())

    async def main() -> list[str]:
        return failed(await run(use))

    with contextlib.closing(new_loop()) as loop:
        assert loop.run_until_complete(main()) == []
