"""quiesce stands its own sweep: cancelled twice, in every task, wherever these are suspended.

The scenarios are small, because a sweep at depth 2 takes about half as many runs as the square of
their suspensions, three times: natively, by a cancel scope, and each started task on its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Channel, Process, RunnerPool, Scope, pipe, start_process, stream
from quiesce.ready import Line
from quiesce.testing import sweep
from tests.stress import turns
from tests.unit.pool.pool_runners import World
from tests.unit.processes import small_programs as processes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from quiesce.testing.clock import Backend
    from tests.unit.testing.sweep_scenarios import Scenario

BACKENDS: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
GRACE = 0.5


async def careful() -> None:
    """Wait to be cancelled, then take a step to clean up."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await turns(1)


async def scope_ended_well() -> None:
    """End a block with work, and a service."""
    async with Scope("a") as scope:
        scope.spawn(turns, 2)
        scope.spawn(careful, service=True)
        await turns(1)


async def scope_ended_by_an_error() -> None:
    """End a block, with a child scope, by an error."""
    with suppress(KeyError):
        async with Scope("a") as scope:
            scope.spawn(careful)
            scope.child("b").spawn(careful)
            await turns(1)
            raise KeyError


async def scope_interrupted() -> None:
    """Let a failing job interrupt the block."""

    async def failing() -> None:
        await turns(1)
        raise KeyError

    with suppress(ExceptionGroup):
        async with Scope("a", on_error="cancel") as scope:
            scope.spawn(careful, service=True)
            scope.spawn(failing)
            await turns(4)


async def scope_drained() -> None:
    """Drain a scope whose work takes too long."""
    scope = await Scope.open("a")
    try:
        scope.spawn(careful)
        await scope.drain(grace=0.001)
    finally:
        # A native cancellation gets through the shield, but what has begun to close does close.
        with anyio.CancelScope(shield=True):
            await surely_closed(scope)


async def surely_closed(scope: Scope) -> None:
    """Close a scope, however often that is cancelled, and pass the cancellation on."""
    try:
        await scope.aclose()
    except BaseException:
        while scope.state != "closed":
            with suppress(BaseException):
                await scope.aclose()
        raise


async def scope_entered() -> None:
    """Enter a context in the scope, and leave it."""
    async with Scope("a") as scope:
        group = await scope.enter(anyio.create_task_group())
        group.start_soon(turns, 1)
        await turns(1)


async def scope_adopting() -> None:
    """Own tasks that were created in the block by nobody in particular."""
    async with Scope("a", adopt=True):
        asyncio.create_task(turns(2))  # noqa: RUF006 - the scope keeps it
        asyncio.create_task(careful()).cancel()
        await turns(1)


async def scope_with_a_thread() -> None:
    """Call a function in a thread."""
    async with Scope("a") as scope:
        await scope.to_thread(int)


async def channel() -> None:
    """Send more than there is room for, to a reader."""
    async with Scope("a") as scope:
        items = Channel[int](1)

        async def produce() -> None:
            try:
                for number in range(3):
                    await items.send(number)
            finally:
                items.close()

        scope.spawn(produce)
        async for _ in items:
            await turns(1)


async def piped() -> None:
    """Run a producer, and a reader that is slower."""

    async def produce(items: Channel[int]) -> None:
        for number in range(3):
            await items.send(number)

    async def read(items: Channel[int]) -> None:
        async for _ in items:
            await turns(1)

    async with Scope("a"):
        pipe(produce, read, maxsize=1)
        await turns(1)


async def numbers() -> AsyncGenerator[int, None]:
    """Count, and take a step to clean up."""
    try:
        for number in range(3):
            await turns(1)
            yield number
    finally:
        with anyio.CancelScope(shield=True):
            await turns(1)


async def streamed() -> None:
    """Break out of a stream."""
    async with Scope("a"), stream(numbers()) as items:
        async for item in items:
            if item == 1:
                break


async def process_started() -> None:
    """Start a process, wait until it is ready, and leave it to the scope."""
    async with Scope("a"):
        await start_process(processes.POLITE, ready=Line("ready"), grace=GRACE, service=True)


async def process_stubborn() -> None:
    """Start a process that does not end when asked, and a child of its own."""
    argv = processes.STUBBORN_PARENT
    async with Scope("a"):
        await start_process(argv, ready=Line("ready"), grace=0.01, service=True)


async def process_stopped() -> None:
    """Start two processes, of which the second waits for its turn, and stop them."""
    async with Scope("a"):
        first = await start_process(["cat"], stdin="pipe", grace=GRACE)
        second = await start_process(["cat"], stdin="pipe", grace=GRACE)
        await first.stop()
        await second.stop()


async def pool_leased() -> None:
    """Lease a runner, cold and warm, and drain the pool."""
    world = World()
    world.start_turns = world.stop_turns = 1
    try:
        async with Scope("a"):
            pool = world.pool(grace=0.002)
            for _ in range(2):
                async with pool.lease("a"):
                    await turns(1)
            await pool.drain(grace=0.002)
    finally:
        assert world.total() == 0


async def pool_of_processes() -> None:
    """Lease a process."""

    async def start(_: str) -> Process:
        return await start_process(["cat"], stdin="pipe", grace=GRACE, service=True)

    async with Scope("a"):
        pool = RunnerPool(start)
        async with pool.lease("a"):
            await turns(1)
        await pool.drain(grace=GRACE)


PURE: list[Scenario] = [
    scope_ended_well,
    scope_ended_by_an_error,
    scope_interrupted,
    scope_drained,
    scope_entered,
    channel,
    piped,
    streamed,
    pool_leased,
]
REAL: list[Scenario] = [
    scope_with_a_thread,
    process_started,
    process_stopped,
    process_stubborn,
    pool_of_processes,
]


@pytest.fixture(scope="module", autouse=True)
def _watcher_runs() -> None:
    """Start what kills our processes if we are killed: it stays, for all that come."""
    sweep(process_stopped, runs_max=1, allow=["file:*"]).raise_if_failed()


@pytest.mark.sampled(1, "scenario")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", PURE)
def test_nothing_is_found_in_ours(scenario: Scenario, backend: Backend) -> None:
    """Scopes, channels, streams and pools leave nothing, whichever task is cancelled, and twice."""
    clock: Any = "real" if backend == "uvloop" else "mock"
    result = sweep(scenario, depth=2, where="all", backend=backend, clock=clock)
    assert result.ok, str(result)
    assert result.points > 2
    if clock == "mock":
        assert not result.not_covered


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_nothing_is_found_in_an_adopting_scope(backend: Backend) -> None:
    """What a scope has adopted leaves nothing either."""
    result = sweep(scope_adopting, depth=2, where="all", backend=backend)
    assert result.ok, str(result)
    assert result.points > 2


@pytest.mark.sampled(1, "scenario")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", REAL)
def test_nothing_is_found_in_our_processes_and_threads(
    scenario: Scenario, backend: Backend
) -> None:
    """A process that was started is gone when the cancellation comes out, wherever it came."""
    result = sweep(scenario, depth=2, where="all", backend=backend)
    assert result.ok, str(result)
    assert result.points > 1
