"""Scopes in async generators, and scopes that are open when the event loop ends.

Here a close is called for by whoever finalizes the generator: another task, the collector, or
the event loop itself with its last breath.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce import Scope, current_scope
from quiesce.core.roots import roots
from tests.loops import BACKENDS
from tests.stress import (
    CANCELLED,
    Resource,
    failing_when_cancelled,
    run_bounded,
    turns,
    unclosed,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine

    Filling = Callable[[Scope], Awaitable[object]]

on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


async def nothing(_: Scope) -> None:
    """Leave the scope empty."""


async def a_job(scope: Scope) -> None:
    """Start a job in the scope."""
    scope.spawn(anyio.sleep_forever)


async def a_service(scope: Scope) -> None:
    """Start a service in the scope."""
    scope.spawn(anyio.sleep_forever, service=True)


async def a_child(scope: Scope) -> None:
    """Open an empty child scope."""
    scope.child("child")


async def a_busy_grandchild(scope: Scope) -> None:
    """Start a job two levels down."""
    scope.child("child").child("grandchild").spawn(anyio.sleep_forever)


async def a_context(scope: Scope) -> None:
    """Enter a context in the scope."""
    await scope.enter(Resource())


async def a_task_group(scope: Scope) -> None:
    """Enter a task group in the scope, with a task in it."""
    group = await scope.enter(anyio.create_task_group())
    group.start_soon(anyio.sleep_forever)


filled_with = pytest.mark.parametrize(
    "fill", [nothing, a_job, a_service, a_child, a_busy_grandchild, a_context, a_task_group]
)


async def stream(made: list[Scope], fill: Filling) -> AsyncGenerator[int, None]:
    """Yield from inside a scope, as clients with a background reader do."""
    async with Scope("stream") as scope:
        made.append(scope)
        await fill(scope)
        yield 1
        yield 2


@filled_with
async def test_another_task_closes_a_half_read_generator(fill: Filling) -> None:
    """The scope in a generator is closed by whoever closes the generator."""
    made: list[Scope] = []
    generator = stream(made, fill)
    assert await anext(generator) == 1
    async with anyio.create_task_group() as group:
        group.start_soon(generator.aclose)
    assert made[0].state == "closed"
    assert current_scope() is None


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_failure_interrupts_nobody_after_the_generator_was_closed() -> None:
    """With `on_error="cancel"` in a generator that another task closes, its reader goes on."""

    async def broken() -> AsyncGenerator[int, None]:
        async with Scope("stream", on_error="cancel") as scope:
            made.append(scope)
            scope.spawn(failing_when_cancelled, KeyError("late"))
            await turns()
            yield 1

    made: list[Scope] = []
    generator = broken()
    assert await anext(generator) == 1
    async with anyio.create_task_group() as group:
        group.start_soon(generator.aclose)
    await turns()
    assert made[0].state == "closed"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.quiesce(allow=["generator:stream"])
@filled_with
async def test_a_collected_generator_closes_its_scope(fill: Filling, backend: str) -> None:
    """A half-read generator that nobody refers to any more leaves nothing behind."""
    made: list[Scope] = []

    async def read_one() -> None:
        async for _ in stream(made, fill):
            break

    warned = pytest.warns(ResourceWarning, match="garbage collected")  # trio's own advice
    with warned if backend == "trio" else nullcontext():
        await read_one()
        gc.collect()
        while made[0].state != "closed":
            await anyio.lowlevel.checkpoint()
        await turns()


async def test_the_consumer_of_a_collected_generator_is_in_its_own_scope_again() -> None:
    """After `break`, what the consumer starts belongs to the consumer's scope."""
    async with Scope("outer") as outer:
        made: list[Scope] = []
        generator = stream(made, a_job)
        await anext(generator)
        async with anyio.create_task_group() as group:
            group.start_soon(generator.aclose)
        assert current_scope() is outer
        inner = await Scope.open("inner")
        assert inner in outer.children


@pytest.mark.quiesce(allow=["generator:stream", "task:*sleep_forever", "task:context *"])
@filled_with
@on_each_backend
def test_the_loop_ends_with_a_half_read_generator(backend: str, fill: Filling) -> None:
    """The event loop finalizes it at the very end, and nothing hangs or complains."""
    made: list[Scope] = []
    kept: list[AsyncGenerator[int, None]] = []

    async def main() -> None:
        generator = stream(made, fill)
        kept.append(generator)
        await anext(generator)

    run_bounded(backend, main)
    assert made[0].state == "closed"
    assert not roots


@pytest.mark.quiesce(allow=["generator:*.nested"])
@on_each_backend
def test_the_loop_ends_with_nested_scopes_in_a_generator(backend: str) -> None:
    """Inner and outer block are closed one after the other, at the very end."""
    made: list[Scope] = []
    kept: list[AsyncGenerator[None, None]] = []

    async def nested() -> AsyncGenerator[None, None]:
        async with Scope("outer") as outer, Scope("inner") as inner:
            made.extend([outer, inner])
            yield

    async def main() -> None:
        generator = nested()
        kept.append(generator)
        await anext(generator)

    run_bounded(backend, main)
    assert [scope.state for scope in made] == ["closed", "closed"]


