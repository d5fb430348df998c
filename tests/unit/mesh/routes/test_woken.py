"""Threads that take items, and workers that events and conditions wake."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import queue
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import Node, Unknown, current_hop
from tests.foreign_private import is_waited_for, raw_threads
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


pytestmark = pytest.mark.backends("asyncio", "uvloop")


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["plain", "done", "early", "batches", "iterates"])
async def test_a_thread_holds_a_hop_until_its_item_is_done(tmp_path: Path, how: str) -> None:
    """Whatever its loop is like."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[threading.Event | None] = queue.Queue()
        begun = threading.Event()

        def works(gate: threading.Event) -> None:
            begun.set()
            gate.wait(30)

        def batches() -> None:
            batch: list[tuple[Any]] = []
            while True:
                try:
                    batch.append((jobs.get(timeout=0.01),))
                except queue.Empty:
                    for (gate,) in batch:
                        if gate is None:
                            return
                        works(gate)
                    batch = []

        def plain() -> None:
            while (item := jobs.get()) is not None:
                works(item)

        def done() -> None:
            while (item := jobs.get()) is not None:
                works(item)
                jobs.task_done()

        def early() -> None:
            while (item := jobs.get()) is not None:
                jobs.task_done()
                works(item)

        def iterates() -> None:
            for item in iter(jobs.get, None):
                works(item)

        worker = locals()[how]
        thread = threading.Thread(target=worker)
        thread.start()
        gate = threading.Event()
        try:
            cascade = await case.cascade(lambda: jobs.put(gate))
            await until(begun.is_set)
            await turns(20)
            assert await is_open(cascade)
            gate.set()
            await settles(cascade)
        finally:
            gate.set()
            jobs.put(None)
            thread.join()

    await run(tmp_path, scenario)


# Events and conditions.


@pytest.mark.parametrize(
    "how", ["wait_for", "helper", "late clear", "condition", "predicate", "while"]
)
async def test_a_worker_that_is_woken_holds_the_hops_that_have_woken_it(  # noqa: PLR0915 - each way of waiting
    tmp_path: Path, how: str
) -> None:
    """Until it waits again, and not for longer."""

    async def scenario(case: Case) -> None:  # noqa: PLR0915 - each way of waiting
        left: deque[Job] = deque()
        wake, condition = asyncio.Event(), asyncio.Condition()

        async def helper() -> None:
            await wake.wait()
            wake.clear()

        async def waits() -> None:
            if how == "wait_for":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), 60)
                wake.clear()
            elif how == "condition":
                async with condition:
                    while not left:
                        await condition.wait()
            elif how == "predicate":
                async with condition:
                    await condition.wait_for(lambda: left)
            elif how == "late clear":
                await wake.wait()
            else:
                await helper()

        async def worker() -> None:
            while how == "while" and await wake.wait():
                wake.clear()
                while left:
                    await work(left.popleft())
            while True:
                await waits()
                while left:
                    await work(left.popleft())
                if how == "late clear":
                    wake.clear()

        async def put(job: Job) -> None:
            left.append(job)
            wake.set()
            async with condition:
                condition.notify()

        case.app.spawn(worker, service=True)
        await turns(5)
        first, second = Job("1"), Job("2")
        one = await case.cascade(lambda: put(first))
        await until(lambda: first.is_begun)
        two = await case.cascade(lambda: put(second))
        assert await is_open(one)
        assert await is_open(two)
        first.gate.set()
        await until(lambda: second.is_begun)
        assert await is_open(two)
        second.gate.set()
        await settles(one)
        await settles(two)

    await run(tmp_path, scenario)


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["event", "condition"])
async def test_a_thread_that_is_woken_holds_the_hop_that_has_woken_it(
    tmp_path: Path, how: str
) -> None:
    """A deque and an event between threads."""

    async def scenario(case: Case) -> None:
        left: deque[threading.Event] = deque()
        wake, condition, begun = threading.Event(), threading.Condition(), threading.Event()
        ends = False

        def worker() -> None:
            while not ends:
                if how == "event":
                    wake.wait()
                    wake.clear()
                else:
                    with condition:
                        condition.wait_for(lambda: left or ends)
                while left:
                    begun.set()
                    left.popleft().wait(30)

        def put(gate: threading.Event) -> None:
            left.append(gate)
            wake.set()
            with condition:
                condition.notify()

        thread = threading.Thread(target=worker)
        thread.start()
        gate = threading.Event()
        try:
            await until(lambda: is_waited_for(wake) or is_waited_for(condition))
            cascade = await case.cascade(lambda: put(gate))
            await until(begun.is_set)
            await turns(20)
            assert await is_open(cascade)
            gate.set()
            await settles(cascade)
        finally:
            gate.set()
            ends = True
            wake.set()
            with condition:
                condition.notify()
            thread.join()

    await run(tmp_path, scenario)


