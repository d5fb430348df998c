"""Contexts that cannot be entered or left as they should: failures, hangs and cancellation."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, ScopeClosed
from tests.stress import Raising, Resource, Stubborn, lasting, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PROMPT = 1.0


# Failures.


async def test_a_context_that_cannot_be_entered_leaves_those_before_it() -> None:
    """The error is raised by `enter`, and the scope goes on with what it has."""
    log: list[str] = []

    class Broken(Resource):
        async def opening(self) -> None:
            raise KeyError("broken")

    async with Scope("a") as scope:
        await scope.enter(Resource("a", log))
        with pytest.raises(KeyError, match="broken"):
            await scope.enter(Broken("b", log))
        await scope.enter(Resource("c", log))
    assert log == ["enter a", "enter c", "exit c", "exit a"]
    assert scope.report is not None
    assert scope.report.ok


async def test_the_failure_of_a_later_enter_ends_the_block_and_leaves_the_earlier() -> None:
    """As with an exit stack: what was entered is left, with the error that ends the block."""
    resource = Resource()

    class Broken(Resource):
        async def opening(self) -> None:
            raise KeyError("broken")

    async with Raising(KeyError), Scope("a") as scope:
        await scope.enter(resource)
        await scope.enter(Broken())
    assert not resource.is_open
    assert isinstance(resource.error, KeyError)


async def test_a_failure_to_leave_does_not_keep_the_others_entered() -> None:
    """Each is left, and each failure is reported."""
    log: list[str] = []

    class Broken(Resource):
        async def leaving(self) -> None:
            raise KeyError(self.name)

    async with Raising(ExceptionGroup) as caught, Scope("s") as scope:
        for name in "abc":
            await scope.enter(Broken(name, log))
    assert log[3:] == ["exit c", "exit b", "exit a"]
    assert sorted(str(error) for error in caught.value.exceptions) == ["'a'", "'b'", "'c'"]


class HangingExit(Resource):
    """A context that never leaves by itself."""

    def __init__(self, name: str, log: list[str], hang: Callable[[], Any]) -> None:
        super().__init__(name, log)
        self._hang = hang

    async def leaving(self) -> None:
        """Hang."""
        await self._hang()


@pytest.mark.parametrize("hanging", ["first", "middle", "last"])
async def test_a_context_that_hangs_on_leaving_is_reported_and_the_others_are_left(
    hanging: str,
) -> None:
    """It meets the deadline, as stuck, and the rest is left all the same."""
    log: list[str] = []
    async with Stubborn() as stubborn:
        scope = await Scope.open("s")
        for name in ("first", "middle", "last"):
            if name == hanging:
                await scope.enter(HangingExit(name, log, stubborn.run))
            else:
                await scope.enter(Resource(name, log))
        begun = anyio.current_time()
        report = await scope.aclose(cleanup=0.1)
        assert anyio.current_time() - begun < 0.1 + PROMPT
        assert sorted(log[3:]) == ["exit first", "exit last", "exit middle"]
        (stuck,) = report.stuck
        assert "HangingExit" in stuck.name
        assert any("HangingExit.leaving" in frame for frame in stuck.stack)


async def test_a_context_that_can_be_cancelled_on_leaving_is_not_stuck() -> None:
    """At the deadline the leaving is cancelled, and where that helps, it has ended."""
    log: list[str] = []
    rescue = anyio.Event()
    scope = await Scope.open("s")
    await scope.enter(Resource("outer", log))
    await scope.enter(HangingExit("hanging", log, rescue.wait))
    report = await scope.aclose(cleanup=0.1)
    rescue.set()  # or a mistake would hang the test as well
    await turns()
    assert log[2:] == ["exit hanging", "exit outer"]
    assert not report.stuck


@pytest.mark.parametrize("culprit", ["job", "hold"])
async def test_contexts_are_left_although_something_is_stuck(culprit: str) -> None:
    """What did not end by the deadline does not keep a context from being left."""
    log: list[str] = []
    async with Stubborn() as stubborn:
        scope = await Scope.open("s")
        await scope.enter(Resource("outer", log))
        await scope.enter(Resource("inner", log))
        if culprit == "job":
            scope.spawn(stubborn.run, name="culprit")
        else:
            scope.hold("request", "culprit")
        await turns()
        report = await scope.aclose(cleanup=0.05)
        assert log[2:] == ["exit inner", "exit outer"]
        assert [lost.name for lost in [*report.stuck, *report.undelivered]] == ["culprit"]


async def test_the_deadline_is_one_for_the_work_and_the_contexts(backend: str) -> None:
    """A stuck job and a context that hangs share the time there is; they do not take turns."""
    within = 0.8 if backend == "uvloop" else 3.0
    async with Stubborn() as stubborn:
        scope = await Scope.open("s")
        await scope.enter(HangingExit("hanging", [], stubborn.run))
        scope.spawn(stubborn.run, name="stubborn")
        await turns()
        begun = anyio.current_time()
        report = await scope.aclose(cleanup=within)
        assert anyio.current_time() - begun < 1.5 * within
        assert len(report.stuck) == 2


# Interrupted.


class SlowEnter(Resource):
    """A context that takes until it is told to enter."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()
        self.go_on = anyio.Event()
        self.cleaned = False

    async def opening(self) -> None:
        """Wait to be told, and clean up if that is cut short."""
        self.begun.set()
        try:
            await self.go_on.wait()
        finally:
            await lasting(0.01)
            self.cleaned = True


