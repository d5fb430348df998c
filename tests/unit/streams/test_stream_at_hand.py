"""Streams that are told which items need no waiting: those are taken at once, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from quiesce import Scope
from quiesce.core.python_private import get_frame
from quiesce.streams.pump import Pump
from quiesce.streams.stream import Stream
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Source:
    """A generator of numbers, of which some are there, and the others come when they are let in."""

    def __init__(self, there: int = 0, fails_at: int | None = None) -> None:
        """Return numbers from 0 on."""
        self.there = there
        self.fails_at = fails_at
        self.given = 0
        self.more = anyio.Event()
        self.diary: list[str] = []

    def is_ready(self) -> bool:
        """Return whether the next number is there."""
        return self.given < self.there

    async def numbers(self) -> AsyncGenerator[int, None]:
        """Return the numbers; a cancellation in the middle of a step is noted."""
        try:
            while True:
                if self.given == self.fails_at:
                    raise KeyError(self.given)
                if not self.is_ready():
                    await self.more.wait()
                number, self.given = self.given, self.given + 1
                yield number
        except anyio.get_cancelled_exc_class():
            self.diary.append("cancelled")
            raise
        finally:
            self.diary.append("left")


def stream_of(source: Source, scope: Scope) -> Stream[int]:
    """Read the numbers through a stream that is told which are there."""
    return Stream(Pump(scope, source.numbers, 0, "numbers", get_frame(), source.is_ready))


async def test_what_is_there_is_taken_in_one_turn() -> None:
    """The reader of the first number has no turn to wait for the others."""
    source = Source(there=10)
    async with Scope("a") as scope:
        numbers = stream_of(source, scope)
        assert await anext(numbers) == 0
        assert source.given == 10
        reading = [numbers.__anext__() for _ in range(9)]
        for number, read in enumerate(reading, 1):
            with pytest.raises(StopIteration) as told:
                read.send(None)
            assert told.value.value == number
        await numbers.aclose()


async def test_what_is_taken_at_once_has_a_bound() -> None:
    """However much is there, the reader has its turn, and gets all of it in order."""
    count = 1000
    source = Source(there=count)
    async with Scope("a") as scope:
        numbers = stream_of(source, scope)
        seen = [await anext(numbers)]
        assert 1 < source.given < 100
        seen += [await anext(numbers) for _ in range(count - 1)]
        assert seen == list(range(count))
        await numbers.aclose()


@pytest.mark.parametrize("there", [0, 3])
async def test_what_is_not_there_is_not_waited_for_unless_somebody_reads(there: int) -> None:
    """Left after the first number, the generator is at its `yield`, and is not cancelled."""
    source = Source(there)
    source.more.set()
    async with Scope("a") as scope:
        numbers = stream_of(source, scope)
        assert await anext(numbers) == 0
        source.more = anyio.Event()
        await turns()
        assert source.given == max(there, 1)
        with anyio.fail_after(5):
            await numbers.aclose()
    assert source.diary == ["left"]


async def test_a_stream_that_was_left_does_not_hold_up_a_drain() -> None:
    """What was taken, and nobody reads, is dropped."""
    source = Source(there=3)
    async with Scope("a") as scope:
        numbers = stream_of(source, scope)
        assert await anext(numbers) == 0
        assert (await scope.drain(grace=None)).ok
    assert source.diary == ["left"]


async def test_an_error_is_told_to_who_reads_so_far() -> None:
    """Those who leave before it have never asked for it."""
    async with Scope("a") as scope:
        left = stream_of(Source(there=3, fails_at=2), scope)
        assert await anext(left) == 0
        await left.aclose()
        read = stream_of(Source(there=3, fails_at=2), scope)
        assert [await anext(read) for _ in range(2)] == [0, 1]
        with pytest.raises(KeyError):
            await anext(read)
        with pytest.raises(StopAsyncIteration):
            await anext(read)
    assert scope.report is not None
    assert scope.report.ok


async def test_what_was_taken_does_not_shield_the_generator() -> None:
    """A cancel scope that it has open around its `yield` is left when it is cancelled."""
    diary: list[str] = []
    inside = anyio.CancelScope()

    async def numbers() -> AsyncGenerator[int, None]:
        with inside:
            for number in range(3):
                diary.append(f"{number}")
                yield number
        diary.append("interrupted")
        yield 3

    async with Scope("a") as scope:
        pumped = Pump[int](scope, numbers, 0, "numbers", get_frame(), lambda: len(diary) < 3)
        read = Stream(pumped)
        assert await anext(read) == 0
        inside.cancel()
        await turns()
        assert diary == ["0", "1", "2", "interrupted"]
        assert [number async for number in read] == [1, 2, 3]
