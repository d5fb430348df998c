#!/usr/bin/env python3
"""Print whether memory stays flat over 1,000 queries and 1,000 clients of the Claude adapter.

It runs the oldest and the newest claude-agent-sdk, on asyncio and trio, and takes some 15 minutes. The tests have a
smaller run (tests/adapters/claude/test_closing.py).
"""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.adapters import catalogue  # noqa: E402 - the path first
from tests.integration import subjects  # noqa: E402 - likewise


def main() -> int:
    """Run all combinations; pass the command line's arguments to each, such as `--uses 100 --every 10`."""
    claude, failed = catalogue.ADAPTERS["claude"], 0
    for version, backend, way in product(claude.ends, ("asyncio", "trio"), ("query", "client")):
        sys.stdout.write(f"claude-agent-sdk {version}, {backend}, {way}\n")
        sys.stdout.flush()
        words = ["-m", "tests.adapters.claude.memory", "--backend", backend, "--way", way]
        env = subjects.environment(claude.subject(version), CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK="1")
        command = [sys.executable, *words, *sys.argv[1:]]
        done = subprocess.run(command, cwd=ROOT, env=env, check=False)  # noqa: S603 - our own
        failed += done.returncode != 0
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
