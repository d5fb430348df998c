"""Known faults: what goes wrong with an SDK, each a small program that tells what it saw.

`python -m tests.adapters.known_faults tests.adapters.acp.known_faults bare` runs every fault of a module
with the SDK alone, `... quiesce` runs them with the adapter; it prints one line of JSON a fault. Each runs
in a process of its own (a fork of this one, which has imported the SDK once), under the guard, and is
ended after its bound: an SDK that hangs or leaks harms no other fault. They are the rows of the tables
in docs/reference/compatibility.md.
"""

from __future__ import annotations

import argparse
import gc
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
_MARK = "QUIESCE_KNOWN_FAULT"
_SETTLE_SECONDS = 0.3
_PATIENCE = (
    5  # with the adapter nothing hangs: a longer bound costs nothing, and lets a machine be busy
)
_WORDS = {"process": "process left", "task": "tasks left", "file": "files left"}


class Absent(Exception):  # noqa: N818 - not an error: this version has no such thing
    """What a fault is about does not exist in this version of the SDK."""


@dataclass(frozen=True)
class KnownFault:
    """Something that may go wrong, and the function that tries it."""

    name: str
    run: Run
    backend: str
    seconds: float
    allow: tuple[str, ...]


@dataclass
class KnownFaults:
    """The known faults of one SDK."""

    all: list[KnownFault] = field(default_factory=list)

    def __call__(
        self,
        name: str,
        *,
        backends: Sequence[str] = ("asyncio",),
        seconds: float = 6.0,
        allow: Sequence[str] = (),
    ) -> Callable[[Run], Run]:
        """Make a function a known fault; it returns what was wrong, or None, and the guard finds the rest.

        Args:
            name: what is tried, as in the table of the documentation.
            backends: the event loops on which it is tried, each a fault.
            seconds: how long it may take with the SDK alone before it counts as hanging; with the
                adapter, some times as long.
            allow: patterns of what may be left, for the guard.
        """

        def add(run: Run) -> Run:
            for backend in backends:
                title = name if backend == "asyncio" else f"{name} ({backend})"
                self.all.append(KnownFault(title, run, backend, seconds, tuple(allow)))
            return run

        return add


@dataclass(frozen=True)
class Outcome:
    """What came of a fault."""

    fault: str
    outcome: str
    seconds: float
    details: str


async def _tried(fault: KnownFault, way: Way) -> tuple[list[str], str]:
    wrong: list[str] = []
    details = ""
    try:
        async with guard(settle=_SETTLE_SECONDS, allow=fault.allow):
            try:
                told = await fault.run(way)
            except Absent:
                return [ABSENT], ""
            except BaseException as error:  # told, whatever it is
                wrong.append(f"raises {type(error).__name__}")
                details = traceback.format_exc()
            else:
                wrong += [told] if told else []
    except LeakError as leak:
        wrong += _words(leak.findings, way)
        details += str(leak)
    return wrong, details


def _words(findings: Iterable[Finding], way: Way) -> list[str]:
    # A pipe that is closed moments later is no fault of the SDK: since Python 3.14, asyncio's own `wait()`
    # returns as soon as the process has exited (gh-119710).
    words = {
        EARLY if finding.late else _WORDS.get(finding.kind, f"{finding.kind} left")
        for finding in findings
        if way == "quiesce" or finding.kind != "file" or not finding.late
    }
    return sorted(words)


def _child(fault: KnownFault, way: Way, token: str, pipe: int, *, noisy: bool) -> None:
    os.setsid()
    os.environ[_MARK] = token
    child_processes_left._TOKEN = token  # faults run side by side: each knows its own processes
    if not noisy:
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
    began = time.monotonic()

    def tell(wrong: list[str], details: str) -> None:
        outcome = Outcome(fault.name, ", ".join(wrong) or CLEAN, time.monotonic() - began, details)
        os.write(pipe, json.dumps(vars(outcome)).encode())
        os._exit(0)

    async def main() -> None:
        # Told from in here: what an SDK has left may keep the event loop from ending.
        tell(*await _tried(fault, way))

    try:
        backend, options = fault.backend, {}
        if backend == "uvloop":
            backend, options = "asyncio", {"use_uvloop": True}
        anyio.run(main, backend=backend, backend_options=options)
    except BaseException as error:  # the event loop itself fell over
        tell([f"raises {type(error).__name__}"], traceback.format_exc())
    finally:
        os._exit(1)


@dataclass
class _Running:
    fault: KnownFault
    pid: int
    token: str
    pipe: int
    began: float
    deadline: float
    text: bytes = b""


def _start(fault: KnownFault, way: Way, *, noisy: bool) -> _Running:
    token = secrets.token_hex(8)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(fault, way, token, writer, noisy=noisy)
    os.close(writer)
    began = time.monotonic()
    seconds = fault.seconds * (_PATIENCE if way == "quiesce" else 1)
    return _Running(fault, pid, token, reader, began, began + seconds)


def _end(running: _Running) -> Outcome:
    """End all that a fault has started; give what it told, or that it hung."""
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
    return Outcome(running.fault.name, HANGS, time.monotonic() - running.began, "")


def _prepare(faults: Sequence[KnownFault]) -> None:
    """Import what every fork would import, and let no fork's garbage collector touch what is there by now."""
    for backend in {"asyncio" if fault.backend == "uvloop" else fault.backend for fault in faults}:
        anyio.run(anyio.lowlevel.checkpoint, backend=backend)
    gc.collect()
    gc.freeze()


def run(
    faults: Sequence[KnownFault], way: Way, *, jobs: int = 4, noisy: bool = False
) -> Iterable[Outcome]:
    """Run faults, some side by side; gives each outcome when it is there."""
    _prepare(faults)
    waiting = list(reversed(faults))
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
    """Run the faults of a module, and print what came of each."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.adapters.known_faults", description=__doc__
    )
    parser.add_argument("module", help="such as tests.adapters.acp.known_faults")
    parser.add_argument("way", choices=("bare", "quiesce"))
    parser.add_argument("--only", action="append", default=[], help="the fault of this name")
    parser.add_argument("--jobs", type=int, default=4, help="faults side by side (4)")
    parser.add_argument("--noisy", action="store_true", help="let the faults print")
    parser.add_argument("--people", action="store_true", help="print for people, with details")
    options = parser.parse_args(arguments)
    faults: KnownFaults = importlib.import_module(options.module).known_fault
    chosen = [one for one in faults.all if not options.only or one.name in options.only]
    for outcome in run(chosen, options.way, jobs=options.jobs, noisy=options.noisy):
        text = json.dumps(vars(outcome))
        if options.people:
            text = f"{outcome.seconds:5.1f} s  {outcome.outcome:<28} {outcome.fault}"
            text += f"\n{outcome.details}" if outcome.details and options.only else ""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # By its name: the faults raise the `Absent` of that module.
    importlib.import_module("tests.adapters.known_faults").main()
