"""Count what four ways to run a child process leave behind: `python -m benchmarks.orphans`.

Each way starts a child, waits until it is ready, uses it and stops it, and is cancelled at each step, once and
twice. A step is a suspension of the task, or a turn of the event loop (asyncio and trio). The
children are polite, or ignore SIGTERM, or have a child of their own that holds the pipes, or exit
before they are ready.

The exit code is 1 if quiesce leaves anything. It needs /proc, to find processes that are left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import select
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks import _orphan_census as census
from benchmarks._harness import has_backend, progress
from benchmarks._orphan_steps import HUNG_SECONDS, LEAKED_SECONDS, Cell, Seen
from benchmarks._orphan_ways import GRACE_SECONDS, OURS, PROGRAMS, WAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parent.parent
BACKENDS = ("asyncio", "uvloop", "trio")
AT_ONCE = 8  # more than the processors, because runs that hang only wait
ANSWER_SECONDS_MAX = 30.0  # a run ends by itself long before
LATER_TURNS = (1, 2, 4)  # when the second cancellation comes, where steps are turns
COLUMNS = {
    "leaked": "leaked",
    "alive": "alive at return",
    "hung": "hung",
    "unburied": "not reaped",
    "wrong code": "exit code lost",
    "swallowed": "cancellation swallowed",
    "raised": "another error",
}


@dataclass(frozen=True)
class Extent:
    """How much to sweep."""

    programs: tuple[str, ...]
    kinds: tuple[str, ...]
    later: bool
    """Whether to cancel a second time if steps are turns."""


FULL = Extent(tuple(PROGRAMS), ("native", "anyio"), later=True)
QUICK = Extent(("polite", "parent"), ("native",), later=False)


class Worker:
    """A program that performs runs; it is started again if a run has ended it."""

    def __init__(self, cell: Cell, mark: str) -> None:
        """Prepare for the runs of a cell."""
        self._cell = cell
        self._mark = mark
        self._runs = 0
        self._program: subprocess.Popen[str] | None = None

    def run(self, by: str, at: Sequence[int]) -> Seen:
        """Run the program once, and return what was seen."""
        self._runs += 1
        if self._program is None:
            self._program = self._start()
        sink, source = self._program.stdin, self._program.stdout
        assert sink is not None
        assert source is not None
        with suppress(BrokenPipeError):  # the program has ended, and will not answer
            print(json.dumps([by, list(at), f"{self._mark}{self._runs}."]), file=sink, flush=True)
        line = _answer(source)
        seen = Seen(**json.loads(line)) if line else Seen(by, list(at), faults=["hung", "wedged"])
        if "wedged" in seen.faults:
            self.end()
        return seen

    def _start(self) -> subprocess.Popen[str]:
        cell = self._cell
        return subprocess.Popen(  # noqa: S603 - a program of ours
            [sys.executable, "-m", "benchmarks._orphan_worker", *asdict(cell).values()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # leaked tasks and processes print many warnings
            text=True,
            cwd=ROOT,
        )

    def end(self) -> None:
        """End the program, and the processes that it may have left."""
        program, self._program = self._program, None
        if program is not None:
            program.kill()
            program.communicate()
        census.kill(self._mark)


def _answer(source: IO[str]) -> str:
    ready, _, _ = select.select([source], [], [], ANSWER_SECONDS_MAX)
    return source.readline() if ready else ""


def sweep(cell: Cell, extent: Extent, mark: str) -> list[Seen]:
    """Cancel at each step, once and twice; return the records of all runs."""
    worker = Worker(cell, mark)
    try:
        steps = ["suspensions"] if cell.backend == "uvloop" else ["suspensions", "turns"]
        return [seen for by in steps for seen in _sweep(worker, by, extent)]
    finally:
        worker.end()


def _sweep(worker: Worker, by: str, extent: Extent) -> Iterator[Seen]:
    undisturbed = worker.run(by, [])
    yield undisturbed
    for first in range(1, undisturbed.steps + 1):
        once = worker.run(by, [first])
        yield once
        for second in range(first + 1, once.steps + 1):
            if by == "suspensions" or (extent.later and second - first in LATER_TURNS):
                yield worker.run(by, [first, second])


def cells(options: argparse.Namespace, extent: Extent) -> list[Cell]:
    """Return the cells to sweep."""
    return [
        Cell(way, backend, kind, program)
        for program in options.child or extent.programs
        for way in options.way or WAYS
        for backend in options.backend or BACKENDS
        if backend in WAYS[way].backends and has_backend(backend)
        for kind in (("anyio",) if backend == "trio" else extent.kinds)
    ]


def run_all(chosen: Sequence[Cell], extent: Extent) -> list[tuple[Cell, Seen]]:
    """Sweep every cell, several at once, and return all runs."""
    token = secrets.token_hex(8)
    done = 0

    def run(number: int, cell: Cell) -> list[tuple[Cell, Seen]]:
        nonlocal done
        runs = sweep(cell, extent, f"{token}.{number}.")
        done += 1
        faulty = sum(bool(seen.faults) for seen in runs)
        names = " ".join(asdict(cell).values())
        progress(f"{done} of {len(chosen)}: {names}: {len(runs)} runs, {faulty} faulty")
        return [(cell, seen) for seen in runs]

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(run, range(len(chosen)), chosen))
    finally:
        census.kill(f"{token}.")
    return [pair for pairs in found for pair in pairs]


def count(runs: Sequence[Seen]) -> dict[str, int]:
    """Return the totals of some runs."""
    faults = Counter(fault for seen in runs for fault in set(seen.faults))
    return {
        "runs": len(runs),
        "cancelled": sum(bool(seen.delivered) for seen in runs),
        "twice": sum(seen.delivered > 1 for seen in runs),
        "faulty": sum(bool(seen.faults) for seen in runs),
        **{name: faults[name] for name in COLUMNS},
    }


def split(
    found: Sequence[tuple[Cell, Seen]], key: Callable[[Cell, Seen], str]
) -> dict[str, dict[str, int]]:
    """Return the totals of runs, grouped by what they have in common."""
    parts: dict[str, list[Seen]] = {}
    for cell, seen in found:
        parts.setdefault(key(cell, seen), []).append(seen)
    return {name: count(runs) for name, runs in parts.items()}


def gather(found: Sequence[tuple[Cell, Seen]]) -> dict[str, Any]:
    """Return the totals of each way; also by loop, child, place and number of the cancellations."""
    result = {}
    for way in dict.fromkeys(cell.way for cell, _ in found):
        mine = [(cell, seen) for cell, seen in found if cell.way == way]
        result[way] = {
            "about": WAYS[way].about,
            "total": count([seen for _, seen in mine]),
            "backends": split(mine, lambda cell, _: cell.backend),
            "children": split(mine, lambda cell, _: cell.program),
            "kinds": split(mine, lambda cell, _: cell.kind),
            "phases": split(mine, lambda _, seen: seen.phase or "undisturbed"),
            "times": split(mine, lambda _, seen: ("not at all", "once", "twice")[seen.delivered]),
        }
    return result


def faulty_runs(found: Sequence[tuple[Cell, Seen]], way: str) -> list[dict[str, Any]]:
    """Return the faulty runs of a way, with what is needed to repeat each."""
    return [asdict(cell) | asdict(seen) for cell, seen in found if cell.way == way and seen.faults]


def as_text(facts: dict[str, Any], ways: dict[str, Any]) -> str:
    """Return the tables in Markdown."""
    versions = ", ".join(f"{name} {text}" for name, text in facts["versions"].items())
    lines = [
        f"{facts['python']}, {facts['platform']}; {versions}",
        f"leaked: something still runs {LEAKED_SECONDS:g} s after the event loop has ended",
        f"hung: not ended after {HUNG_SECONDS:g} s; the grace of a child is {GRACE_SECONDS:g} s",
        *(f"{name}: {program.about}" for name, program in PROGRAMS.items()),
    ]
    for title, key in (("event loop", "backends"), ("child", "children"), ("cancelled", "times")):
        head = ["way", title, "runs", *COLUMNS.values()]
        lines += ["", f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
        for way in ways.values():
            for name, row in way[key].items():
                lines.append(_line(way["about"], name, row))
            if key == "backends":
                lines.append(_line(way["about"], "**all**", way["total"]))
    return "\n".join(lines)


def _line(way: str, name: str, row: dict[str, int]) -> str:
    figures = [row["runs"], *(row[column] for column in COLUMNS)]
    return f"| {way} | {name} | {' | '.join(map(str, figures))} |"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orphans",
        description=__doc__.partition("\n")[0].partition(":")[0]
        + ". Exits with 1 if quiesce leaves anything. Takes about three minutes."
        + " Progress goes to stderr.",
    )
    parser.add_argument("--json", action="store_true", help="print data instead of tables")
    parser.add_argument("--quick", action="store_true", help="a part of it, in about 20 seconds")
    for name, choices, what in (
        ("--backend", BACKENDS, "on this event loop"),
        ("--way", tuple(WAYS), "in this way"),
        ("--child", tuple(PROGRAMS), "with this child"),
    ):
        parser.add_argument(
            name, action="append", choices=choices, help=f"{what} alone; may be repeated"
        )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep, and print the totals; return the exit code."""
    options = _parse(argv)
    if not census.available():
        print("it needs /proc, to find what was left", file=sys.stderr)
        return 2
    extent = QUICK if options.quick else FULL
    found = run_all(cells(options, extent), extent)
    ways = gather(found)
    facts = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform} {platform.machine()}, {os.cpu_count()} processors",
        "versions": {
            name: version(name) for name in ("anyio", "trio", "uvloop") if find_spec(name)
        },
        "quick": options.quick,
    }
    if options.json:
        print(json.dumps({**facts, "ways": ways, "faulty": faulty_runs(found, OURS)}, indent=2))
    else:
        print(as_text(facts, ways))
    for each in faulty_runs(found, OURS):
        print(f"{OURS} is at fault: {each}", file=sys.stderr)
    return 1 if OURS in ways and ways[OURS]["total"]["faulty"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
