"""A reader that is cancelled ends its stream in the cancellation itself, and not by collection."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.streams.stream import stream
from tests.leaving import ANYWHERE, ON_ASYNCIO, consume, uncollected
from tests.stress import lasting, turns
from tests.unit.streams.stream_sources import Counter, cancelled_read

BUFFERS = pytest.mark.parametrize("buffer", [0, 2])
kept: list[object] = []  # tasks and exceptions, as a program keeps them that looks at them later


def endless() -> Counter:
    """Return a generator that never gets to its second item."""
    counter = Counter()
    counter.slow_from = 1
    return counter


async def leave(way: Any, buffer: int) -> None:
    """Cancel a reader, keep all that remembers it, and see the generator end in an open scope."""
    counter = endless()
    with uncollected():
        await _leave(way, counter, buffer)


async def _leave(way: Any, counter: Counter, buffer: int) -> None:
    async with Scope("a") as scope:
        source = stream(counter, buffer=buffer)
        reading = anyio.Event()
        try:
            kept.append(await way(consume(source, reading), reading))
            with anyio.fail_after(30):
                await scope.idle()  # nothing but the stream could be in flight
            assert counter.cleaned_up
            assert repr(source) == "<Stream 'Counter' ended>"
            with pytest.raises(StopAsyncIteration):
                await anext(source)
        finally:
            kept.clear()
    assert scope.report is not None
    assert scope.report.ok
    assert not scope.report.cancelled


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("way", ON_ASYNCIO)
@BUFFERS
async def test_a_cancelled_reader_ends_its_stream_on_asyncio(way: Any, buffer: int) -> None:
    """In every way of being cancelled, with the task or the exception kept."""
    await leave(way, buffer)


@pytest.mark.parametrize("way", ANYWHERE)
@BUFFERS
async def test_a_cancelled_reader_ends_its_stream(way: Any, buffer: int) -> None:
    """In anyio's ways of being cancelled, which are trio's as well."""
    await leave(way, buffer)


async def test_the_cancellation_does_not_wait_for_the_generator() -> None:
    """The reader goes on at once; the scope waits until the `finally` has run."""
    counter = endless()
    counter.cleanup_turns = 100
    async with Scope("a") as scope:
        source = stream(counter)
        assert await anext(source) == 0
        await cancelled_read(source)
        assert "cleaned up" not in counter.diary
        assert [entry.kind for entry in scope.frontier().in_flight] == ["stream"]
    assert counter.cleaned_up


async def test_what_the_generator_raises_then_is_in_the_report() -> None:
    """Nobody reads any more, so the scope is told."""

    async def sour() -> Any:
        try:
            yield 0
            await anyio.sleep_forever()
        finally:
            raise KeyError("sour")

    async with Scope("a", on_error=lambda *_: None) as scope:
        source = stream(sour)
        assert await anext(source) == 0
        await cancelled_read(source)
    assert scope.report is not None
    assert scope.report.handled == 1


@pytest.mark.backends("asyncio", "uvloop")  # on trio, a cleanup that awaits has to be shielded
async def test_the_close_of_the_scope_does_not_cut_a_cleanup_that_has_begun() -> None:
    """The reader's cancellation ends the block as well: the generator is told once, and may clean up."""
    diary: list[str] = []
    first, second = anyio.Event(), anyio.Event()

    async def careful() -> Any:
        try:
            yield 0
            await anyio.sleep_forever()
        finally:
            await first.wait()
            await second.wait()
            diary.append("cleaned up")

    async def program() -> None:
        async with Scope("a"):
            async for _ in stream(careful):
                pass

    task = asyncio.create_task(program())
    await turns()
    task.cancel()
    await turns()
    first.set()
    await lasting(0.3)  # the close looks now and then whether it is heard
    second.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert diary == ["cleaned up"]
