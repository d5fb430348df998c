"""A light scope: what it costs, how it ends in one step, and who hears of that."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError
from quiesce.core.light_scope import LightScope, Model
from quiesce.core.python_private import running_loop
from quiesce.core.tree import current
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

on_asyncio = pytest.mark.backends("asyncio", "uvloop")

CODE = on_asyncio.with_args.__code__  # anything that is not in this file


def light(parent: Scope, name: str = "light", **options: Any) -> LightScope:
    """Open a light scope."""
    return LightScope(Model(parent, **options), name, light.__code__)


async def fail() -> None:
    """End badly."""
    raise LookupError


@asynccontextmanager
async def manager() -> AsyncIterator[None]:
    """Yield once, as a context to enter."""
    yield


# What it costs.


@on_asyncio
async def test_little_is_made_of_a_scope_in_which_nothing_is_started() -> None:
    """Neither a hold nor a visitor nor its own job has the rest filled in."""
    async with Scope("parent", adopt=True) as parent:
        scope = light(parent, adopt=True)
        seen = [bool(scope.holds)]
        with scope.hold("request", "held"):
            seen.append(bool(scope.holds))
            assert parent.holds
        assert not parent.holds
        stay = scope.occupy("handler", "visits")
        stay.end()
        assert not parent.holds

        async def last() -> None:
            assert scope.settle(job)

        job = scope.begin(last(), lambda _: None)
        await job
        assert not parent.holds
        seen.append(bool(scope.holds))
        assert seen == [False, True, False]
        assert not scope.filled
        assert scope.dissolve()
        assert (scope.filled, scope.state, scope in parent.children) == (False, "closed", False)
    assert parent.report is not None
    assert parent.report.completed == 1


async def test_the_tables_are_its_own() -> None:
    """Two scopes of one model share nothing that changes, and have all that a plain one has."""
    async with Scope("parent") as parent:
        model = Model(parent)
        one, two = (LightScope(model, name, CODE) for name in ("one", "two"))
        usual = parent.child("usual")
        slots = {slot for kind in Scope.__mro__ for slot in vars(kind).get("__slots__", ())}
        for slot in slots:
            assert hasattr(one, slot) == hasattr(usual, slot), slot
            value = getattr(one, slot, None)
            if isinstance(value, dict | list):
                assert value is not getattr(two, slot), slot
        with pytest.raises(AttributeError, match="no_such_thing"):
            getattr(one, "no_such_thing")  # noqa: B009 - mypy knows that it is not there


async def test_what_is_set_before_it_was_read_stays() -> None:
    """The rest is filled in around it, and it is of its own class then."""

    class Own(LightScope):
        __slots__ = ()

    async with Scope("parent") as parent:
        scope = Own(Model(parent), "own", CODE)
        assert isinstance(scope, Own)
        scope.handled_count = 7
        assert (type(scope), scope.filled, scope.handled_count) == (Own, True, 7)
        assert scope.services == {}
        assert scope.handled_count == 7
        assert scope.dissolve()
    assert parent.handled_count == 7


async def test_it_may_be_subclassed() -> None:
    """Slots of its own are set before the scope is opened, or after, and stay as they are."""

    class Own(LightScope):
        __slots__ = ("after", "before", "unset")

        def __init__(self, model: Model) -> None:
            self.before = "b"
            super().__init__(model, "own", CODE)
            self.after: list[int] = []

    async with Scope("parent") as parent:
        scope = Own(Model(parent))
        scope.after.append(1)
        await scope.spawn(anyio.lowlevel.checkpoint)
        assert (scope.before, scope.after) == ("b", [1])
        with pytest.raises(AttributeError):
            getattr(scope, "unset")  # noqa: B009 - mypy knows that it is not set
        assert scope.dissolve()


@on_asyncio
async def test_only_below_one_that_adopts_it_adopts() -> None:
    """It has no adoption of its own to begin, so it says what its parent lacks."""
    async with Scope("parent") as parent:
        with pytest.raises(UsageError, match="'parent' with adopt=True"):
            Model(parent, adopt=True)


async def test_the_collector_has_nothing_to_do() -> None:
    """A scope that was dissolved is gone at once."""
    async with Scope("parent", adopt=current_backend() != "trio") as parent:
        model = Model(parent, adopt=parent.adopter is parent)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                LightScope(model, "gone", CODE).dissolve()
            assert not any(isinstance(found, LightScope) for found in gc.get_objects())
        finally:
            gc.enable()


def current_backend() -> str:
    """Name the running backend, as a scope sees it."""
    return "asyncio" if running_loop() is not None else "trio"


# The end in one step.


async def _hold(scope: LightScope) -> None:
    scope.hold("request", "held")


async def _job(scope: LightScope) -> None:
    scope.spawn(anyio.sleep_forever)


async def _service(scope: LightScope) -> None:
    scope.spawn(anyio.sleep_forever, service=True)


async def _child(scope: LightScope) -> None:
    scope.child("below")


async def _context(scope: LightScope) -> None:
    await scope.enter(manager())


async def _failure(scope: LightScope) -> None:
    scope.spawn(fail)
    await scope.idle()


async def _lost(scope: LightScope) -> None:
    from quiesce.core import report  # noqa: PLC0415 - only here

    scope.lose_items([report.ReportEntry("item", "x", "light", None, 0.0, {})], given_up=False)


async def _closing(scope: LightScope) -> None:
    await scope.aclose()


@pytest.mark.parametrize(
    "leave", [_hold, _job, _service, _child, _context, _failure, _lost, _closing]
)
async def test_it_is_not_dissolved_while_anything_is_left(
    leave: Callable[[LightScope], Awaitable[None]],
) -> None:
    """What a closing would have to see to, or has, is left to it: nothing is changed."""
    parent = await Scope.open("parent")
    scope = light(parent)
    await leave(scope)
    before = scope.state
    assert not scope.dissolve()
    assert scope.state == before
    await parent.aclose(cleanup=0.05)
    assert scope.state == "closed"


async def test_what_it_has_seen_is_counted_once() -> None:
    """The parent's report has it, however often it is dissolved."""
    async with Scope("parent") as parent:
        scope = light(parent, on_error=lambda job, error: None)
        scope.spawn(anyio.lowlevel.checkpoint)
        scope.spawn(fail)
        job = scope.spawn(anyio.sleep_forever)
        await turns()
        job.cancel()
        await scope.idle()
        assert scope.dissolve()
        assert scope.dissolve()
        assert (scope.state, scope.report) == ("closed", None)
        assert (await scope.aclose()).completed == 1
        untouched = light(parent)
        assert untouched.dissolve()
        assert untouched.dissolve()
        with anyio.fail_after(1):
            await scope.closing()
            await untouched.closing()
    assert parent.report is not None
    assert (parent.report.completed, parent.report.handled, parent.report.withdrawn) == (1, 1, 1)


