"""`spawn()`: the strong reference and the hold exist from the very step that starts the work."""

from __future__ import annotations

import functools
import gc
import weakref
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import quiesce
from quiesce import Scope
from quiesce.core import graveyard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

STEPS = 3


@pytest.fixture(autouse=True)
def _greedy_collector() -> Iterator[None]:
    """Run the collector at nearly every allocation, so that it strikes at any time."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


async def collect_at_every_step(steps: int = 3 * STEPS) -> None:
    """Let others run, with a full collection at each step."""
    for _ in range(steps):
        gc.collect()
        await anyio.lowlevel.checkpoint()


class Lonely:
    """Work that waits for an event which nothing but its own frame refers to."""

    def __init__(self) -> None:
        self.events: list[weakref.ref[anyio.Event]] = []
        self.done = 0
        self.all_done = anyio.Event()

    async def work(self) -> None:
        """Wait, as a task does that is collected in mid-flight if nobody owns it."""
        event = anyio.Event()
        self.events.append(weakref.ref(event))
        await collect_at_every_step(STEPS)
        await event.wait()
        await collect_at_every_step(STEPS)
        self.done += 1
        if self.done == len(self.events):
            self.all_done.set()

    def wake(self) -> None:
        """Let all the work end."""
        for reference in self.events:
            event = reference()
            assert event is not None, "the work was collected"
            event.set()

    async def work_and_close(self) -> None:
        """Wait, and then close the scope, which nobody else can reach."""
        await self.work()
        scope = quiesce.current_scope()
        assert scope is not None
        await scope.aclose()


async def test_the_hold_exists_when_spawn_returns() -> None:
    """The scope is busy in the step of the spawn, before the job has run at all."""
    log = []

    async def work() -> None:
        log.append("ran")

    async with Scope("spawn") as scope:
        scope.spawn(work)
        assert log == []
        assert [entry.name for entry in scope.frontier()] == [work.__qualname__]
        await scope.idle()
        assert log == ["ran"]
        assert not scope.frontier()


async def test_nobody_needs_to_keep_a_job_of_a_block() -> None:
    """Jobs to which nothing refers but their scope survive a collection at every step."""
    lonely = Lonely()
    async with Scope("spawn") as scope:
        for _ in range(5):
            scope.spawn(lonely.work)
        await collect_at_every_step()
        lonely.wake()
    assert lonely.done == 5
    assert scope.report is not None
    assert scope.report.completed == 5


async def test_nobody_needs_to_keep_a_job_of_a_child_scope() -> None:
    """A child scope and its job survive collection while nothing refers to either."""
    lonely = Lonely()
    async with Scope("spawn") as scope:
        scope.child("one").child("two").spawn(lonely.work)
        await collect_at_every_step()
        lonely.wake()
        await scope.idle()
    assert lonely.done == 1


async def test_nobody_needs_to_keep_an_opened_scope() -> None:
    """A scope made by `Scope.open` survives collection with its jobs, unreferenced."""
    lonely = Lonely()
    references: list[weakref.ref[Scope]] = []

    async def open_and_forget() -> None:
        scope = await Scope.open("forgotten")
        references.append(weakref.ref(scope))
        scope.spawn(lonely.work)
        scope.spawn(lonely.work_and_close)
        scope.spawn(lonely.work, service=True)

    def is_open() -> bool:
        scope = references[0]()
        return scope is not None and scope.state != "closed"

    await open_and_forget()
    await collect_at_every_step()
    lonely.wake()
    with anyio.fail_after(60):
        while is_open():
            await collect_at_every_step()
    assert lonely.done == 3


async def test_nobody_needs_to_keep_a_service() -> None:
    """A service survives collection as work does."""
    lonely = Lonely()
    async with Scope("spawn") as scope:
        scope.spawn(lonely.work, service=True)
        await collect_at_every_step()
        lonely.wake()
        await lonely.all_done.wait()


async def test_nobody_needs_to_keep_an_entered_context() -> None:
    """A context manager that only its scope knows is not collected, and is left at the end."""
    log = []
    events: list[weakref.ref[anyio.Event]] = []

    @asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        event = anyio.Event()
        events.append(weakref.ref(event))
        yield
        assert events[0]() is event
        log.append("left")

    async with Scope("spawn") as scope:
        await scope.enter(manager())
        await collect_at_every_step()
        assert events[0]() is not None
    assert log == ["left"]


async def test_nobody_needs_to_keep_a_hold() -> None:
    """A hold that was dropped is not released by that: it is in flight until the close says so."""
    scope = await Scope.open("spawn")
    scope.hold("request", "forgotten")
    await collect_at_every_step()
    assert [entry.name for entry in scope.frontier()] == ["forgotten"]
    report = await scope.aclose(cleanup=0.01)
    assert [item.name for item in report.undelivered] == ["forgotten"]
    assert not graveyard.graveyards, "a hold that nobody can release any more is kept for ever"


async def test_an_ended_job_is_let_go() -> None:
    """A scope that lives long does not keep the jobs that have completed."""

    class Result:
        pass

    async def work() -> Result:
        return Result()

    async with Scope("spawn") as scope:
        result = weakref.ref(await scope.spawn(work, key="k"))
        await collect_at_every_step()
        assert result() is None


async def test_arguments_reach_the_function() -> None:
    """Positional arguments are passed on, and a partial brings keyword arguments."""

    async def work(a: int, b: int, *, c: int = 0) -> tuple[int, int, int]:
        return a, b, c

    async with Scope("spawn") as scope:
        assert await scope.spawn(work, 1, 2) == (1, 2, 0)
        assert await scope.spawn(functools.partial(work, 1, c=3), 2) == (1, 2, 3)
        assert await scope.spawn(lambda: work(4, 5)) == (4, 5, 0)


class Later:
    """An awaitable that is not a coroutine, as compiled code gives."""

    def __await__(self) -> Iterator[Any]:
        yield from anyio.lowlevel.checkpoint().__await__()
        return 42  # type: ignore[return-value]  # what an awaitable gives is not in its type


def gives_an_awaitable() -> Awaitable[int]:
    """Stand for a function that is not `async def`."""
    return Later()  # type: ignore[return-value]  # as above


class Callable_:  # noqa: N801 - "Callable" is taken
    """An object with an async `__call__`."""

    async def __call__(self) -> int:
        """Return the answer."""
        return 42


async def answer() -> int:
    """Return the answer."""
    return 42


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (answer, "answer"),
        (functools.partial(answer), "answer"),
        (Callable_(), "Callable_.__call__"),
        (gives_an_awaitable, "gives_an_awaitable"),
    ],
    ids=["function", "partial", "object", "awaitable"],
)
async def test_a_job_is_called_as_its_function(fn: Callable[..., Any], name: str) -> None:
    """Whatever gives something to await can be spawned, and the job has the function's name."""
    async with Scope("spawn") as scope:
        job = scope.spawn(fn)
        assert await job == 42
        assert job.name == name
        named = scope.spawn(fn, name="given")
        assert named.name == "given"
        await named


async def test_a_job_runs_in_a_copy_of_the_context_it_was_spawned_in() -> None:
    """Context variables go into a job, and do not come back out of it."""
    variable = ContextVar("variable", default="unset")

    async def work() -> str:
        found = variable.get()
        variable.set("by the job")
        return found

    variable.set("by the body")
    async with Scope("spawn") as scope:
        assert await scope.spawn(work) == "by the body"
        assert await scope.child("child").spawn(work) == "by the body"
    assert variable.get() == "by the body"


async def test_a_function_that_raises_at_the_call_starts_nothing() -> None:
    """An error from calling the function comes out of `spawn`, and no hold stays behind."""

    def work() -> Any:
        raise LookupError

    async with Scope("spawn") as scope:
        with pytest.raises(LookupError):
            scope.spawn(work, key="k")
        with pytest.raises(TypeError, match="positional argument"):
            scope.spawn(answer, 1)  # type: ignore[arg-type]  # the mistake is the point
        assert not scope.frontier()
        await scope.spawn(answer, key="k")
