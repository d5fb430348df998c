"""Light scopes and others: tasks that are not theirs, and scopes of another tree that hold them."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from quiesce import Report, Scope, ScopeClosed, UsageError, current_scope
from quiesce.core.light_scope import LightScope, Model
from tests.stress import Stubborn, turns

on_asyncio = pytest.mark.backends("asyncio", "uvloop")

SHORT_SECONDS = 0.05


def light(parent: Scope, name: str = "light", **options: Any) -> LightScope:
    """Open a light scope."""
    return LightScope(Model(parent, **options), name, light.__code__)


# A task that is somebody else's.


async def test_a_visitor_works_in_the_scope_until_it_leaves() -> None:
    """It is held and shown, what it opens is below the scope, and then all is as it was."""
    async with Scope("home") as home, Scope("parent") as parent:
        scope = light(parent)
        before = current_scope()
        stay = scope.occupy("handler", "GET /", {"peer": "x"})
        assert current_scope() is scope
        (entry,) = scope.frontier()
        assert (entry.kind, entry.name, dict(entry.details)) == ("handler", "GET /", {"peer": "x"})
        assert "test_light_guests.py" in (entry.where or "")
        assert not stay.released
        async with Scope("inner") as inner:
            assert inner.parent is scope
        stay.end()
        assert (current_scope(), stay.released) == (before, True)
        assert not scope.holds
        assert not home.holds
        assert scope.dissolve()


async def test_a_visitor_may_come_twice() -> None:
    """A block inside of a block, in one task: the scope is busy until the outer one ends."""
    async with Scope("parent") as parent:
        scope = light(parent)
        stays = [scope.occupy("handler", name) for name in ("outer", "inner")]
        assert {entry.name for entry in scope.frontier()} == {"outer", "inner"}
        stays[1].end()
        assert [entry.name for entry in scope.frontier()] == ["outer"]
        assert current_scope() is scope
        stays[0].release()
        assert not scope.holds
        assert current_scope() is parent
        assert scope.dissolve()


@on_asyncio
async def test_the_last_visitor_may_close_it_in_one_step() -> None:
    """All is then as if it had left, and the scope was dissolved; nothing was filled in for it."""
    async with Scope("parent") as parent:
        idle = [light(parent), light(parent)]
        for scope in idle:
            stay = scope.occupy("handler", "visits")
            assert current_scope() is scope
            if scope is idle[0]:
                assert scope.dissolve_after(stay)
            else:
                stay.end()
                assert scope.dissolve()
            assert (current_scope(), stay.released) == (parent, True)
            assert not parent.holds
            assert scope not in parent.children
            assert (scope.filled, scope.state) == (False, "closed")
            assert scope.adopter is parent.adopter
        assert idle[0].dissolve()


@pytest.mark.parametrize("what", ["held", "looked at", "awaited", "twice", "gone"])
async def test_a_visitor_does_not_close_what_is_not_his_alone(what: str) -> None:
    """Nothing was done then: it leaves as any other does."""
    seen: list[str] = []
    async with Scope("parent") as parent:
        scope = light(parent)
        stays = [scope.occupy("handler", "visits")]
        hold = scope.hold("request", "held") if what == "held" else None
        if what == "looked at":
            assert scope.services == {}
        elif what == "awaited":
            scope.when_idle(lambda: seen.append("idle"))
        elif what == "twice":
            stays.append(scope.occupy("handler", "visits again"))
        elif what == "gone":
            stays.pop().end()
            stays.append(light(parent, "other").occupy("handler", "elsewhere"))
        assert not scope.dissolve_after(stays[-1])
        assert current_scope() is stays[-1].owner_node
        assert not stays[-1].released
        for stay in reversed(stays):
            stay.end()
        if hold is not None:
            hold.release()
        await turns()
        assert seen == ["idle"] * (what == "awaited")
        assert scope.dissolve()


@pytest.mark.parametrize("owned", [False, True])
async def test_a_visitor_is_work_of_the_scope(*, owned: bool) -> None:
    """In a drain it may start what it needs, also if it is a job of some other scope."""
    done: list[str] = []

    async def sub() -> None:
        done.append("sub")

    async with Scope("home") as home, Scope("parent") as parent:
        scope = light(parent)
        begun, go = anyio.Event(), anyio.Event()

        async def visit() -> None:
            stay = scope.occupy("handler", "visits")
            try:
                begun.set()
                await go.wait()
                with pytest.raises(UsageError, match="would wait for itself"):
                    await scope.idle()
                await scope.spawn(sub)
                await light(parent, "another").spawn(sub)
            finally:
                stay.end()

        async with anyio.create_task_group() as group:
            if owned:
                home.spawn(visit)
            else:
                group.start_soon(visit)
            await begun.wait()
            group.start_soon(parent.drain)
            await turns()
            assert scope.state == "draining"
            go.set()
    assert done == ["sub", "sub"]


async def test_a_visitor_is_still_work_of_its_own_scope() -> None:
    """While it works elsewhere it may start things at home in a drain, and close its home."""
    home = await Scope.open("home")
    started: list[str] = []
    async with Scope("parent") as parent:
        scope = light(parent)
        begun, go = anyio.Event(), anyio.Event()

        async def sub() -> None:
            started.append("sub")

        async def visit() -> None:
            stay = scope.occupy("handler", "visits")
            begun.set()
            await go.wait()
            await home.spawn(sub)
            started.append((await home.aclose()).scope)
            stay.end()

        async with anyio.create_task_group() as group:
            job = home.spawn(visit)
            await begun.wait()
            group.start_soon(home.drain)
            await turns()
            go.set()
            await job
    assert (started, home.state) == (["sub", "home"], "closed")


async def test_a_visitor_is_told_when_the_scope_is_closed() -> None:
    """`on_stop` is how it ends; one that does not is stuck in the report."""
    async with Scope("parent") as parent:
        for obeys in (True, False):
            scope = light(parent)
            begun, go = anyio.Event(), anyio.Event()

            async def visit(
                scope: LightScope = scope,
                begun: anyio.Event = begun,
                go: anyio.Event = go,
                *,
                obeys: bool = obeys,
            ) -> None:
                stay = scope.occupy("handler", "visits", on_stop=go.set if obeys else None)
                begun.set()
                await go.wait()
                stay.end()

            async with anyio.create_task_group() as group:
                group.start_soon(visit)
                await begun.wait()
                report = await scope.aclose(cleanup=20 if obeys else SHORT_SECONDS)
                assert [item.name for item in report.stuck] == ([] if obeys else ["visits"])
                go.set()


async def test_a_visitor_may_close_the_scope() -> None:
    """It gets the report of all the rest, and may still leave."""
    async with Scope("home") as home, Scope("parent") as parent:
        scope = light(parent)
        reports: list[Report] = []

        async def visit() -> None:
            stay = scope.occupy("handler", "closes")
            scope.spawn(anyio.sleep_forever, name="cut")
            await turns()
            reports.append(await scope.aclose())
            stay.end()

        await home.spawn(visit)
        await turns()
        assert [item.name for item in reports[0].cancelled] == ["cut"]
        assert scope.state == "closed"


async def test_a_visitor_leaves_wherever_it_was_handed_to() -> None:
    """A scope that is closed meanwhile, and hands it to its parent, takes it along."""
    async with Scope("home") as home, Scope("parent") as parent:
        scope = light(parent, leftovers="parent")
        begun, go = anyio.Event(), anyio.Event()

        async def visit() -> None:
            stay = scope.occupy("handler", "visits")
            begun.set()
            await go.wait()
            stay.end()

        home.spawn(visit)
        await begun.wait()
        await scope.aclose()
        (entry,) = parent.frontier()
        assert (entry.name, "test_light_guests.py" in (entry.waiting_on or "")) == ("visits", True)
        go.set()
        await parent.idle()
        assert not parent.holds


@on_asyncio
async def test_what_a_visitor_starts_is_adopted() -> None:
    """Its tasks are the scope's, and outlive the visit there."""
    async with Scope("parent", adopt=True) as parent:
        scope = light(parent, adopt=True)
        gate = asyncio.Event()
        stay = scope.occupy("handler", "visits")
        task = asyncio.ensure_future(gate.wait())
        stay.end()
        assert not scope.dissolve()
        ends: list[bool] = []
        scope.when_idle(lambda: ends.append(scope.dissolve()))
        await turns()
        assert ends == []
        gate.set()
        await turns()
        assert (ends, task.done()) == ([True], True)


