"""Workers of events and conditions that are at work for something else when a hop sets the event; or that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import Settled, Unknown, current_hop
from quiesce.mesh.routes import belts
from quiesce.mesh.routes.takers import Item
from tests.foreign_private import is_waited_for
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


pytestmark = pytest.mark.backends("asyncio", "uvloop")


@pytest.mark.parametrize("how", ["event", "condition", "times out", "gate", "from a thread"])
async def test_what_a_busy_worker_starts_for_a_hop_holds_it(  # noqa: PLR0915 - each way of waiting
    tmp_path: Path, how: str
) -> None:
    """It takes the hop's job in its round for something outside of hops, and leaves a task for it."""

    async def scenario(case: Case) -> None:  # noqa: PLR0915 - each way of waiting
        left: deque[Job] = deque()
        wake, condition, gate = asyncio.Event(), asyncio.Condition(), asyncio.Event()
        free = asyncio.Semaphore(1)
        tasks = set[asyncio.Task[None]]()

        async def one(job: Job) -> None:
            try:
                await work(job)
            finally:
                free.release()

        async def worker() -> None:
            while True:
                if how == "condition":
                    async with condition:
                        await condition.wait_for(lambda: left)
                elif how == "times out":
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(wake.wait(), 60)
                    wake.clear()
                else:
                    await wake.wait()
                    wake.clear()
                while left:
                    job = left.popleft()
                    await free.acquire()
                    if how == "gate":
                        await gate.wait()
                    tasks.add(asyncio.get_running_loop().create_task(one(job)))

        async def put(job: Job) -> None:
            left.append(job)
            if how == "from a thread":
                loop = asyncio.get_running_loop()
                await asyncio.to_thread(loop.call_soon_threadsafe, wake.set)
            else:
                wake.set()
            async with condition:
                condition.notify()

        gate.set()
        case.app.spawn(worker, service=True)
        await turns(5)
        plain = [Job("plain 1"), Job("plain 2")]
        for each in plain:
            await put(each)
        await until(lambda: plain[0].is_begun and not left)
        job = Job("of the hop")
        cascade = await case.cascade(lambda: put(job))
        for each in plain:
            each.gate.set()
        await until(lambda: job.is_begun)
        await turns(50)
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)
        later = Job("later, and of no hop")
        await put(later)
        await until(lambda: later.is_begun)
        assert later.hop is None
        later.gate.set()

    await run(tmp_path, scenario)


def one(begun: threading.Event, gate: threading.Event) -> None:
    """Work in a thread until a gate opens."""
    begun.set()
    gate.wait(30)


def items_made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which all items of hops are added that are made from now on."""
    made: list[object] = []

    class Counted(Item):
        __slots__ = ()

        def __init__(self, *args: Any) -> None:
            made.append(args)
            super().__init__(*args)

    monkeypatch.setattr(belts, "Item", Counted)
    return made


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["event", "condition", "inner loop"])
async def test_what_a_busy_thread_starts_for_a_hop_holds_it(  # noqa: PLR0915 - each way of waiting
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It gives the hop's job to an executor, in its round for something outside of hops."""
    made = items_made(monkeypatch)

    async def scenario(case: Case) -> None:  # noqa: PLR0915 - each way of waiting
        left: deque[tuple[threading.Event, threading.Event]] = deque()
        wake, condition = threading.Event(), threading.Condition()
        pool, held = ThreadPoolExecutor(1), threading.Lock()
        ends = False

        async def inner(*gates: threading.Event) -> None:
            pool.submit(one, *gates)

        def worker() -> None:
            while not ends:
                if how == "condition":
                    with condition:
                        condition.wait_for(lambda: left or ends)
                else:
                    wake.wait()
                    wake.clear()
                while left:
                    gates = left.popleft()
                    if gates is plain:
                        gates[0].set()
                        with held:  # not an event, at which the worker would be told
                            pass
                    elif how == "inner loop":
                        asyncio.run(inner(*gates))
                    else:
                        pool.submit(one, *gates)

        def put(gates: tuple[threading.Event, threading.Event]) -> None:
            left.append(gates)
            wake.set()
            with condition:
                condition.notify()

        plain = threading.Event(), threading.Event()
        begun, gate = gates = threading.Event(), threading.Event()
        thread = threading.Thread(target=worker)
        thread.start()
        try:
            first = threading.Event(), threading.Event()
            first[1].set()
            await until(lambda: is_waited_for(wake) or is_waited_for(condition))
            await settles(await case.cascade(lambda: put(first)))
            with held:
                put(plain)
                await until(plain[0].is_set)
                cascade = await case.cascade(lambda: put(gates))
            await until(lambda: begun.is_set() and not left)
            await turns(50)
            assert await is_open(cascade)
            gate.set()
            await settles(cascade)
        finally:
            ends = True
            gate.set()
            wake.set()
            with condition:
                condition.notify()
            thread.join()
            pool.shutdown()

    await run(tmp_path, scenario)
    assert len(made) == 4  # two that were put, and two of the worker


