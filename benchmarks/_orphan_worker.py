"""The program that performs the runs of one cell, one run for each line that it reads.

The runs have a program of their own, because some runs end their program: see `Guard`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from benchmarks._orphan_steps import Cell, perform, tell


def main(argv: list[str]) -> None:
    """Perform a run for each line of stdin, which names the kind of cancellation, the steps, and the mark."""
    cell = Cell(*argv)
    warm = False
    for line in sys.stdin:
        by, at, mark = json.loads(line)
        if (
            not warm
        ):  # the first run of a program imports many modules; no way hangs with a polite child
            perform(replace(cell, program="polite"), by, [], mark)
            warm = True
        tell(perform(cell, by, at, mark))


if __name__ == "__main__":
    main(sys.argv[1:])
