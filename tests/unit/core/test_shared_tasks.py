"""A task that a task of another scope waits for outlives the scope that started it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from quiesce import Scope
from quiesce.core.light_scope import LightScope, Model
from tests.integration import subjects
from tests.stress import turns

pytestmark = pytest.mark.backends("asyncio", "uvloop")


class Load:
    """A load that several share: the first that wants it starts it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.task: asyncio.Task[str] | None = None

    def start(self) -> asyncio.Task[str]:
        """Return the task that loads, started by the first call."""
        if self.task is None:
            self.task = asyncio.create_task(self.work())
        return self.task

    async def work(self) -> str:
        """Load, with a task that is started after the first step, and another one later."""
        await asyncio.create_task(self.gate.wait())
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        return "loaded"


async def plain(load: Load) -> str:
    """Await the task itself."""
    return await load.start()


async def shielded(load: Load) -> str:
    """Await the task so that a cancellation does not reach it."""
    return await asyncio.shield(load.start())


async def gathered(load: Load) -> str:
    """Await the task with another."""
    return (await asyncio.gather(load.start(), asyncio.sleep(0)))[0]


async def through_a_task(load: Load) -> str:
    """Await the task in a task."""
    return await asyncio.create_task(plain(load))


async def request(name: str, way: Any, load: Load, scopes: dict[str, Scope]) -> str:
    """Use the load inside a scope of its own."""
    async with Scope(name, adopt=True) as scope:
        scopes[name] = scope
        result: str = await way(load)
        return result


@pytest.mark.parametrize("second", [plain, shielded, gathered, through_a_task])
@pytest.mark.parametrize("first", [plain, shielded, gathered, through_a_task])
async def test_a_load_outlives_the_scope_that_started_it(first: Any, second: Any) -> None:
    """A is closed, with the job that awaits the load; B gets what it waits for."""
    load, scopes = Load(), dict[str, Scope]()
    a = await Scope.open("A", adopt=True)
    job = a.spawn(first, load)
    await turns()
    b = asyncio.create_task(request("B", second, load, scopes))
    await turns()
    report = await a.aclose()
    assert job.outcome is not None
    assert (job.outcome.status, report.stuck, b.done()) == ("cancelled", (), False)
    assert "Load.work" in [entry.name for entry in scopes["B"].frontier().in_flight]
    load.gate.set()
    assert await b == "loaded"
    assert report.handed_over >= 1
    assert scopes["B"].report is not None
    assert scopes["B"].report.ok


async def test_a_load_that_nobody_else_waits_for_is_cancelled() -> None:
    """With no task of another scope behind it, the load ends with its scope."""
    load, scopes = Load(), dict[str, Scope]()
    a = asyncio.create_task(request("A", shielded, load, scopes))
    await turns()
    a.cancel()
    await asyncio.wait([a])
    assert load.task is not None
    assert load.task.cancelled()


async def test_a_load_ends_with_the_last_scope_that_waits_for_it() -> None:
    """A is cancelled, then B: then the load is."""
    load, scopes = Load(), dict[str, Scope]()
    a = asyncio.create_task(request("A", shielded, load, scopes))
    await turns()
    b = asyncio.create_task(request("B", shielded, load, scopes))
    await turns()
    a.cancel()
    await asyncio.wait([a])
    b.cancel()
    await asyncio.wait([b])
    assert load.task is not None
    assert load.task.cancelled()


async def test_a_task_whose_end_alone_is_waited_for_is_cancelled() -> None:
    """A connection's loop ends with its scope, though another scope has it in `asyncio.wait`."""
    load, scopes = Load(), dict[str, Scope]()

    async def watch(load: Load) -> str:
        await asyncio.wait([load.start()])
        return "ended"

    a = asyncio.create_task(request("A", shielded, load, scopes))
    await turns()
    b = asyncio.create_task(request("B", watch, load, scopes))
    await turns()
    a.cancel()
    await asyncio.wait([a])
    assert await b == "ended"
    assert load.task is not None
    assert load.task.cancelled()


async def test_a_load_is_cancelled_with_all_scopes_that_wait_for_it() -> None:
    """A scope around both is closed: the load is not handed from one to the other."""
    load, scopes = Load(), dict[str, Scope]()
    parent = await Scope.open("parent")
    parent.spawn(request, "A", shielded, load, scopes)
    await turns()
    parent.spawn(request, "B", shielded, load, scopes)
    await turns()
    report = await parent.aclose()
    assert load.task is not None
    assert load.task.cancelled()
    assert not report.stuck


async def test_a_light_scope_hands_a_load_on() -> None:
    """Two hops of a mesh share a load: the end of one does not end it."""
    load = Load()
    parent = await Scope.open("hops", adopt=True)
    model = Model(parent, adopt=True)
    code = request.__code__
    a, b = LightScope(model, "A", code), LightScope(model, "B", code)
    a.spawn(shielded, load)
    await turns()
    job = b.spawn(shielded, load)
    await turns()
    await a.aclose()
    load.gate.set()
    assert await job == "loaded"
    await b.aclose()
    assert (await parent.aclose()).stuck == ()


@pytest.mark.usual
async def test_async_lru_keeps_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """`async_lru` shares one load among all its callers, whichever scope they are in."""
    monkeypatch.setattr(sys, "path", [*sys.path, *subjects.folders("libraries-1")])
    from async_lru import alru_cache  # noqa: PLC0415 - see above

    gate = asyncio.Event()

    @alru_cache
    async def load(key: str) -> str:
        await gate.wait()
        return key

    async def use(name: str) -> str:
        async with Scope(name, adopt=True):
            return await load("key")

    a = asyncio.create_task(use("A"))
    await turns()
    b = asyncio.create_task(use("B"))
    await turns()
    a.cancel()
    await asyncio.wait([a])
    gate.set()
    assert await b == "key"


async def test_what_a_shared_task_starts_is_its_new_scopes() -> None:
    """The first scope still closes when the shared task starts another: that one is spared too."""
    load, scopes, slow, next_step = Load(), dict[str, Scope](), asyncio.Event(), asyncio.Event()

    async def work() -> str:
        await next_step.wait()
        return await asyncio.create_task(Load.work(load))

    async def cleanup(load: Load) -> str:
        try:
            return await shielded(load)
        finally:
            next_step.set()
            await slow.wait()

    a = await Scope.open("A", adopt=True)
    load.work = work  # type: ignore[method-assign]  # a load of two steps
    a.spawn(cleanup, load)
    await turns()
    b = asyncio.create_task(request("B", shielded, load, scopes))
    await turns()
    closing = asyncio.create_task(a.aclose())
    await turns()
    assert len(scopes["B"].frontier()) == 3  # the load, its task, and the task of that one
    slow.set()
    await closing
    load.gate.set()
    assert await b == "loaded"