@pytest.mark.quiesce(allow=["task:*sleep_forever", "task:context *"])
@filled_with
@on_each_backend
def test_the_loop_ends_with_an_open_scope(backend: str, fill: Filling) -> None:
    """A scope that nobody closed does not keep the program from ending, and is complained of."""

    async def main() -> None:
        await fill(await Scope.open("forgotten"))
        await turns(2)

    unclosed()
    run_bounded(backend, main)
    (complaint,) = unclosed()
    assert "'forgotten'" in complaint
    assert "never closed" in complaint


@pytest.mark.quiesce(allow=["task:*.job", "task:Scope.*"])
@pytest.mark.parametrize("waits", range(6))
@pytest.mark.parametrize("how", ["aclose", "drain"])
@on_each_backend
def test_the_loop_ends_while_a_task_closes(backend: str, how: str, waits: int) -> None:
    """Main returns at any step of a close that another task has begun; the close completes."""
    made: list[Scope] = []
    ended: list[str] = []

    async def job() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("job")

    async def main() -> None:
        scope = await Scope.open("a")
        made.append(scope)
        scope.spawn(job)
        await turns(2)
        closing = scope.aclose if how == "aclose" else scope.drain
        start_in_background(backend, closing)
        await turns(waits)

    run_bounded(backend, main)
    assert ended == ["job"]
    if made[0].state != "open":  # else the loop ended before the closer's first step
        assert made[0].state == "closed"
    made.clear()
    unclosed()


kept: list[asyncio.Future[object]] = []  # tasks that nobody waits for


def start_in_background(backend: str, fn: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Start a task that nobody waits for."""
    if backend == "trio":
        trio.lowlevel.spawn_system_task(fn)
    else:
        kept.append(asyncio.ensure_future(fn()))


@pytest.mark.quiesce(allow=["task:sleep_forever", "task:Scope.aclose"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_the_loop_ends_in_the_step_in_which_a_close_begins(backend: str) -> None:
    """The closing task is cancelled before its first step, and closes nevertheless."""
    made: list[Scope] = []

    async def main() -> None:
        scope = await Scope.open("a")
        made.append(scope)
        scope.spawn(anyio.sleep_forever)
        kept.append(asyncio.ensure_future(scope.aclose()))

    run_bounded(backend, main)
    assert made[0].state == "closed"


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_someone_cancels_every_task_as_a_close_begins(backend: str, rounds: int) -> None:
    """A program that ends by cancelling all tasks of the loop hits the closing task as well."""

    async def main() -> tuple[str, bool, bool]:
        scope = await Scope.open("a")
        job = scope.spawn(anyio.sleep_forever)
        closer = asyncio.ensure_future(scope.aclose())
        await asyncio.sleep(0)  # the close has begun, and its own task has not yet run
        for _ in range(rounds):
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([closer])
        return scope.state, closer.cancelled(), job.done()

    assert run_bounded(backend, main) == ("closed", True, True)


@pytest.mark.quiesce(allow=["task:*.obeys_late"])
@on_each_backend
def test_the_program_ends_although_a_job_was_stuck(backend: str) -> None:
    """What was given up as stuck, and would obey by now, obeys the end of the loop."""
    made: list[Scope] = []
    ended: list[str] = []

    async def obeys_late() -> None:
        while True:
            try:
                await anyio.sleep_forever()
            except CANCELLED:
                if made[0].state == "closed":
                    ended.append("at last")
                    raise

    async def main() -> int:
        scope = await Scope.open("a")
        made.append(scope)
        scope.spawn(obeys_late)
        await turns(2)
        return len((await scope.aclose(cleanup=0.05)).stuck)

    assert run_bounded(backend, main) == 1
    assert ended == ["at last"]
    unclosed()


@asynccontextmanager
async def a_client() -> AsyncIterator[Scope]:
    """Make a scope as a library does that offers itself as a context manager."""
    async with Scope("client") as scope:
        yield scope


async def test_a_scope_inside_a_library_s_context_manager_is_closed_from_another_task() -> None:
    """Entered by one task and left by another, on every backend."""
    manager = a_client()
    entered = anyio.Event()

    async def enterer() -> None:
        scope = await manager.__aenter__()
        scope.spawn(anyio.sleep_forever)
        made.append(scope)
        entered.set()

    async def leaver() -> None:
        await entered.wait()
        assert not await manager.__aexit__(KeyError, KeyError("the end"), None)

    made: list[Scope] = []
    async with anyio.create_task_group() as group:
        group.start_soon(enterer)
        group.start_soon(leaver)
    assert made[0].state == "closed"
    assert made[0].report is not None
    assert len(made[0].report.cancelled) == 1
