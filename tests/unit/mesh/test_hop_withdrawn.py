"""A hop of which a task was cancelled is done if its own code has asked for that, and only then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import quiesce
from quiesce.mesh import Settled
from tests.stress import turns
from tests.unit.mesh.meshing import World, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.mesh import Hop

    Handler = Callable[[Hop], Awaitable[None]]

pytestmark = pytest.mark.backends(
    "asyncio", "uvloop"
)  # trio has no tasks that code may cancel alone
left: list[Any] = []
DONE, CUT = (True, 2, 0), (False, 2, 1)


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    left.clear()


async def outcome(
    handler: Handler, then: Callable[[], object] | None = None
) -> tuple[bool, int, int]:
    """Hand a message to a handler, have other code do something then, and tell how the hop ended.

    Returns whether the settlement is ok, and how many hops are done and cancelled.
    """
    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        if then is not None:
            await turns(5)
            made: Any = then()
            if hasattr(made, "__await__"):
                await made
        found = await cascade.settled(4, require="participants")
        assert isinstance(found, Settled)
        return found.ok, found.receipt.hops, found.receipt.cancelled


# By its own code: the hop is done.


async def cancels_the_loser(_: Hop) -> None:
    """Cancel the slower of two, which takes its time to clean up, and do not wait for that."""

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await turns(50)

    loser = asyncio.create_task(slow())
    await turns(3)
    loser.cancel()


async def gives_up_in_the_background(_: Hop) -> None:
    """Leave a task behind, which ends what it has started."""

    async def races() -> None:
        loser = asyncio.create_task(anyio.sleep_forever())
        await asyncio.wait({loser}, timeout=0.01)
        loser.cancel()

    left.append(asyncio.create_task(races()))


async def waits_for(_: Hop) -> None:
    """Return something a limit."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.create_task(anyio.sleep_forever()), 0.01)


async def groups(_: Hop) -> None:
    """Let a failure in a task group end the other tasks of it."""

    async def fails() -> None:
        raise ValueError

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(anyio.sleep_forever())
            group.create_task(fails())


async def moves_on(_: Hop) -> None:
    """End a task group of anyio by its deadline."""
    with anyio.move_on_after(0.01):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)


async def closes_a_scope(_: Hop) -> None:
    """Close a scope of its own, with work in it."""
    scope = await quiesce.Scope.open("own")
    scope.spawn(anyio.sleep_forever)
    await turns(3)
    await scope.aclose()


async def cancels_a_job(hop: Hop) -> None:
    """Cancel a job by its handle."""
    job = hop.spawn(anyio.sleep_forever)
    await turns(3)
    job.cancel()


@pytest.mark.parametrize(
    "handler",
    [
        cancels_the_loser, gives_up_in_the_background, waits_for, groups, moves_on, closes_a_scope,
        cancels_a_job,
    ],
)  # fmt: skip
async def test_a_hop_that_cancels_its_own_tasks_is_done(handler: Handler) -> None:
    """That is part of its work."""
    assert await outcome(handler) == DONE


# Not by its own code: the hop is not done.


async def raises_it() -> None:
    """Cancel oneself."""
    await turns(3)
    raise asyncio.CancelledError


async def times_out_first() -> None:
    """Run into a timeout of its own, go on, and wait."""
    with anyio.move_on_after(0.01):
        await anyio.sleep_forever()
    left.append("timed out")
    await anyio.sleep_forever()


@pytest.mark.parametrize("way", ["task", "job"])
async def test_a_hop_whose_work_cancels_itself_is_not_done(way: str) -> None:
    """Nobody has asked for that."""

    async def handler(hop: Hop) -> None:
        left.append(hop.spawn(raises_it) if way == "job" else asyncio.create_task(raises_it()))

    assert await outcome(handler) == CUT


@pytest.mark.parametrize("way", ["task", "job"])
async def test_a_hop_whose_work_is_cancelled_from_outside_is_not_done(way: str) -> None:
    """As by an app that cancels its background tasks when it shuts down."""

    async def handler(hop: Hop) -> None:
        work = anyio.sleep_forever
        left.append(hop.spawn(work) if way == "job" else asyncio.create_task(work()))

    def then() -> None:
        left[0].cancel()

    assert await outcome(handler, then) == CUT


async def test_a_timeout_that_has_fired_does_not_excuse_a_later_cancellation() -> None:
    """The last one to ask counts."""

    async def handler(_: Hop) -> None:
        left.append(asyncio.create_task(times_out_first()))

    async def then() -> None:
        await until(lambda: len(left) == 2)
        left[0].cancel()

    assert await outcome(handler, then) == CUT


async def test_a_hop_whose_work_waits_for_what_is_cancelled_elsewhere_is_not_done() -> None:
    """As one of the callers that wait for a load which is shared, when the load is cancelled."""
    shared = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        await shared

    async def handler(_: Hop) -> None:
        left.append(asyncio.create_task(waits()))

    assert await outcome(handler, shared.cancel) == CUT


async def test_a_hop_whose_work_in_another_scope_is_cut_with_that_is_not_done() -> None:
    """The scope of the app is closed in the midst of it."""
    app = await quiesce.Scope.open("app")

    async def handler(_: Hop) -> None:
        app.spawn(anyio.sleep_forever)

    assert await outcome(handler, app.aclose) == CUT