# Another tree.


@pytest.mark.parametrize("touched", [False, True])
async def test_another_tree_holds_it_until_it_is_closed(*, touched: bool) -> None:
    """While it is open, also without work: who opened it may have more."""
    async with Scope("outer") as outer, Scope("parent") as parent:
        scope = light(parent, "inside")
        scope.held_by(outer)
        if touched:
            scope.spawn(anyio.lowlevel.checkpoint)
            await turns()
        assert [entry.name for entry in outer.frontier()][:1] == ["inside"]
        assert scope.dissolve()
        assert "inside" not in [entry.name for entry in outer.frontier()]


async def test_a_held_scope_says_what_it_waits_for() -> None:
    """The one line in the frontier of the other tree names what is in flight."""
    parent = await Scope.open("parent")
    outer = await Scope.open("outer")
    scope = light(parent, "inside")
    scope.held_by(outer)
    assert [dict(entry.details) for entry in outer.frontier()] == [{}]
    holds = [scope.hold("thing", name) for name in "abcd"]
    (entry,) = outer.frontier()
    assert dict(entry.details) == {"in_flight": "thing a, thing b, thing c, 1 more"}
    assert (entry.kind, entry.is_scope) == ("scope", False)
    for hold in holds:
        hold.release()
    await parent.aclose()
    assert not outer.holds
    await outer.aclose()


