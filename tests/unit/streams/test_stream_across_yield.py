"""Generators that keep cancel scopes and task groups open across a `yield`, and asend, athrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
import trio

from quiesce import Scope, UsageError
from quiesce.streams.stream import stream
from tests.stress import turns
from tests.unit.streams.stream_sources import Counter, begin_to_read, cancelled_read

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

BUFFERS = pytest.mark.parametrize("buffer", [0, 2])


async def fail(when: anyio.Event) -> None:
    """Fail when told to."""
    await when.wait()
    raise KeyError


async def group_around(
    diary: list[str], when: anyio.Event | None = None, items: int = 9
) -> AsyncGenerator[int, None]:
    """Return items from inside a task group, of which a child may fail."""
    async with anyio.create_task_group() as group:
        if when is not None:
            group.start_soon(fail, when)
        group.start_soon(anyio.sleep_forever)
        try:
            for item in range(items):
                yield item
        finally:
            diary.append("left")
        group.cancel_scope.cancel()


@BUFFERS
@pytest.mark.parametrize("way", ["end", "aclose", "drop", "scope"])
async def test_a_task_group_is_left_by_the_task_that_entered_it(way: str, buffer: int) -> None:
    """Whoever ends the stream, from whatever task, the group is left in order."""
    diary: list[str] = []
    async with Scope("a") as scope:
        source = stream(group_around(diary), buffer=buffer)
        assert await scope.spawn(source.__anext__) == 0
        if way == "end":
            assert [item async for item in source] == list(range(1, 9))
        elif way == "aclose":
            await scope.spawn(source.aclose)
        elif way == "drop":
            del source
            await scope.idle()
    assert diary == ["left"]
    assert scope.report is not None
    assert scope.report.ok


@BUFFERS
@pytest.mark.parametrize("stage", ["parked", "in a step"])
async def test_the_failure_of_a_child_comes_out_at_the_reader(stage: str, buffer: int) -> None:
    """A group that a child's failure cancels ends the generator, and the next read raises it."""
    diary: list[str] = []
    when = anyio.Event()

    async def source_of() -> AsyncIterator[int]:
        async with anyio.create_task_group() as group:
            group.start_soon(fail, when)
            try:
                if stage == "parked":
                    for item in range(9):
                        yield item
                await anyio.sleep_forever()
                yield 0
            finally:
                diary.append("left")

    async with Scope("a") as scope:
        source = stream(source_of, buffer=buffer)
        if stage == "parked":
            assert await anext(source) == 0
            await turns()
            when.set()
            await turns()
            assert diary == ["left"]
            for item in range(buffer):
                assert await anext(source) == item + 1
            with pytest.raises(ExceptionGroup) as raised:
                await anext(source)
            error: object = raised.value
        else:
            reader = await begin_to_read(scope, source)
            when.set()
            error = await reader
        assert isinstance(error, ExceptionGroup)
        assert [type(inner) for inner in error.exceptions] == [KeyError]


@pytest.mark.backends("trio")
@BUFFERS
async def test_a_nursery_around_a_yield(buffer: int) -> None:
    """Trio's own nurseries and cancel scopes work across a `yield` as well."""
    diary: list[str] = []

    async def source_of() -> AsyncIterator[int]:
        with trio.CancelScope() as cancel_scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                yield 0
                cancel_scope.cancel()
                yield 1
        diary.append("went on")
        yield 2

    async with Scope("a"):
        items = [item async for item in stream(source_of, buffer=buffer)]
    assert items == [0, 1, 2]
    assert diary == ["went on"]


async def test_a_deadline_around_a_yield_ends_the_block() -> None:
    """The time that passes while nobody reads counts; the generator goes on after the block."""
    diary: list[str] = []

    async def source_of() -> AsyncIterator[str]:
        with anyio.move_on_after(0.01):
            yield "inside"
            diary.append("never")
        yield "after"

    async with Scope("a"), stream(source_of) as source:
        assert await anext(source) == "inside"
        with anyio.move_on_after(0.05):
            await anyio.sleep_forever()
        assert await anext(source) == "after"
        with pytest.raises(StopAsyncIteration):
            await anext(source)
    assert diary == []


async def test_a_deadline_that_raises_is_the_next_readers() -> None:
    """A TimeoutError that comes while nobody reads is kept for the one who does."""

    async def source_of() -> AsyncIterator[str]:
        with anyio.fail_after(0.01):
            yield "inside"

    async with Scope("a"):
        source = stream(source_of)
        assert await anext(source) == "inside"
        with anyio.move_on_after(0.05):
            await anyio.sleep_forever()
        with pytest.raises(TimeoutError):
            await anext(source)


