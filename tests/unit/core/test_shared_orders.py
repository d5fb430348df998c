"""A load that three scopes share, closed in every order: it ends with the last scope that waits for it."""

from __future__ import annotations

import asyncio
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope
from tests.stress import turns
from tests.unit.core.test_shared_tasks import Load, gathered, plain, shielded, through_a_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Way = Callable[[Load], Coroutine[Any, Any, str]]

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def timed(load: Load) -> str:
    """Await the load for a time."""
    return await asyncio.wait_for(load.start(), 60)


WAYS: list[Way] = [plain, shielded, gathered, through_a_task, timed]
ORDERS = [order for count in (1, 2, 3) for order in permutations("ABC", count)]


def cases() -> Iterator[tuple[tuple[Way, ...], tuple[str, ...]]]:
    """Yield how each of three scopes waits, and which are closed, in which order."""
    return product(product(WAYS, repeat=3), ORDERS)


async def try_order(ways: tuple[Way, ...], order: tuple[str, ...]) -> None:
    """Let A start a load, B and C wait for it; close some; see that the others get the result."""
    load, scopes, jobs = Load(), dict[str, Scope](), dict[str, Any]()
    for name, way in zip("ABC", ways, strict=True):
        scopes[name] = await Scope.open(name, adopt=True)
        jobs[name] = scopes[name].spawn(way, load)
        await turns(3)
    for name in order:
        report = await scopes[name].aclose()
        assert (jobs[name].outcome.status, report.stuck) == ("cancelled", ())
    assert load.task is not None
    left = [name for name in "ABC" if name not in order]
    assert (load.task.cancelled(), load.task.done()) == ((not left,) * 2)
    load.gate.set()
    for name in left:
        assert await jobs[name] == "loaded"
        assert (await scopes[name].aclose()).ok


@pytest.mark.parametrize("starter", WAYS)
async def test_a_load_ends_with_the_last_scope_that_waits_for_it_in_every_order(
    starter: Way,
) -> None:
    """A scope that is closed ends its own waiters alone, whichever scope has started the load."""
    for ways, order in cases():
        if ways[0] is starter:
            try:
                await try_order(ways, order)
            except BaseException as error:
                error.add_note(f"{[way.__name__ for way in ways]} closed: {order}")
                raise


@pytest.mark.parametrize("way", [plain, gathered, timed])
async def test_a_job_that_swallows_and_waits_again_does_not_end_the_load(way: Way) -> None:
    """A close cancels such a job over and over; a task of another scope still gets the result."""
    load = Load()

    async def stubborn(load: Load) -> str:
        while True:
            try:
                return await way(load)
            except asyncio.CancelledError:
                if load.start().done():
                    raise

    a, b = await Scope.open("A", adopt=True), await Scope.open("B", adopt=True)
    job = a.spawn(stubborn, load)
    await turns()
    other = b.spawn(plain, load)
    await turns()
    report = await a.aclose(cleanup=0.2)
    assert [item.name for item in report.stuck] == [job.name]
    load.gate.set()
    assert await other == "loaded"
    assert (await b.aclose()).ok
    while not job.done():
        await turns()


async def test_a_load_below_a_load_is_handed_on_from_a_scope_and_its_child() -> None:
    """The outer load runs in a child of the scope that holds the inner one; both go to the waiter."""
    inner, box = Load(), list[asyncio.Task[str]]()

    async def outer() -> str:
        return await inner.start()

    async def start_outer() -> None:
        box.append(asyncio.create_task(outer()))

    async def start_inner() -> None:
        inner.start()

    a = await Scope.open("A", adopt=True)
    await a.spawn(start_inner)
    child = a.child("child", adopt=True)
    await child.spawn(start_outer)
    b = await Scope.open("B", adopt=True)

    async def use() -> str:
        return await asyncio.shield(box[0])

    job = b.spawn(use)
    await turns()
    await a.aclose()
    inner.gate.set()
    assert await job == "loaded"
    assert (await b.aclose()).ok


async def test_a_task_of_another_scope_that_nothing_else_awaits_is_cancelled_along() -> None:
    """As asyncio has it: the only one who awaits a task is cancelled, and the task with it."""
    load = Load()

    async def start() -> None:
        load.start()

    a, b = await Scope.open("A", adopt=True), await Scope.open("B", adopt=True)
    await b.spawn(start)
    a.spawn(plain, load)
    await turns()
    await a.aclose()
    await turns()
    assert load.task is not None
    assert load.task.cancelled()
    await b.aclose()
