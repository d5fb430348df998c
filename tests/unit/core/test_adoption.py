"""Adoption: whoever creates a task inside an adopting scope, the scope owns it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError, current_scope, detached
from tests.unit.core.adoption_work import LeaveError, Work, drop, others

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    Way = Callable[[Work], Awaitable[object]]

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def by_create_task(work: Work) -> None:
    """Create a task as most code does."""
    drop(work)


async def by_ensure_future(work: Work) -> None:
    """Make a future of a coroutine."""
    asyncio.ensure_future(work())  # noqa: RUF006 - nobody keeps it


async def by_loop(work: Work) -> None:
    """Ask the loop itself."""
    asyncio.get_running_loop().create_task(work())


async def by_task_group(work: Work) -> None:
    """Run it in a task group of a task."""

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())

    asyncio.create_task(group())  # noqa: RUF006 - nobody keeps it


async def by_anyio(work: Work) -> None:
    """Run it in an anyio task group of a task."""

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)

    asyncio.create_task(group())  # noqa: RUF006 - nobody keeps it


async def by_gather(work: Work) -> None:
    """Gather it."""

    async def gather() -> None:
        await asyncio.gather(work())

    asyncio.create_task(gather())  # noqa: RUF006 - nobody keeps it


async def by_shield(work: Work) -> object:
    """Shield it."""
    return asyncio.shield(work())


async def by_wait_for(work: Work) -> None:
    """Limit its time; Python 3.11 makes a second task of that."""
    asyncio.create_task(asyncio.wait_for(work(), 60))  # noqa: RUF006 - nobody keeps it


async def by_as_completed(work: Work) -> None:
    """Take it as it completes."""

    async def take() -> None:
        for first in asyncio.as_completed([work()]):
            await first

    asyncio.create_task(take())  # noqa: RUF006 - nobody keeps it


async def by_call_soon(work: Work) -> None:
    """Create it in a callback."""
    asyncio.get_running_loop().call_soon(drop, work)


async def by_call_soon_of_the_loops_method(work: Work) -> None:
    """Create it in a callback that has no frame of the user's."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.create_task, work())


async def by_call_later(work: Work) -> None:
    """Create it in a timer."""
    asyncio.get_running_loop().call_later(0, drop, work)


async def by_done_callback(work: Work) -> None:
    """Create it in a callback of a future."""
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: drop(work))
    future.set_result(None)


async def by_threadsafe_call(work: Work) -> None:
    """Hand it over as another thread would."""
    asyncio.run_coroutine_threadsafe(work(), asyncio.get_running_loop())


async def by_finalizer(work: Work) -> None:
    """Abandon an async generator: the loop creates a task that finalizes it."""

    async def generate() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await work()

    generator = generate()
    await anext(generator)
    del generator
    gc.collect()


WAYS: list[Any] = [
    by_create_task,
    by_ensure_future,
    by_loop,
    by_task_group,
    by_anyio,
    by_gather,
    by_shield,
    by_wait_for,
    by_as_completed,
    by_call_soon,
    by_call_soon_of_the_loops_method,
    by_call_later,
    by_done_callback,
    by_threadsafe_call,
    pytest.param(by_finalizer, marks=pytest.mark.quiesce(allow=["generator:by_finalizer.*"])),
]


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_creates_a_task_the_scope_holds_it(way: Way) -> None:
    """Every task that is born inside is in the frontier, and the end of the block waits for it."""
    work = Work()
    async with Scope("adopting", adopt=True) as scope:
        kept = await way(work)
        await work.begun.wait()
        assert len(others()) == len(scope.frontier()) >= 1
        work.gate.set()
    assert (work.ended, others(), kept) == (["completed"], set(), kept)
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_creates_a_task_the_close_ends_it(way: Way) -> None:
    """A close cancels and joins every task that was born inside."""
    work = Work()
    with suppress(LeaveError):
        async with Scope("adopting", adopt=True) as scope:
            kept = await way(work)
            await work.begun.wait()
            raise LeaveError
    assert (work.ended, others(), kept) == (["cancelled"], set(), kept)
    assert scope.report is not None
    assert scope.report.stuck == ()


