"""The detectors of `benchmarks.detectors`: how each runs on a seed, and what it reports.

Each detector that runs tests gets the same two tests, one with the bug and one without. Each test runs in a
process of its own, without other plugins.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from benchmarks._packages import Package

if TYPE_CHECKING:
    from tests.seeds.cases import Case

ROOT = Path(__file__).parent.parent
HANG_SECONDS = 8.0  # these tests take a tenth of a second
TOOL_SECONDS_MAX = 120.0
TRIES = 5

Word = Literal[
    "finds", "with -W error", "sometimes, -W error", "misses", "hangs", "false alarm", "-"
]


@dataclass(frozen=True)
class Answer:
    """What a detector reports for a seed."""

    word: Word
    """The outcome; `-` if the detector cannot run on this seed."""
    why: str = ""
    """The detector's report for the buggy version, in one line."""


class Detector(Protocol):
    """One detector."""

    @property
    def name(self) -> str:
        """The detector's name."""

    @property
    def package(self) -> Package:
        """The package whose version the table shows."""

    @property
    def found(self) -> bool:
        """Whether everything that the detector needs is installed."""

    def ask(self, case: Case) -> Answer:
        """Run the detector on a seed."""


# --- detectors that run tests -----------------------------------------------------------------------

_TEST = """
import pytest
from tests.seeds.cases import BY_NAME

{marks}
async def test_seed():
    await BY_NAME[{case!r}].program({version!r})()
"""
_CONFTEST = """
from tests.seeds import seed_004

def pytest_unconfigure():
    seed_004.end_all()
"""


@dataclass(frozen=True)
class Plugin:
    """A plugin of pytest, or several plugins together."""

    name: str
    package: Package
    plugins: tuple[str, ...]
    marks: tuple[str, ...]
    backends: tuple[str, ...]
    settings: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether all plugins are installed."""
        names = {plugin.partition(".")[0] for plugin in self.plugins}
        return all(Package(name, name).found for name in names)

    def ask(self, case: Case) -> Answer:
        """Run both tests; if the buggy one passes, run it again with warnings as errors."""
        if case.backend not in self.backends:
            return Answer("-")
        buggy, fixed = versions_of(case)
        said, why = self._run(case, buggy)
        if said == "hangs":
            return Answer("hangs")
        if said == "failed":
            right = self._run(case, fixed)[0] == "passed"
            return Answer("finds" if right else "false alarm", why)
        return self._ask_strictly(case, buggy, fixed)

    def _ask_strictly(self, case: Case, buggy: str, fixed: str) -> Answer:
        """Run both tests with warnings as errors, several times, because a warning may depend on the collector."""
        runs = [self._run(case, buggy, "-W", "error") for _ in range(TRIES)]
        failed = [why for said, why in runs if said == "failed"]
        if not failed:
            return Answer("misses")
        if any(self._run(case, fixed, "-W", "error")[0] != "passed" for _ in range(TRIES)):
            return Answer("false alarm", failed[0])
        word: Word = "with -W error" if len(failed) == TRIES else "sometimes, -W error"
        return Answer(word, failed[0])

    def _run(self, case: Case, version: str, *options: str) -> tuple[str, str]:
        marks = "\n".join(f"@{mark.format(backend=case.backend)}" for mark in self.marks)
        with tempfile.TemporaryDirectory() as folder:
            test, conftest = Path(folder, "test_seed.py"), Path(folder, "conftest.py")
            test.write_text(_TEST.format(marks=marks, case=case.name, version=version))
            conftest.write_text(_CONFTEST)
            loaded = [part for plugin in self.plugins for part in ("-p", plugin)]
            command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"]
            command += [*loaded, *self.settings, *options, f"--rootdir={folder}", str(test)]
            try:
                done = _run(command, HANG_SECONDS, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
            except subprocess.TimeoutExpired:
                return "hangs", ""
        if done.returncode not in {0, 1}:
            message = f"{self.name} on {case.name} did not run: {done.stdout}"
            raise RuntimeError(message)
        summary = [
            line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
        ]
        said = "".join(summary).partition(" - ")[2]
        return "failed" if done.returncode else "passed", said


@dataclass(frozen=True)
class Nothing:
    """The row without a detector: a bug that shows by itself."""

    name: str
    package: Package
    found: bool = True

    def ask(self, case: Case) -> Answer:
        """Run both tests as programs."""
        buggy, fixed = (self._run(case, version) for version in versions_of(case))
        if buggy == "hangs":
            return Answer("hangs")
        if fixed != "passed":
            return Answer("false alarm")
        return Answer("misses" if buggy == "passed" else "finds")

    def _run(self, case: Case, version: str) -> str:
        program = _PROGRAM.format(case=case.name, version=version)
        try:
            done = _run([sys.executable, "-c", program], HANG_SECONDS)
        except subprocess.TimeoutExpired:
            return "hangs"
        return "failed" if done.returncode else "passed"


_PROGRAM = """
import anyio
from tests.seeds import seed_004
from tests.seeds.cases import BY_NAME

case = BY_NAME[{case!r}]
try:
    anyio.run(case.program({version!r}), backend=case.backend)
