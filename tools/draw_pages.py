#!/usr/bin/env python3
"""Draw the plots of the explanation pages from the tables on these pages. tools/draw_diagrams.py draws the diagrams.

python tools/draw_pages.py            writes docs/img/*.svg
python tools/draw_pages.py --check    exits with 1 if a picture is not what its page says
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.draw_diagrams import DOCS, svg, text, write_pictures

if TYPE_CHECKING:
    from collections.abc import Callable

Table = list[list[str]]


def tables(page: str) -> list[Table]:
    """Return the tables of a page, such as "explanation/cost", each without the line below its header."""
    found: list[Table] = []
    inside = False
    for line in (DOCS / f"{page}.md").read_text("utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip().strip("`*") for cell in line.strip("|").split("|")]
            if not inside:
                found.append([])
            if not re.fullmatch(r"[|\-: ]+", line):
                found[-1].append(cells)
        inside = line.startswith("|")
    return found


def _number(cell: str) -> float:
    found = re.search(r"[\d,]*\.?\d+", cell)
    if found is None:
        message = f"{cell!r} has no number"
        raise ValueError(message)
    return float(found[0].replace(",", ""))


def a2a() -> str:
    """Return the plot of the soak's faults, for the SDK alone and with quiesce."""
    head, *rows = tables("evidence/a2a")[0]
    rows = [
        row
        for row in rows
        if row[0].startswith(("no terminal", "more than", "the client was", "the final", "a state"))
    ]
    most = max(_number(row[1]) for row in rows)
    parts = [text(20, 30, "tasks of a soak that went wrong", "bold")]
    for at, (kind, words) in enumerate((("bad", head[1]), ("good", head[2]))):
        parts.append(f'<rect class="{kind}" x="{350 + 120 * at}" y="20" width="12" height="12"/>')
        parts.append(text(368 + 120 * at, 30, words, "small"))
    for at, row in enumerate(rows):
        y = 50 + 44 * at
        parts.append(text(20, y + 20, row[0]))
        for number, kind in ((1, "bad"), (2, "good")):
            value = _number(row[number])
            wide = max(2.0, 300 * value / most)
            top = y + 6 + 16 * (number - 1)
            parts.append(f'<rect class="{kind}" x="350" y="{top}" width="{wide:.0f}" height="13"/>')
            parts.append(text(358 + wide, top + 11, row[number], "small"))
    title = "; ".join(f"{row[0]}: {row[1]} alone, {row[2]} with quiesce" for row in rows)
    return svg(760, 60 + 44 * len(rows), title, parts)


def mesh() -> str:
    """Return the plot of how often each rule for "done" was wrong, and of how long it waited."""
    rows = [row for row in tables("evidence/mesh")[-1][1:] if row[0] == "yes"]
    total = _number(rows[0][2])
    parts = [
        text(
            20, 30, f"cascades of {total:g}, with faults, that were wrongly said to be done", "bold"
        )
    ]
    below = 62 + 34 * len(rows)
    parts += [
        f'<rect class="bad" x="220" y="{below}" width="12" height="12"/>',
        text(238, below + 10, "something worked", "small"),
    ]
    parts += [
        f'<rect class="some" x="380" y="{below}" width="12" height="12"/>',
        text(398, below + 10, "something was cut off", "small"),
    ]
    for at, row in enumerate(rows):
        y = 50 + 34 * at
        worked, cut = _number(row[4]), _number(row[5])
        parts.append(text(20, y + 17, row[1]))
        left = 220.0
        for value, kind in ((worked, "bad"), (cut, "some")):
            wide = 300 * value / total
            parts.append(
                f'<rect class="{kind}" x="{left:.0f}" y="{y + 4}" width="{wide:.0f}" height="18"/>'
            )
            left += wide
        parts.append(
            text(
                left + 8,
                y + 17,
                f"{worked + cut:g}; waited {row[7].partition(',')[0]} too long (median)",
                "small",
            )
        )
    title = "; ".join(
        f"{row[1]}: {_number(row[4]) + _number(row[5]):g} wrong of {total:g}" for row in rows
    )
    return svg(760, below + 26, title, parts)