async def test_cancelled_while_entering() -> None:
    """The entering is cancelled, and has ended, before the cancellation comes out."""
    context = SlowEnter()
    async with Scope("a") as scope:
        with anyio.CancelScope() as impatience:
            async with anyio.create_task_group() as group:
                group.start_soon(scope.enter, context)
                await context.begun.wait()
                impatience.cancel()
        assert impatience.cancelled_caught
        assert context.cleaned
        assert not scope.contexts
    assert not context.is_open
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.backends("asyncio", "uvloop")  # on trio, a cancellation lasts
async def test_given_up_and_then_closed_it_is_cancelled_once() -> None:
    """A close that comes while a cancelled caller waits does not cut what the manager cleans up."""
    log: list[str] = []
    go_on = anyio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            await anyio.sleep_forever()
            yield
        finally:
            await go_on.wait()
            log.append("cleaned up")

    scope = await Scope.open("a")
    caller = asyncio.create_task(scope.enter(slow()))
    await turns()
    caller.cancel()
    await turns()
    closing = asyncio.create_task(scope.aclose())
    await turns()
    go_on.set()
    await asyncio.wait({caller, closing})
    assert caller.cancelled()
    assert log == ["cleaned up"]


async def test_cancelled_in_the_step_in_which_it_is_entered() -> None:
    """What was entered too late to be given to anybody is left again."""
    resource = Resource()
    async with Scope("a") as scope:
        for count in range(8):
            with anyio.CancelScope() as impatience:
                async with anyio.create_task_group() as group:
                    group.start_soon(scope.enter, resource)
                    await turns(count)
                    impatience.cancel()
            if resource.is_open:  # it was entered before the cancellation came
                await scope.exit(resource)
    assert not resource.is_open
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_closed_while_entering(how: str) -> None:
    """The one who enters is told that the scope was closed, and nothing stays entered."""
    outcomes: list[BaseException] = []
    context = SlowEnter()

    async def enterer() -> None:
        try:
            await scope.enter(context)
        except ScopeClosed as error:
            outcomes.append(error)

    scope = await Scope.open("a")
    async with anyio.create_task_group() as group:
        group.start_soon(enterer)
        await context.begun.wait()
        report = await (scope.aclose() if how == "aclose" else scope.drain(grace=0.01))
    assert len(outcomes) == 1
    assert context.cleaned
    assert not context.is_open
    assert not report.stuck


async def test_a_drain_waits_for_what_is_being_entered() -> None:
    """Entering is work: a drain lets it finish, and leaves the context again."""
    context = SlowEnter()
    entered = []

    async def enterer() -> None:
        entered.append(await scope.enter(context))

    scope = await Scope.open("a")
    async with anyio.create_task_group() as group:
        group.start_soon(enterer)
        await context.begun.wait()
        group.start_soon(scope.drain)
        await turns()
        assert scope.state == "draining"
        context.go_on.set()
    assert entered == [context]
    assert context.log == ["enter resource", "exit resource"]


async def test_closed_while_a_context_cannot_be_entered_nor_cancelled() -> None:
    """The one who enters is released at the deadline, and the context is reported as stuck."""
    outcomes: list[BaseException] = []

    class Hanging(Resource):
        async def opening(self) -> None:
            await stubborn.run()

    async def enterer() -> None:
        try:
            await scope.enter(context)
        except ScopeClosed as error:
            outcomes.append(error)

    async with Stubborn() as stubborn:
        context = Hanging()
        scope = await Scope.open("a")
        with anyio.CancelScope() as rescue:
            async with anyio.create_task_group() as group:
                group.start_soon(enterer)
                await turns()
                report = await scope.aclose(cleanup=0.05)
                await turns(20)
                rescue.cancel()  # of a caller that hangs
        assert len(outcomes) == 1, "enter() hangs"
        assert any("Hanging" in stuck.name for stuck in report.stuck)
    assert not context.is_open


async def test_entering_in_a_closed_scope_is_refused() -> None:
    """The context is not touched."""
    resource = Resource()
    scope = await Scope.open("a")
    await scope.aclose()
    with pytest.raises(ScopeClosed):
        await scope.enter(resource)
    assert resource.log == []
