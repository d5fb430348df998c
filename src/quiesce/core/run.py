"""The entry point of a program: signals drain it, and exit code 1 reports lost work."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, TypeVarTuple, overload

import anyio

from quiesce.core import arguments, callsites, close_callers, exit_threads
from quiesce.core.announce import write_stderr
from quiesce.core.forked_signals import kept_from_children
from quiesce.core.python_private import running_loop
from quiesce.core.scope import Scope
from quiesce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from quiesce.core.job import Job
    from quiesce.core.report import Report

__all__ = ["run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_EXIT_LOST = 1
_PROGRESS_SECONDS = 1.0  # between two lines on a terminal
_EXIT_BY_SIGNAL = 128  # plus the signal's number, as in shells
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NAMES_MAX = 4  # names of jobs in a progress line


@overload
def run(
    main: Callable[[*Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    grace: float = ...,
    cleanup: float = ...,
    backend: Literal["asyncio", "uvloop", "trio"] = ...,
    service: Literal[False] = ...,
) -> T: ...
@overload
def run(
    main: Callable[[*Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    grace: float = ...,
    cleanup: float = ...,
    backend: Literal["asyncio", "uvloop", "trio"] = ...,
    service: bool,
) -> T | None: ...
def run(
    main: Callable[[*Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    grace: float = 30.0,
    cleanup: float = 5.0,
    backend: Literal["asyncio", "uvloop", "trio"] = "asyncio",
    service: bool = False,
) -> T | None:
    """Run an async program in a scope of its own, and drain it on SIGTERM or Ctrl-C.

    ```python
    if __name__ == "__main__":
        quiesce.run(main, grace=30)
    ```

    The first signal drains: no new work starts, and work in flight has `grace` seconds to end. The
    second signal cancels the remaining work at once. The third ends the process without waiting.
    When `main` returns, its jobs in `current_scope()` are drained as well. A drain writes to stderr:
    the frontier when it begins, a line each second if that is a terminal, and the report.

    Args:
        main: The async function to run.
        args: Its arguments.
        grace: How many seconds a drain may take.
        cleanup: How many seconds cancelled work may take to clean up.
        backend: The event loop to run.
        service: Whether `main` only accepts work: a drain cancels it once all other work is
            done. Otherwise `main` is work: a drain waits for it, and if the drain has to cancel
            it, work was lost. (Or let `main` return after
            `await quiesce.current_scope().closing()`.)

    Returns:
        The value of `main`; None if `main` was a service and was stopped.

    Raises:
        SystemExit: With code 1 if work was lost, in a job or in the drain.
        Exception: The exception of `main`.

    """
    arguments.seconds("grace", grace)
    arguments.seconds("cleanup", cleanup)
    arguments.one_of("backend", backend, ("asyncio", "uvloop", "trio"))
    arguments.check_callable(main, "run")
    if threading.current_thread() is not threading.main_thread():
        message = "run() handles signals, and only the main thread can: call it there"
        raise UsageError(message)
    trio = sys.modules.get("trio")
    if running_loop() is not None or (trio is not None and trio.lowlevel.in_trio_run()):
        message = "run() starts an event loop, but one already runs here: open a Scope instead"
        raise UsageError(message)
    start = _runner(backend)
    coro: Any = main(*args)
    if not iscoroutine(coro):
        coro = arguments.coroutine(main, coro)
    program = ProgramRun(coro, grace, cleanup, service=service)
    before = {which: signal.getsignal(which) for which in _SIGNALS}
    try:
        start(program.supervise)
    finally:
        # At its end asyncio installs the default handlers, not the earlier ones (a shell's background
        # job ignores SIGINT). None means a handler not set by Python, which cannot be restored.
        for which, handler in before.items():
            if handler is not None and signal.getsignal(which) is not handler:
                signal.signal(which, handler)
    result: T | None = program.result()
    return result


def _runner(backend: str) -> Callable[[Callable[[], Coroutine[Any, Any, None]]], None]:
    if backend == "trio":
        import trio  # noqa: PLC0415 - optional

        return trio.run
    if backend == "uvloop":
        import uvloop  # noqa: PLC0415 - optional

        return lambda supervise: uvloop.run(supervise())
    import asyncio  # noqa: PLC0415 - slow to import, and trio does without it

    return lambda supervise: asyncio.run(supervise())


class ProgramRun:
    """One run of one program."""

    def __init__(
        self,
        main: Coroutine[Any, Any, T],
        grace: float,
        cleanup: float,
        *,
        service: bool,
    ) -> None:
        self._main = main
        self._grace = grace
        self._cleanup = cleanup
        self._service = service
        self._signals = 0
        self._exit: SystemExit | None = None
        self._job: Job[Any] | None = None
        self._report: Report | None = None

    async def supervise(self) -> None:
        """Run the program. The body of the event loop's first task."""
        with self._received_signals() as signals:
            await self._control(signals)
        if self._report is not None and self._report.stuck:
            self._leave(_EXIT_LOST)  # otherwise the event loop would wait for stuck work for ever

    @contextmanager
    def _received_signals(self) -> Iterator[AsyncIterator[signal.Signals]]:
        with ExitStack() as stack:
            stack.enter_context(kept_from_children(*_SIGNALS))
            try:
                signals = stack.enter_context(anyio.open_signal_receiver(*_SIGNALS))
            except NotImplementedError:
                self._main.close()  # prevents Python's warning: the coroutine was never awaited
                message = (
                    'run() handles signals, which this platform\'s asyncio loop does not support: use backend="trio",'
                    " or open a Scope in asyncio.run()"
                )
                raise UsageError(message) from None
            yield signals

    async def _control(self, signals: AsyncIterator[signal.Signals]) -> None:
        async with Scope("quiesce.run") as control:
            self._scope = control.child("main", cleanup=self._cleanup)
            self._turn = anyio.Event()
            control.spawn(self._watch_signals, signals, service=True)
            job: Any = self._scope.spawn(self._call_main, name="main", service=self._service)
            code = callsites.code_of(self._main)
            if code is not None:
                job.started_code, job.started_offset = code, 0  # the user's, not ours
            self._job = job
            control.spawn(self._watch_main, service=True)
            await self._turn.wait()
            progress = control.spawn(self._tell_progress, service=True)
            report = await self._scope.drain(self._grace, cleanup=self._cleanup)
            progress.cancel()
            self._tell_report(report)
        self._report = report

    async def _call_main(self) -> Any:
        try:
            return await self._main
        except SystemExit as leaving:
            self._exit = leaving  # `result()` raises it, after the drain
            return None

    async def _watch_main(self) -> None:
        assert self._job is not None  # noqa: S101 - it was spawned before this
        with suppress(Exception):  # `result()` raises the exception of `main`
            await self._job
        self._turn.set()

    async def _watch_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            self._signals += 1
            self._on_signal(signal.Signals(number))

    def _on_signal(self, which: signal.Signals) -> None:
        if self._signals == 1:
            self._turn.set()
            write_stderr(
                f"{which.name}: draining for up to {self._grace:g} s "
                "(a second signal cancels the remaining work, a third exits at once)"
            )
            write_stderr(self._in_flight())
        elif self._signals == 2:  # noqa: PLR2004 - the second signal
            close_callers.begin_close(self._scope, 0.0, self._cleanup)
            write_stderr(f"{which.name}: cancelling the remaining work:\n{self._in_flight()}")
        else:
            write_stderr(f"{which.name}: exiting at once; still in flight:\n{self._in_flight()}")
            self._leave(_EXIT_BY_SIGNAL + which)

    def _in_flight(self) -> str:
        """Return the frontier as text. An exception in a user's details does not stop the drain."""
        try:
            return str(self._scope.frontier())
        except Exception as error:  # noqa: BLE001 - the text of a user's details may raise anything
            return f"cannot show the work in flight: its text raised {type(error).__name__}"

    async def _tell_progress(self) -> None:
        if sys.stderr is None or not sys.stderr.isatty():
            return
        left = self._grace
        while self._scope.state != "closed":
            await anyio.sleep(_PROGRESS_SECONDS)
            left -= _PROGRESS_SECONDS
            work = self._scope.frontier().in_flight
            names = ", ".join(f"{entry.kind} {entry.name}" for entry in work[:_NAMES_MAX])
            more = f" and {len(work) - _NAMES_MAX} more" if len(work) > _NAMES_MAX else ""
            if work:
                write_stderr(f"{max(0, left):g} s left, {len(work)} in flight: {names}{more}")

    def _tell_report(self, report: Report) -> None:
        exit_threads.watch_exit_threads()
        if self._signals or not report.ok:
            write_stderr(str(report))

    def result(self) -> Any:
        """Return the value of `main`, or raise its exception, or `SystemExit` if work was lost."""
        assert self._report is not None  # noqa: S101 - the event loop has run
        assert self._job is not None  # noqa: S101 - likewise
        if self._exit is not None and (self._exit.code or self._report.ok):
            raise self._exit
        outcome = self._job.outcome
        if outcome is not None and outcome.error is not None:
            raise outcome.error
        if not self._report.ok:
            raise SystemExit(_EXIT_LOST)
        return outcome.value if outcome is not None else None

    @staticmethod
    def _leave(code: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # the stream may be closed or None
                stream.flush()
        os._exit(code)
