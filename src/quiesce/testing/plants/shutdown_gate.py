"""The gate: a task of each kind is planted, and a shutdown has to drain it or to name it."""

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

_LAST_SECONDS = 5.0  # for a shutdown that hung to end, when the plant is taken out


@dataclass(frozen=True, slots=True)
class GateRow:
    """What a shutdown made of one planted task."""

    kind: str
    """One of `PLANTS`."""
    verdict: Verdict
    """What became of it."""
    told: str = ""
    """Who named it, or what else there is to say."""

    @property
    def ok(self) -> bool:
        """Whether it came to its end, or somebody was told that it did not."""
        return self.verdict not in FAILURES


@dataclass(frozen=True, slots=True)
class Gate:
    """What a shutdown made of each planted task."""

    rows: tuple[GateRow, ...]
    """One for each kind, in order."""

    @property
    def ok(self) -> bool:
        """Whether nothing survived, or was lost, in silence."""
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        """Return a table for human eyes."""
        counts = {row.verdict: 0 for row in self.rows}
        for row in self.rows:
            counts[row.verdict] += 1
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        head = "the gate holds" if self.ok else "THE GATE IS DECORATION"
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
    """Plant a task of each kind into a fresh system, shut it down, and see what became of it.

    ```python
    gate = await assert_gate(Scope.open, Scope.aclose)
    print(gate)
    ```

    A planted task may be *drained* (it came to its end), *refused* (it came too late, and its start
    raised) or *reported*: the shutdown's report, or whatever else it returns, the exception that it
    raises, or a log record of it (a warning or worse) names it. A task that is still alive when the
    shutdown returns, or was cut short, and that nothing names, fails the gate: a shutdown that loses
    work and says nothing tells the same lie as one that leaves it running.

    Args:
        start: Starts the system under test, anew for each kind, and returns it.
        shutdown: Shuts it down; called with what `start` returned, in the same task.
        kinds: What to plant; see `PLANTS`.
        by: How to start a task in a system that is not a `Scope`; see `plant()`. Without it, tasks are
            put into the event loop, without an owner.
        seconds: How long work takes that comes to its end by itself. A shutdown that sleeps that
            long drains it by accident.
        within: How many seconds a shutdown may take; then it *hung*, which fails as well.

    *Cancel safety*: what was planted is taken out; the shutdown in progress is cancelled.

    *Raises*: `GateFailed`, with the table; `UsageError` if there is no way to plant a task there; what
    `start` raises.
    """
    __tracebackhide__ = True  # pytest shows the caller's code, and the table, not this
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
    """One kind, planted into one system: the system lives and dies in a task of its own."""

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
        """Return the verdict."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._run)
            await self.begun.wait()
            with anyio.move_on_after(within):
                await self.over.wait()
            if self.planted is not None and not self.over.is_set():
                self.row = GateRow(self.kind, "hung", f"did not return within {within:g} s")
                self.planted.let_go()
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
                if self.planted is None:  # it could not be planted
                    await self.shutdown(target)
                raise
        except Exception as error:  # noqa: BLE001 - raised by judge(), without a group around it
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
            except Exception as raised:  # noqa: BLE001 - it is evidence
                error = raised
            except asyncio.CancelledError as raised:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                error = raised  # of a task it has awaited: nobody has cancelled the shutdown
        # No await between the shutdown's end and this: the state is that in which it returned.
        if self.row is None:
            self.row = plant_verdict(planted, returned, error, records)
        self.over.set()


def plant_verdict(
    planted: Planted,
    returned: object,
    error: BaseException | None,
    records: Sequence[logging.LogRecord],
) -> GateRow:
    """Judge one planted task by its state and by what was said of it."""
    state = planted.state
    if state == "finished":
        return GateRow(planted.kind, "drained")
    if state == "refused":
        return GateRow(planted.kind, "refused", repr(planted.refusal))
    told = teller(planted, returned, error, records)
    if told is not None:
        return GateRow(planted.kind, "reported", told)
    silence = "" if error is None else f"the shutdown raised {error!r}, which does not name it"
    word: Verdict = "survived silently" if state == "alive" else "lost silently"
    return GateRow(planted.kind, word, silence)


def teller(
    planted: Planted,
    returned: object,
    error: BaseException | None,
    records: Sequence[logging.LogRecord],
) -> str | None:
    """Return who has named it, if anybody has."""
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
    """Return an exception, those it was caused by, and those in a group."""
    if error is None:
        return
    yield error
    yield from exception_chain(error.__cause__)
    for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from exception_chain(each)


def text_of(record: logging.LogRecord) -> str:
    """Return what a log record says, with its exception."""
    return logging.Formatter().format(record)


class Collector(logging.Handler):
    """Keeps log records."""

    def __init__(self, level: int) -> None:
        """Keep those of this level, or worse."""
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.records.append(record)


@contextmanager
def warnings_logged() -> Iterator[list[logging.LogRecord]]:
    """Collect the log records of the block that are warnings or worse, and reach the root logger."""
    handler = Collector(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.records
    finally:
        root.removeHandler(handler)