@pytest.mark.real_time
async def test_a_raw_thread_may_wait_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python code is around the wait there."""
    failures: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    async with Node("a"):
        event, before = threading.Event(), raw_threads()
        _thread.start_new_thread(event.wait, ())
        event.set()
        await until(lambda: raw_threads() <= before)
    assert not failures


@pytest.mark.parametrize("through", ["worker", "task"])
async def test_a_message_for_a_hop_that_sets_the_event_again_is_waited_for(
    tmp_path: Path, through: str
) -> None:
    """The worker does its job in the same round, and sends for it as a part of the first hop."""

    async def scenario(case: Case) -> None:
        left: deque[Job] = deque()
        wake, free = asyncio.Event(), asyncio.Event()

        async def below(hop: Hop) -> None:
            hop.spawn(free.wait)

        async def one(job: Job) -> None:
            await work(job)
            if job.name == "2":
                await case.world.hand("c", below)

        async def worker() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while left:
                    job = left.popleft()
                    if through == "worker":
                        await one(job)
                    else:
                        await asyncio.gather(one(job))

        def put(job: Job) -> None:
            left.append(job)
            wake.set()

        case.app.spawn(worker, service=True)
        await turns(5)
        first, second = Job("1"), Job("2")
        cascades = [await case.cascade(lambda: put(first))]
        await until(lambda: first.is_begun)
        cascades.append(await case.cascade(lambda: put(second)))
        first.gate.set()
        second.gate.set()
        await until(lambda: second.is_begun and not wake.is_set())
        await turns(50)
        assert await is_open(cascades[1])
        free.set()
        for cascade in cascades:
            await settles(cascade)

    await run(tmp_path, scenario)


async def test_a_message_in_a_part_of_a_hop_is_of_that_hop_alone(tmp_path: Path) -> None:
    """The part says for which hop the worker works: the other hops that have woken it do not depend on the message."""

    async def scenario(case: Case) -> None:
        parts: list[tuple[Any, bool]] = []
        more, free = asyncio.Condition(), asyncio.Event()

        async def below(hop: Hop) -> None:
            hop.untracked("queue", "somewhere")

        async def worker() -> None:
            while True:
                async with more:
                    await more.wait_for(lambda: parts)
                await free.wait()
                while parts:
                    part, sends = parts.pop(0)
                    async with part:
                        if sends:
                            await case.world.hand("c", below)
                    del part

        async def put(*, sends: bool) -> None:
            hop = current_hop()
            assert hop is not None
            async with more:
                parts.append((hop.working("job"), sends))
                more.notify()

        case.app.spawn(worker, service=True)
        await turns(5)
        cascades = [await case.cascade(partial(put, sends=sends)) for sends in (True, False)]
        free.set()
        await settles(cascades[1])
        assert isinstance(await cascades[0].settled(5), Unknown)

    await run(tmp_path, scenario)


async def test_an_event_of_one_call_is_a_signal(tmp_path: Path) -> None:
    """Its caller has a loop, but each call makes an event of its own."""

    async def scenario(case: Case) -> None:
        async def call() -> Hop | None:
            made = asyncio.Event()
            waiting = asyncio.get_running_loop().create_task(turns(1))
            await settles(await case.cascade(made.set))
            await made.wait()
            await waiting
            return current_hop()

        async def waits_first(made: Job) -> Hop | None:
            job = made
            own = Job("own")
            task = asyncio.get_running_loop().create_task(case.cascade(own.gate.set))
            await own.gate.wait()
            await settles(await task)
            return current_hop() if job is made else None

        for _ in range(2):
            assert await call() is None
            assert await waits_first(Job("1")) is None

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["event", "condition"])
async def test_two_workers_that_one_hop_wakes_both_hold_it(tmp_path: Path, how: str) -> None:
    """The hop leaves two jobs, and the second worker is at work when the first waits again."""

    async def scenario(case: Case) -> None:
        left: deque[Job] = deque()
        wake, condition = asyncio.Event(), asyncio.Condition()

        async def worker() -> None:
            while True:
                if how == "event":
                    await wake.wait()
                    wake.clear()
                else:
                    async with condition:
                        await condition.wait()
                if left:
                    await work(left.popleft())

        async def put(*jobs: Job) -> None:
            left.extend(jobs)
            wake.set()
            async with condition:
                condition.notify(n=2)

        for _ in range(2):
            case.app.spawn(worker, service=True)
        await turns(5)
        first, second = Job("1"), Job("2")
        cascade = await case.cascade(lambda: put(first, second))
        await until(lambda: first.is_begun and second.is_begun)
        first.gate.set()
        await turns(20)
        assert await is_open(cascade)
        second.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


async def test_a_busy_worker_may_have_taken_what_an_idle_one_does_not_see(tmp_path: Path) -> None:
    """It was woken by code outside of hops, and takes the job of the hop without waiting in between."""

    async def scenario(case: Case) -> None:
        left: deque[Job] = deque()
        condition = asyncio.Condition()

        async def worker() -> None:
            while True:
                async with condition:
                    while not left:
                        await condition.wait()
                    job = left.popleft()
                await work(job)

        async def put(job: Job) -> None:
            async with condition:
                left.append(job)
                condition.notify()

        for _ in range(2):
            case.app.spawn(worker, service=True)
        await turns(5)
        plain = [Job("plain 1"), Job("plain 2")]
        for one in plain:
            await put(one)
        await until(lambda: all(one.is_begun for one in plain))
        job = Job("of the hop")
        cascade = await case.cascade(lambda: put(job))
        plain[0].gate.set()
        await until(lambda: job.is_begun)
        plain[1].gate.set()
        await turns(20)  # the second worker waits
        assert await is_open(cascade)
        job.gate.set()
        verdict = await cascade.settled(5)
        assert verdict.ok, str(verdict)
        (told,) = verdict.assumptions
        assert "done with what asyncio.Condition woke it for when it waited again at" in told

    await run(tmp_path, scenario)
