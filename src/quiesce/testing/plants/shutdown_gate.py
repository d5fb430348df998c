"""The gate: plant a task of each kind; a shutdown has to drain each task or name it in its report."""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from quiesce.core import arguments
from quiesce.core.report import Report
from quiesce.errors import ArgumentError, GateFailed, UsageError, WorkLost
from quiesce.testing.plants.planting import ABOUT, PLANTS, plant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from quiesce.testing.plants.planting import Planted, Way

__all__ = ["Gate", "GateRow", "assert_gate"]

T = TypeVar("T")

Verdict = Literal["drained", "refused", "reported", "survived silently", "lost silently", "hung"]
FAILURES: frozenset[Verdict] = frozenset({"survived silently", "lost silently", "hung"})

_LAST_SECONDS = 5.0  # how long a hung shutdown may take to end after its plant is released


@dataclass(frozen=True, slots=True)
class GateRow:
    """The fate of one planted task in a shutdown."""

    kind: str
    """One of `PLANTS`."""
    verdict: Verdict
    """The task's fate."""
    told: str = ""
    """Where the task was named, or another remark."""

    @property
    def ok(self) -> bool:
        """Whether the task came to its end, or the shutdown reported that it did not."""
        return self.verdict not in FAILURES


@dataclass(frozen=True, slots=True)
class Gate:
    """The fates of all planted tasks in a shutdown."""

    rows: tuple[GateRow, ...]
    """One row for each kind, in order."""

    @property
    def ok(self) -> bool:
        """Whether no task survived or was lost without a report."""
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        counts = {row.verdict: 0 for row in self.rows}
        for row in self.rows:
            counts[row.verdict] += 1
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        head = (
            "the gate holds"
            if self.ok
            else "FAILED, work was lost or left running without a report"
        )
        table = [("planted", "outcome", "")]
        for row in self.rows:
            word = row.verdict if row.ok else row.verdict.upper()
            table.append((ABOUT[row.kind], word, row.told))
        widths = [max(len(line[column]) for line in table) for column in (0, 1)]
        lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in table]
        return "\n".join([f"{head}: {said}", *lines])


async def assert_gate(
    start: Callable[[], Awaitable[T]],
    shutdown: Callable[[T], Awaitable[object]],
    *,
    kinds: Iterable[str] = PLANTS,
    by: Way | None = None,
    seconds: float = 0.2,
    within: float = 60.0,
) -> Gate:
    """Plant a task of each kind into a fresh system, shut the system down, and judge each task's fate.

    ```python
    gate = await assert_gate(Scope.open, Scope.aclose)
    print(gate)
    ```

    Three fates pass. *Drained*: the task came to its end. *Refused*: the task came too late, and
    starting it raised an error. *Reported*: the shutdown names the task in its report or other return
    value, in the exception that it raises, or in a log record (a warning or worse). A task fails the
    gate if nothing names it and it is still alive when the shutdown returns, or was cut short. A
    shutdown that loses work silently is as wrong as one that leaves work running.

    Args:
        start: Starts the system under test and returns it; called once for each kind.
        shutdown: Shuts the system down; called with the result of `start`, in the same task.
        kinds: What to plant; see `PLANTS`.
        by: How to start a task in a system that is not a `Scope`; see `plant()`. Without it, tasks are
            put into the event loop without an owner.
        seconds: How long the work takes if it ends by itself. A shutdown that sleeps that long
            drains it by accident.
        within: How many seconds a shutdown may take; a longer one *hung*, and fails the gate.

    *Cancel safety*: if cancelled, the planted task is removed and the shutdown is cancelled.

    *Raises*: `GateFailed`, with the table; `UsageError` if a task cannot be planted there; the errors
    of `start`.
    """
    __tracebackhide__ = True  # pytest shows the caller's code and the table, not this code
    chosen = [arguments.one_of("kinds", kind, PLANTS) for kind in kinds]
    if not chosen:
        message = "kinds is empty: leave it out, or name some of PLANTS"
        raise ArgumentError(message)
    limit = arguments.seconds("within", within)
    trials = [Trial(start, shutdown, kind, by, seconds) for kind in chosen]
    gate = Gate(tuple([await trial.judge(limit) for trial in trials]))
    if not gate.ok:
        raise GateFailed(gate)
    return gate


