"""Work in threads is held until it has really returned, whoever waits for it."""

from __future__ import annotations

import contextvars
import os
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce import JobCancelled, Scope, ScopeClosed, UsageError, current_scope
from tests.unit.core.blocking import PATIENCE_SECONDS, Blocking, buried, thread, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce import FrontierEntry

pytestmark = pytest.mark.real_time


async def test_the_value_of_the_function_comes_back() -> None:
    """to_thread() runs the function in another thread, with the caller's context and arguments."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("of the caller")

    def look(first: int, second: int) -> tuple[int, bool, str, Scope | None]:
        other = threading.current_thread() is not threading.main_thread()
        return first + second, other, variable.get(), current_scope()

    async with Scope("threads") as scope:
        assert await scope.to_thread(look, 1, 2) == (3, True, "of the caller", scope)
    assert scope.report is not None
    assert scope.report.ok


async def test_the_error_of_the_function_is_the_waiters() -> None:
    """An error that the waiter gets is not reported a second time."""

    def fail() -> None:
        message = "in the thread"
        raise ValueError(message)

    async with Scope("threads") as scope:
        with pytest.raises(ValueError, match="in the thread"):
            await scope.to_thread(fail)
    assert scope.report is not None
    assert scope.report.ok


async def test_a_thread_is_held_until_its_function_returns() -> None:
    """The thread is in the frontier, and keeps the scope busy, although its waiter was cancelled."""
    blocking = Blocking()
    async with Scope("threads") as scope:
        job = scope.spawn(scope.to_thread, blocking)
        await until(blocking.begun)
        assert sorted(entry.kind for entry in scope.frontier()) == ["job", "thread"]
        job.cancel()
        with pytest.raises(JobCancelled):
            await job
        assert not blocking.ended.is_set()
        assert [entry.kind for entry in scope.frontier()] == ["thread"]
        blocking.gate.set()
        await scope.idle()
        assert blocking.ended.is_set()


async def test_the_end_of_the_block_waits_for_an_abandoned_thread() -> None:
    """A drain waits for the function, not only for the one who wanted its result."""
    blocking = Blocking()

    async def let_go() -> None:
        await scope.closing()
        blocking.gate.set()

    async with Scope("threads") as scope:
        job = scope.spawn(scope.to_thread, blocking)
        await until(blocking.begun)
        job.cancel()
        scope.spawn(let_go)
    assert blocking.ended.is_set()
    assert scope.report is not None
    assert (scope.report.ok, scope.report.withdrawn) == (True, 1)


async def test_a_close_waits_for_an_abandoned_thread_within_its_time() -> None:
    """aclose() cancels the waiter and still joins the thread, if that ends in time."""
    blocking = Blocking()
    scope = await Scope.open("threads")
    job = scope.spawn(scope.to_thread, blocking)
    await until(blocking.begun)

    async def let_go() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            blocking.gate.set()

    scope.spawn(let_go)
    await anyio.lowlevel.checkpoint()
    report = await scope.aclose(cleanup=PATIENCE_SECONDS)
    assert (blocking.ended.is_set(), job.done(), report.stuck) == (True, True, ())


async def test_a_thread_that_outlives_the_deadline_is_stuck_with_its_stack() -> None:
    """The report names the thread, where it was started, and the lines it is in."""
    blocking = Blocking()
    scope = await Scope.open("threads")
    scope.spawn(scope.to_thread, blocking)
    await until(blocking.begun)
    report = await scope.aclose(cleanup=0.05)
    (entry,) = report.stuck
    assert (entry.kind, entry.scope) == ("thread", "threads")
    assert any(frame.endswith(" in Blocking.__call__") for frame in entry.stack)
    assert not report.ok
    blocking.gate.set()
    await buried(scope)


async def test_what_a_stuck_thread_raises_later_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A failure after the report was written is not silent."""
    blocking = Blocking(ValueError("much later"))
    scope = await Scope.open("threads")
    scope.spawn(scope.to_thread, blocking)
    await until(blocking.begun)
    report = await scope.aclose(cleanup=0.05)
    assert len(report.stuck) == 1
    blocking.gate.set()
    await buried(scope)
    assert "much later" in caplog.text
    assert "'threads'" in caplog.text


async def test_the_frontier_shows_where_the_thread_is() -> None:
    """The entry of a thread names the function, who started it, and the line it is at."""

    def read(fd: int) -> bytes:
        return os.read(fd, 1)

    reader, writer = os.pipe()
    async with Scope("threads") as scope:
        scope.spawn(scope.to_thread, read, reader, name="reading")
        entry = await thread_at_work(scope)
        os.write(writer, b"x")
    os.close(reader)
    os.close(writer)
    line = read.__code__.co_firstlineno + 1
    assert entry.waiting_on is not None
    assert entry.waiting_on.startswith(f"{__file__}:{line} in ")
    assert "read" in entry.name


async def thread_at_work(scope: Scope) -> FrontierEntry:
    """Return the thread in the frontier, once it is at a line of this file."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            for entry in scope.frontier():
                if entry.kind == "thread" and __file__ in str(entry.waiting_on):
                    return entry
            await anyio.lowlevel.checkpoint()


@pytest.fixture
def one_thread() -> Callable[[], None]:
    """Return a function that leaves anyio's default limiter a single thread."""

    def limit() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1

    return limit


