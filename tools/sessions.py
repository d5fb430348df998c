#!/usr/bin/env python3
"""Run the tests: one run of pytest for all tests without an SDK, and runs for each folder of tests/adapters.

    python tools/sessions.py [--full | --versions | --light] [pytest's arguments]

Two versions of an SDK cannot share a process, so each version has a run of its own, with that version first on
the path. The options:

- none (`make test`): samples of sweeps and models, the newest version of each SDK, no tests of benchmarks.
- --full (`make test-full`): all tests without sampling, the oldest and the newest version of each SDK.
- --versions (`make test-versions`): only the adapters, in every version.
- --light: leaves out the tests that do not depend on the interpreter; run these with the usual interpreter.

Paths among the arguments choose the runs; all other arguments go to each run. The tool prints the seed of the
order and of all samples at the beginning, and the names of the failed tests at the end.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.adapters.catalogue import FOLDERS  # noqa: E402 - the path first
from tests.integration import subjects  # noqa: E402 - the same

MODES = ("--full", "--versions", "--light")
UNSAMPLED = ("--full", "--versions")
ADAPTERS = "tests/adapters"
SEED = "--randomly-seed="
FAILED = re.compile(r"(?:FAILED|ERROR) \S")
PASSED, NO_TESTS = 0, 5  # exit codes of pytest
# Slow tests that do not depend on the interpreter; tests/conftest.py has a marker for single tests.
USUAL = (
    "test_readme.py", "test_tidy.py", "typing", "benchmarks", "integration/test_demo.py",
    "integration/test_mesh_demo.py", "integration/test_examples.py", "integration/test_guard_packages.py",
    "integration/test_pytest_plugin_settings.py", "integration/test_claude_stream.py",
)  # fmt: skip
# Slow folders, the slowest first: these start first, and without sampling with more than one process.
LONG = ("a2a", "mcp", "acp", "claude", "clients")


@dataclass
class Session:
    """One run of pytest."""

    name: str
    arguments: list[str]
    subject: str | None = None
    lines: list[str] = field(default_factory=list)
    code: int = -1

    @property
    def failed(self) -> list[str]:
        """The names of the failed tests; the last lines of the output if pytest could not run them."""
        if self.code in {PASSED, NO_TESTS}:
            return []
        named = [line for line in self.lines if FAILED.match(line)]
        return [f"[{self.name}] {line}" for line in named or self.lines[-10:]]

    def run(self, *, is_shown: bool) -> None:
        """Run pytest to its end; print its output while it runs if `is_shown`, else only after a failure."""
        environment = dict(subjects.environment(self.subject) if self.subject else os.environ)
        # The tests start hundreds of interpreters: what one has compiled, the next ones load.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with subprocess.Popen(  # noqa: S603 - our own tests
            [sys.executable, "-m", "pytest", *self.arguments],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", errors="replace",
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                self.lines.append(line.rstrip())
                if is_shown:
                    say(line.rstrip())
        self.code = process.returncode
        if not is_shown and self.failed:
            say(f"--- {self.name}", *self.lines)
        say(self.summary())

    def summary(self) -> str:
        """Return the outcome in a line."""
        last = next((line for line in reversed(self.lines) if line), "").strip("= ")
        word = {PASSED: "passed", NO_TESTS: "no tests"}.get(self.code, f"FAILED ({self.code})")
        return f"[{self.name}] {word}: {last}"


def say(*lines: str) -> None:
    """Print lines."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def processors() -> int:
    """Return how many processes a run of pytest may have."""
    if "JOBS" in os.environ:
        return int(os.environ["JOBS"])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(number: int) -> str:
    """Return the option of pytest-xdist for a number of processes; 0 workers if pytest itself is the one process."""
    return str(number if number > 1 else 0)


