"""Generators that keep cancel scopes and task groups open across a `yield`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
import trio

from quiesce import Scope
from quiesce.streams.stream import stream
from tests.stress import turns
from tests.unit.streams.stream_sources import begin_to_read

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