@pytest.mark.parametrize("way", WAYS)
async def test_the_frontier_names_where_the_user_started_it(way: Way) -> None:
    """No task is said to be started inside asyncio, anyio or the loop's runner."""
    work = Work()
    async with Scope("adopting", adopt=True) as scope:
        kept = await way(work)
        await work.begun.wait()
        files = {str(entry.where).rpartition(":")[0] for entry in scope.frontier().in_flight}
        work.gate.set()
    # Without a frame of the user's, the place of the function that runs is the next best.
    ours = {__file__, Work.__call__.__code__.co_filename}
    assert (files - ours, kept) == (set(), kept)


async def test_a_servers_connection_is_adopted_where_the_server_was_started(tmp_path: Path) -> None:
    """The task that a server makes for a connection belongs to the scope that started the server."""
    begun, gate = anyio.Event(), anyio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await gate.wait()
        writer.close()

    path = str(tmp_path / "socket")
    async with Scope("adopting", adopt=True) as scope:
        server = await asyncio.start_unix_server(serve, path)
        reader, writer = await asyncio.open_unix_connection(path)
        await begun.wait()
        (entry,) = (e for e in scope.frontier().in_flight if "serve" in str(e.waiting_on))
        gate.set()
        await reader.read()
        writer.close()
        server.close()
    assert str(entry.where).rpartition(":")[0] == __file__


@pytest.mark.parametrize("module", ["asyncio_of_mine", "anyio_extras", "quiesce_plugin"])
async def test_a_module_with_a_similar_name_is_not_taken_for_plumbing(module: str) -> None:
    """Only asyncio, anyio and quiesce themselves are passed over in the search for the user's line."""
    names: dict[str, Any] = {"__name__": module}
    code = compile("def start(create, coro):\n    return create(coro)\n", "theirs.py", "exec")
    exec(code, names)  # noqa: S102 - a module of that name
    async with Scope("adopting", adopt=True) as scope:
        kept = names["start"](asyncio.create_task, asyncio.sleep(0))
        assert [entry.where for entry in scope.frontier()] == ["theirs.py:2"]
        await kept


@pytest.mark.quiesce(allow=["task:*.wait"])
async def test_a_task_that_nobody_refers_to_is_not_collected() -> None:
    """A task that waits on what only it refers to survives the collector inside, not outside."""

    async def wait(note: list[weakref.ref[asyncio.Future[None]]]) -> None:
        future = asyncio.get_running_loop().create_future()
        note.append(weakref.ref(future))
        await future

    outside: list[weakref.ref[asyncio.Future[None]]] = []
    inside: list[weakref.ref[asyncio.Future[None]]] = []
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    complaints: list[str] = []
    loop.set_exception_handler(lambda _, context: complaints.append(str(context["message"])))
    asyncio.create_task(wait(outside))  # noqa: RUF006 - to be lost
    async with Scope("adopting", adopt=True):
        asyncio.create_task(wait(inside))  # noqa: RUF006 - to be kept
        await anyio.lowlevel.checkpoint()
        gc.collect()
        assert (outside[0](), complaints) == (None, ["Task was destroyed but it is pending!"])
        future = inside[0]()
        assert future is not None
        future.set_result(None)
    loop.set_exception_handler(handler)


async def test_the_innermost_adopting_scope_owns() -> None:
    """Of two nested adopting scopes, the inner one owns what is born inside it."""
    work, outer_work = Work(), Work()
    async with Scope("outer", adopt=True) as outer:
        drop(outer_work)
        with suppress(LeaveError):
            async with Scope("inner", adopt=True) as inner:
                drop(work)
                await work.begun.wait()
                assert (len(inner.frontier()), len(outer.frontier())) == (1, 2)
                raise LeaveError
        assert (work.ended, outer_work.ended) == (["cancelled"], [])
        drop(work)
        assert (len(inner.frontier()), len(outer.frontier())) == (0, 2)
        work.gate.set()
        outer_work.gate.set()