def leak_detectors() -> str:
    """Return the plot of which detector finds which seed."""
    head, *rows = tables("evidence/leak-detectors")[0]
    kinds: dict[str, str] = {
        "finds": "good",
        "misses": "bad",
        "hangs": "bad",
        "\N{EN DASH}": "none",
    }
    parts: list[str] = []
    for at, name in enumerate(head[2:]):
        x = 352 + 35 * at
        parts.append(
            f'<text class="small" transform="translate({x},118) rotate(-40)">{escape(name)}</text>'
        )
    for at, row in enumerate(rows):
        y = 128 + 24 * at
        parts.append(text(335, y + 15, f"{row[0]} ({row[1]})", "small end"))
        for number, cell in enumerate(row[2:]):
            kind = kinds.get(cell, "some")
            parts.append(
                f'<rect class="{kind}" x="{342 + 35 * number}" y="{y}" width="31" height="20" rx="3"/>'
            )
    y = 128 + 24 * len(rows) + 14
    for at, (kind, words) in enumerate(
        (
            ("good", "finds"),
            ("some", "sometimes"),
            ("bad", "misses, or hangs"),
            ("none", "does not run there"),
        )
    ):
        parts.append(f'<rect class="{kind}" x="{342 + 122 * at}" y="{y}" width="12" height="12"/>')
        parts.append(text(358 + 122 * at, y + 10, words, "small"))
    found = [
        f"{name} finds {sum(row[at + 2] == 'finds' for row in rows)} of {len(rows)}"
        for at, name in enumerate(head[2:])
    ]
    return svg(840, y + 30, "; ".join(found), parts)


_LACKS = ("no", "accepted", "waits", "raises", "it has no")


def neighbours() -> str:
    """Return the plot of what each library that owns tasks can do."""
    head, *rows = tables("explanation/neighbours")[0]
    parts: list[str] = []
    for at, name in enumerate(head[1:]):
        parts.append(
            f'<text class="small" transform="translate({236 + 90 * at},124) rotate(-22)">{escape(name)}</text>'
        )
    for at, row in enumerate(rows):
        y = 146 + 28 * at
        parts.append(text(200, y + 5, row[0], "end"))
        for number, cell in enumerate(row[1:]):
            kind = "none" if cell.startswith(_LACKS) else "good"
            parts.append(f'<circle class="{kind}" cx="{240 + 90 * number}" cy="{y}" r="9"/>')
    title = "; ".join(f"{row[0]}: {', '.join(row[1:])}" for row in rows)
    return svg(860, 156 + 28 * len(rows), title, parts)


def cost() -> str:
    """Return the plot of what owning a task costs, as ratios to bare asyncio, with the limits."""
    _, *rows = tables("explanation/cost")[0]
    parts = [
        text(
            20,
            30,
            "in ratio to bare asyncio, Python 3.11 on asyncio; the line is what is wanted at most",
            "bold",
        )
    ]
    for at, row in enumerate(rows):
        y = 48 + 28 * at
        value, wanted = _number(row[3]), _number(row[2])
        parts.append(text(170, y + 16, row[0], "end"))
        parts.append(
            f'<rect class="{"good" if value <= wanted else "bad"}" x="180" y="{y + 3}" width="{value * 250:.0f}" height="17"/>'
        )
        parts.append(
            f'<line class="wanted" x1="{180 + wanted * 250:.0f}" y1="{y}" x2="{180 + wanted * 250:.0f}" y2="{y + 23}"/>'
        )
        parts.append(text(190 + max(value, wanted) * 250, y + 16, f"{value:g}", "small"))
    title = "; ".join(f"{row[0]} {_number(row[3]):g}, wanted {row[2]}" for row in rows)
    return svg(760, 64 + 28 * len(rows), title, parts)


def cost_of_adapters() -> str:
    """Return the plot of the adapters' speed, as ratios to the SDK alone, with the limits."""
    rows = [
        row
        for table in tables("explanation/cost-of-adapters")[:3]
        for row in table[1:]
        if row[2].startswith("at least")
    ]
    parts = [
        text(
            20,
            30,
            "in ratio to the SDK's or the app's own speed; the line is what is wanted at least",
            "bold",
        )
    ]
    for at, row in enumerate(rows):
        y = 48 + 28 * at
        value, wanted = _number(row[3]), _number(row[2])
        kind = "good" if value >= wanted else "bad"
        line = 240 + wanted * 220
        parts += [
            text(230, y + 16, row[0].partition("`")[0], "end"),
            f'<rect class="{kind}" x="240" y="{y + 3}" width="{value * 220:.0f}" height="17"/>',
            f'<line class="wanted" x1="{line:.0f}" y1="{y}" x2="{line:.0f}" y2="{y + 23}"/>',
            text(250 + max(value, wanted) * 220, y + 16, f"{value:g}", "small"),
        ]
    title = "; ".join(f"{row[0]} {_number(row[3]):g}, wanted {row[2]}" for row in rows)
    return svg(760, 64 + 28 * len(rows), title, parts)


PICTURES: dict[str, Callable[[], str]] = {
    "a2a-soak": a2a,
    "cost": cost,
    "cost-of-adapters": cost_of_adapters,
    "leak-detectors": leak_detectors,
    "mesh-waiting": mesh,
    "neighbours": neighbours,
}


if __name__ == "__main__":
    sys.exit(write_pictures(PICTURES, __doc__ or "", "draw_pages.py"))
