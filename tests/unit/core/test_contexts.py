"""`enter()` and `exit()`: entered and left by one task, whoever asks for it.

The task that matters is the one in which `__aenter__` and `__aexit__` run: anyio's task groups
and cancel scopes break if they differ.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import DrainTimeout, Scope, UsageError
from tests.stress import CANCELLED, Raising, Resource, failing, lasting, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

PROMPT = 1.0


async def elsewhere(fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Call in another task."""
    results: list[Any] = []

    async def call() -> None:
        results.append(await fn(*args))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    return results[0]


# One task for both.


@pytest.mark.parametrize("how", ["aclose", "drain", "exit", "end of the block"])
async def test_entered_and_left_by_one_task(how: str) -> None:
    """Whoever enters and whoever leaves, it is one and the same task that does both."""
    resource = Resource()
    me = anyio.get_current_task().id
    async with Scope("a") as scope:
        assert await elsewhere(scope.enter, resource) is resource
        assert resource.is_open
        if how == "exit":
            await elsewhere(scope.exit, resource)
        elif how != "end of the block":
            await elsewhere(scope.aclose if how == "aclose" else scope.drain)
    assert not resource.is_open
    assert len(set(resource.tasks)) == 1
    assert me not in resource.tasks


async def test_left_in_the_reverse_order() -> None:
    """The last one entered is left first."""
    log: list[str] = []
    async with Scope("a") as scope:
        for name in "abc":
            await scope.enter(Resource(name, log))
    assert log == ["enter a", "enter b", "enter c", "exit c", "exit b", "exit a"]