@pytest.mark.real_time
async def test_a_busy_thread_may_have_taken_what_an_idle_one_does_not_see(tmp_path: Path) -> None:
    """It works on the hop's job itself, and starts nothing: it does not hear of the hop."""

    async def scenario(case: Case) -> None:
        left: deque[tuple[threading.Event, threading.Lock]] = deque()
        condition = threading.Condition()
        idle, ends = 0, False

        def worker() -> None:
            nonlocal idle
            while not ends:
                with condition:
                    idle += 1
                    while not (left or ends):
                        condition.wait()
                    idle -= 1
                    job = left.popleft() if left else None
                if job is not None:
                    job[0].set()
                    with job[1]:
                        pass

        def put(*jobs: tuple[threading.Event, threading.Lock]) -> None:
            with condition:
                left.extend(jobs)
                condition.notify(len(jobs))

        first, second, of_hop = jobs = [(threading.Event(), threading.Lock()) for _ in range(3)]
        threads = [threading.Thread(target=worker) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            await until(lambda: idle == len(threads))
            with of_hop[1]:
                with second[1]:
                    with first[1]:
                        put(first, second)
                        await until(lambda: first[0].is_set() and second[0].is_set())
                        cascade = await case.cascade(lambda: put(of_hop))
                    await until(of_hop[0].is_set)
                await until(lambda: idle == 1)  # the other one waits
                await turns(50)
                assert await is_open(cascade)
            await settles(cascade)
        finally:
            with condition:
                ends = True
                condition.notify_all()
            for thread in threads:
                thread.join()
        assert all(begun.is_set() for begun, _ in jobs)

    await run(tmp_path, scenario)


@pytest.mark.parametrize("passes", [True, False])
async def test_an_event_that_is_set_is_not_waited_for(tmp_path: Path, *, passes: bool) -> None:
    """The worker passes a gate that is open, in the midst of its work: it has not come round."""

    async def scenario(case: Case) -> None:
        left: deque[Job] = deque()
        wake, gate = asyncio.Event(), asyncio.Event()
        gate.set()

        async def worker() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while left:
                    if passes or left[0] is plain:
                        await gate.wait()
                    await work(left.popleft())

        def put(job: Job) -> None:
            left.append(job)
            wake.set()

        first, plain, job = Job("first"), Job("plain"), Job("1")
        case.app.spawn(worker, service=True)
        await turns(5)
        first.gate.set()
        plain.gate.set()
        await settles(await case.cascade(lambda: put(first)))
        put(plain)
        await until(lambda: plain.is_begun and not left)
        opening = await case.cascade(
            gate.set
        )  # which may give it something to do, for all that is known
        cascade = await case.cascade(lambda: put(job))
        await until(lambda: job.is_begun)
        assert job.hop is not None
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)
        verdict = await opening.settled(5)
        assert isinstance(verdict, Settled if passes else Unknown), str(verdict)
        if not passes:  # the hop that opens the gate may have meant something else
            assert (
                "whose worker was busy when the event was set, and now waits for something else at"
                in str(verdict)
            )
        later = Job("later, and of no hop")
        put(later)
        await until(lambda: later.is_begun)
        assert later.hop is None
        later.gate.set()

    await run(tmp_path, scenario)


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["task", "thread"])
async def test_a_service_that_has_left_its_loop_does_not_hold_a_hop(
    tmp_path: Path, how: str
) -> None:
    """It has waited until it could begin, and does not come back: whether the hop has work for it is not known."""

    async def scenario(case: Case) -> None:
        ready, change = False, asyncio.Event() if how == "task" else threading.Event()
        begun, over = threading.Event(), threading.Event()

        async def serves() -> None:
            while not ready:
                await change.wait()  # type: ignore[misc]  # it is that of a task
                change.clear()
            begun.set()
            while not over.is_set():
                await turns(1)
                left.append(current_hop())

        def serves_in_thread() -> None:
            while not ready:
                change.wait()
                change.clear()
            begun.set()
            over.wait(30)

        left: deque[Hop | None] = deque(maxlen=8)
        thread = threading.Thread(target=serves_in_thread)
        if how == "task":
            case.app.spawn(serves, service=True)
        else:
            thread.start()
        try:
            await until(lambda: is_waited_for(change))
            await settles(await case.cascade(change.set))
            ready = True
            change.set()
            await until(begun.is_set)
            verdict = await (await case.cascade(change.set)).settled(5)
            assert "has left the loop in which it waited for the event" in str(verdict)
            assert not any(left)
        finally:
            over.set()
            if how == "thread":
                thread.join()

    await run(tmp_path, scenario)


async def test_a_signal_says_that_its_workers_have_ended(tmp_path: Path) -> None:
    """Nothing is there to take the job; another worker may come."""

    async def scenario(case: Case) -> None:
        left: deque[Job] = deque()
        wake = asyncio.Event()

        async def worker() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while left:
                    await work(left.popleft())

        def put(job: Job) -> None:
            left.append(job)
            wake.set()

        running = case.app.spawn(worker, service=True)
        await turns(5)
        running.cancel()
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: put(job))
        told = str(await cascade.frontier())
        assert "in asyncio.Event, whose workers have all ended" in told
        case.app.spawn(worker, service=True)
        await until(lambda: job.is_begun)
        told = str(await cascade.frontier())
        assert "whose workers" not in told
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)
