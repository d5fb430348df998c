"""Type checkers see what the public API promises: right use passes, wrong use is an error.

The cases are files in tests/typing/cases. A line that ends in `# error` must be an error, and of
that kind if it ends in `# error: CODE`; CODE is mypy's. A second checker, pyright, joins where it is installed (`make check` installs it).
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
CHECKERS = ["mypy", *(["pyright"] if importlib.util.find_spec("pyright") else [])]
MARK = re.compile(r"# error(?:: (?P<code>[\w-]+))?$")


def expected_in(path: Path) -> dict[int, str | None]:
    """Find the lines that are marked as wrong, with mypy's code for the fault if it is given."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return {number: mark["code"] for number, line in lines if (mark := MARK.search(line))}


def output_of(module: str, *arguments: str) -> str:
    """Run a type checker at the project's root; it exits with 1 when it finds errors."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_mypy(*paths: Path) -> list[tuple[str, int, str, str]]:
    """Return mypy's errors as file name, line, code and message."""
    cache_folder = str(ROOT / ".mypy_cache" / "cases")
    output = output_of("mypy", "--output=json", "--cache-dir", cache_folder, *map(str, paths))
    errors = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [
        (Path(error["file"]).name, error["line"], error["code"], error["message"])
        for error in errors
        if error["severity"] == "error"
    ]


def run_pyright(*paths: Path) -> list[tuple[str, int, str, str]]:
    """Return pyright's errors in the same form."""
    output = output_of("pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, paths))
    return [
        (
            Path(error["file"]).name,
            error["range"]["start"]["line"] + 1,
            error.get("rule", "syntax"),
            error["message"],
        )
        for error in json.loads(output)["generalDiagnostics"]
        if error["severity"] == "error"
    ]


@cache
def errors_of(checker: str) -> list[tuple[str, int, str, str]]:
    """Check all the cases in one run, once."""
    return run_mypy(*CASES) if checker == "mypy" else run_pyright(*CASES)


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_the_checker_agrees(case: Path, checker: str) -> None:
    """A checker finds an error on each marked line, and on no other."""
    found = [error for error in errors_of(checker) if error[0] == case.name]
    expected = expected_in(case)
    unexpected = [
        f"{case.name}:{line}: {code}: {message}"
        for _, line, code, message in found
        if line not in expected
    ]
    assert not unexpected, "\n" + "\n".join(unexpected)
    assert {line for _, line, _, _ in found} == set(expected)
    if checker == "mypy":
        codes = {(line, code) for _, line, code, _ in found if expected[line] is not None}
        assert codes == {(line, code) for line, code in expected.items() if code is not None}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_wrong_type_is_found(checker: str, tmp_path: Path) -> None:
    """A checker that is not really run would find nothing here."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("number: int = 'text'\n", encoding="utf-8")
    ((name, line, _, _),) = (run_mypy if checker == "mypy" else run_pyright)(wrong)
    assert (name, line) == ("wrong.py", 1)