async def test_a_scope_that_does_not_adopt_leaves_it_to_the_one_around_it() -> None:
    """A task born in a plain scope belongs to the adopting one around, and outlives the plain one."""
    work = Work()
    async with Scope("outer", adopt=True) as outer:
        async with Scope("inner") as inner:
            await inner.spawn(by_create_task, work)
            await work.begun.wait()
            assert (len(inner.frontier()), len(outer.frontier())) == (0, 1)
        assert (inner.state, work.ended) == ("closed", [])
        work.gate.set()
    assert work.ended == ["completed"]


async def test_two_adopting_scopes_side_by_side_do_not_mix() -> None:
    """Each of two scopes in two tasks owns what is born in it, and ends nothing of the other's."""
    works = Work(), Work()
    scopes: dict[Work, Scope] = {}
    leave = {work: anyio.Event() for work in works}

    async def use(work: Work) -> None:
        async with Scope("adopting", adopt=True) as scopes[work]:
            drop(work)
            await leave[work].wait()
            if work is works[0]:
                raise LeaveError

    users = [asyncio.create_task(use(work)) for work in works]
    for work in works:
        await work.begun.wait()
    assert [len(scopes[work].frontier()) for work in works] == [1, 1]
    leave[works[0]].set()
    with pytest.raises(LeaveError):
        await users[0]
    assert [work.ended for work in works] == [["cancelled"], []]
    leave[works[1]].set()
    works[1].gate.set()
    await users[1]
    assert works[1].ended == ["completed"]


async def test_a_method_that_a_library_took_before_is_adopted_from_as_well() -> None:
    """A library may have kept `loop.create_task`, from before, or from an earlier adopting scope."""
    took = [asyncio.get_running_loop().create_task]
    async with Scope("first", adopt=True):
        took.append(asyncio.get_running_loop().create_task)
    for create in took:
        work = Work()
        async with Scope("adopting", adopt=True) as scope:
            kept = create(work())
            await work.begun.wait()
            assert len(scope.frontier()) == 1
            work.gate.set()
        assert (work.ended, kept.done()) == (["completed"], True)
    outside = [create(asyncio.sleep(0)) for create in took]
    assert {type(task) for task in outside} == {asyncio.Task}
    await asyncio.gather(*outside)


async def test_what_is_outside_is_not_adopted() -> None:
    """A task of before, one that it creates meanwhile, and one of afterwards stay plain tasks."""
    work, ask = Work(), anyio.Event()
    created: list[asyncio.Task[None]] = []

    async def older() -> None:
        await ask.wait()
        created.append(asyncio.create_task(work()))

    before = asyncio.create_task(older())
    async with Scope("adopting", adopt=True) as scope:
        ask.set()
        await before
        await work.begun.wait()
        assert (others(), len(scope.frontier())) == (set(created), 0)
    after = asyncio.create_task(asyncio.sleep(0))
    assert {type(task) for task in (before, *created, after)} == {asyncio.Task}
    assert work.ended == []
    work.gate.set()
    await asyncio.gather(after, *created)


async def test_an_opened_scope_adopts_in_its_jobs_alone() -> None:
    """Scope.open() leaves its caller where it was, so only what its jobs create is adopted."""
    outside, inside = Work(), Work()
    scope = await Scope.open("opened", adopt=True)
    task = asyncio.create_task(outside())
    await scope.spawn(by_create_task, inside)
    await inside.begun.wait()
    assert len(scope.frontier()) == 1
    report = await scope.aclose()
    assert (inside.ended, outside.ended, len(report.cancelled)) == (["cancelled"], [], 1)
    outside.gate.set()
    await task


@pytest.mark.parametrize("around", [True, False])
async def test_a_late_callback_belongs_to_the_scope_around_the_closed_one(*, around: bool) -> None:
    """A callback that fires after the close makes a task of the next adopting scope, or a plain one."""
    work = Work()
    future = asyncio.get_running_loop().create_future()
    async with Scope("outer", adopt=around) as outer:
        async with Scope("inner", adopt=True):
            future.add_done_callback(lambda _: drop(work))
        future.set_result(None)
        await work.begun.wait()
        assert len(outer.frontier()) == around
        work.gate.set()
    await asyncio.gather(*others())
    assert work.ended == ["completed"]


