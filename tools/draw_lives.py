#!/usr/bin/env python3
"""Draw the lives of scopes, processes, hops and edges, from the tables that the library itself uses.

python tools/draw_lives.py            writes docs/img/life-of-*.svg
python tools/draw_lives.py --check    exits with 1 if a picture is not what its table says
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import SCOPE_LIFE
from quiesce.mesh.protocol.states import EDGE_LIFE, HOP_LIFE, WORK_LIFE
from quiesce.processes.process_owner import PROCESS_LIFE

if TYPE_CHECKING:
    from quiesce.core.life import Life

FOLDER = Path(__file__).parents[1] / "docs" / "img"
LIVES: tuple[Life[Any], ...] = (SCOPE_LIFE, PROCESS_LIFE, HOP_LIFE, WORK_LIFE, EDGE_LIFE)

_BOX, _HIGH, _GAP = 104, 40, 46
_ARC = 34  # how much higher an arc is for each state that it skips


def picture(life: Life[Any]) -> str:
    """Return the diagram of a life as SVG: its states in order, with an arrow for each step."""
    states = list(life.steps)
    steps = [
        (states.index(before), states.index(after))
        for before, following in life.steps.items()
        for after in following
    ]
    top = 16 + _ARC * (max(after - before for before, after in steps) - 1)
    below = _ARC * max(0, *(before - after for before, after in steps))
    wide, high = len(states) * (_BOX + _GAP) - _GAP + 20, top + _HIGH + 16 + below
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img">',
        f"<title>The life of {life.what}: {_in_words(life)}</title>",
        (
            "<style>text{font:14px system-ui,sans-serif;fill:#1b2733;text-anchor:middle}"
            "rect{fill:#e8f0f7;stroke:#4a6f8f;stroke-width:1.5}"
            "path{fill:none;stroke:#4a6f8f;stroke-width:1.5}"
            "marker path{fill:#4a6f8f;stroke:none}</style>"
        ),
        (
            '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
        ),
    ]
    for before, after in steps:
        parts.append(f'<path d="{_way(before, after, top)}" marker-end="url(#end)"/>')
    for number, state in enumerate(states):
        left = 10 + number * (_BOX + _GAP)
        parts.append(f'<rect x="{left}" y="{top}" width="{_BOX}" height="{_HIGH}" rx="8"/>')
        parts.append(f'<text x="{left + _BOX // 2}" y="{top + 25}">{state.value}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _way(before: int, after: int, top: int) -> str:
    """Return the path of an arrow: a line to the next state, an arc above to a later one, an arc below to an earlier one."""
    left = 10 + before * (_BOX + _GAP)
    to = 10 + after * (_BOX + _GAP)
    if after == before + 1:
        return f"M{left + _BOX},{top + _HIGH // 2} L{to},{top + _HIGH // 2}"
    if after < before:
        foot = top + _HIGH
        height, start, end = foot + _ARC * (before - after), left + _BOX // 3, to + _BOX * 2 // 3
        return f"M{start},{foot} C{start},{height} {end},{height} {end},{foot}"
    height = top - _ARC * (after - before - 1)
    start, end = left + _BOX * 2 // 3, to + _BOX // 3
    return f"M{start},{top} C{start},{height} {end},{height} {end},{top}"


def _in_words(life: Life[Any]) -> str:
    """Return the steps as a sentence, for screen readers."""
    lines = [
        f"{before.value} leads to " + " or ".join(after.value for after in following)
        for before, following in life.steps.items()
        if following
    ]
    return "; ".join(lines)


def main() -> int:
    """Write the pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if one is out of date")  # fmt: skip
    asked = parser.parse_args()
    stale = []
    for life in LIVES:
        path = FOLDER / f"life-of-{life.what.replace(' ', '-')}.svg"
        if asked.check and (not path.exists() or path.read_text("utf-8") != picture(life)):
            stale.append(path.name)
        elif not asked.check:
            path.write_text(picture(life), "utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}; run python tools/draw_lives.py")  # noqa: T201 - its output
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
