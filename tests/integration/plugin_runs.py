"""Running pytest on small suites, in a process of its own, with the guard and other plugins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.integration import subjects

ROOT = Path(__file__).parent.parent.parent
PYTEST_ASYNCIO = "pytest-asyncio-1.4.1.post1"
PYTEST_TRIO = "pytest-trio-0.8.0"
PLUGINS = {
    "anyio": "anyio.pytest_plugin",
    PYTEST_ASYNCIO: "pytest_asyncio.plugin",
    PYTEST_TRIO: "pytest_trio.plugin",
}
_SECONDS_MAX = 60


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int
    text: str
    complaints: str

    def counts(self) -> dict[str, int]:
        """Return pytest's own count of each outcome."""
        last = self.text.strip().splitlines()[-1]
        found = re.findall(r"(\d+) (passed|failed|errors?|skipped|xfailed|warnings?)", last)
        return {word.rstrip("s") if word != "passed" else word: int(n) for n, word in found}

    def lines(self, test: str) -> list[str]:
        """List what the guard says below the heading of a test's teardown."""
        _, _, rest = self.text.partition(f"ERROR at teardown of {test} ")
        body = re.split(r"\n[_=]{3,}|\n-{3,}", rest.partition("\n")[2])[0]
        return [line.strip() for line in body.splitlines() if line.startswith("  ")]


def run(
    folder: Path,
    source: str,
    *options: str,
    guard: str | None = "error",
    uses: tuple[str, ...] = (),
    **files: str,
) -> Outcome:
    """Run pytest on one module; `files` are more of them, as in `conftest="…"`."""
    for name, text in {"test_it": source, **files}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    paths = [str(ROOT / "src")]
    for name in uses:
        if name in {PYTEST_ASYNCIO, PYTEST_TRIO}:
            paths += subjects.environment(name)["PYTHONPATH"].split(os.pathsep)[:1]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # On a CI machine pytest does not cut the lines of its summary: the same text would be there twice.
    for name in ("PYTEST_ADDOPTS", "CI", "BUILD_NUMBER"):
        environment.pop(name, None)
    plugins = ["quiesce.pytest_plugin", *(PLUGINS.get(name, name) for name in uses)]
    command = [sys.executable, "-m", "pytest", "--rootdir=.", "-c", os.devnull, "--color=no", "-q"]
    command += [f"-p{name}" for name in ("no:cacheprovider", *plugins)]
    command += [] if guard is None else [f"--quiesce-guard={guard}"]
    command += [f"--basetemp={folder / 'tmp'}"]  # not the one that all runs share, and clean up
    done = subprocess.run(
        [*command, *options, "."],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def line(source: str, mark: str = "# HERE", module: str = "test_it") -> str:
    """Return the place of a marked line in the module that is run."""
    lines = textwrap.dedent(source).splitlines()
    (number,) = [place for place, text in enumerate(lines, 1) if mark in text]
    return f"{module}.py:{number}"
