"""Find what a run has left: look when the scenario ends, and again some moments later."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from quiesce.core.python_private import get_frame
from quiesce.testing.leaks.census import Census, census_verdict
from quiesce.testing.leaks.child_processes_left import is_child
from quiesce.testing.leaks.findings import Finding
from quiesce.testing.leaks.instrument import watch
from quiesce.testing.leaks.started_at import StartPlace, calling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from quiesce.testing.leaks.births import Event
    from quiesce.testing.leaks.census import Left
    from quiesce.testing.sweeps.record import Run
    from quiesce.testing.sweeps.sweep_settings import SweepSettings

__all__: list[str] = []

_TURNS = 20  # turns of the event loop before any time passes
_PAUSE_SECONDS = 0.0005  # the first pause; each next pause is twice as long
# Files that an event loop closes in a later turn, and threads that take some moments to end after
# they have reported their end. A scenario cannot wait for these; what takes longer is late.
_SWEPT_UP = frozenset({"file", "thread"})
_SWEEPING_UP_SECONDS = 0.02
_BURIAL_PAUSES_MAX = 10_000  # pauses for killed processes to end; a busy machine needs many


@contextmanager
def watched() -> Iterator[None]:
    """Watch during a whole sweep, so that the runs share one set of wrapped functions.

    The sweep reports the findings itself, so a guard around the sweep ignores them. Python's own
    warnings about dropped objects would only repeat them.
    """
    with ExitStack() as stack:
        for guarding in list(watch.censuses):
            stack.enter_context(guarding.paused())
        stack.enter_context(Census(kinds=()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield


def look_back(runs: Sequence[Run]) -> list[Run]:
    """Find leftovers that only a full garbage collection shows; it is too slow after each run.

    Return the runs that seemed to leave nothing, but did.
    """
    gc.collect()
    tidy = [run for run in runs if not run.findings]
    for event in watch.events:
        run = _run_of(event, runs)
        if run in tidy:
            run.findings.append(event.finding)
    return [run for run in tidy if run.findings]


def _run_of(event: Event, runs: Sequence[Run]) -> Run | None:
    """Return the run that caused an event and did not see it."""
    before = [run for run in runs if run.span[1] < event.seen]
    if event.born < event.seen:
        return next((run for run in before if run.span[0] < event.born <= run.span[1]), None)
    # The start is unknown: it was in the last run, or in an earlier one.
    told = any(run.span[0] < event.seen <= run.span[1] for run in runs)
    return before[-1] if before and not told else None


class Oracle:
    """The checks for what one run leaves behind."""

    def __init__(self, settings: SweepSettings) -> None:
        self._settings = settings
        self._census: Census | None = None
        self._first: Left = {}
        self._last: Left = {}
        self.work: WatchedExecutor | None = None
        """The loop's default executor, if any: its threads may stay, but its calls must end."""

    def begin(self) -> None:
        """Record what exists now, in the task in which the scenario will run."""
        self._census = Census()

    def look(self) -> None:
        """Record what is left, in the step in which the scenario has ended."""
        self._first = self._last = self._look()

    async def settled(self, pause: Callable[[float], Awaitable[None]]) -> list[Finding]:
        """Wait a little for leftovers to end, and mark those that have ended as late."""
        # Add up the pauses instead of reading a clock: while the machine is held up, nothing can end.
        # The pauses are in the loop's own time, and an hour of virtual time may be a moment.
        most = self._settings.settle_seconds
        is_mock = self._settings.clock == "mock"
        seconds = passed = slept = 0.0
        turns = 0
        while self._last and (turns < _TURNS or passed < most):
            await pause(seconds)
            passed += seconds
            turns += 1
            if turns < _TURNS:
                continue
            self._last = self._look()
            if (slept if is_mock else passed) < _SWEEPING_UP_SECONDS:
                self._first = {
                    key: finding
                    for key, finding in self._first.items()
                    if key in self._last or finding.kind not in _SWEPT_UP
                }
            seconds = min(2 * seconds or _PAUSE_SECONDS, most - passed)
            if is_mock:
                time.sleep(_PAUSE_SECONDS)  # noqa: ASYNC251 - threads and processes need real time
                slept += _PAUSE_SECONDS
        return census_verdict(self._first, self._last)

    def left(self) -> list[Finding]:
        """List the leftovers of the last look, for a run that cannot wait any more."""
        return list(self._last.values())

    def _kill(self) -> list[int]:
        """Kill the processes that the run has left, and return their numbers."""
        pids = [key[1].pid for key in (self._look() if self._last else ()) if key[0] == "process"]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    async def bury(self, pause: Callable[[float], Awaitable[None]]) -> None:
        """Kill the processes that the run has left, and let asyncio reap those that it has started.

        asyncio warns of a process that other code has reaped, and of one that dies after its loop.
        """
        pids = self._kill()
        for _ in range(_BURIAL_PAUSES_MAX):
            if not any(map(is_child, pids)) and not _waiters(asyncio.get_running_loop()):
                break
            await pause(0)
            time.sleep(_PAUSE_SECONDS)  # noqa: ASYNC251 - processes need real time; the loop's time may jump

    def end(self) -> tuple[float, float]:
        """Kill and reap the processes that the run has left; stop looking; return the run's span."""
        if self._census is None:
            return 0, 0
        for pid in self._kill():
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._census.close()
        return self._census.number, self._census.ended

    def _look(self) -> Left:
        found = {} if self._census is None else self._census.look()
        return found | (self.work.left() if self.work is not None else {})


def _waiters(loop: object) -> list[threading.Thread]:
    """Return asyncio's threads that wait for an ended process of the loop and have not reported it yet."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("asyncio-waitpid-")
        and (given := getattr(thread, "_args", None) or ())
        and given[0] is loop
        and _has_ended(given[1])
    ]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class WatchedExecutor(ThreadPoolExecutor):
    """A default executor that knows which of its calls are unfinished."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._submitted: list[tuple[Future[Any], str, StartPlace | None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call in a thread."""
        future = super().submit(fn, *args, **kwargs)
        self._submitted.append((future, _name_of(fn, args), calling(get_frame(1))))
        return future

    def left(self) -> Left:
        """Return the calls that still run in threads although their scenario has ended."""
        return {
            ("work", id(future)): Finding("thread", name, place and str(place), "its work goes on")
            for future, name, place in self._submitted
            if not future.done()
        }


def _name_of(fn: Any, args: tuple[Any, ...]) -> str:
    """Return the name of a call in a thread; `asyncio.to_thread` hides it in a partial of Context.run."""
    inner = [*getattr(fn, "args", ()), *args]
    function = inner[0] if getattr(fn, "func", fn) is not fn and inner else fn
    return str(getattr(function, "__qualname__", None) or type(function).__name__)
