"""Measure the core: `python -m benchmarks.core`.

What owning costs, as ratios to the least that correct asyncio code must do by itself:
`create_task`, a set of strong references, and `add_done_callback(set.discard)`. Everything
that is compared runs interleaved in one process (see `_harness`), garbage collection stays
on, and each piece has its own event loop.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks._harness import BACKENDS, Result, has_backend
from benchmarks._measures import MEASURES, warm_up
from benchmarks._peers import PEERS
from benchmarks._sizes import FULL, QUICK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks._sizes import Sizes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print them; give the exit code."""
    options = _parse(argv)
    sizes = QUICK if options.quick else FULL
    if options.repeat:
        sizes = sizes.with_rounds(options.repeat)
    chosen = options.only or list(MEASURES)
    backends = [options.backend] if options.backend else list(BACKENDS)
    found = {b: _measure(b, chosen, sizes) for b in backends if has_backend(b)}
    facts = _facts(sizes, quick=options.quick)
    facts["missing_backends"] = [backend for backend in backends if backend not in found]
    if options.json:
        print(json.dumps(facts | {"backends": _as_data(found)}, indent=2))
    else:
        print(_as_text(facts, found))
    exceeded = any(r.verdict == "over" for results in found.values() for r in results)
    return 1 if options.strict and exceeded else 0


def _measure(backend: str, chosen: Sequence[str], sizes: Sizes) -> list[Result]:
    warm_up(backend)
    return [result for name in chosen for result in MEASURES[name](backend, sizes)]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.core",
        description=(
            "Measure quiesce's core against bare asyncio.create_task with a set of strong "
            "references, in the same run. Progress goes to stderr. The full run takes about "
            "four minutes, and one gigabyte of memory for a million live jobs."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: a smoke test, not a measurement"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(MEASURES),
        metavar="NAME",
        help=f"measure this alone; may be repeated: {', '.join(MEASURES)}",
    )
    parser.add_argument("--backend", choices=BACKENDS, help="one event loop alone")
    parser.add_argument("--repeat", type=_positive, metavar="N", help="rounds to interleave")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is exceeded")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        message = f"a whole number of at least 1 is needed, not {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _facts(sizes: Sizes, *, quick: bool) -> dict[str, Any]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform} {platform.machine()}",
        "processors": os.cpu_count(),
        "quick": quick,
        "rounds": sizes.rounds,
        "peers": {peer.name: peer.version for peer in PEERS},
    }


def _as_data(found: dict[str, list[Result]]) -> dict[str, dict[str, Any]]:
    return {
        backend: {result.name: asdict(result) | {"verdict": result.verdict} for result in results}
        for backend, results in found.items()
    }


def _as_text(facts: dict[str, Any], found: dict[str, list[Result]]) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in facts["peers"].items())
    lines = [
        f"quiesce core on {facts['python']}, {facts['platform']}, {facts['processors']} processors",
        f"peers: {peers}",
        f"best of {facts['rounds']} interleaved rounds or more; fewer for peers and flatness",
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


def _summary_lines(found: dict[str, list[Result]]) -> list[str]:
    lines = [f"{'figure':<17}{'limit':>6}" + "".join(f"{backend:>16}" for backend in found)]
    for results in zip(*found.values(), strict=True):
        limit = results[0].limit
        if limit is not None:
            line = f"{results[0].name:<17}{limit:>6.2f}"
            line += "".join(f"{r.value:>10.2f} {r.verdict:<5}" for r in results)
            if results[0].bare is not None:
                line += "  bare itself: " + ", ".join(f"{r.bare:.2f}" for r in results)
            lines.append(line)
    return lines


def _result_lines(result: Result) -> list[str]:
    head = f"{result.name:<16}"
    if result.value is not None:
        head += f" {result.value:5.2f}"
    if result.low is not None:
        head += f"  (rounds {result.low:.2f} / {result.median:.2f} / {result.high:.2f})"
    if result.limit is not None:
        head += f"  limit {result.limit:.2f}  {result.verdict}"
    if result.bare is not None:
        head += f"  (bare itself: {result.bare:.2f})"
    lines = ["", head, f"  {result.about}"]
    for row in result.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:6.2f} x"
        lines.append(
            f"    {row.label:<30} {row.best:10.2f} {row.unit:<15}"
            f" median {row.median:10.2f}  worst {row.worst:10.2f} {ratio}".rstrip()
        )
    return lines + [f"  note: {note}" for note in result.notes]


if __name__ == "__main__":
    raise SystemExit(main())
