"""The same cascades, judged by others: the stream has closed; wait 15 seconds; and `cascade.settled()`.

`python -m tests.integration.mesh.compare --cascades 300 --seed 7`. Real agents as in soak.py, all of which
take part. What they do is faster than real agents are: one second here stands for `SCALE`, and so does
one of those that are waited for.

Each says "done" at some time, or does not. It is wrong to say so while something still works, or will,
or after something was cut off (false green); and not to say so although everything was done that was to
be done, and nothing was cut off (false red).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.mesh import soak
from tests.integration.mesh.judge import spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.integration.mesh.plans import Casc
    from tests.integration.mesh.truth import Course, Truth

SCALE = 30.0
WAITS = (5.0, 15.0, 60.0)
_HEAD = (
    "| faults | said to be done when | cascades | said so | while something worked | after something was"
    " cut | not said, though all was done | waited after the end: median, 90 %, most |"
)


@dataclass
class Row:
    """How one way of judging did."""

    way: str
    faults: bool
    cascades: int = 0
    green: int = 0
    still_working: int = 0
    """Green, while something worked or was yet to."""
    cut: int = 0
    """Green, and nothing worked, but something had been cut off."""
    false_red: int = 0
    waited: list[float] = field(default_factory=list)
    """Seconds from the true end to a green that is right."""

    def count(self, cascade: Casc, course: Course, at: float | None) -> None:
        """Count what was said at a time; None: it was not said that all is done."""
        self.cascades += 1
        was_cut = any(work.cut for work in course.works)
        if at is None:
            self.false_red += not was_cut and _is_whole(cascade, course)
            return
        self.green += 1
        if any(work.begin > at or work.end > at for work in course.works):
            self.still_working += 1
        elif was_cut:
            self.cut += 1
        else:
            self.waited.append(at - course.end(joined_only=False))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        told = {name: value for name, value in vars(self).items() if name != "waited"}
        return told | {
            "false_green": self.still_working + self.cut,
            "seconds_after_the_end": spread(self.waited),
        }


def _is_whole(cascade: Casc, course: Course) -> bool:
    """Return whether every message was worked on."""
    ran = {work.hop for work in course.works}
    return all(plan.hop in ran for plan in cascade.plan.everything())


def rows(truth: Truth, cascades: dict[str, Casc], calm: set[str], scale: float) -> Iterable[Row]:
    """Judge cascades in every way; `calm`: those of waves without faults."""
    for faults in (False, True):
        names = [name for name in cascades if (name not in calm) is faults]
        courses = {name: truth.courses[name] for name in names if name in truth.courses}
        told = {name: course for name, course in courses.items() if course.told}
        if not told:
            continue
        for wait in (0.0, *WAITS):
            way = f"{wait:g} s later ({wait / scale:.2f} s here)" if wait else "the stream closed"
            row = Row(way, faults)
            for name, course in told.items():
                at = None if course.answered is None or not course.all_answered else course.answered
                row.count(cascades[name], course, None if at is None else at + wait / scale)
            yield row
        row = Row("cascade.settled()", faults)
        for name, course in told.items():
            said = course.told[-1]
            row.count(cascades[name], course, said.at if said.full == "Settled" else None)
        yield row


def table(made: list[Row], scale: float) -> str:
    """Format the rows as a Markdown table."""
    lines = [
        f"One second here stands for {scale:g}; seconds are those that were measured.",
        "",
        _HEAD,
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in made:
        waited = " / ".join(f"{value:.3f} s" for value in spread(row.waited).values())
        lines.append(
            f"| {'yes' if row.faults else 'no'} | {row.way} | {row.cascades} | {row.green} |"
            f" {row.still_working} | {row.cut} | {row.false_red} | {waited} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run it; the exit code is 1 if quiesce was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    soak.options(parser)
    parser.add_argument("--scale", type=float, default=SCALE, help="seconds that one stands for")
    chosen = parser.parse_args()
    soak.with_packages()
    mix = soak.mix_of(chosen)
    mix.odd, mix.cancel_share, mix.fail_share = (), 0.0, 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        truth, made, cascades = asyncio.run(soak.run(chosen, mix, folder))
    sys.stderr.write("\n")
    faulty = {number for number in range(len(cascades)) if mix.wave(number).faults}
    calm = {name for name in cascades if int(name[1:].partition(".")[0]) not in faulty}
    result = list(rows(truth, cascades, calm, chosen.scale))
    if chosen.json:
        told = {"scale": chosen.scale, "rows": [row.to_json() for row in result]}
        sys.stdout.write(json.dumps(told | {"soak": made.to_json()}) + "\n")
    else:
        sys.stdout.write(table(result, chosen.scale) + "\n")
        sys.stdout.writelines(f"WRONG {one.what}: {one.cascade} {one.details}\n" for one in made.findings)  # fmt: skip
    return bool(made.findings)


if __name__ == "__main__":
    sys.exit(main())