@dataclass
class Trial:
    """The trial of one kind: a system that is started, planted and shut down in its own task."""

    start: Callable[[], Awaitable[Any]]
    shutdown: Callable[[Any], Awaitable[object]]
    kind: str
    way: Way | None
    seconds: float
    planted: Planted | None = None
    row: GateRow | None = None
    failure: Exception | None = None
    begun: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)

    async def judge(self, within: float) -> GateRow:
        """Run the trial and return the verdict."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._run)
            await self.begun.wait()
            with anyio.move_on_after(within):
                await self.over.wait()
            if self.planted is not None and not self.over.is_set():
                self.row = GateRow(self.kind, "hung", f"did not return within {within:g} s")
                self.planted.release()
                with anyio.move_on_after(_LAST_SECONDS):
                    await self.over.wait()
                group.cancel_scope.cancel()
        if self.failure is not None:
            raise self.failure
        assert self.row is not None  # noqa: S101 - the task has ended, and without an exception
        return self.row

    async def _run(self) -> None:
        try:
            target = await self.start()
            try:
                async with plant(target, self.kind, seconds=self.seconds, by=self.way) as planted:
                    self.planted = planted
                    self.begun.set()
                    await self._shut_down(target, planted)
            except UsageError:
                if self.planted is None:  # the task could not be planted
                    await self.shutdown(target)
                raise
        except Exception as error:  # noqa: BLE001 - `judge()` raises it, without a group around it
            self.failure = error
        finally:
            self.begun.set()
            self.over.set()

    async def _shut_down(self, target: object, planted: Planted) -> None:
        returned: object = None
        error: BaseException | None = None
        with warnings_logged() as records:
            try:
                returned = await self.shutdown(target)
            except Exception as raised:  # noqa: BLE001 - the error is evidence
                error = raised
            except asyncio.CancelledError as raised:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                error = raised  # from a task that the shutdown awaited: the shutdown itself was not cancelled
        # No await after the shutdown's end: the state must be the one in which the shutdown returned.
        if self.row is None:
            self.row = plant_verdict(planted, returned, error, records)
        self.over.set()


def plant_verdict(
    planted: Planted,
    returned: object,
    error: BaseException | None,
    records: Sequence[logging.LogRecord],
) -> GateRow:
    """Judge one planted task by its state and by where it was named."""
    state = planted.state
    if state == "finished":
        return GateRow(planted.kind, "drained")
    if state == "refused":
        return GateRow(planted.kind, "refused", repr(planted.refusal))
    told = named_in(planted, returned, error, records)
    if told is not None:
        return GateRow(planted.kind, "reported", told)
    silence = "" if error is None else f"the shutdown raised {error!r}, which does not name it"
    word: Verdict = "survived silently" if state == "alive" else "lost silently"
    return GateRow(planted.kind, word, silence)


def named_in(
    planted: Planted,
    returned: object,
    error: BaseException | None,
    records: Sequence[logging.LogRecord],
) -> str | None:
    """Return where the shutdown has named the task; None if it has not."""
    reports = [
        returned,
        *(each.report for each in exception_chain(error) if isinstance(each, WorkLost)),
    ]
    for report in reports:
        if isinstance(report, Report):
            for word in ("failed", "cancelled", "undelivered", "stuck"):
                if any(planted.is_named_in(str(item)) for item in getattr(report, word)):
                    return f"report: {word}"
    if returned is not None and planted.is_named_in(f"{returned!r} {returned}"):
        return f"returned: {type(returned).__name__}"
    if error is not None and planted.is_named_in("".join(traceback.format_exception(error))):
        return f"raised: {type(error).__name__}"
    for record in records:
        if planted.is_named_in(text_of(record)):
            return f"logged: {record.levelname} {record.name}"
    return None


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Return an exception, its causes, and the members of its groups."""
    if error is None:
        return
    yield error
    yield from exception_chain(error.__cause__)
    for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from exception_chain(each)


def text_of(record: logging.LogRecord) -> str:
    """Return the text of a log record, with its exception."""
    return logging.Formatter().format(record)


class Collector(logging.Handler):
    """A log handler that keeps records."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def warnings_logged() -> Iterator[list[logging.LogRecord]]:
    """Collect the block's log records that are warnings or worse and reach the root logger."""
    handler = Collector(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.records
    finally:
        root.removeHandler(handler)
