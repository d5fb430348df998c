"""Runs the programs in Markdown pages, and compares their output with the page; for tests/test_readme.py.

- A ```` ```python ```` block is a whole program and is run.
- If the next block is a ```` ```text ```` block, it is the program's expected output, standard output
  and errors together. `...` stands for any text. Without such a block, the output is not checked.
- `<!-- run: exit=1 file=lost.py with=a-package-1.2.3 -->` on a line above the block: the exit code to
  expect (0 unless given), the name of the program's file (program.py unless given), and a test subject
  that it imports (see tests/integration/subjects.py).
- `<!-- not run: reason -->` above the block: a fragment, which only has to be valid Python (`await` outside
  a function is fine).
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.integration import subjects

if TYPE_CHECKING:
    from pathlib import Path

SECONDS_MAX = 60
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*$")
RUN = re.compile(r"^ *<!-- run:(?P<options>.*)-->$")
NOT_RUN = re.compile(r"^ *<!-- not run: *(?P<reason>\S.*)-->$")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block, with the line above it."""

    line: int
    language: str
    text: str
    above: str


@dataclass(frozen=True)
class Program:
    """A program in a page, with its expected output and exit code."""

    line: int
    text: str
    output: str | None = None
    exit_code: int = 0
    file: str = "program.py"
    runs: bool = True
    subject: str | None = None


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found: list[Block] = []
    above = ""
    lines = iter(enumerate(page.splitlines(), start=1))
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            above = line.strip() or above
            continue
        indent = fence["indent"]
        body = []
        for _, inner in lines:
            if inner.strip() == "```":
                break
            body.append(inner.removeprefix(indent))
        else:
            raise ValueError(f"line {number}: the block is not closed")
        found.append(Block(number, fence["language"], "\n".join(body) + "\n", above))
        above = ""
    return found


def programs(page: str) -> list[Program]:
    """Return the programs of a page, each with the output that follows it."""
    found = []
    all_blocks = blocks(page)
    for block, after in zip(all_blocks, [*all_blocks[1:], None], strict=False):
        if block.language != "python":
            continue
        output = after.text if after is not None and after.language == "text" else None
        options = _options(block)
        found.append(
            Program(
                line=block.line,
                text=block.text,
                output=output,
                exit_code=int(options.get("exit", "0")),
                file=options.get("file", "program.py"),
                runs=NOT_RUN.match(block.above) is None,
                subject=options.get("with"),
            )
        )
    return found


def _options(block: Block) -> dict[str, str]:
    run = RUN.match(block.above)
    options = dict(pair.split("=", 1) for pair in run["options"].split()) if run else {}
    unknown = options.keys() - {"exit", "file", "with"}
    if unknown:
        raise ValueError(f"line {block.line}: unknown option {', '.join(sorted(unknown))}")
    return options


def fault_of(program: Program, folder: Path) -> str | None:
    """Run a program in `folder`; return how its output or exit code differs from the page, or None."""
    if not program.runs:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(program.text, program.file, "exec", flags=flags, dont_inherit=True)
        return None
    (folder / program.file).write_text(program.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.file],
        cwd=folder,
        env=_environment(program),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )
    output = done.stdout.replace(f"{folder}{os.sep}", "")
    if done.returncode != program.exit_code:
        return f"exit code {done.returncode}, not {program.exit_code}; it printed:\n{output}"
    if program.output is not None and not same_output(program.output, output):
        return f"it printed:\n{output}\nbut the page says:\n{program.output}"
    return None


def _environment(program: Program) -> dict[str, str]:
    fixed = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    if program.subject is None:
        return os.environ | fixed
    return subjects.environment(program.subject, **fixed)


def same_output(expected: str, actual: str) -> bool:
    """Return whether outputs are the same; `...` stands for any text, and trailing space is ignored."""
    parts = [re.escape(part) for part in _trimmed(expected).split("...")]
    return re.fullmatch(".*?".join(parts), _trimmed(actual), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def broken_links(path: Path) -> list[str]:
    """Return the relative links of a page whose target file does not exist."""
    targets = [link["target"].split("#")[0] for link in LINK.finditer(path.read_text("utf-8"))]
    return [
        target
        for target in targets
        if target and "://" not in target and not (path.parent / target).exists()
    ]