def general(paths: list[str], options: list[str], mode: str) -> list[Session]:
    """Return the run of the tests that need no SDK."""
    inside = [path for path in paths if not path.startswith(ADAPTERS)]
    if mode == "--versions" or (paths and not inside):
        return []
    arguments = [
        *(inside or ["tests"]),
        f"--ignore={ADAPTERS}",
        "-n",
        side_by_side(processors()),
        *options,
    ]
    if mode == "--light":
        arguments += [f"--ignore=tests/{path}" for path in USUAL]
    elif mode != "--full" and not inside:
        arguments += ["--ignore=tests/benchmarks"]
    return [Session("tests", arguments)]


def adapters(paths: list[str], options: list[str], mode: str) -> list[Session]:
    """Return the runs of the adapters' folders."""
    sessions = []
    is_full = mode in UNSAMPLED
    for folder in sorted(FOLDERS.values(), key=lambda one: (*LONG, one.name).index(one.name)):
        place = f"{ADAPTERS}/{folder.name}"
        inside = [path for path in paths if f"{path}/".startswith((f"{place}/", f"{place}::"))]
        if paths and not inside and ADAPTERS not in paths:
            continue
        inside = inside or [place]
        if mode == "--light":  # only the tests that depend on the interpreter
            inside = (
                [f"{place}/test_known_faults.py"]
                if (ROOT / place / "known_faults.py").exists()
                else []
            )
            inside = [place] if folder.name == "clients_httpx2" else inside
        versions = {"--versions": folder.versions, "--full": folder.ends}.get(
            mode, folder.ends[-1:]
        )
        jobs = side_by_side(min(processors(), 2) if is_full and folder.name in LONG else 1)
        for version in versions if inside else ():
            if mode == "--versions" and version not in folder.ends:
                inside = [f"{place}/test_known_faults.py"]
            # The mesh's tests hardly depend on the SDK's version, and their sweeps take long. The two kinds of the A2A
            # SDK have little in common, so its mesh tests run with both.
            is_seldom = version != folder.versions[-1] and folder.name != "a2a" and mode == "--full"
            seldom = [f"--ignore-glob={place}/test_mesh*"] if is_seldom else []
            arguments = [*inside, *seldom, "-n", jobs, *options]
            sessions.append(Session(f"{folder.name} {version}", arguments, folder.subject(version)))
    return sessions


def main(arguments: list[str]) -> int:
    """Run the tests that the arguments choose; return 0 if none failed."""
    mode = arguments.pop(0) if arguments and arguments[0] in MODES else ""
    seeds = [word.removeprefix(SEED) for word in arguments if word.startswith(SEED)]
    seed = seeds[-1] if seeds else str(secrets.randbelow(2**32))
    paths = [word for word in arguments if word.startswith("tests")]
    options = [word for word in arguments if word not in paths and not word.startswith(SEED)]
    options = [f"{SEED}{seed}", "--dist=worksteal", *options]
    options += [] if mode in UNSAMPLED else ["--sampled"]
    options += ["-m", "not usual"] if mode == "--light" else []
    target = {"--full": "test-full", "--versions": "test-versions"}.get(mode, "test")
    again = f'make {target} ARGS="{SEED}{seed}"'
    say(f"The seed is {seed}; the same again: {again}")

    first, others = general(paths, options, mode), adapters(paths, options, mode)
    sessions = [*first, *others]
    # The runs of the adapters go in parallel, because they mostly wait for processes. Each run has a folder
    # of its own for temporary files. In a shared folder, pytest's default, each run removes at its end what the
    # others have left, and a run fails if it finds a folder half removed.
    with (
        tempfile.TemporaryDirectory(prefix="quiesce-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(len(first) + processors()) as pool,
    ):
        for number, each in enumerate(sessions):
            each.arguments.append(f"--basetemp={folder}/{number}")
        shown = {id(each) for each in first or others[:1]}
        runs = [pool.submit(each.run, is_shown=id(each) in shown) for each in sessions]
    for run in runs:
        run.result()
    failed = [line for each in sessions for line in each.failed]
    say("", *(each.summary() for each in sessions))
    say(*failed, *([f"The same again: {again}"] if failed else []))
    ran = any(each.code != NO_TESTS for each in sessions)
    if not ran:
        say("No test was run, because no test has these names: check the paths and -k.")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
