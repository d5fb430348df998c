"""Adoption beside other task factories: theirs work as before, and ours leaves no trace."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from tests.unit.core.adoption_work import LeaveError, Work, drop, others

if TYPE_CHECKING:
    from collections.abc import Callable

    Factory = Callable[..., asyncio.Future[Any]]

pytestmark = pytest.mark.backends("asyncio", "uvloop")

eager_only = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")


class MarkedTask(asyncio.Task[Any]):
    """A task class of somebody else's."""


class NamedFuture(asyncio.Future[None]):
    """The least that asyncio asks of what a factory gives."""

    def set_name(self, _: object) -> None:
        """Ignore the name."""


class Recorder:
    """Somebody else's task factory; it may wrap the one that it found, as instrumentation does."""

    def __init__(self, *, wraps: bool = False) -> None:
        self.made: list[str] = []
        self.found: Factory | None = None
        self._wraps = wraps

    def install(self) -> None:
        """Install it, remembering what was there."""
        loop = asyncio.get_running_loop()
        self.found = loop.get_task_factory()
        loop.set_task_factory(self)

    def take_away(self) -> None:
        """Put back what was there."""
        asyncio.get_running_loop().set_task_factory(self.found)

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        """Make a task, and note for which function."""
        self.made.append(coro.__qualname__)
        if self._wraps and self.found is not None:
            return self.found(loop, coro, **options)
        return MarkedTask(coro, loop=loop, **options)


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Recorder:
    """Return a factory that wraps, or does not."""
    return Recorder(wraps=request.param)


wrapping_or_not = pytest.mark.parametrize(
    "recorder", [True, False], indirect=True, ids=["wrapping", "not wrapping"]
)


@pytest.fixture(params=["before", "after"])
def when(request: pytest.FixtureRequest) -> str:
    """Return whether the other factory comes before or after ours."""
    return str(request.param)


async def work_is_adopted(scope: Scope) -> None:
    """Create a task here, see that the scope holds it, and let it end."""
    work = Work()
    drop(work)
    await work.begun.wait()
    (entry,) = (e for e in scope.frontier().in_flight if "Work" in str(e.waiting_on))
    assert str(entry.where).startswith(drop.__code__.co_filename)
    work.gate.set()
    await scope.idle()
    assert work.ended == ["completed"]


async def work_is_plain() -> None:
    """Create a task here that must be no scope's."""
    work = Work()
    work.gate.set()
    drop(work)
    (task,) = others()
    assert type(task) in {asyncio.Task, MarkedTask}
    await task


TRACES = {"create_task", "get_task_factory", "set_task_factory"}


def no_trace() -> bool:
    """Return whether the loop is as it was made: its own methods, and no factory."""
    loop = asyncio.get_running_loop()
    return TRACES.isdisjoint(vars(loop)) and loop.get_task_factory() is None


@wrapping_or_not
async def test_another_factory_is_still_called_and_the_task_is_adopted(
    recorder: Recorder, when: str
) -> None:
    """Each task goes once through the other factory, before, inside and after, and is held inside."""
    if when == "before":
        recorder.install()
        await work_is_plain()
    async with Scope("adopting", adopt=True) as scope:
        if when == "after":
            recorder.install()
        await work_is_adopted(scope)
        await work_is_adopted(scope)
        assert recorder.made.count("Work.__call__") == 2 + (when == "before")
    await work_is_plain()
    assert recorder.made.count("Work.__call__") == 3 + (when == "before")
    assert asyncio.get_running_loop().get_task_factory() is recorder
    asyncio.get_running_loop().set_task_factory(None)
    assert no_trace()


@wrapping_or_not
async def test_another_factory_that_is_taken_away_again_is_not_called_any_more(
    recorder: Recorder,
) -> None:
    """A factory that comes and goes inside the block leaves the adoption as it was."""
    async with Scope("adopting", adopt=True) as scope:
        recorder.install()
        await work_is_adopted(scope)
        recorder.take_away()
        await work_is_adopted(scope)
        assert recorder.made == ["Work.__call__"]
    await work_is_plain()
    assert recorder.made == ["Work.__call__"]
    assert no_trace()


