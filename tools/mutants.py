#!/usr/bin/env python3
"""Break the library on purpose, in one small way at a time, and check that its tests fail.

Each entry of tests/mutants/*.toml names a guarantee, a line that keeps it, and the tests that
must fail without that line:

    [[mutant]]
    guarantee = "2: idle() is woken by the last release"
    file = "src/quiesce/core/tree.py"
    old = "text that occurs once in the file"
    new = "what it is replaced by"
    tests = ["tests/unit/core/test_idle.py"]

With `subject = "mcp-2.3.0"` the tests run with that test subject (requirements/subjects) on the path.
With `python = "3.12"` the mutant needs that Python or a newer one, because the tests that see it do:
`make mutants PYTHON=python3.12 VENV=.venv-3.12`. An older one does not run it, and so does not catch it.

The tests run against a changed copy of src; the tree is not changed. A test that hangs counts as
failed. The exit code is 1 unless every mutant was caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration import subjects  # noqa: E402 - the path first

# No test takes a tenth of this, so a test that does hangs. The method is `thread`, which ends pytest, while
# a hanging event loop may not let a signal's exception out.
TIMEOUT = ("--timeout=20", "--timeout-method=thread")
PYTEST = ("-q", "--no-header", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly")

RED = "red"
SURVIVED = "SURVIVED"
STALE = "STALE"  # the text does not occur exactly once
UNSOUND = "UNSOUND"  # its tests fail without the mutant
NOT_RUN = "NOT RUN"  # pytest ran no test: a wrong id, or a mutant that cannot be imported
NEEDS = "needs Python "  # followed by the version


@dataclass(frozen=True)
class Mutant:
    """One way to break the library."""

    guarantee: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    subject: str = ""
    python: str = ""

    @property
    def is_for_here(self) -> bool:
        """Whether this Python is new enough for the tests."""
        return not self.python or sys.version_info >= tuple(map(int, self.python.split(".")))

    def write(self, source: Path) -> bool:
        """Break a copy of src; return False if the text to replace does not occur exactly once."""
        path = source.parent / self.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return text.count(self.old) == 1 and self.old != self.new


@dataclass(frozen=True)
class Result:
    """The result of a run of pytest."""

    code: int | None
    """The exit code; None if the run hung."""
    failed: tuple[str, ...]
    seconds: float


def load(files: list[Path]) -> list[Mutant]:
    """Return the mutants of some files; raise an error that names the file if a key is wrong."""
    mutants = []
    for file in files:
        for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", []):
            try:
                mutants.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
            except (KeyError, TypeError) as error:
                message = f"{file}: {entry.get('guarantee', entry)}: {error}"
                raise SystemExit(message) from error
    return mutants


def run_tests(
    tests: list[str], subject: str, source: Path, seconds_max: float, *options: str
) -> Result:
    """Run tests against the library in `source`, with a test subject if they need one."""
    paths = [str(source), *(subjects.folders(subject) if subject else [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        **({subjects.CHOSEN: subject} if subject else {}),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Hypothesis must not keep these failures, or the next real run would replay them.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(source.parent / "hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", *PYTEST, *TIMEOUT, *options]
    started = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - our own tests
        [*command, *tests], cwd=ROOT, env=environment, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds_max)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    failed = tuple(
        line.split(" ", 1)[1].split(" - ")[0]
        for line in output.splitlines()
        if line.startswith(("FAILED ", "ERROR ", "ERROR: "))
    )
    return Result(code, failed, time.monotonic() - started)


def copy_of_src(folder: str) -> Path:
    """Copy src to a temporary folder, and return the copy."""
    source = Path(folder) / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    return source


def red_without(mutants: list[Mutant], seconds_max: float) -> tuple[str, ...]:
    """Run all tests against the unchanged library, and return those that fail: these cannot prove anything."""
    failed: list[str] = []
    runs: dict[tuple[str, str], list[str]] = {}
    for mutant in mutants:
        for test in mutant.tests:
            runs.setdefault((mutant.subject, adapter_of(test)), []).append(test)
    for (subject, _), tests in sorted(runs.items()):
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            result = run_tests(
                sorted(set(tests)), subject, copy_of_src(folder), seconds_max * len(tests)
            )
        if result.code not in {0, 1}:
            say(
                f"the tests cannot be run as they are (pytest: {result.code}): {result.failed or tests}"
            )
            raise SystemExit(2)
        failed += result.failed
    return tuple(failed)


def adapter_of(test: str) -> str:
    """Return the folder of tests/adapters that a test is in, or "": each of them has a run of its own."""
    return test.split("/")[2] if test.startswith("tests/adapters/") else ""


def judge(mutant: Mutant, red_anyway: tuple[str, ...], seconds_max: float) -> str:
    """Break a copy of the library, run the mutant's tests, and return the verdict."""
    if not mutant.is_for_here:
        tell(NEEDS + mutant.python, mutant, "not run")
        return NEEDS + mutant.python
    own = [test for test in red_anyway if test.startswith(mutant.tests)]
    if own:
        tell(UNSOUND, mutant, f"fails without the mutant: {own[0]}")
        return UNSOUND
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        source = copy_of_src(folder)
        if not mutant.write(source):
            tell(STALE, mutant, f"not exactly once in {mutant.file}: {mutant.old.strip()!r}")
            return STALE
        result = run_tests(list(mutant.tests), mutant.subject, source, seconds_max, "--exitfirst")
    first = result.failed[0] if result.failed else "" if result.code == 0 else "(hung)"
    verdict = {0: SURVIVED, 2: NOT_RUN, 3: NOT_RUN, 4: NOT_RUN, 5: NOT_RUN}.get(
        result.code if result.code is not None else -1, RED
    )
    tell(verdict, mutant, f"{result.seconds:.1f} s {first}")
    return verdict


def tell(verdict: str, mutant: Mutant, more: str) -> None:
    """Print a mutant's verdict, and its details on a second line."""
    say(f"{verdict:9} {mutant.guarantee}\n{'':9}   {more}")


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)  # noqa: T201 - it is a program, and this is its output


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: tests/mutants/*.toml")
    parser.add_argument(
        "--only", metavar="TEXT", help="only mutants with TEXT in guarantee or file"
    )
    parser.add_argument("-j", type=int, default=2, dest="jobs", help="how many at a time")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one mutant")
    return parser.parse_args()


def main() -> int:
    """Run every mutant; return 0 if all were caught."""
    options = parse()
    mutants = load(options.files or sorted((ROOT / "tests" / "mutants").glob("*.toml")))
    if options.only is not None:
        wanted = options.only.lower()
        mutants = [each for each in mutants if wanted in f"{each.guarantee} {each.file}".lower()]
    if options.list:
        for mutant in mutants:
            say(f"{mutant.guarantee}\n    {mutant.file}: {', '.join(mutant.tests)}")
        return 0
    if not mutants:
        say("no mutants")
        return 2
    red_anyway = red_without([each for each in mutants if each.is_for_here], options.timeout)
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = list(pool.map(lambda each: judge(each, red_anyway, options.timeout), mutants))
    caught = verdicts.count(RED)
    others = ", ".join(f"{v}: {verdicts.count(v)}" for v in sorted(set(verdicts) - {RED}))
    say(f"{caught} of {len(mutants)} caught" + (f", {others}" if others else ""))
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
