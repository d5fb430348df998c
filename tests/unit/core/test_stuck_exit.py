"""When a process is ended because nothing but stuck tasks is left in its event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quiesce import Scope
from quiesce.core import process_exit, stuck_exit
from tests.stress import Stubborn, turns

LOOKS = 5


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.real_time
async def test_a_program_that_goes_on_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own task is left as well; when only stuck tasks are, the process exits with 1."""
    monkeypatch.setattr(process_exit, "_lost", False)
    has_left, has_looked = threading.Event(), threading.Semaphore(0)
    is_over: list[bool] = []
    real = stuck_exit.tasks_in

    def tasks(loop: asyncio.AbstractEventLoop) -> set[object]:
        has_looked.release()
        return set() if is_over else real(loop)

    monkeypatch.setattr(stuck_exit, "tasks_in", tasks)
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        scope.spawn(stubborn.run, name="stubborn")
        await turns()
        report = await scope.aclose(cleanup=0.05)
        assert len(report.stuck) == 1
        loop = asyncio.get_running_loop()
        watch = threading.Thread(target=stuck_exit.watch_loop, args=(loop, 0.0, has_left.set))
        watch.start()
        for _ in range(LOOKS):
            await asyncio.to_thread(has_looked.acquire)
        assert not has_left.is_set()
        is_over.append(True)
        await asyncio.to_thread(has_left.wait)
        assert process_exit.is_lost()
        await asyncio.to_thread(watch.join)


async def test_without_stuck_tasks_nothing_is_watched() -> None:
    """The event loop ends by itself."""
    stuck_exit.exit_when_only_stuck_is_left(None, 0.0)
    async with Scope("a") as scope:
        stuck_exit.exit_when_only_stuck_is_left(scope.loop, 0.0)
    assert "quiesce stuck" not in {thread.name for thread in threading.enumerate()}
