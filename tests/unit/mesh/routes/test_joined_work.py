"""Work that one message starts, and that the next one of the same kind leaves its job to."""

from __future__ import annotations

import asyncio
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

from quiesce.mesh.routes import joined_work
from tests.stress import turns
from tests.unit.mesh.routes.queueing import Case, is_open, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.backends("asyncio", "uvloop")


class Flush:
    """Gathers jobs, and does them all at once."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.jobs: list[int] = []
        self.at_work: Any = None
        self.gate = anyio.Event()

    def put(self) -> None:
        """Leave a job; the first one starts the work."""
        self.jobs.append(1)
        if self.at_work is not None:
            return
        if self.how == "task":
            self.at_work = asyncio.create_task(self.flush())
        elif self.how == "library":
            globals_ = {**Flush.flush.__globals__, "__name__": "a2a.server"}
            of_library = FunctionType(Flush.flush.__code__, globals_)
            self.at_work = asyncio.create_task(of_library(self))
        else:
            self.at_work = asyncio.get_running_loop().call_later(3600, self.jobs.clear)

    async def flush(self) -> None:
        """Do them, when it may."""
        await self.gate.wait()
        self.jobs.clear()


class LeftThread:
    """A thread that a handler has left."""

    kind, name, where = "thread", "worker", "app.py:1"
    thing = threading.Thread()


class Visit(NamedTuple):
    """A handler."""

    name: str
    kind: str = "handler"
    endpoint: object = None


class EndingHop:
    """A hop whose handler has ended."""

    def __init__(self, holds: dict[str, Any]) -> None:
        self.holds = holds
        self.cascade = object()
        self.assumptions: list[str] = []

    def assume(self, text: str) -> None:
        """Record an assumption."""
        self.assumptions.append(text)


def is_remembered(case: Case) -> bool:
    """Return whether something is remembered of the hops of the agent."""
    remembered = case.world.nodes["b"].joined_work
    return bool(remembered.hops or remembered.by_handler)


@pytest.mark.parametrize("how", ["task", "timer"])
async def test_a_hop_says_that_it_may_have_joined_the_work_of_another_one(
    tmp_path: Path, how: str
) -> None:
    """The second handler has left nothing that can be seen: the verdict names what the first one has left."""

    async def scenario(case: Case) -> None:
        flush = Flush(how)
        first = await case.cascade(flush.put)
        verdict = await (await case.cascade(flush.put)).settled(5)
        assert verdict.ok, str(verdict)
        (told,) = verdict.assumptions
        assert told.startswith(f"b assumes that {how} ")
        assert "which the same handler has left for another message at" in told
        assert __file__ in told
        assert len(flush.jobs) == 2
        assert await is_open(first)
        flush.gate.set()
        if how == "timer":
            flush.at_work.cancel()
        await first.settled(5)
        assert not is_remembered(case)

    await run(tmp_path, scenario)


async def test_a_job_may_join_work_by_way_of_a_queue(tmp_path: Path) -> None:
    """A worker of a queue hands the jobs to a limiter, which starts the second one when the first is over."""

    async def scenario(case: Case) -> None:
        flush, jobs = Flush("task"), asyncio.Queue[int]()

        async def worker() -> None:
            while True:
                await jobs.get()
                flush.put()
                await turns(1)
                jobs.task_done()

        case.app.spawn(worker, service=True)
        first = await case.cascade(lambda: jobs.put_nowait(1))
        verdict = await (await case.cascade(lambda: jobs.put_nowait(2))).settled(5)
        (told,) = verdict.assumptions
        assert "which the same handler has left for another message at" in told
        assert await is_open(first)
        flush.gate.set()
        assert (await first.settled(5)).assumptions == ()
        assert not is_remembered(case)

    await run(tmp_path, scenario)


async def test_a_hop_that_has_left_work_of_its_own_says_nothing(tmp_path: Path) -> None:
    """Each message starts a task: none of them has joined another."""

    async def scenario(case: Case) -> None:
        first, second = Flush("task"), Flush("task")
        cascades = [await case.cascade(first.put), await case.cascade(second.put)]
        second.gate.set()
        verdict = await cascades[1].settled(5)
        assert verdict.assumptions == ()
        assert await is_open(cascades[0])
        first.gate.set()
        assert (await cascades[0].settled(5)).assumptions == ()

    await run(tmp_path, scenario)


async def test_a_hop_of_the_same_cascade_says_nothing(tmp_path: Path) -> None:
    """The verdict waits for the work of the first one anyhow."""

    async def scenario(case: Case) -> None:
        flush = Flush("task")
        cascade = await case.cascade(flush.put, flush.put)
        assert await is_open(cascade)
        flush.gate.set()
        assert (await cascade.settled(5)).assumptions == ()

    await run(tmp_path, scenario)


async def test_the_work_of_a_library_is_not_joined(tmp_path: Path) -> None:
    """An SDK starts a task for each message that needs one."""

    async def scenario(case: Case) -> None:
        flush = Flush("library")
        first = await case.cascade(flush.put)
        assert await is_open(first)
        assert (await (await case.cascade(flush.put)).settled(5)).assumptions == ()
        flush.gate.set()
        await first.settled(5)

    await run(tmp_path, scenario)


def test_messages_of_one_handler_may_have_numbers() -> None:
    """A path with an id is that of the same handler."""
    work, left = joined_work.JoinedWork(), {"handler": Visit("x"), "thread": LeftThread()}
    work.handler_ends(EndingHop(left), Visit("POST /orders/17/items"))  # type: ignore[arg-type]  # as far as they are used
    said = []
    for name in ("POST /orders/a4-f1/items", "POST /orders/17", "POST /mails/17/items"):
        hop = EndingHop({"handler": Visit(name)})
        work.handler_ends(hop, Visit(name))  # type: ignore[arg-type]  # as above
        said.append(len(hop.assumptions))
    assert said == [1, 0, 0]
