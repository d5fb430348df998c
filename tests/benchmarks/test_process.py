"""The benchmarks of child processes: that each way to start and to end one does so, and cleans up.

No figure is judged here: sizes are tiny, and the machine that tests is not the one that measures.
"""

from __future__ import annotations

import gc
import json
import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from benchmarks import _process_drains, _process_spawns, process
from benchmarks._harness import BACKENDS, OURS, has_backend
from benchmarks._process_memory import PREEXEC, grown, start_with_preexec
from benchmarks._process_spawns import TICK_SECONDS, Ticker, spawn_and_reap, start_at_once
from benchmarks._process_starters import OUTPUTS, Starter, has_loop, run_on, starters
from benchmarks._sizes import PROCESS_FULL, ProcessSizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._process_starters import Wiring

TINY = ProcessSizes(
    rounds=2,
    rounds_at_once=2,
    rounds_drain=1,
    rounds_grown=2,
    rounds_peers=1,
    starts=1,
    starts_grown=1,
    at_once=2,
    stubborn=2,
    grace_seconds=0.05,
    grown_megabytes=1,
)
EVERYONE = [
    pytest.param(each, id=each.name)
    for each in (
        *starters("asyncio").values(),
        Starter(PREEXEC, "asyncio", start_with_preexec),
    )
]
TOGETHER = [
    pytest.param(each, id=each.name) for each in starters("asyncio").values() if each.at_once
]
LIMITS: dict[str, dict[str, float | None]] = {
    "spawn_reap": {
        "spawn_reap_vs_asyncio": 0.8,
        "spawn_reap_pipes": None,
        "spawn_reap_cpu": None,
    },
    "spawn_lag": {"spawn_lag_200": 0.25, "spawn_200_total": None},
    "spawn_rss": {"spawn_rss": 1.5},
    "drain_stubborn": {"drain_5_stubborn": 1.3, "drain_5_stubborn_pool": 1.3},
}
STOPS: dict[str, tuple[_process_drains.Way, str, int]] = {  # and how many graces it takes
    "scope": (_process_drains.close_scope, "asyncio", 1),
    "scope on trio": (_process_drains.close_scope, "trio", 1),
    "pool": (_process_drains.drain_pool, "asyncio", 1),
    "asyncio, serial": (_process_drains.stop_serially, "asyncio", 2),
    "asyncio, gathered": (_process_drains.stop_gathered, "asyncio", 1),
}


def children() -> set[str]:
    """List the children of this program, those among them that are dead and not reaped."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            found.update((task / "children").read_text().split())
    return found


def open_files() -> int:
    """Count the open files of this program."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test that leaves a child, a file, or something that warns when it is collected."""
    for loop in filter(has_loop, ("asyncio", "uvloop", "trio")):
        # What stays: the watcher of the lifeline, and what uvloop opens once and for all.
        run_on(loop, partial(spawn_and_reap, starters(loop)[OURS], 1))
    before = children(), open_files()
    yield
    gc.collect()
    assert (children(), open_files()) == before


@pytest.mark.parametrize("wiring", OUTPUTS)
@pytest.mark.parametrize("starter", EVERYONE)
def test_a_program_is_started_and_reaped(starter: Starter, wiring: Wiring) -> None:
    """Each way starts the program and sees it end, with each wiring."""
    seconds, cpu_seconds = run_on(starter.loop, partial(spawn_and_reap, starter, 2, wiring))
    assert seconds > 0
    assert cpu_seconds > 0


@pytest.mark.parametrize("starter", TOGETHER)
def test_programs_are_started_at_once(starter: Starter) -> None:
    """Each way starts several, sees them end, and is looked at meanwhile."""
    lag, seconds = run_on(starter.loop, partial(start_at_once, starter, 3))
    assert lag > 0
    assert seconds > 0


async def test_the_ticker_sees_how_long_the_loop_is_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worst lag is what a tick came too late, and the last tick counts."""
    clock = [0.0]
    looked = anyio.Event()

    def wall() -> float:
        looked.set()
        return clock[0]

    monkeypatch.setattr(_process_spawns, "wall", wall)
    ticker = Ticker()
    async with anyio.create_task_group() as group:
        group.start_soon(ticker.tick)
        await looked.wait()
        clock[0] += 0.5  # nothing else runs meanwhile
        ticker.stop()
    assert ticker.lag_seconds == pytest.approx(0.5 - TICK_SECONDS)


def test_memory_grows_and_shrinks() -> None:
    """The memory is really the parent's: resident, and given back."""

    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident_pages()
    with grown(16):
        assert resident_pages() > before + 3_500  # of 4 KB, or less of larger ones
    assert resident_pages() < before + 3_500


@pytest.mark.parametrize("way", STOPS)
def test_stubborn_programs_are_killed(way: str) -> None:
    """Each way to end programs that ignore SIGTERM gives them their grace, and leaves none."""
    stop, loop, graces = STOPS[way]
    if not has_loop(loop):
        pytest.skip(f"{loop} is not here")
    grace = TINY.grace_seconds
    assert run_on(loop, partial(stop, 2, grace)) > graces * grace * 0.99


@pytest.mark.parametrize("name", process.SUITE.measures)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_measure_gives_its_figures(backend: str, name: str) -> None:
    """Every measure gives its figures, with the limits that were set, and rows for those compared."""
    if not has_backend(backend):
        pytest.skip(f"{backend} is not here")
    figures = process.SUITE.measures[name](backend, TINY)
    assert {figure.name: figure.limit for figure in figures} == LIMITS[name]
    for figure in figures:
        assert figure.value is not None
        assert math.isfinite(figure.value)
        assert figure.value > 0
        assert figure.base in {row.label for row in figure.rows}


def test_the_command_prints_sound_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite's own program prints one document, with every figure that has a limit judged."""
    monkeypatch.setitem(process.SUITE.__dict__, "quick", TINY)
    process.main(["--json", "--quick", "--backend", "asyncio"])
    data = json.loads(capsys.readouterr().out)
    figures = data["backends"]["asyncio"]
    limits = {name: limit for measure in LIMITS.values() for name, limit in measure.items()}
    assert {name: figure["limit"] for name, figure in figures.items()} == limits
    assert all(bool(figure["verdict"]) == bool(figure["limit"]) for figure in figures.values())


def test_fewer_rounds_are_asked_for() -> None:
    """With --repeat, no part has more rounds than that."""
    sizes = PROCESS_FULL.with_rounds(1)
    rounds = (sizes.rounds_at_once, sizes.rounds_drain, sizes.rounds_grown, sizes.rounds_peers)
    assert {sizes.rounds, *rounds} == {1}