@wrapping_or_not
@pytest.mark.parametrize("away", ["by what was found", "by none"])
async def test_a_factory_of_before_may_be_taken_away_inside(recorder: Recorder, away: str) -> None:
    """A factory that was there before and goes inside the block is gone after it, too."""
    recorder.install()
    async with Scope("adopting", adopt=True) as scope:
        if away == "by none":
            asyncio.get_running_loop().set_task_factory(None)
        else:
            recorder.take_away()
        await work_is_adopted(scope)
    await work_is_plain()
    assert recorder.made == []
    assert no_trace()


@pytest.mark.parametrize("order", [1, -1])
async def test_two_wrapping_factories_may_come_and_go(order: int) -> None:
    """Factories that wrap each other and ours see each task once, and leave in either order."""
    first, second = Recorder(wraps=True), Recorder(wraps=True)
    async with Scope("adopting", adopt=True) as scope:
        first.install()
        second.install()
        await work_is_adopted(scope)
        assert (len(first.made), len(second.made)) == (1, 1)
        for recorder in (second, first)[::order]:
            recorder.take_away()
        await work_is_adopted(scope)
    expected = {1: None, -1: first}[order]  # out of order, the second puts back the first
    assert asyncio.get_running_loop().get_task_factory() is expected
    asyncio.get_running_loop().set_task_factory(None)
    assert no_trace()


@wrapping_or_not
async def test_a_factory_between_two_scopes_is_called_once(recorder: Recorder) -> None:
    """A factory that is installed between two adopting scopes sees each task once, in both."""
    async with Scope("outer", adopt=True) as outer:
        recorder.install()
        async with Scope("inner", adopt=True) as inner:
            await work_is_adopted(inner)
        assert recorder.made == ["Work.__call__"]
        await work_is_adopted(outer)
        assert recorder.made == ["Work.__call__"] * 2
    async with Scope("next", adopt=True) as scope:
        await work_is_adopted(scope)
        assert recorder.made == ["Work.__call__"] * 3
    recorder.take_away()
    asyncio.get_running_loop().set_task_factory(None)
    assert no_trace()


@pytest.mark.parametrize("order", [1, -1])
async def test_the_factory_is_gone_when_the_last_adopting_scope_has_closed(order: int) -> None:
    """Whatever the order in which they close, adoption ends with the last one, not before."""
    scopes = [await Scope.open(f"scope {n}", adopt=True) for n in range(3)]

    async def in_scope() -> None:
        work = Work()
        work.gate.set()
        drop(work)

    for scope in scopes[::order]:
        assert not no_trace()
        await scope.spawn(in_scope)
        assert len(scope.frontier()) == 1
        report = await scope.drain(grace=5)
        assert report.completed == 2
    assert no_trace()
    await work_is_plain()


async def test_the_factory_is_gone_after_a_block_that_failed() -> None:
    """A block that ends by an error ends the adoption as well."""
    with pytest.raises(LeaveError):
        async with Scope("adopting", adopt=True):
            raise LeaveError
    assert no_trace()


@pytest.mark.parametrize("how", ["bound to the loop", "a function"])
async def test_somebody_elses_create_task_is_called_and_is_there_again(how: str) -> None:
    """A tracer that has put its own in the loop's place finds it where it was."""
    loop: Any = asyncio.get_running_loop()
    make = loop.create_task
    made: list[object] = []

    def traced(*args: Any, **options: Any) -> Any:
        made.append(args[-1])
        return make(args[-1], **options)

    own = MethodType(traced, loop) if how == "bound to the loop" else traced
    loop.create_task = own
    try:
        async with Scope("adopting", adopt=True) as scope:
            await work_is_adopted(scope)
        assert made
        assert loop.create_task is own
    finally:
        del loop.create_task


async def test_the_task_class_of_another_factory_is_kept() -> None:
    """Code that asked for its own class of tasks gets it, adopted."""
    recorder = Recorder()
    recorder.install()
    async with Scope("adopting", adopt=True) as scope:
        task = asyncio.create_task(asyncio.sleep(0), name="marked")
        assert (type(task), [entry.name for entry in scope.frontier()]) == (MarkedTask, ["marked"])
    recorder.take_away()