async def test_to_close_the_other_tree_cancels_what_is_in_it() -> None:
    """Work in the held scope, and below it, is told to end; and waited for."""
    parent = await Scope.open("parent")
    outer = await Scope.open("outer")
    scope = light(parent, "inside")
    scope.held_by(outer)
    jobs = [
        scope.spawn(anyio.sleep_forever),
        scope.child("below").spawn(anyio.sleep_forever),
    ]
    await turns()
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await scope.idle()
            await scope.aclose()

        group.start_soon(end)
        report = await outer.aclose()
    assert ([item.name for item in report.cancelled], report.stuck) == (["inside"], ())
    assert [job.outcome and job.outcome.status for job in jobs] == ["cancelled", "cancelled"]
    assert scope.state == "closed"
    await parent.aclose()


async def test_an_idle_one_is_no_loss_to_the_other_tree() -> None:
    """Nothing was cut off: it is released when it is closed, and nobody has to be told."""
    parent = await Scope.open("parent")
    outer = await Scope.open("outer")
    scope = light(parent, "inside")
    scope.held_by(outer)
    async with anyio.create_task_group() as group:
        group.start_soon(outer.aclose)
        await turns()
        assert outer.state == "closing"
        scope.dissolve()
    assert outer.report is not None
    assert outer.report.ok
    await parent.aclose()


async def test_a_held_scope_that_does_not_end_is_stuck() -> None:
    """The report of the other tree has it, and its late end harms nobody."""
    parent = await Scope.open("parent")
    outer = await Scope.open("outer")
    async with Stubborn() as stubborn:
        scope = light(parent, "inside")
        scope.held_by(outer)
        scope.spawn(stubborn.run)
        await turns()
        report = await outer.aclose(cleanup=SHORT_SECONDS)
        assert [item.name for item in report.stuck] == ["inside"]
    await scope.idle()
    await scope.aclose()
    await parent.aclose()


async def test_who_is_handed_over_holds_it_there() -> None:
    """When the other tree's scope ends and leaves its work to its parent, that waits on."""
    parent = await Scope.open("parent")
    async with Scope("above") as above:
        outer = above.child("outer", leftovers="parent")
        scope = light(parent, "inside")
        hold = scope.hold("thing", "x")
        scope.held_by(outer)
        await outer.aclose()
        assert [entry.name for entry in above.frontier()] == ["inside"]
        hold.release()
        assert scope.dissolve()
        assert not above.holds
    await parent.aclose()


async def test_a_closed_scope_holds_nothing() -> None:
    """What cannot be held is refused, and stays as it was."""
    outer = await Scope.open("outer")
    await outer.aclose()
    async with Scope("parent") as parent:
        scope = light(parent)
        with pytest.raises(ScopeClosed, match="'outer' is closed"):
            scope.held_by(outer)
        assert scope.dissolve()