async def test_items_that_nobody_asked_for_do_not_pile_up() -> None:
    """A generator that answers every deadline with an item is held up when it is one ahead."""
    given = 0

    async def source_of() -> AsyncIterator[int]:
        nonlocal given
        while True:
            with anyio.move_on_after(0.001):
                given += 1
                yield given

    async with Scope("a"), stream(source_of) as source:
        assert await anext(source) == 1
        for _ in range(2):
            with anyio.move_on_after(0.05):
                await anyio.sleep_forever()
            assert given <= 4
        assert [await anext(source) for _ in range(4)] == [2, 3, 4, 5]
        await turns()


async def test_the_readers_cancel_scope_does_not_reach_the_generator() -> None:
    """A reader inside a cancel scope may leave it while the generator keeps its own open."""
    diary: list[str] = []
    async with Scope("a"):
        source = stream(group_around(diary))
        for item in range(3):
            with anyio.CancelScope() as cancel_scope:
                assert await anext(source) == item
                cancel_scope.cancel()
        await source.aclose()
    assert diary == ["left"]


# asend and athrow.


async def echo() -> AsyncGenerator[object, object]:
    """Return what is sent, and the errors that are thrown."""
    answer: object = "ready"
    while True:
        try:
            answer = yield answer
        except ValueError as error:
            answer = error


async def test_values_can_be_sent_and_errors_thrown() -> None:
    """Both reach the generator in its own task, and the next item comes back."""
    error = ValueError("thrown")
    async with Scope("a"), stream(echo) as source:
        assert await source.asend(None) == "ready"
        assert await source.asend(1) == 1
        assert await source.athrow(error) is error
        assert isinstance(await source.athrow(ValueError), ValueError)
        assert await anext(source) is None
        with pytest.raises(KeyError):
            await source.athrow(KeyError)
        for call in (source.__anext__(), source.asend(1), source.athrow(KeyError)):
            with pytest.raises(StopAsyncIteration):
                await call


async def test_before_the_first_item_it_is_as_in_python() -> None:
    """A value cannot be sent to a generator that has not begun; an error ends it."""
    async with Scope("a"):
        source = stream(echo)
        with pytest.raises(TypeError, match="just-started"):
            await source.asend(1)
        assert await anext(source) == "ready"
        await source.aclose()
        source = stream(echo)
        with pytest.raises(ValueError, match="thrown"):
            await source.athrow(ValueError("thrown"))
        with pytest.raises(StopAsyncIteration):
            await anext(source)


async def test_with_a_buffer_they_are_refused() -> None:
    """What is sent would answer an item that the reader has not seen."""
    async with Scope("a"), stream(echo, buffer=1) as source:
        for call in (source.asend(1), source.athrow(KeyError())):
            with pytest.raises(UsageError, match="with a buffer"):
                await call


async def test_what_is_no_generator_refuses_them_and_can_be_read_on() -> None:
    """The refusal says so, and nothing of the stream is lost."""

    class Numbers:
        number = 0

        def __aiter__(self) -> Numbers:
            return self

        async def __anext__(self) -> int:
            self.number += 1
            return self.number

    async with Scope("a"), stream(Numbers()) as source:
        assert await anext(source) == 1
        for call in (source.asend(1), source.athrow(KeyError())):
            with pytest.raises(UsageError, match="does not read an async generator"):
                await call
        assert await anext(source) == 2


async def test_an_item_that_was_not_taken_comes_first() -> None:
    """In a resumable stream, nothing is sent before a cancelled reader's item was made and read."""
    counter = Counter()
    counter.slow_from = 0
    async with Scope("a"), stream(counter, resumable=True) as source:
        await cancelled_read(source)
        for _ in ("in the making", "made"):
            with pytest.raises(UsageError, match="cancelled reader"):
                await source.asend("x")
            counter.hold_up.set()
            await turns()
        assert await anext(source) == 0
        assert await source.asend("x") == 1


async def test_a_cancelled_sender_has_sent_it_once_or_not_at_all() -> None:
    """In a resumable stream, the answer is the next reader's, and the value does not come up again."""
    async with Scope("a"), stream(echo, resumable=True) as source:
        assert await anext(source) == "ready"
        with anyio.CancelScope() as cancel_scope:
            cancel_scope.cancel()
            await source.asend("withdrawn")
        assert cancel_scope.cancelled_caught
        await turns()
        assert await anext(source) in {"withdrawn", None}
        assert await source.asend("sent") == "sent"


async def test_an_error_beside_the_close_is_told_without_it() -> None:
    """A task group's error comes out of `aclose()` without the exception that has closed it."""
    gone = KeyError("gone")

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise gone

    async def source_of() -> AsyncIterator[int]:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await turns(2)
            yield 0

    async with Scope("a"):
        source = stream(source_of)
        await anext(source)
        with pytest.raises(ExceptionGroup) as raised:
            await source.aclose()
        assert raised.value.exceptions == (gone,)