@on_asyncio
async def test_what_is_started_late_in_its_context_is_the_parents() -> None:
    """Touched or not, a scope that was dissolved adopts nothing any more."""
    async with Scope("parent", adopt=True) as parent:
        for touched in (False, True):
            scope = light(parent, adopt=True)
            context = contextvars.copy_context()
            context.run(current.set, scope)
            if touched:
                scope.frontier()
            assert scope.dissolve()
            task = context.run(asyncio.ensure_future, asyncio.sleep(0))
            assert task in parent.holds
            await task


# When it is idle.


class Told:
    """Somebody who wants to know when a scope is idle."""

    def __init__(self, scope: LightScope) -> None:
        self.scope = scope
        self.states: list[str] = []
        scope.when_idle(self)

    def __call__(self) -> None:
        """Note that it is, in this very step."""
        assert not self.scope.holds
        self.states.append(self.scope.state)


async def test_its_owner_is_told_once_when_it_is_idle() -> None:
    """After the last hold, once; again only if he asks again; at once if there is none."""
    async with Scope("parent") as parent:
        scope = light(parent)
        holds = [scope.hold("request", name) for name in "ab"]
        told = Told(scope)
        await turns()
        holds[0].release()
        await turns()
        assert told.states == []
        holds[1].release()
        await turns()
        assert told.states == ["open"]
        scope.hold("request", "c").release()
        await turns()
        assert told.states == ["open"]
        scope.when_idle(told)
        await turns()
        assert told.states == ["open", "open"]
        assert scope.dissolve()