async def test_work_that_is_drained_may_still_create_tasks() -> None:
    """A task that running work creates during the grace is adopted, and waited for."""
    begun, gate, inner = anyio.Event(), anyio.Event(), Work()

    async def work() -> None:
        begun.set()
        await gate.wait()
        drop(inner)

    async with Scope("adopting", adopt=True) as scope:
        asyncio.create_task(work())  # noqa: RUF006 - adopted
        await begun.wait()
        gate.set()
        inner.gate.set()
        report = await scope.drain(grace=5)
    assert (inner.ended, report.ok, report.completed) == (["completed"], True, 2)


async def test_what_a_cleanup_creates_is_let_be_while_the_cleanup_waits_for_it() -> None:
    """A cancelled task may clean up in a task of its own; one that it drops is ended in its turn."""
    begun, cleaned, dropped = anyio.Event(), Work(), Work()
    cleaned.gate.set()

    async def work() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.create_task(cleaned())
            drop(dropped)

    with suppress(LeaveError):
        async with Scope("adopting", adopt=True) as scope:
            asyncio.create_task(work())  # noqa: RUF006 - adopted
            await begun.wait()
            raise LeaveError
    assert (cleaned.ended, others()) == (["completed"], set())
    assert scope.report is not None
    assert (len(scope.report.cancelled), scope.report.stuck) == (2, ())


async def test_a_task_created_by_a_job_after_it_closed_its_scope_is_not_lost() -> None:
    """A job that has closed its own scope may still create a task: the close ends it, and says so."""
    late = Work()

    async def closer(scope: Scope) -> None:
        await scope.aclose(cleanup=5)
        drop(late)
        await late.begun.wait()

    scope = await Scope.open("adopting", adopt=True)
    await scope.spawn(closer, scope)
    report = await scope.aclose()
    left = others()
    late.gate.set()
    await asyncio.gather(*left)
    assert (left, late.ended) == (set(), ["cancelled"])
    assert (len(report.cancelled), report.stuck) == (1, ())


@pytest.mark.parametrize("how", ["empty context", "detached"])
async def test_an_adopted_task_outside_of_the_scopes_context_may_close_the_scope(how: str) -> None:
    """The close knows its own task as one that waits for it, also where the context was replaced."""

    async def close() -> None:
        if how == "detached":
            with detached():
                report = await scope.aclose(cleanup=0.05)
        else:
            report = await scope.aclose(cleanup=0.05)
        reports.append(report)

    reports: list[Any] = []
    context = Context() if how == "empty context" else None
    async with Scope("adopting", adopt=True) as scope:
        asyncio.create_task(close(), context=context)  # noqa: RUF006 - adopted
    assert scope.report is not None
    assert (scope.report.stuck, len(reports)) == ((), 1)


async def test_detached_code_creates_plain_tasks() -> None:
    """What is created in `detached()`, and by that in its turn, is no scope's, and outlives it."""
    inner, ask = Work(), anyio.Event()

    async def housekeeper() -> None:
        assert current_scope() is None
        await ask.wait()
        drop(inner)

    async with Scope("adopting", adopt=True) as scope:
        with detached():
            task = asyncio.create_task(housekeeper())
        assert current_scope() is scope
        assert len(scope.frontier()) == 0
        ask.set()
        await task
        await inner.begun.wait()
        assert len(scope.frontier()) == 0
    assert inner.ended == []
    inner.gate.set()
    await asyncio.gather(*others())


@pytest.mark.backends("trio")
async def test_on_trio_adoption_is_a_clear_error() -> None:
    """On trio the option is refused, with the reason, and nothing stays open."""
    with pytest.raises(UsageError, match=r"asyncio and uvloop only.*nursery"):
        async with Scope("adopting", adopt=True):
            pass  # pragma: no cover
    with pytest.raises(UsageError, match="asyncio and uvloop only"):
        await Scope.open("adopting", adopt=True)
    async with Scope("parent") as parent:
        with pytest.raises(UsageError, match="asyncio and uvloop only"):
            parent.child("adopting", adopt=True)
        assert str(parent.frontier()) == "scope 'parent' (open): nothing in flight"
