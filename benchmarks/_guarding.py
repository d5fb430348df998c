"""What the guard costs: a suite of async tests, run by pytest with it and without it.

The two runs are separate processes, in turn. The benchmark measures the part of a run in which tests run: the
processor time for the overhead, and the time by the clock for the ratio.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import Result, Samples, interleave, row

if TYPE_CHECKING:
    from benchmarks._sizes import GuardSizes

OFF = "pytest, guard off"
ON = "pytest, guard on"
_SECONDS_MAX = 600

# Most tests of a real suite do more than the smallest of these, so it is the worst case.
_SMALL = """
async def test_{number}():
    queue = asyncio.Queue(3)
    async def produce():
        for item in range(10):
            await queue.put(item)
        await queue.put(None)
    async def consume():
        total = 0
        while (item := await queue.get()) is not None:
            total += item
        return total
    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        total = group.create_task(consume())
    assert total.result() == 45
"""
_USUAL = """
async def test_{number}():
    handlers = []
    async def echo(reader, writer):
        handlers.append(asyncio.current_task())
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(10):
            writer.write(b"%d\\n" % number)
            assert int(await asyncio.wait_for(reader.readline(), 10)) == number
            await asyncio.sleep(0.0002)
        writer.close()
        await writer.wait_closed()
        await asyncio.gather(*handlers)
"""
_CONFTEST = """
import time
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop():
    processor, wall = time.process_time(), time.perf_counter()
    result = yield
    print("\\nTOOK", time.process_time() - processor, time.perf_counter() - wall)
    return result

@pytest.fixture
def anyio_backend():
    return "asyncio", {{"use_uvloop": {uvloop}}}
"""


def write_suite(folder: Path, backend: str, test: str, count: int) -> None:
    """Write a suite of `count` tests."""
    text = _CONFTEST.format(uvloop=backend == "uvloop")
    (folder / "conftest.py").write_text(text, encoding="utf-8")
    tests = "".join(test.format(number=number) for number in range(count))
    head = "import asyncio\nimport pytest\n\npytestmark = pytest.mark.anyio\n"
    (folder / "test_suite.py").write_text(head + tests, encoding="utf-8")


def run_suite(folder: Path, count: int, *, guarded: bool) -> tuple[float, float]:
    """Run the suite; return the processor time of its tests, and their time by the clock."""
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    mode = f"--quiesce-guard={'error' if guarded else 'off'}"
    plugins = ["-panyio.pytest_plugin", "-pquiesce.pytest_plugin", "-pno:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir=.",
        *plugins,
        mode,
    ]
    done = subprocess.run(  # noqa: S603 - the program is pytest, on files that were written here
        command,
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    if done.returncode or f"{count} passed" not in done.stdout:
        message = f"the suite did not pass:\n{done.stdout}\n{done.stderr}"
        raise RuntimeError(message)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("TOOK ")]
    _, processor, wall = line.split()
    return float(processor), float(wall)


def guard(backend: str, sizes: GuardSizes) -> list[Result]:
    """Measure what the guard adds to a test, and to a suite."""
    return [
        _overhead(backend, sizes),
        _ratio(backend, sizes),
    ]


def _measured(
    label: str, backend: str, test: str, sizes: GuardSizes
) -> dict[str, list[tuple[float, float]]]:
    taken: dict[str, list[tuple[float, float]]] = {OFF: [], ON: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_suite(folder, backend, test, sizes.tests)

        def piece(who: str) -> float:
            times = run_suite(folder, sizes.tests, guarded=who == ON)
            taken[who].append(times)
            return times[0]

        pieces = {who: partial(piece, who) for who in taken}
        interleave(f"{backend}: {label}", pieces, sizes.rounds)
    return taken


def _overhead(backend: str, sizes: GuardSizes) -> Result:
    taken = _measured("guard, small tests", backend, _SMALL, sizes)
    each = {
        who: Samples(tuple(processor / sizes.tests * 1e3 for processor, _ in times))
        for who, times in taken.items()
    }
    more = [on - off for on, off in zip(each[ON].values, each[OFF].values, strict=True)]
    return Result(
        name="guard_overhead_ms",
        about=f"processor time that the guard adds to a test; {sizes.tests:,} small async tests",
        rows=tuple(row(who, samples, "ms a test", each[OFF]) for who, samples in each.items()),
        value=each[ON].best - each[OFF].best,
        low=min(more),
        median=Samples(tuple(more)).median,
        high=max(more),
        limit=2.0,
        base=OFF,
    )


def _ratio(backend: str, sizes: GuardSizes) -> Result:
    taken = _measured("guard, usual tests", backend, _USUAL, sizes)
    each = {who: Samples(tuple(wall for _, wall in times)) for who, times in taken.items()}
    paired = [on / off for on, off in zip(each[ON].values, each[OFF].values, strict=True)]
    return Result(
        name="guard_suite_ratio",
        about=f"{sizes.tests:,} async tests with a server, a client and timers: time on the wall",
        rows=tuple(row(who, samples, "s a run", each[OFF]) for who, samples in each.items()),
        value=each[ON].best / each[OFF].best,
        low=min(paired),
        median=Samples(tuple(paired)).median,
        high=max(paired),
        limit=1.1,
        base=OFF,
    )
