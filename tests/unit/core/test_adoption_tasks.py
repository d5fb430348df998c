"""An adopted task behaves like a plain one, and its failure is lost on nobody."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from tests.unit.core.adoption_work import others

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Scenario = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.backends("asyncio", "uvloop")

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


async def wait() -> None:
    """Wait for ever."""
    await anyio.sleep_forever()


async def fail(message: str = "of the task") -> None:
    """Fail at the first step."""
    raise ValueError(message)


async def names() -> object:
    """See how tasks are named: by number, by the creator, later."""
    numbered = asyncio.create_task(asyncio.sleep(0))
    named = asyncio.create_task(asyncio.sleep(0), name="given")
    later = asyncio.create_task(asyncio.sleep(0))
    later.set_name(7)
    async with asyncio.TaskGroup() as group:
        grouped = group.create_task(asyncio.sleep(0), name="in a group")
    await asyncio.gather(numbered, named, later)
    return [re.sub(r"\d+", "N", task.get_name()) for task in (numbered, named, later, grouped)]


async def contexts() -> object:
    """See in which context tasks run: a copy of the creator's, or the one they are given."""

    async def look() -> str:
        seen = variable.get()
        variable.set("changed by the task")
        return seen

    token = variable.set("of the creator")
    given = contextvars.copy_context()
    given.run(variable.set, "given")
    seen = [
        await asyncio.create_task(look()),
        await asyncio.create_task(look(), context=given),
        await asyncio.get_running_loop().create_task(look(), context=given),
        variable.get(),
    ]
    variable.reset(token)
    return seen


async def cancellation() -> object:
    """See what cancelling does, returns and counts, and that its message arrives."""
    seen: list[object] = []

    async def stubborn() -> str:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError as error:
            me = asyncio.current_task()
            assert me is not None
            seen.extend([error.args, me.cancelling(), me.uncancel(), me.cancelling()])
        return "ended"

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    seen.append(task.cancel("please"))
    return [*seen, await task, task.cancel(), task.cancelled(), task.done()]


async def cancelled_waiter() -> object:
    """See that cancelling one who awaits a task cancels the task, unless it is shielded."""
    tied, shielded = asyncio.create_task(wait()), asyncio.create_task(wait())

    async def wait_for_tied() -> None:
        await tied

    async def wait_for_shielded() -> None:
        await asyncio.shield(shielded)

    waiters = [asyncio.create_task(wait_for_tied()), asyncio.create_task(wait_for_shielded())]
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)
    seen = [waiter.cancelled() for waiter in waiters], tied.cancelled(), shielded.cancelled()
    shielded.cancel()
    await asyncio.wait([shielded])
    return seen


async def result_and_error() -> object:
    """See results and errors, asked for in every way."""

    async def give() -> int:
        return 7

    good, bad = asyncio.create_task(give()), asyncio.create_task(fail())
    done, _ = await asyncio.wait([good, bad])
    with pytest.raises(ValueError, match="of the task"):
        bad.result()
    with pytest.raises(ValueError, match="of the task"):
        await bad
    return good.result(), await good, repr(bad.exception()), good.exception(), len(done)


async def identity() -> object:
    """See that a task is the current one while it runs, is among all tasks, and is a Task."""

    async def look() -> object:
        me = asyncio.current_task()
        return me is task, task in asyncio.all_tasks(), isinstance(task, asyncio.Task), task.done()

    task = asyncio.create_task(look())
    before = task in asyncio.all_tasks(), task.get_loop() is asyncio.get_running_loop()
    return before, await task, task in asyncio.all_tasks(), bool(task.get_coro())


async def callbacks() -> object:
    """See that callbacks run after the end, in order, in their context, unless removed."""
    seen: list[str] = []

    def note(name: str) -> Callable[[object], None]:
        return lambda _: seen.append(f"{name} in {variable.get()}")

    context = contextvars.copy_context()
    context.run(variable.set, "another context")
    task = asyncio.create_task(asyncio.sleep(0))
    removed = note("removed")
    for callback in (note("first"), removed, note("second")):
        task.add_done_callback(callback)
    task.add_done_callback(note("third"), context=context)
    count = task.remove_done_callback(removed)
    await task
    await asyncio.sleep(0)
    return count, seen


async def group_fails() -> object:
    """See that a task group cancels the siblings of the one that failed, and raises."""
    siblings: list[asyncio.Task[None]] = []

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            siblings.append(tasks.create_task(wait()))
            tasks.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await group()
    return repr(caught.value.exceptions), [sibling.cancelled() for sibling in siblings]


async def gather_fails() -> object:
    """See that a gathered error arrives once, and the others go on."""
    gate = anyio.Event()
    other = asyncio.create_task(gate.wait())
    with pytest.raises(ValueError, match="of the task"):
        await asyncio.gather(fail(), other)
    gate.set()
    await other
    return repr(await asyncio.gather(fail("a"), fail("b"), return_exceptions=True))


async def time_limit() -> object:
    """See that a time limit cancels what it limits."""
    task = asyncio.create_task(wait())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 0)
    return task.cancelled()


