"""Cancellation at each step of everything that waits for a close: nothing is ever left."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope
from tests.stress import Resource, lasting, turns
from tests.sweeping import Plan, sweep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.sweeping import Subject


async def careful() -> None:
    """Wait to be cancelled, then clean up, which takes a few steps and some time."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await turns(2)
            await lasting(0.001)


async def fill(scope: Scope) -> None:
    """Start one of each kind in the scope."""
    scope.spawn(careful)
    scope.spawn(careful, service=True)
    scope.child("child").spawn(careful)
    await scope.enter(anyio.create_task_group())


async def ended_by_error() -> None:
    """End a block by an error, which is the subject's own affair."""
    try:
        async with Scope("a") as scope:
            await fill(scope)
            raise KeyError
    except KeyError:
        pass


async def ended_well() -> None:
    """End a block whose work ends by itself."""
    async with Scope("a") as scope:
        for _ in range(3):
            scope.spawn(turns, 3)
        await turns(1)


async def with_open_scope(verb: str) -> None:
    """Open a scope, and close it in one of the ways."""
    scope = await Scope.open("a")
    try:
        await fill(scope)
    except BaseException:
        await closed(scope)
        raise
    if verb == "aclose":
        await scope.aclose()
    else:
        await scope.drain(grace=0.001)
    assert scope.state == "closed"


async def closed(scope: Scope) -> None:
    """Close a scope whatever happens, as the rest of a program would in the end."""
    with anyio.CancelScope(shield=True):
        await scope.aclose()


async def closing() -> None:
    """Close by `aclose`."""
    await with_open_scope("aclose")


async def draining() -> None:
    """Close by `drain`."""
    await with_open_scope("drain")


@asynccontextmanager
async def slow() -> AsyncIterator[list[str]]:
    """Take several steps to enter, and to leave."""
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        await turns(2)
        yield []
        with anyio.CancelScope(shield=True):
            await turns(2)
        group.cancel_scope.cancel()


async def entering_and_leaving() -> None:
    """Enter two contexts, and leave the first one early."""
    resource = Resource()
    first = slow()
    scope = await Scope.open("a")
    try:
        await scope.enter(first)
        await scope.enter(resource)
        await scope.exit(first)
    finally:
        await closed(scope)
        assert not resource.is_open


async def failing_soon() -> None:
    """Fail after a few steps."""
    await turns(3)
    raise KeyError


async def interrupted() -> None:
    """Let a failing job interrupt the block: one cancellation is the scope's own."""
    with suppress_group(KeyError):
        async with Scope("a", on_error="cancel") as scope:
            scope.spawn(careful)
            scope.spawn(failing_soon)
            await anyio.sleep_forever()


@contextmanager
def suppress_group(kind: type[Exception]) -> Iterator[None]:
    """Suppress a group of nothing but errors of this kind."""
    try:
        yield
    except ExceptionGroup as group:
        if group.split(kind)[1] is not None:
            raise


async def closed_by_its_own_job() -> None:
    """Let a job of the scope close it while the block ends."""

    async def closer() -> None:
        await turns(2)
        await scope.aclose()
        await turns(2)

    async with Scope("a") as scope:
        scope.spawn(closer)
        scope.spawn(turns, 1)


async def waiting_for_idle() -> None:
    """Wait for idle while the work ends."""
    async with Scope("a") as scope:
        scope.spawn(turns, 3)
        await scope.idle()


async def waiting_for_a_job() -> None:
    """Wait for a job's result."""
    async with Scope("a") as scope:
        await scope.spawn(turns, 3)


async def in_a_thread() -> None:
    """Call a function in a thread."""
    scope = await Scope.open("a")
    try:
        await scope.to_thread(int)
    finally:
        await closed(scope)


SUBJECTS = [
    ended_by_error,
    ended_well,
    closing,
    draining,
    entering_and_leaving,
    interrupted,
    closed_by_its_own_job,
    waiting_for_idle,
    waiting_for_a_job,
]
KINDS = [
    ("asyncio", "native"),
    ("uvloop", "native"),
    ("asyncio", "anyio"),
    ("uvloop", "anyio"),
    ("trio", "anyio"),
]
KINDS_WITH_TURNS = [KINDS[0], KINDS[2], KINDS[4]]


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "twice"])
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_at_each_suspension(
    backend: str, kind: str, times: str, subject: Subject
) -> None:
    """Wherever it is suspended, cancellation comes out, and nothing is left."""
    assert sweep(backend, subject, Plan(kind, "suspensions", times)) == []


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "on"])
@pytest.mark.parametrize(("backend", "kind"), KINDS_WITH_TURNS)
def test_cancelled_at_each_turn_of_the_loop(
    backend: str, kind: str, times: str, subject: Subject
) -> None:
    """Whatever stage the close is in, cancellation comes out, and nothing is left."""
    assert sweep(backend, subject, Plan(kind, "turns", times)) == []


@pytest.mark.parametrize("times", ["once", "twice"])
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_a_thread_cancelled_at_each_suspension(backend: str, kind: str, times: str) -> None:
    """The caller is released, and the thread is held until its function has returned."""
    assert sweep(backend, in_a_thread, Plan(kind, "suspensions", times), real_time=True) == []
