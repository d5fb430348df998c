"""Rows: what goes wrong with an SDK, each a small program that tells what it saw.

`python -m tests.adapters.rows tests.adapters.acp_rows bare` runs every row of a module with the SDK
alone, `... quiesce` runs them with the adapter; it prints one line of JSON a row. Each row runs in a
process of its own (a fork of this one, which has imported the SDK once), under the guard, and is
ended after its bound: an SDK that hangs or leaks harms no other row.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import secrets
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from quiesce.testing import LeakError, guard
from quiesce.testing.leaks import child_processes_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from quiesce.testing.leaks.findings import Finding

    Run = Callable[["Way"], Awaitable[str | None]]

Way = Literal["bare", "quiesce"]
CLEAN = "clean"
HANGS = "hangs"
ABSENT = "n/a"
EARLY = "returns early"
_MARK = "QUIESCE_ROW"
_SETTLE_SECONDS = 0.3
_PATIENCE = (
    5  # with the adapter nothing hangs: a longer bound costs nothing, and lets a machine be busy
)
_WORDS = {"process": "process left", "task": "tasks left", "file": "files left"}


class Absent(Exception):  # noqa: N818 - not an error: this version has no such thing
    """What a row is about does not exist in this version of the SDK."""


@dataclass(frozen=True)
class Row:
    """Something that may go wrong, and the function that tries it."""

    name: str
    run: Run
    backend: str
    seconds: float
    allow: tuple[str, ...]


@dataclass
class Rows:
    """The rows of one SDK."""

    rows: list[Row] = field(default_factory=list)

    def __call__(
        self,
        name: str,
        *,
        backends: Sequence[str] = ("asyncio",),
        seconds: float = 6.0,
        allow: Sequence[str] = (),
    ) -> Callable[[Run], Run]:
        """Make a function a row; it returns what was wrong, or None, and the guard finds the rest.

        Args:
            name: what is tried, as in the table of the documentation.
            backends: the event loops on which it is tried, each a row.
            seconds: how long it may take with the SDK alone before it counts as hanging; with the
                adapter, some times as long.
            allow: patterns of what may be left, for the guard.
        """

        def add(run: Run) -> Run:
            for backend in backends:
                title = name if backend == "asyncio" else f"{name} ({backend})"
                self.rows.append(Row(title, run, backend, seconds, tuple(allow)))
            return run

        return add


@dataclass(frozen=True)
class Outcome:
    """What came of a row."""

    row: str
    outcome: str
    seconds: float
    details: str


async def _tried(row: Row, way: Way) -> tuple[list[str], str]:
    wrong: list[str] = []
    details = ""
    try:
        async with guard(settle=_SETTLE_SECONDS, allow=row.allow):
            try:
                told = await row.run(way)
            except Absent:
                return [ABSENT], ""
            except BaseException as error:  # told, whatever it is
                wrong.append(f"raises {type(error).__name__}")
                details = traceback.format_exc()
            else:
                wrong += [told] if told else []
    except LeakError as leak:
        wrong += _words(leak.findings)
        details += str(leak)
    return wrong, details


def _words(findings: Iterable[Finding]) -> list[str]:
    words = {
        EARLY if finding.late else _WORDS.get(finding.kind, f"{finding.kind} left")
        for finding in findings
    }
    return sorted(words)


def _child(row: Row, way: Way, token: str, pipe: int, *, noisy: bool) -> None:
    os.setsid()
    os.environ[_MARK] = token
    child_processes_left._TOKEN = token  # rows run side by side: each knows its own processes
    if not noisy:
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
    began = time.monotonic()

    def tell(wrong: list[str], details: str) -> None:
        outcome = Outcome(row.name, ", ".join(wrong) or CLEAN, time.monotonic() - began, details)
        os.write(pipe, json.dumps(vars(outcome)).encode())
        os._exit(0)

    async def main() -> None:
        # Told from in here: what an SDK has left may keep the event loop from ending.
        tell(*await _tried(row, way))

    try:
        backend, options = row.backend, {}
        if backend == "uvloop":
            backend, options = "asyncio", {"use_uvloop": True}
        anyio.run(main, backend=backend, backend_options=options)
    except BaseException as error:  # the event loop itself fell over
        tell([f"raises {type(error).__name__}"], traceback.format_exc())
    finally:
        os._exit(1)


@dataclass
class _Running:
    row: Row
    pid: int
    token: str
    pipe: int
    began: float
    deadline: float
    text: bytes = b""


def _start(row: Row, way: Way, *, noisy: bool) -> _Running:
    token = secrets.token_hex(8)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(row, way, token, writer, noisy=noisy)
    os.close(writer)
    began = time.monotonic()
    seconds = row.seconds * (_PATIENCE if way == "quiesce" else 1)
    return _Running(row, pid, token, reader, began, began + seconds)


def _end(running: _Running) -> Outcome:
    """End all that a row has started; give what it told, or that it hung."""
    os.close(running.pipe)
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{_MARK}={running.token}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
    os.waitpid(running.pid, 0)
    if running.text:
        return Outcome(**json.loads(running.text))
    return Outcome(running.row.name, HANGS, time.monotonic() - running.began, "")


def run(rows: Sequence[Row], way: Way, *, jobs: int = 4, noisy: bool = False) -> Iterable[Outcome]:
    """Run rows, some side by side; gives each outcome when it is there."""
    waiting = list(reversed(rows))
    running: dict[int, _Running] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            one = _start(waiting.pop(), way, noisy=noisy)
            running[one.pipe] = one
        nearest = min(one.deadline for one in running.values())
        ready, _, _ = select.select(list(running), [], [], max(0.0, nearest - time.monotonic()))
        over = [one.pipe for one in running.values() if one.deadline <= time.monotonic()]
        for pipe in ready:
            part = os.read(pipe, 1 << 16)
            running[pipe].text += part
            over += [] if part else [pipe]
        for pipe in dict.fromkeys(over):
            yield _end(running.pop(pipe))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows of a module, and print what came of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.rows", description=__doc__)
    parser.add_argument("module", help="such as tests.adapters.acp_rows")
    parser.add_argument("way", choices=("bare", "quiesce"))
    parser.add_argument("--only", action="append", default=[], help="rows whose names have this")
    parser.add_argument("--jobs", type=int, default=4, help="rows side by side (4)")
    parser.add_argument("--noisy", action="store_true", help="let the rows print")
    parser.add_argument("--people", action="store_true", help="print for people, with details")
    options = parser.parse_args(arguments)
    rows: Rows = importlib.import_module(options.module).rows
    chosen = [row for row in rows.rows if all(text in row.name for text in options.only)]
    for outcome in run(chosen, options.way, jobs=options.jobs, noisy=options.noisy):
        text = json.dumps(vars(outcome))
        if options.people:
            text = f"{outcome.seconds:5.1f} s  {outcome.outcome:<28} {outcome.row}"
            text += f"\n{outcome.details}" if outcome.details and options.only else ""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # By its name: the rows raise the `Absent` of that module.
    importlib.import_module("tests.adapters.rows").main()