async def test_a_factory_that_gives_a_bare_future_is_served() -> None:
    """A factory may give anything that is like a future: it is held until it is done."""
    loop = asyncio.get_running_loop()
    made: list[NamedFuture] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **_: Any) -> NamedFuture:
        coro.close()
        made.append(NamedFuture(loop=loop))
        return made[-1]

    async with Scope("adopting", adopt=True) as scope:
        loop.set_task_factory(factory)  # type: ignore[arg-type]  # not a task, on purpose
        asyncio.ensure_future(asyncio.sleep(0))  # noqa: RUF006 - see `made`
        loop.set_task_factory(None)
        assert (len(made), len(scope.frontier())) == (1, 1)
        loop.call_soon(made[0].set_result, None)
        await scope.idle()
        assert made[0].done()


async def test_a_factory_that_fails_leaves_no_hold() -> None:
    """An error of the other factory reaches the creator, and the scope is as idle as before."""

    def factory(_: asyncio.AbstractEventLoop, coro: Any, **__: Any) -> asyncio.Task[Any]:
        coro.close()
        raise LeaveError

    loop = asyncio.get_running_loop()
    async with Scope("adopting", adopt=True) as scope:
        loop.set_task_factory(factory)
        with pytest.raises(LeaveError):
            asyncio.create_task(asyncio.sleep(0))  # noqa: RUF006 - it is not created
        loop.set_task_factory(None)
        assert len(scope.frontier()) == 0


# Eager tasks run their first step inside create_task(). From 3.14 on, tell: uvloop passes eager_start=None otherwise.
EAGERLY: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 14) else {}


@pytest.fixture
def eager(request: pytest.FixtureRequest, when: str) -> Callable[[str], None]:
    """Return a function that installs asyncio's eager factory when it is its time."""
    factory: Factory = vars(asyncio)["eager_task_factory"]  # not in 3.11
    backend = request.node.callspec.params["backend"]
    if backend == "uvloop" and sys.version_info[:2] == (3, 13):
        pytest.skip("uvloop passes eager_start=None, which the eager factory of 3.13 refuses")

    def install(moment: str) -> None:
        if moment == when:
            asyncio.get_running_loop().set_task_factory(factory)

    return install


@eager_only
async def test_an_eager_task_is_adopted(eager: Callable[[str], None]) -> None:
    """A task that waits after its first, eager step is held; the factory is as it was, after."""
    work = Work()
    eager("before")
    async with Scope("adopting", adopt=True) as scope:
        eager("after")
        task = asyncio.create_task(work(), name="eager", **EAGERLY)
        assert work.begun.is_set()
        assert [(e.kind, e.name) for e in scope.frontier()] == [("task", "eager")]
        work.gate.set()
        await task
    assert scope.report is not None
    assert scope.report.completed == 1
    assert asyncio.get_running_loop().get_task_factory() is vars(asyncio)["eager_task_factory"]
    asyncio.get_running_loop().set_task_factory(None)
    assert no_trace()


@eager_only
async def test_an_eager_task_is_held_during_its_first_step(eager: Callable[[str], None]) -> None:
    """The hold is there before the first step runs, and gone when the task ended in that step."""
    seen: list[int] = []

    async def look(deeper: int) -> str:
        seen.append(len(scope.frontier()))
        if deeper:
            await asyncio.create_task(look(deeper - 1), **EAGERLY)
        return str(scope.frontier())

    eager("before")
    async with Scope("adopting", adopt=True) as scope:
        eager("after")
        task = asyncio.create_task(look(2), **EAGERLY)
        assert (seen, task.done()) == ([1, 2, 3], True)
        await scope.idle()
        assert "task" in task.result()
    asyncio.get_running_loop().set_task_factory(None)
    assert scope.report is not None
    assert (scope.report.ok, scope.report.completed) == (True, 3)


@eager_only
async def test_an_eager_task_may_fail_in_its_first_step(eager: Callable[[str], None]) -> None:
    """A failure in the eager step is the waiter's to handle, as with every adopted task."""

    async def fail() -> None:
        raise LeaveError

    eager("before")
    async with Scope("adopting", adopt=True) as scope:
        eager("after")
        with pytest.raises(LeaveError):
            await asyncio.create_task(fail(), **EAGERLY)
        await asyncio.gather(fail(), fail(), return_exceptions=True)
    asyncio.get_running_loop().set_task_factory(None)
    assert scope.report is not None
    assert scope.report.ok