finally:
    seed_004.end_all()
"""


def versions_of(case: Case) -> tuple[str, str]:
    """Return the buggy and the fixed test; a scenario in place of a test that would hang."""
    return ("buggy", "fixed") if case.left else ("swept_buggy", "swept_fixed")


# --- detectors that read the source -----------------------------------------------------------------


_MARKS = re.compile(r"  # (?:noqa: .*|LEFT|HANGS)$", re.MULTILINE)


@dataclass(frozen=True)
class Ruff:
    """Ruff, which finds a bug if a rule matches the buggy functions and not the fixed functions."""

    name: str
    package: Package
    select: tuple[str, ...]

    @property
    def found(self) -> bool:
        """Whether ruff is installed."""
        return self.package.found

    def ask(self, case: Case) -> Answer:
        """Check the source, without the comments that mark the bug or silence a rule."""
        rules = {"buggy": set[str](), "fixed": set[str]()}
        ranges = _functions(case.path)
        for line, rule in self._findings(case.path):
            for version, seen in rules.items():
                if any(line in lines for name, lines in ranges if version in name):
                    seen.add(rule)
        found = sorted(rules["buggy"] - rules["fixed"])
        return Answer("finds", ", ".join(found)) if found else Answer("misses")

    def _findings(self, path: Path) -> list[tuple[int, str]]:
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "-q", "--no-cache"]
        command += ["--output-format=json", *self.select, f"--stdin-filename={path.name}", "-"]
        source = _MARKS.sub("", path.read_text(encoding="utf-8"))
        found = json.loads(_run(command, TOOL_SECONDS_MAX, given=source).stdout)
        return [(each["location"]["row"], each["code"]) for each in found]


def _functions(path: Path) -> list[tuple[str, range]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.name, range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


# --- ours ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watch:
    """quiesce's own guard, or its sweep."""

    name: str
    package: Package
    how: str
    found: bool = True

    def ask(self, case: Case) -> Answer:
        """Run the programs of tests/seeds, as the project's tests do."""
        if not (case.left if self.how == "guard" else case.swept):
            return Answer("-")
        command = [sys.executable, "-m", "tests.seeds.watch", self.how, case.name]
        done = _run(command, TOOL_SECONDS_MAX)
        if done.returncode:
            message = f"{self.name} on {case.name} did not run"
            raise RuntimeError(message)
        found = json.loads(done.stdout)
        if found["fixed"]:
            return Answer("false alarm", found["fixed"][0]["text"])
        lines = [each["text"] for each in found["buggy"] if each["kind"] != "raised"]
        return Answer("finds", lines[0].partition("\n")[0]) if lines else Answer("misses")


def _run(
    command: list[str], seconds: float, given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return subprocess.run(  # noqa: S603 - our own command
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"} | variables,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a leaked process would keep a pipe open
        text=True,
        timeout=seconds,
        check=False,
    )


_ANYIO = """pytest.mark.parametrize("anyio_backend", ["{backend}"])"""
_LOOP_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")  # without it, the plugin warns
_PYTEST_ASYNCIO = Package("pytest-asyncio", "pytest_asyncio")
_PYTEST_TRIO = Package("pytest-trio", "pytest_trio")
_RUFF = Package("ruff", "ruff")
_QUIESCE = Package("quiesce", "quiesce")

DETECTORS: tuple[Detector, ...] = (
    Nothing("nothing", Package("asyncio", "asyncio")),
    Plugin(
        "pytest-asyncio",
        _PYTEST_ASYNCIO,
        ("pytest_asyncio.plugin",),
        ("pytest.mark.asyncio",),
        ("asyncio",),
        _LOOP_SCOPE,
    ),
    Plugin("pytest-trio", _PYTEST_TRIO, ("pytest_trio.plugin",), ("pytest.mark.trio",), ("trio",)),
    Plugin(
        "anyio's plugin",
        Package("anyio", "anyio"),
        ("anyio.pytest_plugin",),
        ("pytest.mark.anyio", _ANYIO),
        ("asyncio", "trio"),
    ),
    Plugin(
        "pyleak",
        Package("pyleak", "pyleak"),
        ("pytest_asyncio.plugin", "pyleak.pytest_plugin"),
        ("pytest.mark.asyncio", 'pytest.mark.no_leaks("all")'),
        ("asyncio",),
        (*_LOOP_SCOPE, "-o", "markers=no_leaks"),
    ),
    Ruff("ruff, as it comes", _RUFF, ()),
    Ruff("ruff, ASYNC", _RUFF, ("--select=ASYNC", "--preview")),
    Ruff("ruff, all rules", _RUFF, ("--select=ALL", "--preview")),
    Plugin(
        "quiesce's plugin",
        _QUIESCE,
        ("pytest_asyncio.plugin", "pytest_trio.plugin", "quiesce.pytest_plugin"),
        ("pytest.mark.{backend}",),
        ("asyncio", "trio"),
        (*_LOOP_SCOPE, "--quiesce-guard=error"),
    ),
    Watch("quiesce guard", _QUIESCE, "guard"),
    Watch("quiesce sweep", _QUIESCE, "sweep"),
)