SCENARIOS: list[Scenario] = [
    names,
    contexts,
    cancellation,
    cancelled_waiter,
    result_and_error,
    identity,
    callbacks,
    group_fails,
    gather_fails,
    time_limit,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_an_adopted_task_behaves_like_a_plain_one(scenario: Scenario) -> None:
    """What a program sees of its own tasks is the same with and without adoption, and raises nothing."""
    plain = await scenario()
    async with Scope("adopting", adopt=True) as scope:
        adopted = await scenario()
    assert adopted == plain
    assert scope.report is not None
    assert scope.report.ok


def plain_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make tasks as a program's own factory would."""
    return asyncio.Task(coro, loop=loop, **options)


@pytest.fixture(params=["no other factory", "another factory"])
def factory(request: pytest.FixtureRequest) -> Any:
    """Return the task factory that is there before the scope."""
    return None if request.param == "no other factory" else plain_factory


class Installed:
    """Installs a task factory for a block, as a program that has one would."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory

    def __enter__(self) -> None:
        asyncio.get_running_loop().set_task_factory(self._factory)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_task_factory(None)


async def test_a_failure_that_somebody_handles_is_not_the_scopes(factory: Any) -> None:
    """An error that the awaiting code catches is neither raised at the end nor in the report."""
    with Installed(factory):
        async with Scope("adopting", adopt=True) as scope:
            task = asyncio.create_task(fail())
            with pytest.raises(ValueError, match="of the task"):
                await task
    assert scope.report is not None
    assert (scope.report.ok, len(scope.report.failed)) == (True, 0)


@pytest.mark.parametrize("collected", [True, False])
async def test_a_failure_that_nobody_asks_for_is_in_the_report(
    factory: Any, *, collected: bool
) -> None:
    """An error of a dropped task is reported once, and raised at the end, whenever it is collected."""
    kept: list[object] = []
    scope = Scope("adopting", adopt=True)

    async def program() -> None:
        async with scope:
            task = asyncio.create_task(fail(), name="dropped")
            if not collected:
                kept.append(task)
            del task
            await scope.idle()
            gc.collect()

    with Installed(factory), pytest.raises(ExceptionGroup) as caught:
        await program()
    (error,) = caught.value.exceptions
    assert scope.report is not None
    (entry,) = scope.report.failed
    assert (entry.name, entry.kind, entry.error) == ("dropped", "task", error)
    assert isinstance(error, ValueError)
    assert str(entry.where).startswith(__file__)


async def test_many_handled_failures_are_not_kept() -> None:
    """A scope that lives long does not collect the tasks whose failures were handled."""
    async with Scope("adopting", adopt=True) as scope:
        for _ in range(1000):
            await asyncio.gather(fail(), return_exceptions=True)
        assert len(scope.unasked_failures) < 200
    assert scope.report is not None
    assert scope.report.ok


async def test_a_failure_among_many_handled_ones_is_still_reported(factory: Any) -> None:
    """However many failures others have handled, the one that nobody asked for is named."""
    kept: list[object] = []
    scope = Scope("adopting", adopt=True)

    async def program() -> None:
        async with scope:
            kept.append(asyncio.create_task(fail(), name="unasked"))
            for _ in range(300):
                await asyncio.gather(fail(), return_exceptions=True)

    with Installed(factory), pytest.raises(ExceptionGroup):
        await program()
    assert scope.report is not None
    assert [entry.name for entry in scope.report.failed] == ["unasked"]


async def test_a_cancelled_task_is_no_failure() -> None:
    """A task that its creator cancelled counts as withdrawn, and the block ends well."""
    async with Scope("adopting", adopt=True) as scope:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
    assert scope.report is not None
    assert (scope.report.ok, scope.report.withdrawn) == (True, 1)


async def test_a_task_that_swallows_cancellation_is_named_with_its_stack(factory: Any) -> None:
    """An adopted task that does not end by the deadline is stuck, with the line it waits at."""
    stop, begun = anyio.Event(), anyio.Event()

    async def stubborn() -> None:
        begun.set()
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    scope = await Scope.open("adopting", adopt=True)
    with Installed(factory):

        async def create() -> None:
            asyncio.create_task(stubborn(), name="stubborn")  # noqa: RUF006 - adopted

        await scope.spawn(create)
        await begun.wait()
        report = await scope.aclose(cleanup=0.05)
    (entry,) = report.stuck
    assert (entry.name, entry.kind) == ("stubborn", "task")
    assert any("stubborn" in frame for frame in entry.stack)
    stop.set()
    await asyncio.gather(*others())


async def test_a_job_that_waits_for_the_task_that_closes_is_not_stuck() -> None:
    """A job may await a task of its own that closes their scope: neither waits for the other."""
    ended: list[str] = []

    async def close() -> None:
        await scope.aclose(cleanup=0.05)

    async def work() -> None:
        try:
            await asyncio.create_task(close())
        finally:
            ended.append("work")

    scope = await Scope.open("adopting", adopt=True)
    scope.spawn(work)
    await scope.closing()
    report = await scope.aclose()
    assert (report.stuck, ended) == ((), ["work"])


async def test_a_task_without_a_name_is_called_by_its_function() -> None:
    """`Task-7` says nothing to whoever reads a frontier."""

    async def housekeeping() -> None:
        await anyio.sleep_forever()

    async with Scope("a", adopt=True, grace=0) as scope:
        tasks = [asyncio.create_task(housekeeping(), name=name) for name in (None, "cleaner")]
        names = [entry.name for entry in scope.frontier()]
        for task in tasks:
            task.cancel()
    assert [name.rpartition(".")[2] for name in names] == ["housekeeping", "cleaner"]