@eager_only
@pytest.mark.parametrize("what", ["close", "spawn in a drain", "idle"])
async def test_an_eager_first_step_is_known_as_work_of_its_scope(
    eager: Callable[[str], None], what: str
) -> None:
    """What the first step may do with its own scope is what every work of the scope may do."""
    seen: list[object] = []
    gate, begun = anyio.Event(), anyio.Event()

    async def first_step(scope: Scope) -> None:
        if what == "close":
            seen.append((await scope.aclose(cleanup=0.05)).stuck)
        elif what == "idle":
            with pytest.raises(RuntimeError, match="wait for itself"):
                await scope.idle()
            seen.append("refused")
        else:
            seen.append(await scope.spawn(asyncio.sleep, 0))

    async def parent() -> None:
        begun.set()
        await gate.wait()
        asyncio.create_task(first_step(scope), **EAGERLY)  # noqa: RUF006 - adopted

    eager("before")
    scope = await Scope.open("adopting", adopt=True)
    eager("after")
    scope.spawn(parent)
    await begun.wait()
    gate.set()
    report = await scope.drain(grace=5)
    asyncio.get_running_loop().set_task_factory(None)
    assert report.stuck == ()
    assert seen == {"close": [()], "idle": ["refused"], "spawn in a drain": [None]}[what]
    assert not report.failed


async def in_asyncio_group(*works: Work) -> None:
    """Run work in a task group."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work())


async def in_gather(*works: Work) -> None:
    """Gather work."""
    await asyncio.gather(*(work() for work in works))


async def in_anyio_group(*works: Work) -> None:
    """Run work in a group of anyio's, which makes tasks past an eager factory."""
    async with anyio.create_task_group() as group:
        for work in works:
            group.start_soon(work)


@eager_only
@pytest.mark.parametrize("group", [in_asyncio_group, in_gather, in_anyio_group])
async def test_groups_work_with_eager_tasks(eager: Callable[[str], None], group: Any) -> None:
    """What a group starts is adopted and torn down with an eager factory as without."""
    works = [Work(), Work()]
    eager("before")
    with suppress(LeaveError):
        async with Scope("adopting", adopt=True) as scope:
            eager("after")
            asyncio.create_task(group(*works))  # noqa: RUF006 - adopted
            for work in works:
                await work.begun.wait()
            assert len(scope.frontier()) == len(others()) == 3
            raise LeaveError
    asyncio.get_running_loop().set_task_factory(None)
    assert ([work.ended for work in works], others()) == ([["cancelled"]] * 2, set())
    assert scope.report is not None
    assert scope.report.stuck == ()


@pytest.mark.backends("uvloop")
async def test_a_task_that_is_created_to_start_eagerly_is_held_before_it_starts() -> None:
    """`create_task(…, eager_start=True)` runs the first step in the call; the hold is there by then."""
    loop: Any = asyncio.get_running_loop()
    seen: list[int] = []

    async def look(scope: Scope) -> None:
        seen.append(len(scope.frontier()))

    async with Scope("not adopting") as plain:
        await loop.create_task(look(plain), eager_start=True)
    async with Scope("adopting", adopt=True) as scope:
        task = loop.create_task(look(scope), eager_start=True)
        await task
    assert seen == [0, 1]
    assert scope.report is not None
    assert scope.report.completed == 1


async def test_two_loops_do_not_mix_up_the_tasks_that_they_make() -> None:
    """While one loop's factory makes a task, another loop asks for its own running task."""
    seen = list[object]()

    def ask_elsewhere() -> None:
        async def ask() -> None:
            scope = await Scope.open("other")
            scope.backend.current()
            seen.append(len(scope.frontier()))
            await scope.aclose()

        asyncio.run(ask())

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        thread = threading.Thread(target=ask_elsewhere)
        thread.start()
        thread.join()
        return asyncio.Task(coro, loop=loop, **options)

    loop = asyncio.get_running_loop()
    async with Scope("a", adopt=True) as scope:
        loop.set_task_factory(factory)
        task = asyncio.create_task(asyncio.Event().wait(), name="ours")
        loop.set_task_factory(None)
        assert [entry.name for entry in scope.frontier().in_flight] == ["ours"]
        task.cancel()
    assert (seen, scope.report and scope.report.withdrawn) == ([0], 1)
