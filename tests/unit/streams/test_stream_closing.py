"""Closing a stream: by whom ever, wherever it stands, the generator ends in its own task."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, ScopeClosed, UsageError
from quiesce.streams.stream import Stream, stream
from tests.stress import CANCELLED, turns
from tests.unit.streams.stream_sources import Counter, begin_to_read, cancel_soon, outcome_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUFFERS = pytest.mark.parametrize("buffer", [0, 4])


async def half_read(source: Stream[int]) -> None:
    """Read the first item, and leave the loop."""
    async for item in source:
        assert item == 0
        break
    await turns(2)


@BUFFERS
@pytest.mark.parametrize("way", ["aclose", "aclosing", "async with"])
async def test_closing_returns_when_the_generator_has_ended(way: str, buffer: int) -> None:
    """All of the `finally` has run, in the generator's own task, and the scope is idle."""
    counter = Counter()
    async with Scope("a") as scope:
        source = stream(counter, buffer=buffer)
        if way == "aclose":
            await half_read(source)
            assert scope.frontier()
            await source.aclose()
        else:
            async with aclosing(source) if way == "aclosing" else source:
                await half_read(source)
        assert counter.cleaned_up
        assert not scope.frontier()
        with pytest.raises(StopAsyncIteration):
            await anext(source)
    assert scope.report is not None
    assert (scope.report.completed, scope.report.ok) == (1, True)


@BUFFERS
async def test_break_closes_it_and_the_scope_waits(buffer: int) -> None:
    """A stream dropped by `break` is closed in its own task before the scope is idle."""
    counter = Counter()
    async with Scope("a") as scope:
        async for item in stream(counter, buffer=buffer):
            assert item == 0
            break
        await scope.idle()
        assert counter.cleaned_up


async def test_an_exception_in_the_loop_closes_it() -> None:
    """The error of the loop's body is passed on, and the generator ends in its own task."""
    counter = Counter()
    async with Scope("a") as scope:
        try:
            async for _ in stream(counter):
                raise KeyError
        except KeyError:
            pass
        gc.collect()
        await scope.idle()
        assert counter.cleaned_up


async def test_the_end_of_the_readers_task_closes_it() -> None:
    """A stream that only an ended task knew is closed."""
    counter = Counter()

    async def reader() -> None:
        await half_read(stream(counter, scope=scope))

    async with Scope("a") as scope:
        await scope.spawn(reader)
        await scope.idle()
        assert counter.cleaned_up


@pytest.mark.real_time
@pytest.mark.parametrize("where", ["another task", "another thread"])
async def test_a_collected_stream_is_closed_in_its_own_task(where: str) -> None:
    """Collection of a half-read stream, wherever that happens, only asks for the close."""
    counter = Counter()

    async def collect() -> None:
        gc.collect()

    async def forget_in_a_cycle() -> None:
        cycle: list[Any] = [stream(counter, scope=scope)]
        cycle.append(cycle)
        await half_read(cycle[0])

    async with Scope("a") as scope:
        gc.disable()
        await forget_in_a_cycle()
        assert not counter.cleaned_up
        if where == "another task":
            await scope.spawn(collect)
        else:
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
        gc.enable()
        await scope.idle()
        assert counter.cleaned_up


async def test_any_task_may_close_while_another_reads() -> None:
    """The reader gets the end, the step is cancelled, and the closer returns after the `finally`."""
    counter = Counter()
    counter.slow_from = 1
    async with Scope("a") as scope:
        source = stream(counter)
        assert await anext(source) == 0
        reader = await begin_to_read(scope, source)
        await source.aclose()
        assert counter.cleaned_up
        assert isinstance(await reader, StopAsyncIteration)
    assert scope.report is not None
    assert (scope.report.completed, scope.report.cancelled) == (2, ())


async def test_a_reader_is_ended_by_a_close_at_once() -> None:
    """Who waits for an item does not wait for the cleanup: that is the closer's, and the scope's."""
    counter = Counter()
    counter.slow_from = 0
    counter.cleanup_turns = 50
    async with Scope("a") as scope:
        source = stream(counter)
        reader = await begin_to_read(scope, source)
        closer = scope.spawn(source.aclose)
        assert isinstance(await reader, StopAsyncIteration)
        assert not closer.done()


async def test_several_may_close_at_once() -> None:
    """All of them return when the generator has ended."""
    counter = Counter()
    async with Scope("a") as scope:
        source = stream(counter)
        await anext(source)
        closers = [scope.spawn(source.aclose) for _ in range(3)]
        await turns(2)
        assert not any(closer.done() for closer in closers)
        assert repr(source) == "<Stream 'Counter' closing>"
        for closer in closers:
            await closer
        assert counter.cleaned_up
        await source.aclose()


async def test_a_cancelled_closer_leaves_at_once_and_the_closing_goes_on() -> None:
    """The cancellation is passed on while the `finally` still runs, and the scope waits for it."""
    counter = Counter()
    counter.cleanup_turns = 20
    async with Scope("a") as scope:
        source = stream(counter)
        await anext(source)
        with anyio.CancelScope() as cancel_scope:
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_soon, cancel_scope)
                await source.aclose()
        assert cancel_scope.cancelled_caught
        assert not counter.cleaned_up
        assert scope.frontier()
        await scope.idle()
        assert counter.cleaned_up


async def test_one_that_never_began_runs_nothing() -> None:
    """Closed before its first read, a stream has ended, and so has nothing of the generator run."""
    counter = Counter()
    async with Scope("a"):
        source = stream(counter)
        await source.aclose()
        assert repr(source) == "<Stream 'Counter' closed>"
        with pytest.raises(StopAsyncIteration):
            await anext(source)
    assert counter.diary == []


