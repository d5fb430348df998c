"""The program that does the runs of one cell, one for each line that it reads.

They are in a program of their own because some of them end it: see `Guard`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from benchmarks._orphan_steps import Cell, perform, tell


def main(argv: list[str]) -> None:
    """Do what is asked for, a line at a time: how to cancel, at which steps, and the mark."""
    cell = Cell(*argv)
    warm = False
    for line in sys.stdin:
        by, at, mark = json.loads(line)
        if not warm:  # the first run of a program imports much; no way hangs on a polite child
            perform(replace(cell, program="polite"), by, [], mark)
            warm = True
        tell(perform(cell, by, at, mark))


if __name__ == "__main__":
    main(sys.argv[1:])
