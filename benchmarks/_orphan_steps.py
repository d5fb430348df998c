"""Runs a way to start a child once, cancels it at chosen steps, and records what is left.

A step is a suspension of the task that runs the way, or a turn of the event loop. A cancellation
is a task's own (`native`: edge-triggered) or that of an anyio cancel scope (`anyio`:
level-triggered: it cancels again and again). A second cancellation is the task's own again, or that of an outer
scope.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks import _orphan_census as census
from benchmarks._orphan_ways import PROGRAMS, WAYS, StartFailed, Visit
from quiesce.testing.sweeps.driver import Points, drive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

HUNG_SECONDS = 2.0  # after that, the run's processes are killed, which ends most hanging runs
WEDGED_SECONDS = 1.0  # after that as well, this whole program ends
LEAKED_SECONDS = 0.1  # how long the last process may live after the run has ended


@dataclass(frozen=True)
class Cell:
    """One cell of the sweep: one way, one event loop, one kind of cancellation, one program."""

    way: str
    backend: str
    kind: str
    program: str


@dataclass
class Seen:
    """The record of one run."""

    by: str
    at: list[int]
    steps: int = 0
    delivered: int = 0
    phase: str = ""
    """The phase in which the first cancellation came."""
    outcome: str = "?"
    code: int | None = None
    faults: list[str] = field(default_factory=list)


class Canceller:
    """A counter of the steps of one run, which cancels the run at chosen steps."""

    def __init__(self, kind: str, seen: Seen, visit: Visit) -> None:
        """Prepare to cancel natively or by a cancel scope."""
        self._native = kind == "native"
        self._seen = seen
        self._visit = visit
        self._scopes = [anyio.CancelScope(), anyio.CancelScope()]  # the inner one, the outer one
        self._task: Any = None
        self.running = False

    def step(self) -> None:
        """Count a step, and cancel the run if the step is chosen."""
        if not self.running:
            return
        seen = self._seen
        seen.steps += 1
        if seen.steps in seen.at:
            seen.phase = seen.phase or self._visit.phase
            if self._native:
                self._task.cancel()
            else:
                self._scopes[min(seen.delivered, 1)].cancel()
            seen.delivered += 1

    async def run(self, subject: Awaitable[None]) -> None:
        """Run the subject, and look for processes in the same step in which it ends."""
        inner, outer = self._scopes
        if self._native:
            self._task = asyncio.current_task()
        try:
            with ExitStack() as scopes:
                for scope in () if self._native else (outer, inner):
                    scopes.enter_context(scope)
                await self._watched(subject)
                self._seen.outcome = "returned"
        except asyncio.CancelledError:
            self._seen.outcome = "cancelled"
        except Exception as error:  # noqa: BLE001 - any error is recorded
            self._seen.outcome = f"raised {error!r}"
        if inner.cancelled_caught or outer.cancelled_caught:
            self._seen.outcome = "cancelled"

    async def _watched(self, subject: Awaitable[None]) -> None:
        self.running = True
        try:
            await subject
        except StartFailed:
            pass
        finally:
            self.running = False
            if census.alive(self._visit.mark):
                self._seen.faults.append("alive")
        if (
            not self._native
        ):  # a cancel scope cancels at the next checkpoint, this one at the latest
            await anyio.lowlevel.checkpoint()


class TurningLoop(asyncio.SelectorEventLoop):
    """An event loop that calls a function at each turn."""

    on_turn: Callable[[], None] | None = None

    def _run_once(self) -> None:
        if self.on_turn is not None:
            self.on_turn()
        super()._run_once()  # type: ignore[misc]  # not in the stubs


class Guard:
    """A watchdog that ends a hanging run: it kills the run's processes, and if that fails ends this program."""

    def __init__(self, mark: str, seen: Seen) -> None:
        """Start the watchdog's thread."""
        self._mark = mark
        self._seen = seen
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        if self._over.wait(HUNG_SECONDS):
            return
        self._seen.faults.append("hung")
        census.kill(self._mark)
        if not self._over.wait(WEDGED_SECONDS):
            self._seen.faults.append("wedged")
            tell(self._seen)
            census.kill(self._mark)
            os._exit(3)

    def end(self) -> None:
        """Record that the run has ended."""
        self._over.set()
        self._thread.join()


def tell(seen: Seen) -> None:
    """Print the record of one run on one line."""
    sys.stdout.write(json.dumps(asdict(seen)) + "\n")
    sys.stdout.flush()


def perform(cell: Cell, by: str, at: list[int], mark: str) -> Seen:
    """Run a way once on a new event loop, cancel it at the given steps, and return the record."""
    seen = Seen(by, at)
    visit = Visit(PROGRAMS[cell.program], mark)
    guard = Guard(mark, seen)
    try:
        _run(cell, by, seen, visit)
    except BaseException as error:  # noqa: BLE001 - the event loop itself has failed: recorded
        seen.outcome = f"raised {error!r}"
    finally:
        guard.end()
    running, unburied = census.settle(mark, LEAKED_SECONDS)
    seen.code = visit.code if visit.handle is None else visit.handle.returncode
    if running and "hung" not in seen.faults:
        seen.faults.append("leaked")
    if unburied:
        seen.faults.append("unburied")
    known = visit.handle is not None or visit.code is not None
    if known and not seen.faults and seen.code not in visit.program.codes:
        seen.faults.append("wrong code")
    if seen.outcome != ("cancelled" if seen.delivered else "returned"):
        seen.faults.append("swallowed" if seen.outcome == "returned" else "raised")
    census.clear(mark, WEDGED_SECONDS)
    gc.collect()
    return seen


def _run(cell: Cell, by: str, seen: Seen, visit: Visit) -> None:
    on_turn: list[Callable[[], None]] = []

    async def main() -> None:
        canceller = Canceller(cell.kind, seen, visit)
        subject = WAYS[cell.way].run(visit)
        if by == "suspensions":
            at_each = Points(range(1, sys.maxsize), lambda *_: canceller.step())
            await canceller.run(drive(subject, at_each))
        else:
            on_turn.append(canceller.step)
            await canceller.run(subject)

    def turn() -> None:
        for call in on_turn:
            call()

    if cell.backend == "trio":
        _run_trio(main, turn)
    else:
        _run_asyncio(cell.backend, main, turn)


def _run_trio(main: Callable[[], Coroutine[Any, Any, None]], on_turn: Callable[[], None]) -> None:
    import trio  # noqa: PLC0415 - optional, and only needed for this backend

    class Turning(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's signature
            on_turn()

    trio.run(main, instruments=[Turning()])


def _run_asyncio(
    backend: str, main: Callable[[], Coroutine[Any, Any, None]], on_turn: Callable[[], None]
) -> None:
    def make() -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop
        if backend == "uvloop":
            import uvloop  # noqa: PLC0415 - optional, and only needed for this backend

            loop = uvloop.new_event_loop()
        else:
            loop = TurningLoop()
            loop.on_turn = on_turn
        loop.set_exception_handler(lambda *_: None)
        return loop

    async def and_forget() -> None:
        await main()
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(and_forget())