async def test_closed_before_its_task_has_begun() -> None:
    """A stream that is closed in the step of its first read ends without an item."""
    counter = Counter()
    async with Scope("a") as scope:
        source = stream(counter)
        reader = scope.spawn(outcome_of, source.__anext__)
        while not scope.list_own_resources():
            await anyio.lowlevel.checkpoint()
        await source.aclose()
        assert isinstance(await reader, StopAsyncIteration)
    assert counter.diary == [] or counter.cleaned_up


async def test_a_generator_cannot_close_itself() -> None:
    """Refused, as Python refuses it: it would wait for its own end."""

    async def inward() -> AsyncIterator[str]:
        with pytest.raises(UsageError, match="by its own generator"):
            await itself.aclose()
        yield "refused"

    async with Scope("a"):
        itself = stream(inward)
        assert await anext(itself) == "refused"
        await itself.aclose()


async def test_a_step_that_swallows_the_close_is_closed_at_its_next_yield() -> None:
    """A generator that goes on after the cancellation gives nothing more, and is closed."""
    diary: list[str] = []

    async def stubborn() -> AsyncIterator[int]:
        yield 0
        try:
            await anyio.sleep_forever()
        except CANCELLED:
            diary.append("swallowed")
        try:
            yield 1
        finally:
            diary.append("closed")

    async with Scope("a") as scope:
        source = stream(stubborn)
        await anext(source)
        reader = await begin_to_read(scope, source)
        await source.aclose()
        assert isinstance(await reader, StopAsyncIteration)
        with pytest.raises(StopAsyncIteration):
            await anext(source)
    assert diary == ["swallowed", "closed"]


@pytest.mark.backends("asyncio", "uvloop")
async def test_the_cleanup_after_a_cancelled_step_may_await() -> None:
    """On asyncio the cancellation of a step is spent when it was delivered, timeouts included."""
    diary: list[str] = []

    async def careful() -> AsyncIterator[int]:
        try:
            await anyio.sleep_forever()
            yield 0
        finally:
            await turns(3)
            diary.append("cleaned up")

    async def swallowing() -> AsyncIterator[int]:
        with suppress(*CANCELLED):
            await anyio.sleep_forever()
        try:
            yield 1
        finally:
            with anyio.move_on_after(60):
                await turns(3)
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            diary.append("cleaned up")

    async with Scope("a") as scope:
        for source in (stream(careful), stream(swallowing)):
            reader = await begin_to_read(scope, source)
            await source.aclose()
            assert isinstance(await reader, StopAsyncIteration)
    assert diary == ["cleaned up", "cleaned up"]


@pytest.mark.parametrize("stage", ["parked", "in a step"])
async def test_an_error_of_the_cleanup_goes_to_the_closer(stage: str) -> None:
    """What the `finally` raises comes out of `aclose()`, and not into the report."""

    async def failing() -> AsyncIterator[int]:
        try:
            yield 0
            await anyio.sleep_forever()
        finally:
            raise KeyError

    async with Scope("a") as scope:
        source = stream(failing)
        await anext(source)
        reader = await begin_to_read(scope, source) if stage == "in a step" else None
        await turns(3)
        with pytest.raises(KeyError):
            await source.aclose()
        assert reader is None or isinstance(await reader, StopAsyncIteration)
        await source.aclose()
    assert scope.report is not None
    assert scope.report.ok


async def test_an_error_of_the_cleanup_of_a_dropped_stream_is_reported() -> None:
    """Nobody waits for it, so it is the scope's, at once."""
    gone = KeyError("gone")

    async def failing() -> AsyncIterator[int]:
        try:
            yield 0
        finally:
            raise gone

    handled: list[object] = []
    scope = await Scope.open("a", on_error=lambda held, error: handled.append((held.kind, error)))
    async for _ in stream(failing, scope=scope):
        break
    await scope.idle()
    assert handled == [("stream", gone)]
    assert (await scope.aclose()).handled == 1


@pytest.mark.parametrize("end", ["dropped", "closed", "scope closed"])
async def test_an_error_that_nobody_has_read_is_reported(end: str) -> None:
    """The generator has failed ahead of its reader, who never comes."""
    counter = Counter()
    counter.fail_at = 2
    scope = await Scope.open("a")
    source = stream(counter, buffer=9, scope=scope)
    await half_read(source)
    await turns()
    assert counter.cleaned_up
    if end == "dropped":
        del source
        await turns()
    elif end == "closed":
        await source.aclose()
    report = await scope.aclose()
    assert [(item.kind, type(item.error)) for item in report.failed] == [("stream", KeyError)]
    if end == "scope closed":
        with pytest.raises(ScopeClosed):
            await anext(source)


@pytest.mark.quiesce(allow=["generator:*.ignoring"])
async def test_a_generator_that_ignores_its_close_is_told() -> None:
    """Yielding while it is closed is an error, as it is without a stream."""

    async def ignoring() -> AsyncIterator[int]:
        try:
            yield 0
        finally:
            yield 1

    async with Scope("a"):
        source = stream(ignoring)
        await anext(source)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            await source.aclose()


async def test_an_iterator_without_aclose_is_just_left() -> None:
    """What cannot be closed is not closed; a step of it is cancelled."""

    class Endless:
        cancelled = 0

        async def __anext__(self) -> int:
            try:
                await anyio.sleep_forever()
            except CANCELLED:
                self.cancelled += 1
                raise
            return 0

    endless = Endless()
    async with Scope("a") as scope:
        source: Stream[int] = stream(endless)  # type: ignore[arg-type]  # less than an iterator
        reader = await begin_to_read(scope, source)
        await source.aclose()
        assert isinstance(await reader, StopAsyncIteration)
    assert endless.cancelled == 1
