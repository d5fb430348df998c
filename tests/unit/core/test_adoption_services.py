"""Adopted tasks that are loops, or that outlive the scope they happened to be born in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import anyio
import pytest

from quiesce import Scope
from tests.unit.core.adoption_work import LeaveError, Work, drop, others

pytestmark = pytest.mark.backends("asyncio", "uvloop")


def plain_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make tasks as a program's own factory would."""
    return asyncio.Task(coro, loop=loop, **options)


@pytest.fixture(params=[None, plain_factory], ids=["no other factory", "another factory"])
def factory(request: pytest.FixtureRequest) -> Any:
    """Return the task factory that the program uses."""
    return request.param


class Pool:
    """A library that starts a housekeeper for the whole process when it is first used."""

    def __init__(self, *, name: str | None = None, renamed: str | None = None) -> None:
        self._name = name
        self._renamed = renamed
        self.task: asyncio.Task[None] | None = None
        self.ended: list[str] = []
        self.turns = 0
        self.turn = anyio.Event()
        self.turned = anyio.Event()

    async def housekeeper(self) -> None:
        """Serve until cancelled; each turn is asked for and seen."""
        try:
            while True:
                await self.turn.wait()
                self.turn = anyio.Event()
                self.turns += 1
                self.turned.set()
        finally:
            self.ended.append("ended")

    def use(self) -> None:
        """Start the housekeeper unless it runs."""
        if self.task is None:
            self.task = asyncio.create_task(self.housekeeper(), name=self._name)
            if self._renamed is not None:
                self.task.set_name(self._renamed)

    async def is_alive(self) -> bool:
        """Return whether the housekeeper does a turn when it is asked to."""
        assert self.task is not None
        self.turned = anyio.Event()
        self.turn.set()
        with anyio.move_on_after(0.2):
            await self.turned.wait()
        return self.turned.is_set() and not self.task.done()

    async def end(self) -> None:
        """Stop it, as the end of the process would."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("pool.housekeeper", ["pool.housekeeper"]),
        ("pool.housekeeper", ["nothing", "pool.*"]),
        ("pool[0]", ["pool[[]0]"]),
        (None, ["Pool.housekeeper"]),
        (None, ["*.housekeeper"]),
    ],
)
async def test_a_service_is_owned_but_does_not_keep_the_scope_busy(
    factory: Any, name: str | None, patterns: list[str]
) -> None:
    """A task whose name or function is among the services is shown as one, and stopped at the end."""
    pool, work = Pool(name=name), Work()
    work.gate.set()
    asyncio.get_running_loop().set_task_factory(factory)
    async with Scope("adopting", adopt=True, services=patterns) as scope:
        pool.use()
        drop(work)
        await scope.idle()
        assert await pool.is_alive()
        assert [entry.service for entry in scope.frontier()] == [True]
    asyncio.get_running_loop().set_task_factory(None)
    assert (work.ended, pool.ended, others()) == (["completed"], ["ended"], set())
    assert scope.report is not None
    assert (scope.report.ok, scope.report.completed, scope.report.services) == (True, 1, 1)


async def test_a_task_that_is_named_later_becomes_a_service(factory: Any) -> None:
    """A library that names its task after creating it is recognised all the same."""
    pool = Pool(name="first", renamed="pool.housekeeper")
    asyncio.get_running_loop().set_task_factory(factory)
    async with Scope("adopting", adopt=True, services=["pool.*"], grace=1) as scope:
        pool.use()
        await asyncio.sleep(0)
        assert [entry.service for entry in scope.frontier()] == [True]
    asyncio.get_running_loop().set_task_factory(None)
    assert pool.ended == ["ended"]


async def test_what_is_not_named_among_the_services_is_work() -> None:
    """A pattern has to match the whole name or the whole qualified name of the function."""
    pool = Pool(name="a pool.housekeeper")
    with suppress(LeaveError):
        async with Scope("a", adopt=True, services=["pool.*", "housekeeper", "Pool"]) as scope:
            pool.use()
            assert [entry.service for entry in scope.frontier()] == [False]
            raise LeaveError
    assert pool.ended == ["ended"]
    assert scope.report is not None
    assert (len(scope.report.cancelled), scope.report.services) == (1, 0)


async def test_a_service_goes_on_while_work_is_drained() -> None:
    """Services are stopped after the work has ended, for the work may need them."""
    pool, seen = Pool(name="pool"), list[bool]()

    async def work() -> None:
        await scope.closing()
        seen.append(await pool.is_alive())

    async with Scope("adopting", adopt=True, services=["pool"]) as scope:
        pool.use()
        asyncio.create_task(work())  # noqa: RUF006 - adopted
    assert (seen, pool.ended) == ([True], ["ended"])


@pytest.mark.parametrize("ended_by", ["its end", "an error", "its deadline"])
async def test_leftovers_go_on_under_the_parent(factory: Any, ended_by: str) -> None:
    """A task that is left when the child ends is the parent's from then on, and still runs."""
    pool = Pool(name="pool")
    services = ["pool"] if ended_by == "its end" else []
    asyncio.get_running_loop().set_task_factory(factory)
    parent = await Scope.open("parent")

    async def request() -> Scope:
        child = Scope("child", adopt=True, services=services, leftovers="parent", grace=0.05)
        with suppress(LeaveError):
            async with child:
                pool.use()
                if ended_by == "an error":
                    raise LeaveError
        return child

    child = await parent.spawn(request)
    assert (child.state, pool.ended) == ("closed", [])
    assert child.report is not None
    assert (child.report.ok, child.report.handed_over) == (True, 1)
    assert await pool.is_alive()
    (entry,) = parent.frontier()
    assert (entry.name, entry.kind, str(entry.where).split(":", maxsplit=1)[0]) == (
        "pool", "task", __file__,
    )  # fmt: skip
    await parent.aclose()
    asyncio.get_running_loop().set_task_factory(None)
    assert (pool.ended, others()) == (["ended"], set())


