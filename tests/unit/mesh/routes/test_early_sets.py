"""Events that a hop sets before a worker waits for them, while it comes to wait, or that are replaced at each round."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import detached
from quiesce.mesh import current_hop
from quiesce.mesh.routes import events
from tests.foreign_private import is_waited_for
from tests.stress import turns
from tests.unit.mesh.meshing import here, until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")
real_time = pytest.mark.real_time


class Late:
    """A worker that comes to wait only when it is told to, in a task or in a thread."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.left: deque[threading.Event] = deque()
        self.wake: Any = threading.Event() if how == "thread" else asyncio.Event()
        self.may_begin, self.may_go_on = threading.Event(), threading.Event()
        self.ends = False
        self.hops: list[Hop | None] = []
        self._thread = threading.Thread(target=self._in_thread)

    def start(self, case: Case) -> None:
        """Start it."""
        if self.how == "thread":
            self._thread.start()
        else:
            case.app.spawn(self._in_task, service=True)

    def put(self) -> None:
        """Leave a job, and wake it."""
        self.left.append(threading.Event())
        self.wake.set()

    def stop(self) -> None:
        """End it."""
        self.ends = True
        self.may_begin.set()
        self.may_go_on.set()
        if self._thread.is_alive():
            self.wake.set()
            self._thread.join()

    def _in_thread(self) -> None:
        self.may_begin.wait(30)
        while not self.ends:
            self.wake.wait()
            self.wake.clear()
            while self.left:
                self.left.popleft()
                self.hops.append(current_hop())
                self.may_go_on.wait(30)

    async def _in_task(self) -> None:
        await until(self.may_begin.is_set)
        while not self.ends:
            await self.wake.wait()
            self.wake.clear()
            while self.left:
                self.left.popleft()
                self.hops.append(current_hop())
                await until(self.may_go_on.is_set)


@real_time
@pytest.mark.parametrize("how", ["task", "thread"])
async def test_an_event_that_is_set_before_its_worker_has_waited_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The hop has ended when the worker comes: the verdict says what it assumes, and the log what has come of it."""

    async def scenario(case: Case) -> None:
        late = Late(how)
        late.start(case)
        try:
            verdict = await (await case.cascade(late.put)).settled(5)
            assert verdict.ok, str(verdict)
            (told,) = (one for one in verdict.assumptions if one.startswith("b "))
            assert f"{Late.put.__code__.co_filename}:{Late.put.__code__.co_firstlineno + 3}" in told
            assert "before a worker had waited for it" in told
            with detached():
                late.may_begin.set()
            await until(lambda: late.hops)
            assert "a worker has found an event set by a hop that had ended" in caplog.text
        finally:
            with detached():
                late.stop()

    await run(tmp_path, scenario)


@real_time
@pytest.mark.parametrize("how", ["task", "thread"])
async def test_a_worker_that_comes_while_the_hop_is_open_holds_it(tmp_path: Path, how: str) -> None:
    """It finds the event set, and does not wait."""

    async def scenario(case: Case) -> None:
        late, other = Late(how), asyncio.Event()

        def put() -> None:
            late.put()
            here().spawn(other.wait)

        late.start(case)
        try:
            cascade = await case.cascade(put)
            with detached():
                late.may_begin.set()
            await until(lambda: late.hops)
            assert late.hops[0] is not None
            with detached():
                other.set()
            await turns(50)
            assert await is_open(cascade)
            with detached():
                late.may_go_on.set()
            await settles(cascade)
        finally:
            with detached():
                late.stop()

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["its own", "waited for", "by another hop", "detached"])
async def test_a_signal_of_a_hop_is_not_an_assumption(tmp_path: Path, how: str) -> None:
    """The event is gone when the hop ends, or code that is not a worker waits for it."""

    async def scenario(case: Case) -> None:
        shared = asyncio.Event()

        async def put() -> None:
            made = asyncio.Event() if how == "its own" else shared
            if how == "detached":
                with detached():
                    made.set()
            else:
                made.set()
            if how == "waited for":
                await made.wait()
            if how == "by another hop":
                other.append(await case.cascade(shared.wait))

        other: list[Any] = []
        for cascade in (await case.cascade(put), *other):
            verdict = await cascade.settled(5)
            assert verdict.ok, str(verdict)
            assert not verdict.assumptions

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["asyncio", "threading"])
async def test_a_condition_that_is_notified_before_its_worker_has_waited_is_named(
    tmp_path: Path, how: str
) -> None:
    """A worker that comes later finds the job, and does not wait at all."""

    async def scenario(case: Case) -> None:
        condition: Any = asyncio.Condition() if how == "asyncio" else threading.Condition()

        async def put() -> None:
            if how == "asyncio":
                async with condition:
                    condition.notify_all()
            else:
                with condition:
                    condition.notify_all()

        verdict = await (await case.cascade(put)).settled(5)
        (told,) = verdict.assumptions
        assert f"{how}.Condition, set at {__file__}:" in told

    await run(tmp_path, scenario)


@real_time
async def test_a_thread_that_comes_to_wait_before_the_event_is_set_holds_the_hop(  # noqa: PLR0915 - two threads, step by step
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hop is recorded, then the thread waits again, and then the event is set."""

    async def scenario(case: Case) -> None:
        left: deque[threading.Event] = deque()
        wake, begun = threading.Event(), threading.Event()
        hops: list[Hop | None] = []
        ends = False

        def worker() -> None:
            while not ends:
                wake.wait()
                wake.clear()
                if left:
                    gate = left.popleft()
                    begun.set()
                    hops.append(current_hop())
                    gate.wait(30)

        wakes = events.record_wake

        def wakes_slowly(event: Any, around: Any) -> None:
            wakes(event, around)
            if event is wake and current_hop() is not None:
                with detached():
                    plain.set()
                while not is_waited_for(wake):
                    pass

        thread = threading.Thread(target=worker)
        thread.start()
        plain, gate = threading.Event(), threading.Event()
        try:
            await until(lambda: is_waited_for(wake))
            left.append(plain)
            wake.set()
            await until(begun.is_set)
            monkeypatch.setattr(events, "record_wake", wakes_slowly)

            def put() -> None:
                left.append(gate)
                wake.set()

            cascade = await case.cascade(put)
            await until(lambda: len(hops) > 1)
            assert hops[1] is not None
            assert await is_open(cascade)
            with detached():
                gate.set()
            await settles(cascade)
        finally:
            with detached():
                plain.set()
                gate.set()
                ends = True
                wake.set()
            thread.join()

    await run(tmp_path, scenario)


