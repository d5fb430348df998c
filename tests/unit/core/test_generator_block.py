"""A scope's block inside an async generator is ended by the task that closes the generator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope, current_scope
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.backends("asyncio", "uvloop")


@pytest.mark.parametrize("adopt", [True, False])
@pytest.mark.parametrize("inside", [True, False])
async def test_a_cancelled_closer_of_a_generator_sees_its_cancellation(
    *, adopt: bool, inside: bool
) -> None:
    """Another task closes the generator and is cancelled: it gets a CancelledError, nothing else."""
    gate, scopes = asyncio.Event(), list[Scope]()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    async def generate() -> AsyncGenerator[int]:
        async with Scope("generator", adopt=adopt) as scope:
            scopes.append(scope)
            scope.spawn(slow)
            yield 1

    generator = generate()
    await anext(generator)
    await turns()
    make: Any = asyncio.create_task if inside else asyncio.Task
    closer = make(generator.aclose())
    await turns()
    closer.cancel()
    await turns()
    gate.set()
    await asyncio.wait([closer])
    assert closer.cancelled()
    await scopes[0].aclose()
    assert scopes[0].state == "closed"


async def test_a_closer_of_a_generator_is_where_it_was_before() -> None:
    """The task that ends the block in the generator's place leaves the scope it had."""
    seen = list[Scope | None]()

    async def generate() -> AsyncGenerator[int]:
        async with Scope("generator"):
            yield 1

    async def close() -> None:
        await generator.aclose()
        seen.append(current_scope())

    generator = generate()
    async with Scope("outer") as outer:
        await anext(generator)
        await asyncio.create_task(close())
    assert seen == [outer]
