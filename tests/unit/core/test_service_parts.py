"""Tasks that a service starts: part of the service while it waits for them, else work."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.core.report import Report

pytestmark = pytest.mark.backends("asyncio", "uvloop")


def plain_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make tasks as a program's own factory would."""
    return asyncio.Task(coro, loop=loop, **options)


@pytest.fixture(params=[None, plain_factory], ids=["no other factory", "another factory"])
def factory(request: pytest.FixtureRequest) -> Any:
    """Return the task factory that the program uses."""
    return request.param


async def for_ever() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


async def with_wait_for() -> None:
    """Wait as a heartbeat does: on Python 3.11 `wait_for` makes a task."""
    await asyncio.wait_for(asyncio.Event().wait(), 60)


async def with_wait() -> None:
    """Wait for one of two tasks, and end both."""
    both = [asyncio.create_task(for_ever()), asyncio.create_task(asyncio.Event().wait())]
    try:
        await asyncio.wait(both, return_when="FIRST_COMPLETED")
    finally:
        for task in both:
            task.cancel()


async def with_bare_wait() -> None:
    """Wait for one of two of asyncio's own waits, and leave both."""
    both = [
        asyncio.create_task(asyncio.Event().wait()),
        asyncio.create_task(asyncio.Event().wait()),
    ]
    await asyncio.wait(both, return_when="FIRST_COMPLETED")


async def with_gather() -> None:
    """Run two loops until one of them fails."""
    await asyncio.gather(for_ever(), for_ever())


async def with_task_group() -> None:
    """Run two loops in a task group of asyncio."""
    async with asyncio.TaskGroup() as group:
        group.create_task(for_ever())
        group.create_task(for_ever())


async def with_anyio() -> None:
    """Run two loops in a task group of anyio."""
    async with anyio.create_task_group() as group:
        group.start_soon(for_ever)
        group.start_soon(for_ever)


async def with_task() -> None:
    """Await one task, which awaits another in its first step."""

    async def outer() -> None:
        await asyncio.create_task(for_ever())

    await asyncio.create_task(outer())


LOOPS = [
    with_wait_for, with_wait, with_bare_wait, with_gather, with_task_group, with_anyio, with_task,
]  # fmt: skip


async def run_service(
    loop: Callable[[], Awaitable[Any]], factory: Any, *, spawned: bool
) -> tuple[Scope, Report]:
    """Run a service in a scope that adopts, see the scope idle, and close it."""

    async def service() -> None:
        while True:
            await loop()

    asyncio.get_running_loop().set_task_factory(factory)
    scope = await Scope.open("app", adopt=True, services=["library loop"])
    if spawned:
        scope.spawn(service, service=True)
    else:
        await scope.spawn(start_in_scope, service)
    await turns()
    assert all(entry.service for entry in scope.frontier()), str(scope.frontier())
    await scope.idle()
    report = await scope.drain(grace=None)
    asyncio.get_running_loop().set_task_factory(None)
    return scope, report


async def start_in_scope(service: Callable[[], Any]) -> None:
    """Start a task as a library does: the scope knows it by its name."""
    asyncio.create_task(service(), name="library loop")  # noqa: RUF006 - adopted


@pytest.mark.parametrize("spawned", [True, False], ids=["spawned", "adopted"])
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_task_that_a_service_waits_for_is_part_of_the_service(
    loop: Any, factory: Any, *, spawned: bool
) -> None:
    """It keeps the scope from being idle as little as its service, and the report counts one."""
    _, report = await run_service(loop, factory, spawned=spawned)
    assert (report.ok, report.services, len(report.cancelled)) == (True, 1, 0), str(report)


async def test_parts_that_end_are_not_counted_as_services() -> None:
    """A service that has waited for many tasks is still one service in the report."""
    rounds = asyncio.Event()

    async def service() -> None:
        for _ in range(5):
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        rounds.set()
        await for_ever()

    async with Scope("app", adopt=True) as scope:
        scope.spawn(service, service=True)
        await rounds.wait()
    assert scope.report is not None
    assert scope.report.services == 1


@pytest.mark.parametrize("kept", ["with a callback", "in a task group", "not at all"])
async def test_a_task_that_a_service_starts_and_leaves_is_work(factory: Any, kept: str) -> None:
    """A server's loop hands a request to a task: the drain waits for that task."""
    done, gate, tasks = list[str](), asyncio.Event(), set[asyncio.Task[None]]()

    async def request() -> None:
        await gate.wait()
        done.append("request")

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            if kept == "in a task group":
                group.create_task(request())
            else:
                task = asyncio.create_task(request())
                tasks.add(task)
                if kept == "with a callback":
                    task.add_done_callback(tasks.discard)
            await for_ever()

    asyncio.get_running_loop().set_task_factory(factory)
    scope = await Scope.open("app", adopt=True)
    scope.spawn(serve, service=True)
    await turns()
    assert len(scope.frontier()) == 1
    asyncio.get_running_loop().call_later(0, gate.set)
    report = await scope.drain(grace=None)
    asyncio.get_running_loop().set_task_factory(None)
    assert (done, report.ok, report.completed, report.services) == (["request"], True, 1, 1)


