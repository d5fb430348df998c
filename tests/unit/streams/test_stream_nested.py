"""Generators inside the generator of a stream: closed by the same task, and waited for."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

import quiesce

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

DEPTHS = [0, 1, 3]


def layers(depth: int, seen: list[object]) -> AsyncGenerator[int, None]:
    """Wrap generators around one that has a task group open around its yields."""

    async def innermost() -> AsyncGenerator[int, None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            begun = anyio.get_current_task()
            try:
                for number in range(10):
                    yield number
            finally:
                await anyio.lowlevel.checkpoint()
                seen.append(begun == anyio.get_current_task())
                tasks.cancel_scope.cancel()

    async def around(inner: AsyncGenerator[int, None]) -> AsyncGenerator[int, None]:
        async for number in inner:
            yield number

    found = innermost()
    for _ in range(depth):
        found = around(found)
    return found


@pytest.mark.parametrize("depth", DEPTHS)
async def test_aclose_closes_what_is_inside(depth: int) -> None:
    """When `aclose()` returns, the inner generators have been closed too, in the stream's task."""
    seen: list[object] = []
    async with quiesce.Scope("outer"):
        async with aclosing(quiesce.stream(layers(depth, seen))) as numbers:
            async for _ in numbers:
                break
        assert seen == [True]


async def test_what_the_generator_leaves_half_read_is_closed_while_it_goes_on() -> None:
    """Not only at the end of the stream, which may be far."""
    seen: list[object] = []

    async def outer() -> AsyncGenerator[int, None]:
        async for number in layers(1, seen):
            if number == 1:
                break
        for number in range(100):
            yield number

    async with quiesce.Scope("outer"), aclosing(quiesce.stream(outer)) as numbers:
        assert [await anext(numbers) for _ in range(3)] == [0, 1, 2]
        assert seen == [True]


@pytest.mark.parametrize("depth", DEPTHS)
async def test_a_dropped_stream_closes_what_is_inside(depth: int) -> None:
    """The scope waits for the inner generators of a stream that was left half-read."""
    seen: list[object] = []
    async with quiesce.Scope("outer"):
        async for _ in quiesce.stream(layers(depth, seen)):
            break
    assert seen == [True]