async def test_a_function_is_not_called_if_its_waiter_left_first(
    one_thread: Callable[[], None],
) -> None:
    """A call that waits for a free thread is held; if its waiter is cancelled, it never begins."""
    one_thread()
    first, second = Blocking(), Blocking()
    async with Scope("threads") as scope:
        scope.spawn(scope.to_thread, first)
        await until(first.begun)
        waiting = scope.spawn(scope.to_thread, second)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert sorted(entry.kind for entry in scope.frontier()) == [
            "job",
            "job",
            "thread",
            "thread",
        ]
        waiting.cancel()
        with pytest.raises(JobCancelled):
            await waiting
        assert sorted(entry.kind for entry in scope.frontier()) == ["job", "thread"]
        first.gate.set()
    assert (first.ended.is_set(), second.begun.is_set()) == (True, False)


async def test_a_function_that_a_thread_was_about_to_call_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that was given the call, and comes to it after the waiter has left, does nothing."""
    given: list[Callable[[], object]] = []

    async def give(call: Callable[[], object], **_: Any) -> None:
        given.append(call)
        await anyio.sleep_forever()  # the thread is slow to begin

    monkeypatch.setattr(anyio.to_thread, "run_sync", give)
    called: list[str] = []
    async with Scope("threads") as scope:
        job = scope.spawn(scope.to_thread, called.append, "x")
        while not given:
            await anyio.lowlevel.checkpoint()
        assert sorted(entry.kind for entry in scope.frontier()) == ["job", "thread"]
        job.cancel()
        await scope.idle()
        with thread(given[0]):
            pass
    assert called == []


async def test_a_failure_after_abandonment_is_in_the_report() -> None:
    """What the function raises when nobody waits any more is reported, once, with its place."""
    blocking = Blocking(ValueError("too late for the waiter"))
    scope = await Scope.open("threads")
    job = scope.spawn(scope.to_thread, blocking)
    await until(blocking.begun)
    job.cancel()
    with pytest.raises(JobCancelled):
        await job
    blocking.gate.set()
    report = await scope.drain(grace=PATIENCE_SECONDS)
    (entry,) = report.failed
    assert (entry.kind, str(entry.error)) == ("thread", "too late for the waiter")


async def test_a_failure_in_the_moment_of_abandonment_is_in_the_report() -> None:
    """An error that comes when its waiter is cancelled but not yet gone is lost on neither."""
    blocking = Blocking(ValueError("just then"))
    scope = await Scope.open("threads")
    job = scope.spawn(scope.to_thread, blocking)
    await until(blocking.begun)
    (hold,) = (held for held in scope.holds.values() if held.kind == "thread")
    job.cancel()  # and in the same step, before the waiter can leave, the thread fails
    blocking.gate.set()
    assert blocking.ended.wait(PATIENCE_SECONDS)
    while hold.ident is not None:  # type: ignore[attr-defined]  # a thread's hold has it
        pass
    report = await scope.drain(grace=PATIENCE_SECONDS)
    assert [str(entry.error) for entry in report.failed] == ["just then"]


async def test_to_thread_is_refused_after_the_closing_began() -> None:
    """A closed scope starts no thread, except for work that is being drained."""
    called: list[str] = []

    async def work() -> None:
        await scope.closing()
        await scope.to_thread(called.append, "by running work")

    scope = await Scope.open("threads")
    scope.spawn(work)
    report = await scope.drain(grace=PATIENCE_SECONDS)
    with pytest.raises(ScopeClosed):
        await scope.to_thread(called.append, "too late")
    assert (called, report.ok) == (["by running work"], True)


async def test_what_is_no_function_is_a_clear_error() -> None:
    """to_thread() with a call instead of a function says so, and holds nothing."""
    wrong: Any = 7
    async with Scope("threads") as scope:
        with pytest.raises(UsageError, match="not a function"):
            await scope.to_thread(wrong)
        with pytest.raises(UsageError, match="to_thread"):
            await scope.to_thread(anyio.lowlevel.checkpoint())  # type: ignore[arg-type]  # on purpose
        assert len(scope.frontier()) == 0


# hold.release() from threads


async def test_a_hold_may_be_released_by_a_thread() -> None:
    """idle() is woken by a release in another thread, and a second release does no harm."""
    async with Scope("threads") as scope:
        hold = scope.hold("request", "GET /")
        go = threading.Event()

        def release() -> None:
            assert go.wait(PATIENCE_SECONDS)
            hold.release()
            hold.release()

        with thread(release):
            go.set()
            await scope.idle()
            assert hold.released


async def test_a_release_by_a_thread_follows_a_hold_that_is_handed_over() -> None:
    """A release that is under way while the hold goes to the parent reaches it there."""
    parent = await Scope.open("parent")
    child = parent.child("child", leftovers="parent")
    hold = child.hold("request", "GET /")

    async def release_while_it_moves() -> None:
        parent.spawn(child.aclose)
        parent.spawn(release_at_once)

    async def release_at_once() -> None:
        with thread(hold.release):
            pass  # the thread has ended before the loop goes on

    await parent.spawn(release_while_it_moves)
    report = await parent.drain(grace=1, cleanup=0.05)
    assert (report.undelivered, child.state) == ((), "closed")


async def test_a_release_by_a_thread_after_the_loop_ended_does_no_harm() -> None:
    """A thread that is late to release is not punished for it."""
    holds: list[Any] = []

    async def elsewhere() -> None:
        async with Scope("short") as scope:
            holds.append(scope.hold("request", "GET /"))
            holds[0].release()

    with thread(lambda: anyio.run(elsewhere)):
        pass
    with thread(holds[0].release) as released:
        pass
    assert released.result() is None
