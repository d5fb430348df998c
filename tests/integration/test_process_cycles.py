"""A thousand processes, started and stopped: nothing grows with their number."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections import Counter
from pathlib import Path

import pytest

from quiesce import Scope
from quiesce.processes import watchdog
from quiesce.processes.process import Process, start_process
from tests import loops

CYCLES = 1000
CYCLES_WARM = 100
AT_ONCE = 20
BYTES_MAX = 100 * (CYCLES - CYCLES_WARM)  # what is left of a process would be over a thousand
OBJECTS_MAX = (CYCLES - CYCLES_WARM) // 10  # of one type; caches have their ups and downs
# The guard has notes of tasks in a weak dictionary of the whole run: its table is as large as it was ever
# filled by the tests before, and is made anew at any time. Entries that stay are counted as objects.
NOT_OURS = tracemalloc.Filter(inclusive=False, filename_pattern=weakref.__file__)
THROWN_AWAY_LATER = {"CancelScope", "tuple"}  # trio looks through its old deadlines now and then


def usage() -> dict[str, int]:
    """Count what this program has, of which there may not be more."""
    table = watchdog.watcher.table
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "children": len(loops.children()),
        "groups to watch": 0 if table is None else len(table._places),
    }


def objects() -> Counter[str]:
    """Count what the garbage collector knows, by type."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())


async def one_that_is_stopped() -> None:
    """Start a process, and stop it."""
    process = await start_process(["sleep", "60"], grace=5)
    assert await process.stop() == -15


async def one_that_exits() -> None:
    """Start a process, read what it says, and wait for its end."""
    process: Process = await start_process(["echo", "hello"])
    assert [line async for line in process.stdout] == ["hello"]
    assert await process.wait() == 0


async def cycles(number: int) -> None:
    """Go through some cycles, several at once, half of them in either way."""
    for _ in range(number // AT_ONCE):
        async with Scope("batch") as scope:
            for _ in range(AT_ONCE // 2):
                scope.spawn(one_that_is_stopped)
                scope.spawn(one_that_exits)
        gc.collect()


def traced() -> int:
    """Return the bytes that are there since the tracing began."""
    gc.collect()
    found = tracemalloc.take_snapshot().filter_traces([NOT_OURS])
    return sum(each.size for each in found.traces)


@pytest.fixture
def diligent() -> None:
    """Limit the garbage collector to the objects of this test, without those that earlier tests have left.

    It stays so: the tests after this one would wait for a collection of all objects of the run, each for a second.
    """
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("diligent")
@pytest.mark.skipif(not loops.PROC, reason="it looks into /proc")
@pytest.mark.real_time
@pytest.mark.sampled(1)
async def test_nothing_grows_with_the_number_of_processes() -> None:
    """Files, threads, children, objects and memory are after a thousand as they were after a hundred."""
    async with Scope("whole"):
        await cycles(CYCLES_WARM)
        before, threads, known = usage(), set(threading.enumerate()), objects()
        tracemalloc.start()
        try:
            await cycles(CYCLES - CYCLES_WARM)
            grown = traced()
        finally:
            tracemalloc.stop()
        assert usage() == before
        assert set(threading.enumerate()) <= threads
        more = (objects() - known).items()
        assert [
            each for each in more if each[1] > OBJECTS_MAX and each[0] not in THROWN_AWAY_LATER
        ] == []
        assert grown < BYTES_MAX
    assert before["groups to watch"] == 0