async def test_left_after_the_work_that_uses_them() -> None:
    """Jobs, child scopes and services end while the contexts are still entered."""
    log: list[str] = []

    async def user(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await lasting(0.01)
            log.append(name)

    scope = await Scope.open("a")
    await scope.enter(Resource("resource", log))
    scope.spawn(user, "job")
    scope.spawn(user, "service", service=True)
    scope.child("b").spawn(user, "child's job")
    await turns()
    await scope.aclose()
    assert log[-1] == "exit resource"
    assert sorted(log[1:-1]) == ["child's job", "job", "service"]


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
async def test_left_early_in_any_order(order: str) -> None:
    """`exit` takes the manager or its value, and leaves that one alone."""
    log: list[str] = []
    resources = {name: Resource(name, log) for name in "abc"}
    async with Scope("s") as scope:
        for resource in resources.values():
            await scope.enter(resource)
        del log[:]
        for name in order[:2]:
            await scope.exit(resources[name])
        assert log == [f"exit {name}" for name in order[:2]]
    assert log == [f"exit {name}" for name in order]


async def test_left_by_the_value_that_entering_gave() -> None:
    """The value of a manager that gives something else is a way to name it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[list[int]]:
        yield value
        value.clear()

    value = [1]
    async with Scope("a") as scope:
        assert await scope.enter(opened()) is value
        await scope.exit(value)
        assert value == []


async def test_what_was_left_or_never_entered_cannot_be_left() -> None:
    """A clear error, and no second exit."""
    resource = Resource()
    async with Scope("a") as scope:
        with pytest.raises(UsageError, match="has not entered"):
            await scope.exit(resource)
        await scope.enter(resource)
        await scope.exit(resource)
        with pytest.raises(UsageError, match="has not entered"):
            await scope.exit(resource)
    assert resource.log.count("exit resource") == 1


# Task groups and cancel scopes.


@pytest.mark.parametrize("how", ["aclose", "exit"])
async def test_a_task_group_is_entered_here_and_closed_there(how: str) -> None:
    """Its tasks run until it is asked to end, and it waits for them, as it does at home."""
    ended: list[str] = []

    async def task() -> None:
        await finish.wait()
        ended.append("task")

    finish = anyio.Event()
    scope = await Scope.open("a")
    group = await scope.enter(anyio.create_task_group())
    group.start_soon(task)
    await turns()
    finish.set()
    if how == "exit":
        await elsewhere(scope.exit, group)
    assert not (await elsewhere(scope.aclose)).failed
    assert ended == ["task"]


async def test_task_groups_are_closed_in_the_order_of_opening() -> None:
    """What raises everywhere else: two groups, each entered by another task, first in first out."""
    scope = await Scope.open("a")
    first = await elsewhere(scope.enter, anyio.create_task_group())
    second = await elsewhere(scope.enter, anyio.create_task_group())
    for group in (first, second):
        group.start_soon(anyio.sleep_forever)
    await turns()
    for group in (first, second):
        group.cancel_scope.cancel()
        await elsewhere(scope.exit, group)
    report = await elsewhere(scope.aclose)
    assert report.ok


async def test_a_task_group_with_endless_tasks_meets_the_deadline() -> None:
    """A group that waits for its tasks for ever is cancelled at the deadline, with them."""
    ended: list[str] = []

    async def endless() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("task")

    scope = await Scope.open("a")
    group = await scope.enter(anyio.create_task_group())
    group.start_soon(endless)
    await turns()
    begun = anyio.current_time()
    try:
        report = await scope.aclose(cleanup=0.1)
        assert anyio.current_time() - begun < 0.1 + PROMPT
        assert ended == ["task"]
        assert not report.stuck
    finally:
        group.cancel_scope.cancel()
        await turns()


async def test_the_crash_of_a_task_in_an_entered_group_is_in_the_report() -> None:
    """The group cancels itself, the report has its error, and the block raises it."""
    crash = KeyError("crash")
    async with Raising(ExceptionGroup) as caught, Scope("a") as scope:
        group = await scope.enter(anyio.create_task_group())
        group.start_soon(anyio.sleep_forever)
        group.start_soon(failing, crash)
        await turns(20)
    assert caught.group_contains(KeyError)
    assert scope.report is not None
    (failed,) = scope.report.failed
    assert isinstance(failed.error, ExceptionGroup)
    assert failed.error.exceptions == (crash,)


async def test_the_crash_of_an_entered_group_follows_on_error() -> None:
    """With `on_error="cancel"` it ends the scope and interrupts the body."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        group = await scope.enter(anyio.create_task_group())
        group.start_soon(failing, KeyError("crash"))
        await anyio.sleep_forever()
    assert caught.group_contains(KeyError)


async def test_leaving_a_crashed_group_raises_its_error() -> None:
    """`exit` raises what leaving raised, in the task that asked."""
    scope = await Scope.open("a")
    group = await scope.enter(anyio.create_task_group())
    group.start_soon(failing, KeyError("crash"))
    await turns(20)
    with pytest.raises(ExceptionGroup) as caught:
        await scope.exit(group)
    assert caught.group_contains(KeyError)
    await scope.aclose()


@asynccontextmanager
async def cancel_scope() -> AsyncIterator[anyio.CancelScope]:
    """Open a cancel scope as a client that has timeouts of its own does."""
    with anyio.CancelScope() as inner:
        yield inner


async def test_cancel_scopes_are_entered_here_and_left_there() -> None:
    """Several of them, cancelled or not, left in the order of opening."""
    scope = await Scope.open("a")
    scopes = [await elsewhere(scope.enter, cancel_scope()) for _ in range(3)]
    scopes[1].cancel()
    await turns()
    for inner in scopes:
        await elsewhere(scope.exit, inner)
    report = await elsewhere(scope.aclose)
    assert report.ok
    await turns()


# What the block ends with.


async def test_the_error_of_the_block_is_passed_to_its_contexts() -> None:
    """A transaction sees the exception, and rolls back."""
    resource = Resource()
    error = KeyError("rolled back")
    async with Raising(KeyError) as caught, Scope("a") as scope:
        await scope.enter(resource)
        raise error
    assert caught.value is error
    assert resource.error is error
    assert error.__context__ is None


async def test_a_context_is_left_without_an_error_if_the_block_ends_well() -> None:
    """A transaction that sees none commits."""
    resource = Resource()
    async with Scope("a") as scope:
        await scope.enter(resource)
    assert resource.log[-1] == "exit resource"
    assert resource.error is None


async def test_the_cancellation_of_the_block_is_passed_to_its_contexts() -> None:
    """A transaction whose block is cancelled does not commit."""
    resource = Resource()
    with anyio.CancelScope() as impatience:
        async with Scope("a") as scope:
            await scope.enter(resource)
            await scope.enter(anyio.create_task_group())
            impatience.cancel()
            await anyio.sleep_forever()
    assert impatience.cancelled_caught
    assert isinstance(resource.error, CANCELLED)
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.parametrize("error", [KeyError("body"), ExceptionGroup("body", [KeyError("inner")])])
async def test_functions_under_asynccontextmanager_see_the_error(error: Exception) -> None:
    """Generators, task groups in generators, and generators that suppress, all work."""
    seen: list[BaseException] = []

    @asynccontextmanager
    async def watching() -> AsyncIterator[None]:
        try:
            yield
        except Exception as seen_error:
            seen.append(seen_error)
            raise

    @asynccontextmanager
    async def suppressing() -> AsyncIterator[None]:
        try:
            yield
        except Exception as seen_error:
            seen.append(seen_error)

    @asynccontextmanager
    async def grouped() -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield

    async with Raising(type(error)) as caught, Scope("a") as scope:
        for manager in (watching, suppressing, grouped):
            await scope.enter(manager())
        raise error
    assert caught.value is error
    assert seen == [error, error]
    assert scope.report is not None
    assert scope.report.ok


async def test_a_context_that_fails_because_of_the_blocks_error_is_reported() -> None:
    """What a context raises instead of the block's error joins it."""

    @asynccontextmanager
    async def translating() -> AsyncIterator[None]:
        try:
            yield
        except KeyError as error:
            raise OSError("rollback failed") from error

    async with Raising(ExceptionGroup) as caught, Scope("a") as scope:
        await scope.enter(translating())
        raise KeyError("body")
    assert [type(error) for error in caught.value.exceptions] == [KeyError, OSError]


async def test_a_block_whose_deadline_passes_leaves_its_contexts_without_an_error() -> None:
    """A timeout of the drain is not an exception of the block."""
    resource = Resource()
    async with Raising(ExceptionGroup) as caught, Scope("a", grace=0.01) as scope:
        await scope.enter(resource)
        scope.spawn(anyio.sleep_forever)
    assert caught.group_contains(DrainTimeout)
    assert not resource.is_open


# What contexts start.


async def test_an_entered_context_is_not_work() -> None:
    """A scope with nothing but contexts is idle, and drains at once."""
    scope = await Scope.open("a")
    group = await scope.enter(anyio.create_task_group())
    group.start_soon(anyio.sleep_forever)
    await scope.idle()
    assert not scope.frontier()
    group.cancel_scope.cancel()
    report = await scope.drain(grace=None)
    assert report.ok
    assert report.seconds < PROMPT


@pytest.mark.backends("asyncio", "uvloop")
async def test_tasks_that_a_context_starts_are_adopted_by_the_context() -> None:
    """They are not work of the scope, outlive its jobs, and are ended after the context."""
    log: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def reader() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("reader ended")

    class Client(Resource):
        async def opening(self) -> None:
            tasks.append(asyncio.create_task(reader()))

        async def leaving(self) -> None:
            log.append(f"reader {'ended' if tasks[0].done() else 'runs'}")

    async with Scope("a", adopt=True) as scope:
        await scope.enter(Client("client", log))
        await scope.idle()
        scope.spawn(turns)
    assert log == ["enter client", "exit client", "reader runs", "reader ended"]
    assert tasks[0].done()
    assert scope.report is not None
    assert scope.report.completed == 1


@pytest.mark.backends("asyncio", "uvloop")
async def test_tasks_that_a_context_left_behind_are_ended_at_an_early_exit() -> None:
    """`exit` ends what the context forgot, and not the rest of the scope."""
    tasks: list[asyncio.Task[None]] = []

    class Client(Resource):
        async def opening(self) -> None:
            tasks.append(asyncio.create_task(anyio.sleep_forever()))

    async with Scope("a", adopt=True) as scope:
        client = Client()
        await scope.enter(client)
        job = scope.spawn(anyio.sleep_forever)
        await turns()
        await scope.exit(client)
        assert tasks[0].cancelled()
        assert not job.done()
        job.cancel()