async def test_a_scope_that_is_busy_again_is_not_idle() -> None:
    """Idle for a moment, in one step, is not idle."""
    async with Scope("parent") as parent:
        scope = light(parent)
        hold = scope.hold("request", "a")
        told = Told(scope)
        hold.release()
        hold = scope.hold("request", "b")
        await turns()
        assert told.states == []
        hold.release()
        await turns()
        assert told.states == ["open"]
        assert scope.dissolve()


@on_asyncio
@pytest.mark.parametrize("spawned", [False, True])
async def test_what_a_finished_task_starts_in_its_callback_is_seen(*, spawned: bool) -> None:
    """Between a task and the one that its callback starts the scope is empty, but not idle."""
    async with Scope("parent", adopt=True) as parent:
        scope = light(parent, adopt=True)
        gate = asyncio.Event()
        kept: list[Any] = []

        def next_one(_: object) -> None:
            assert not scope.holds
            kept.append(asyncio.ensure_future(gate.wait()))

        def start() -> None:
            task: Any
            if spawned:
                task = scope.spawn(anyio.lowlevel.checkpoint)
            else:
                task = asyncio.ensure_future(asyncio.sleep(0))
            task.add_done_callback(next_one)
            kept.append(task)

        context = contextvars.copy_context()
        context.run(current.set, scope)
        context.run(start)
        told = Told(scope)
        await turns()
        assert (len(kept), told.states) == (2, [])
        gate.set()
        await turns()
        assert told.states == ["open"]
        assert scope.dissolve()


@on_asyncio
async def test_it_is_told_in_a_drain_before_the_parent_goes_on() -> None:
    """Work that ends in time is an end like any other: the owner hears of it, then the parent closes."""
    async with Scope("parent") as parent:
        scope = light(parent)
        hold = scope.hold("request", "a")
        scope.spawn(anyio.lowlevel.checkpoint)
        ends: list[tuple[str, bool]] = []
        scope.when_idle(lambda: ends.append((scope.state, scope.dissolve())))
        async with anyio.create_task_group() as group:
            group.start_soon(parent.drain)
            await turns()
            hold.release()
        assert ends == [("draining", True)]
    assert parent.report is not None
    assert (parent.report.completed, parent.report.ok) == (1, True)


class Seen(LightScope):
    """A scope that knows how it was closed."""

    __slots__ = ("ends",)

    def __init__(self, parent: Scope, **options: Any) -> None:
        self.ends: list[tuple[str, int | None]] = []
        super().__init__(Model(parent, **options), "seen", CODE)

    def on_closed(self) -> None:
        """Note what is there when it is closed."""
        super().on_closed()
        report = self.report
        self.ends.append((self.state, None if report is None else len(report.cancelled)))


async def test_every_end_is_seen() -> None:
    """Dissolved, closed by hand or by the parent, busy or not: its class hears of it once."""
    async with Scope("outer") as outer:
        parent = outer.child("parent")
        dissolved, touched, closed, cut, idle = (Seen(parent) for _ in range(5))
        told = [Told(scope) for scope in (dissolved, touched, closed)]
        touched.frontier()
        assert dissolved.dissolve()
        assert touched.dissolve()
        closed.spawn(anyio.sleep_forever)
        cut.spawn(anyio.sleep_forever)
        await turns()
        await closed.aclose()
        told.append(Told(cut))
        await parent.aclose()
        await turns()
        ends = [scope.ends for scope in (dissolved, touched, closed, cut, idle)]
        assert ends == [
            [("closed", None)],
            [("closed", None)],
            [("closed", 1)],
            [("closed", 1)],
            [("closed", 0)],
        ]
        assert [one.states for one in told] == [[], [], [], []]
