"""`from_thread()`: the way into a scope from other threads, and where threads' own loops stand."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce import Scope, ScopeClosed, UsageError, detached
from tests.unit.core.blocking import PATIENCE_SECONDS, settled, thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

pytestmark = pytest.mark.real_time


async def in_a_thread(fn: Callable[[], Future[Any]]) -> Any:
    """Make the call in a thread that then waits for what comes of it."""
    return await anyio.to_thread.run_sync(lambda: fn().result(PATIENCE_SECONDS))


async def test_a_thread_calls_a_plain_function_in_the_loop() -> None:
    """from_thread() runs the function in the loop's thread, and gives back what it returned."""
    async with Scope("threads") as scope:
        ident = await in_a_thread(lambda: scope.from_thread(threading.get_ident))
        assert ident == threading.get_ident()


async def test_a_thread_takes_a_hold() -> None:
    """from_thread(scope.hold, …) passes arguments and options on, and gives the hold."""
    async with Scope("threads") as scope:
        hold = await in_a_thread(lambda: scope.from_thread(scope.hold, "request", "/", peer="x"))
        assert [entry.details for entry in scope.frontier()] == [{"peer": "x"}]
        hold.release()


async def test_a_thread_awaits_an_async_function_in_the_loop() -> None:
    """from_thread() awaits what an async function gives."""

    async def work(value: int, *, times: int) -> int:
        await anyio.lowlevel.checkpoint()
        return value * times

    async with Scope("threads") as scope:
        assert await in_a_thread(lambda: scope.from_thread(work, 7, times=6)) == 42


async def test_a_thread_spawns_a_job() -> None:
    """from_thread(scope.spawn, …) gives the job itself, which runs in the scope."""
    ran: list[str] = []

    async def work(value: str) -> None:
        await anyio.lowlevel.checkpoint()
        ran.append(value)

    async with Scope("threads") as scope:
        await (await in_a_thread(lambda: scope.from_thread(scope.spawn, work, "x")))
        assert ran == ["x"]
    assert scope.report is not None
    assert scope.report.completed == 1


async def test_a_thread_closes_the_scope() -> None:
    """from_thread(scope.aclose) gives the thread the report."""
    scope = await Scope.open("threads")
    job = scope.spawn(anyio.sleep_forever)
    await anyio.lowlevel.checkpoint()
    report = await in_a_thread(lambda: scope.from_thread(scope.aclose, cleanup=1))
    assert (report, job.done(), len(report.cancelled)) == (scope.report, True, 1)


async def test_a_thread_of_the_scope_itself_closes_it() -> None:
    """A function in to_thread() may close its own scope: it gets a report, and is not stuck."""
    reports: list[Any] = []
    ended = threading.Event()

    def close() -> None:
        reports.append(scope.from_thread(scope.aclose, cleanup=1).result(PATIENCE_SECONDS))
        ended.set()

    scope = await Scope.open("threads")
    scope.spawn(scope.to_thread, close)
    await scope.closing()
    report = await scope.aclose()
    assert ended.is_set()
    assert ([entry.kind for entry in report.stuck], len(reports)) == ([], 1)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_the_error_of_a_threads_call_is_the_threads(kind: str) -> None:
    """What the called function raises is raised in the thread, and nowhere else."""

    def fail() -> None:
        message = "for the thread"
        raise ValueError(message)

    async def fail_later() -> None:
        await anyio.lowlevel.checkpoint()
        fail()

    fn = fail if kind == "plain" else fail_later
    async with Scope("threads") as scope:
        with pytest.raises(ValueError, match="for the thread"):
            await in_a_thread(lambda: scope.from_thread(fn))
    assert scope.report is not None
    assert scope.report.ok


async def test_a_call_that_the_thread_takes_back_is_not_made() -> None:
    """A future that is cancelled before the loop came to it never calls the function."""
    called: list[str] = []
    async with Scope("threads") as scope:
        with thread(lambda: scope.from_thread(called.append, "x")) as future:
            pass  # the loop is blocked until the thread has ended
        assert future.result().cancel()
        await settled()
        assert called == []


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_call_that_is_under_way_when_the_loop_ends_ends_with_it(other: str) -> None:
    """The thread is not left waiting for a loop that has ended before the call was done."""
    begun, ready = threading.Event(), threading.Event()
    scopes: list[Scope] = []

    async def forever() -> None:
        begun.set()
        await anyio.sleep_forever()

    async def elsewhere() -> None:
        scope = await Scope.open("short")
        scopes.append(scope)
        ready.set()
        await anyio.to_thread.run_sync(begun.wait, PATIENCE_SECONDS)
        await scope.aclose()

    with thread(lambda: anyio.run(elsewhere, backend=other)):
        assert ready.wait(PATIENCE_SECONDS)
        future = scopes[0].from_thread(forever)
    assert future.done()
    assert future.exception() is not None


