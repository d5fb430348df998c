#!/usr/bin/env python3
"""Run the soak of the A2A adapter (tests/adapters/a2a/soak.py) with a version of the SDK: `make soak`.

`--sdk 0.3.26` chooses the version; the default is the newest. All other arguments go to the soak (`--help`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration import subjects  # noqa: E402 - the path first

NEWEST = "1.3.0"


def main() -> None:
    """Replace this process by the soak."""
    arguments = sys.argv[1:]
    version = NEWEST
    if "--sdk" in arguments:
        at = arguments.index("--sdk")
        version = "".join(arguments[at + 1 : at + 2])
        del arguments[at : at + 2]
    known = sorted(path.stem for path in (ROOT / "requirements/subjects").glob("a2a-sdk-*.in"))
    if f"a2a-sdk-{version}" not in known:
        sys.stderr.write(f"--sdk: which version? there are: {', '.join(known)}\n")
        sys.exit(2)
    environment = subjects.environment(f"a2a-sdk-{version}")
    paths = [str(ROOT / "src"), environment["PYTHONPATH"]]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    os.chdir(ROOT)
    command = [sys.executable, "-m", "tests.adapters.a2a.soak", *arguments]
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own


if __name__ == "__main__":
    main()