class Replacing:
    """A worker with a new event for each round."""

    def __init__(self, kind: Any, *, is_after: bool) -> None:
        self.kind = kind
        self.is_after = is_after
        self.left: deque[Job] = deque()
        self.event = kind()

    async def run(self) -> None:
        """Work."""
        while True:
            await self.event.wait()
            if not self.is_after:
                self.event = self.kind()
            while self.left:
                await work(self.left.popleft())
            if self.is_after:
                self.event = self.kind()

    def put(self, job: Job) -> None:
        """Leave a job."""
        self.left.append(job)
        self.event.set()


@pytest.mark.parametrize("kind", [asyncio.Event, anyio.Event])
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_worker_with_a_new_event_for_each_round_neither_keeps_nor_loses_a_hop(
    tmp_path: Path, kind: Any, *, is_after: bool
) -> None:
    """Also if the hop sets the event while the worker is at work for something else."""

    async def scenario(case: Case) -> None:
        worker = Replacing(kind, is_after=is_after)
        case.app.spawn(worker.run, service=True)
        await turns(5)
        first = Job("1")
        cascade = await case.cascade(lambda: worker.put(first))
        await until(lambda: first.is_begun)
        assert await is_open(cascade)
        first.gate.set()
        assert (await cascade.settled(5)).assumptions
        plain, second = Job("plain"), Job("2")
        worker.put(plain)
        await until(lambda: plain.is_begun)
        cascade = await case.cascade(lambda: worker.put(second))
        if is_after:
            assert await is_open(cascade)
        plain.gate.set()
        await until(lambda: second.is_begun)
        second.gate.set()
        verdict = await cascade.settled(5)
        assert verdict.ok, str(verdict)
        assert verdict.assumptions

    await run(tmp_path, scenario)


@real_time
@pytest.mark.parametrize("how", ["task", "thread"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_worker_that_leaves_its_loop_holds_the_hop_until_it_ends(  # noqa: PLR0915 - a task and a thread
    tmp_path: Path, how: str, *, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with something else, and nobody can tell whether that is for the hop."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    async def scenario(case: Case) -> None:
        left: deque[int] = deque()
        wake: Any = threading.Event() if how == "thread" else asyncio.Event()
        begun, gate = threading.Event(), threading.Event()

        def end() -> None:
            if fails:
                raise ValueError(how)

        def in_thread() -> None:
            while not left:
                wake.wait()
                wake.clear()
            begun.set()
            gate.wait(30)
            end()

        async def in_task() -> None:
            while not left:
                await wake.wait()
                wake.clear()
            begun.set()
            await until(gate.is_set)
            end()

        def put() -> None:
            left.append(1)
            wake.set()

        thread, task = threading.Thread(target=in_thread), None
        if how == "thread":
            thread.start()
        else:
            task = asyncio.get_running_loop().create_task(in_task())
        try:
            await until(lambda: is_waited_for(wake))
            cascade = await case.cascade(put)
            await until(begun.is_set)
            await turns(20)
            assert await is_open(cascade)
            with detached():
                gate.set()
            verdict = await cascade.settled(5)
            assert verdict.receipt.failed == (fails and how == "task")
            assert verdict.ok is not (fails and how == "task")
        finally:
            with detached():
                gate.set()
            if task is not None:
                await asyncio.wait([task])
                task.exception()
            else:
                thread.join()

    await run(tmp_path, scenario)
