"""Cancellation at each step of everything that waits for a stream: nothing is lost or left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.streams.stream import Stream, stream
from tests.stress import CANCELLED, turns
from tests.sweeping import Plan, sweep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from tests.sweeping import Subject

KINDS = [
    ("asyncio", "native"),
    ("uvloop", "native"),
    ("asyncio", "anyio"),
    ("uvloop", "anyio"),
    ("trio", "anyio"),
]
KINDS_WITH_TURNS = [KINDS[0], KINDS[2], KINDS[4]]
ITEMS = 4


class Source:
    """A generator with a task group around its `yield`, that must be left in order."""

    def __init__(self) -> None:
        self.began = self.left = 0

    async def __call__(self) -> AsyncIterator[int]:
        """Return some numbers, each after a few turns."""
        self.began += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                for item in range(ITEMS):
                    await turns(1)
                    yield item
                group.cancel_scope.cancel()
        finally:
            self.left += 1

    def check(self) -> None:
        """See that it has ended as often as it has begun."""
        assert self.left == self.began


async def surely(fn: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Call it again until it has not been cancelled, then pass that on."""
    cancellation: BaseException | None = None
    done = False
    while not done:
        try:
            with anyio.CancelScope(shield=True):
                await fn()
                done = True
        except CANCELLED as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def read_all(buffer: int) -> None:
    """Read a resumable stream to the end; after a cancellation another reader does, and misses nothing."""
    source = Source()
    seen: list[int] = []
    scope = await Scope.open("a")
    made = stream(source, buffer=buffer, resumable=True, scope=scope)

    async def read() -> None:
        async for item in made:
            seen.append(item)  # noqa: PERF401 - at once: it may be cancelled in between

    async def finish() -> None:
        await read()
        assert seen == list(range(ITEMS))
        assert not scope.frontier()
        await scope.aclose()
        source.check()

    try:
        await read()
    finally:
        await surely(finish)


async def reading() -> None:
    """Read without a buffer."""
    await read_all(0)


async def reading_ahead() -> None:
    """Read with a buffer."""
    await read_all(2)


async def leave_early(made: Stream[int]) -> None:
    """Read the first item."""
    async for _ in made:
        break


async def reading_once() -> None:
    """Read a plain stream to the end, or be cancelled: then it ends, and the scope stays open."""
    source = Source()
    scope = await Scope.open("a")
    made = stream(source, scope=scope)

    async def finish() -> None:
        await scope.idle()
        source.check()
        await scope.aclose()

    try:
        async for _ in made:
            pass
    finally:
        await surely(finish)


async def dropping() -> None:
    """Break out of a stream that nobody else knows, in a scope's block."""
    source = Source()
    try:
        async with Scope("a"):
            await leave_early(stream(source))
            await turns(2)
    finally:
        source.check()


async def closing() -> None:
    """Close a half-read stream."""
    source = Source()
    try:
        async with Scope("a"), stream(source, buffer=1) as made:
            await leave_early(made)
    finally:
        source.check()


async def closing_in_a_step() -> None:
    """Close while another task waits for an item, and the generator for what never comes."""
    source = Source()

    async def read() -> None:
        async for _ in made:
            pass

    try:
        async with Scope("a") as scope:
            made = stream(source)
            scope.spawn(read)
            await turns(3)
            await made.aclose()
    finally:
        source.check()


async def closing_the_scope() -> None:
    """Close the scope of one that is parked and of one in the middle of a step."""
    source = Source()
    scope = await Scope.open("a")
    parked = stream(source, scope=scope)
    stepping = stream(source, buffer=9, scope=scope)
    try:
        await leave_early(parked)
        await leave_early(stepping)
    finally:
        with anyio.CancelScope():
            await scope.aclose()
        source.check()


SUBJECTS = [
    reading,
    reading_ahead,
    reading_once,
    dropping,
    closing,
    closing_in_a_step,
    closing_the_scope,
]


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "twice"])
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_at_each_suspension(
    backend: str, kind: str, times: str, subject: Subject
) -> None:
    """Wherever it is suspended, cancellation comes out, and nothing is lost or left."""
    assert sweep(backend, subject, Plan(kind, "suspensions", times)) == []


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "on"])
@pytest.mark.parametrize(("backend", "kind"), KINDS_WITH_TURNS)
def test_cancelled_at_each_turn_of_the_loop(
    backend: str, kind: str, times: str, subject: Subject
) -> None:
    """Whatever stage the stream is in, cancellation comes out, and nothing is lost or left."""
    assert sweep(backend, subject, Plan(kind, "turns", times)) == []