async def test_a_leftover_that_fails_later_is_in_the_parents_report(factory: Any) -> None:
    """A failure under the parent, after the child has closed, is the parent's to report."""
    gate = anyio.Event()

    async def late() -> None:
        await gate.wait()
        message = "later"
        raise ValueError(message)

    async def request() -> None:
        async with Scope("child", adopt=True, leftovers="parent", grace=0):
            asyncio.create_task(late(), name="late")  # noqa: RUF006 - adopted

    asyncio.get_running_loop().set_task_factory(factory)
    parent = await Scope.open("parent")
    await parent.spawn(request)
    gate.set()
    report = await parent.drain(grace=5)
    asyncio.get_running_loop().set_task_factory(None)
    assert [(entry.name, entry.scope) for entry in report.failed] == [("late", "parent")]


async def test_what_a_leftover_creates_is_the_adopting_parents() -> None:
    """A task that goes on under an adopting parent makes tasks that the parent adopts."""
    gate, work = anyio.Event(), Work()

    async def housekeeper() -> None:
        await gate.wait()
        drop(work)

    async with Scope("parent", adopt=True) as parent:
        async with Scope("child", adopt=True, leftovers="parent", grace=0):
            asyncio.create_task(housekeeper())  # noqa: RUF006 - adopted
        gate.set()
        await work.begun.wait()
        assert len(parent.frontier()) == 1
        work.gate.set()
    assert work.ended == ["completed"]


async def test_the_parents_services_apply_to_what_it_is_handed() -> None:
    """A leftover that the parent knows as a service does not keep the parent busy."""
    pool = Pool(name="pool")
    async with Scope("parent", adopt=True, services=["pool"], grace=1) as parent:
        async with Scope("child", adopt=True, leftovers="parent", grace=0):
            pool.use()
        assert [entry.service for entry in parent.frontier()] == [True]
    assert pool.ended == ["ended"]