async def test_a_task_that_a_service_starts_in_another_scope_is_that_scopes_work() -> None:
    """A worker that opens a scope for a piece of work: what it starts there is work."""
    started = asyncio.Event()

    async def worker() -> None:
        async with Scope("piece"):
            task = asyncio.create_task(for_ever())
            started.set()
            await task

    scope = await Scope.open("app", adopt=True)
    scope.spawn(worker, service=True)
    await started.wait()
    await turns()
    assert [entry.name for entry in scope.frontier().in_flight] == ["for_ever"]
    report = await scope.aclose()
    assert [item.name for item in report.cancelled] == ["for_ever"]


async def test_what_a_service_leaves_when_it_is_stopped_is_reported() -> None:
    """A service waits for its handlers, and does not end them: the report names them."""

    async def handle() -> None:
        await for_ever()

    async def serve() -> None:
        handlers = [asyncio.create_task(handle()) for _ in range(2)]
        await asyncio.wait(handlers)

    scope = await Scope.open("app", adopt=True)
    scope.spawn(serve, service=True)
    await turns()
    await scope.idle()
    report = await scope.drain(grace=None)
    names = [item.name.rpartition(".")[2] for item in report.cancelled]
    assert (names, report.services) == (["handle", "handle"], 1)


async def test_a_part_whose_service_has_ended_is_work() -> None:
    """A service ends, and leaves a task that it has waited for: the scope is busy again."""
    gate, stop = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        await gate.wait()

    async def serve() -> None:
        await asyncio.wait(
            [asyncio.create_task(handle()), asyncio.create_task(stop.wait())],
            return_when="FIRST_COMPLETED",
        )

    async with Scope("app", adopt=True) as scope:
        service = scope.spawn(serve, service=True)
        await turns()
        assert len(scope.frontier()) == 0
        stop.set()
        await service
        await turns()
        assert len(scope.frontier()) == 1
        gate.set()
    assert scope.report is not None
    assert scope.report.ok


async def test_a_task_that_is_awaited_later_becomes_part_of_the_service(factory: Any) -> None:
    """A service starts a task, waits for something else, then for the task: a drain sees it."""
    gate = asyncio.Event()

    async def service() -> None:
        task = asyncio.create_task(for_ever())
        await gate.wait()
        await task

    asyncio.get_running_loop().set_task_factory(factory)
    scope = await Scope.open("app", adopt=True)
    scope.spawn(service, service=True)
    await turns()
    assert len(scope.frontier()) == 1
    gate.set()
    await turns()
    await scope.idle()
    report = await scope.drain(grace=None)
    asyncio.get_running_loop().set_task_factory(None)
    assert (report.ok, report.services) == (True, 1)


async def test_a_close_in_the_step_after_the_start_knows_the_parts() -> None:
    """A close that begins before anything has looked at the service's tasks takes them for parts."""
    scope = await Scope.open("app", adopt=True)
    started = asyncio.Event()

    async def service() -> None:
        started.set()
        await with_wait()

    scope.spawn(service, service=True)
    await started.wait()
    report = await scope.aclose()
    assert (report.ok, report.services) == (True, 1), str(report)


@pytest.mark.parametrize("service", [True, False], ids=["by a service", "by a callback"])
async def test_a_close_does_not_spin(*, service: bool) -> None:
    """Something that starts a new task for each one that ends cannot keep a close busy."""
    begun = list[asyncio.Task[None]]()

    def begin(_: object = None) -> None:
        begun.append(asyncio.create_task(for_ever()))
        begun[-1].add_done_callback(begin)

    async def serve() -> None:
        while True:
            ended = asyncio.Event()
            begun.append(asyncio.create_task(for_ever()))
            begun[-1].add_done_callback(partial(_set, ended))
            await ended.wait()

    scope = await Scope.open("app", adopt=True)
    if service:
        scope.spawn(serve, service=True)
    else:
        await scope.spawn(call, begin)
    await turns()
    report = await scope.aclose(cleanup=0.5)
    assert len(begun) < 150
    assert not report.ok
    begun[-1].remove_done_callback(begin)
    begun[-1].cancel()
    await turns()


def _set(event: asyncio.Event, _: object) -> None:
    event.set()


async def call(fn: Callable[[], object]) -> None:
    """Call a function inside a task."""
    fn()
