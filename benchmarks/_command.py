"""The command line of the benchmarks, and how their results are printed.

A `Suite` is a set of measures about one part of the library. `python -m benchmarks.core` runs one
suite, `python -m benchmarks` runs them all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar

from benchmarks._harness import BACKENDS, Result, has_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks._packages import Package


class Sized(Protocol):
    """How much a suite measures."""

    @property
    def rounds(self) -> int:
        """The number of rounds."""

    def with_rounds(self, rounds: int) -> Self:
        """Return the same with another number of rounds."""


S = TypeVar("S", bound=Sized)
Found: TypeAlias = "dict[str, list[Result]]"  # by backend


@dataclass(frozen=True)
class Suite(Generic[S]):
    """The measures of one part of the library."""

    name: str
    description: str
    rounds_note: str  # a remark about the rounds
    warm_up: Callable[[str], None]
    measures: Mapping[str, Callable[[str, S], list[Result]]]
    peers: Sequence[Package]
    full: S
    quick: S

    def sizes(self, *, quick: bool, rounds: int | None) -> S:
        """Return how much to measure."""
        sizes = self.quick if quick else self.full
        return sizes.with_rounds(rounds) if rounds else sizes

    def measure(self, backend: str, chosen: Sequence[str], sizes: S) -> list[Result]:
        """Run the chosen measures, and return their results."""
        self.warm_up(backend)
        names = [name for name in chosen if name in self.measures]
        return [result for name in names for result in self.measures[name](backend, sizes)]


def run(
    suites: Sequence[Suite[Any]], argv: Sequence[str] | None = None, *, program: str | None = None
) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    options = _parse(suites, argv, program or f"benchmarks.{suites[0].name}")
    chosen = options.only or [name for suite in suites for name in suite.measures]
    taken = [
        (suite, *_take(suite, chosen, options))
        for suite in suites
        if not suite.measures.keys().isdisjoint(chosen)
    ]
    if options.json:
        data = {suite.name: facts | {"backends": _as_data(found)} for suite, facts, found in taken}
        # A single suite is printed without its name; `python -m benchmarks` prints the name of each.
        print(json.dumps(data if len(suites) > 1 else data[suites[0].name], indent=2))
    else:
        print("\n\n".join(_as_text(*each) for each in taken))
    figures = [r for _, _, found in taken for results in found.values() for r in results]
    return 1 if options.strict and any(figure.missed for figure in figures) else 0


def _take(
    suite: Suite[Any], chosen: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, Any], Found]:
    sizes = suite.sizes(quick=options.quick, rounds=options.repeat)
    backends = [options.backend] if options.backend else list(BACKENDS)
    found = {b: suite.measure(b, chosen, sizes) for b in backends if has_backend(b)}
    facts = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform} {platform.machine()}",
        "processors": os.cpu_count(),
        "quick": options.quick,
        "rounds": sizes.rounds,
        "peers": {peer.name: peer.version for peer in suite.peers},
        "missing_backends": [backend for backend in backends if backend not in found],
    }
    return facts, found


def _parse(
    suites: Sequence[Suite[Any]], argv: Sequence[str] | None, program: str
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=" ".join([*(suite.description for suite in suites), _PROGRESS]),
    )
    measures = [name for suite in suites for name in suite.measures]
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: a smoke test, not a measurement"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=measures,
        metavar="NAME",
        help=f"measure this alone; may be repeated: {', '.join(measures)}",
    )
    parser.add_argument("--backend", choices=BACKENDS, help="one event loop alone")
    parser.add_argument("--repeat", type=_positive, metavar="N", help="rounds to interleave")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is missed")
    return parser.parse_args(argv)


_PROGRESS = "Progress goes to stderr."


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        message = f"a whole number of at least 1 is needed, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _as_data(found: Found) -> dict[str, dict[str, Any]]:
    return {
        backend: {result.name: asdict(result) | {"verdict": result.verdict} for result in results}
        for backend, results in found.items()
    }


def _as_text(suite: Suite[Any], facts: dict[str, Any], found: Found) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in facts["peers"].items())
    machine = f"{facts['python']}, {facts['platform']}, {facts['processors']} processors"
    lines = [
        f"quiesce {suite.name} on {machine}",
        f"peers: {peers}",
        f"best of {facts['rounds']} interleaved rounds{suite.rounds_note}",
    ]
    if facts["quick"]:
        lines.append("quick: small sizes, few rounds; the figures are not measurements")
    lines += [f"{backend}: missing" for backend in facts["missing_backends"]]
    lines += ["", *_summary_lines(found)]
    for backend, results in found.items():
        lines += ["", f"== {backend} =="]
        for result in results:
            lines += _result_lines(result)
    return "\n".join(lines)


def _summary_lines(found: Found) -> list[str]:
    width = max([16, *(len(r.name) for results in found.values() for r in results)]) + 1
    lines = [f"{'figure':<{width}}{'limit':>6}" + "".join(f"{backend:>16}" for backend in found)]
    for results in zip(*found.values(), strict=True):
        if results[0].limit is not None:
            line = f"{results[0].name:<{width}}{_limit(results[0]):>6}"
            line += "".join(f"{r.value:>10.2f} {r.verdict:<5}" for r in results)
            if results[0].bare is not None:
                line += "  bare itself: " + ", ".join(f"{r.bare:.2f}" for r in results)
            lines.append(line.rstrip())
    return lines


def _limit(result: Result) -> str:
    return f"{'>=' if result.at_least else ''}{result.limit:.2f}"


def _result_lines(result: Result) -> list[str]:
    head = f"{result.name:<16}"
    if result.value is not None:
        head += f" {result.value:5.2f}"
    if result.low is not None:
        head += f"  (rounds {result.low:.2f} / {result.median:.2f} / {result.high:.2f})"
    if result.limit is not None:
        head += f"  limit {_limit(result)}  {result.verdict}"
    if result.bare is not None:
        head += f"  (bare itself: {result.bare:.2f})"
    lines = ["", head, f"  {result.about}"]
    for row in result.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:6.2f} x"
        lines.append(
            f"    {row.label:<30} {row.best:10.2f} {row.unit:<15}"
            f" median {row.median:10.2f}  worst {row.worst:10.2f} {ratio}".rstrip()
        )
    if result.against:
        others = ", ".join(f"{value:.2f} to {label}" for label, value in result.against.items())
        lines.append(f"  the limit is on the ratio to {result.base}; it is {others}")
    return lines + [f"  note: {note}" for note in result.notes]
