"""Code that waits once for an event or a condition, and that a hop of another cascade wakes."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import detached
from tests.foreign_private import is_waited_for
from tests.stress import turns
from tests.unit.mesh.meshing import here, until
from tests.unit.mesh.routes.queueing import Case, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.backends("asyncio", "uvloop")


class Meeting:
    """An event or a condition by which one piece of code gives another something to do."""

    def __init__(self, how: str) -> None:
        self.how = how
        kinds: dict[str, Any] = {
            "event": asyncio.Event, "anyio": anyio.Event, "timed": asyncio.Event, "condition": asyncio.Condition,
            "predicate": asyncio.Condition,
        }  # fmt: skip
        self.event = kinds[how]()
        self.left: list[int] = []
        self.may_end = asyncio.Event()
        self.woken = 0

    async def wait(self) -> None:
        """Wait once, and then work."""
        if self.how == "condition":
            async with self.event:
                while not self.left:
                    await self.event.wait()
        elif self.how == "predicate":
            async with self.event:
                await self.event.wait_for(lambda: self.left)
        elif self.how == "timed":
            async with asyncio.timeout(60):
                await self.event.wait()
        else:
            await self.event.wait()
        self.woken += 1
        await self.may_end.wait()

    def start(self) -> None:
        """Start a task of the running hop that waits."""
        here().spawn(self.wait)

    async def put(self) -> None:
        """Leave a job, and wake what waits."""
        self.left.append(1)
        if self.how in {"condition", "predicate"}:
            async with self.event:
                self.event.notify_all()
        else:
            self.event.set()


WAYS = ["event", "anyio", "timed", "condition", "predicate"]


def _names(told: str) -> None:
    """See that an assumption names the line that has set the event, and the one that waits."""
    assert "which is waited for once at" in told, told
    assert told.count(f"{__file__}:") == 2
    assert "in Meeting.put" in told


@pytest.mark.parametrize("who", ["another hop", "a task of the app"])
@pytest.mark.parametrize("how", WAYS)
async def test_a_hop_that_wakes_code_that_waits_once_says_so(
    tmp_path: Path, how: str, who: str
) -> None:
    """What was woken may work for the hop, and nobody can tell."""

    async def scenario(case: Case) -> None:
        meeting = Meeting(how)
        first = None
        task = None
        if who == "a task of the app":
            task = asyncio.get_running_loop().create_task(meeting.wait())
        else:
            first = await case.cascade(meeting.start)
        await turns(10)
        verdict = await (await case.cascade(meeting.put)).settled(5)
        await until(lambda: meeting.woken)
        assert verdict.ok, str(verdict)
        (told,) = verdict.assumptions
        _names(told)
        meeting.may_end.set()
        if first is not None:
            verdict = await first.settled(5)
            assert verdict.ok, str(verdict)
            assert not verdict.assumptions
        if task is not None:
            await task

    await run(tmp_path, scenario)


@pytest.mark.parametrize("who", ["the hop", "another hop of the cascade", "over"])
@pytest.mark.parametrize("how", WAYS)
async def test_what_the_verdict_waits_for_anyhow_is_not_an_assumption(
    tmp_path: Path, how: str, who: str
) -> None:
    """What waits is a part of the same cascade, or does not wait any more."""

    async def scenario(case: Case) -> None:
        meeting = Meeting(how)
        meeting.may_end.set()

        async def both() -> None:
            meeting.start()
            await turns(10)
            await meeting.put()

        if who == "the hop":
            cascade = await case.cascade(both)
        elif who == "another hop of the cascade":
            cascade = await case.cascade(meeting.start, lambda: turns(10), meeting.put)
        else:
            task = asyncio.get_running_loop().create_task(meeting.wait())
            await turns(10)
            task.cancel()
            await asyncio.wait([task])
            cascade = await case.cascade(meeting.put)
        verdict = await cascade.settled(5)
        assert verdict.ok, str(verdict)
        assert not any("waited for once" in one for one in verdict.assumptions)

    await run(tmp_path, scenario)


async def waits(event: asyncio.Event) -> None:
    """Wait once."""
    await event.wait()


async def test_a_signal_that_is_declared_is_not_an_assumption(tmp_path: Path) -> None:
    """As a flag for the whole program."""

    async def scenario(case: Case) -> None:
        stop = asyncio.Event()
        task = asyncio.get_running_loop().create_task(waits(stop))
        await turns(5)

        def put() -> None:
            with detached():
                stop.set()

        verdict = await (await case.cascade(put)).settled(5)
        await task
        assert verdict.ok, str(verdict)
        assert not verdict.assumptions

    await run(tmp_path, scenario)


@pytest.mark.real_time
@pytest.mark.parametrize("kind", [threading.Event, threading.Condition])
async def test_a_thread_that_waits_once_is_named(tmp_path: Path, kind: Any) -> None:
    """So it is with what threads wait for."""

    async def scenario(case: Case) -> None:
        event, woken = kind(), threading.Event()

        def waits() -> None:
            if kind is threading.Event:
                event.wait()
            else:
                with event:
                    event.wait()
            woken.set()

        def put() -> None:
            if kind is threading.Event:
                event.set()
            else:
                with event:
                    event.notify()

        thread = threading.Thread(target=waits)
        thread.start()
        try:
            await until(lambda: is_waited_for(event))
            verdict = await (await case.cascade(put)).settled(5)
            assert verdict.ok, str(verdict)
            (told,) = verdict.assumptions
            assert "which is waited for once at" in told
        finally:
            with detached():
                put()
            thread.join()

    await run(tmp_path, scenario)