async def test_in_the_loops_own_thread_it_is_a_clear_error() -> None:
    """from_thread() in the loop's thread would wait for itself, so it is refused."""
    async with Scope("threads") as scope:
        with pytest.raises(UsageError, match="own thread: call or await"):
            scope.from_thread(scope.frontier)


async def test_before_the_scope_is_open_it_is_a_clear_error() -> None:
    """A scope that was never opened has no loop to call into."""
    scope = Scope("threads")
    with thread(lambda: scope.from_thread(scope.frontier)) as done:
        pass
    with pytest.raises(UsageError, match="not open"):
        done.result()


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_when_the_loop_has_ended_it_is_a_clear_error(other: str) -> None:
    """A call into a loop that is gone raises ScopeClosed at once, instead of waiting for ever."""
    scopes: list[Scope] = []

    async def elsewhere() -> None:
        async with Scope("short") as scope:
            scopes.append(scope)

    with thread(lambda: anyio.run(elsewhere, backend=other)):
        pass
    with pytest.raises(ScopeClosed, match="event loop of scope 'short' has ended"):
        scopes[0].from_thread(scopes[0].frontier)


async def test_a_scope_in_a_loop_of_a_worker_thread_stands_alone() -> None:
    """A loop that a thread runs by itself is no part of the scope whose context the thread has."""
    parents: list[object] = []

    async def elsewhere() -> None:
        async with Scope("elsewhere") as inner:
            parents.append(inner.parent)
            inner.spawn(anyio.lowlevel.checkpoint)

    async with Scope("threads") as scope:
        await scope.to_thread(anyio.run, elsewhere)
        assert parents == [None]


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_loop_of_a_worker_thread_gives_its_tasks_to_no_scope_of_this_one() -> None:
    """Adoption ends at the loop: a task in another loop is not held by a scope of this one."""
    kinds: list[object] = []

    async def elsewhere() -> None:
        with detached():
            other = await Scope.open("of the other loop", adopt=True)
        task = asyncio.create_task(asyncio.sleep(0))
        kinds.append(type(task))
        await task
        await other.aclose()

    async with Scope("threads", adopt=True) as scope:
        await scope.to_thread(asyncio.run, elsewhere())
    assert kinds == [asyncio.Task]
    assert scope.report is not None
    assert scope.report.completed == 0


async def test_an_async_function_of_a_thread_is_a_job_of_the_scope() -> None:
    """It is in the frontier, the scope waits for it in a drain, and the thread gets its result."""
    go_on, begun = anyio.Event(), anyio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with Scope("app") as scope:
        future: list[Any] = []
        thread = threading.Thread(target=lambda: future.append(scope.from_thread(work)))
        thread.start()
        await begun.wait()
        assert [entry.kind for entry in scope.frontier().in_flight] == ["job"]
        go_on.set()
        await scope.idle()
        await anyio.to_thread.run_sync(thread.join)
        assert future[0].result(0) == "done"
    assert scope.report is not None
    assert scope.report.completed == 1


async def test_an_async_function_of_a_thread_is_cancelled_with_the_scope() -> None:
    """The close does not leave it behind, and the thread learns that it was cancelled."""
    begun = anyio.Event()

    async def work() -> None:
        begun.set()
        await anyio.sleep_forever()

    scope = await Scope.open("app")
    future: list[Any] = []
    thread = threading.Thread(target=lambda: future.append(scope.from_thread(work)))
    thread.start()
    await begun.wait()
    await anyio.to_thread.run_sync(thread.join)
    report = await scope.aclose(5)
    assert [entry.kind for entry in report.cancelled] == ["job"]
    assert future[0].done()
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the event loop's own
        future[0].result(0)


async def test_after_the_close_an_async_function_of_a_thread_is_refused() -> None:
    """The thread gets the error of `spawn`, and the function does not run."""
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    scope = await Scope.open("app")
    await scope.aclose()
    future: list[Any] = []
    thread = threading.Thread(target=lambda: future.append(scope.from_thread(work)))
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    await anyio.to_thread.run_sync(future[0].exception)
    assert isinstance(future[0].exception(0), ScopeClosed)
    assert not ran
