"""How a server ends: it waits for tasks to finish, cancels the rest, and stores an end for each.

`QuiescentRequestHandler.drain` and `aclose` run it, once for each server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from quiesce.core import arguments
from quiesce.core.hold import NOTHING
from quiesce.core.report import ReportEntry
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.outlasting import outlast
from quiesce.integrations.a2a.server.executor import STOPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiesce.core.job import Job
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.push.push_sender import Pushes
    from quiesce.integrations.a2a.server.executor import OwnedExecutor
    from quiesce.integrations.a2a.server.task_store import TellingStore
    from quiesce.integrations.a2a.server.task_tracker import Entry, Tracker

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")
_SHARE = (
    0.5  # of the cleanup time: for cut executors, and for the tasks that they have left running
)


class End:
    """The shutdown of a server. Every caller joins the same shutdown, and can only shorten its deadlines."""

    def __init__(
        self,
        scope: Scope,
        tracker: Tracker,
        executor: OwnedExecutor,
        store: TellingStore,
        pushes: Pushes,
        inner: Any,
    ) -> None:
        self._scope = scope
        self._tracker = tracker
        self._executor = executor
        self._store = store
        self._pushes = pushes
        self._inner = inner
        self._job: Job[Report] | None = None
        self._began = math.inf
        self._deadline = math.inf
        self._cleanup = math.inf
        self._limit: asyncio.Timeout | None = None

    async def join(self, grace: float | None, cleanup: float) -> Report:
        """Start the shutdown, or shorten its deadlines, and wait until it has ended."""
        wait = math.inf if grace is None else arguments.seconds("grace", grace)
        self._cleanup = min(self._cleanup, arguments.seconds("cleanup", cleanup))
        now = asyncio.get_running_loop().time()
        self._began = min(self._began, now)
        self._tighten(now + wait)
        if self._job is None:
            self._job = self._scope.spawn(self._timed, name="end", service=True)
        job = self._job
        try:
            report = await job
        except asyncio.CancelledError:
            self._tighten(-math.inf)
            with suppress(Exception):  # the caller gets the cancellation
                await outlast(cast("asyncio.Task[Report]", job))  # on asyncio a job is a task
            raise
        finally:
            await self._scope.aclose()  # waits until the job itself has ended
        return report

    def _tighten(self, deadline: float) -> None:
        if deadline < self._deadline:
            self._deadline = deadline
            if self._limit is not None and not self._limit.expired():
                self._limit.reschedule(deadline)

    async def _timed(self) -> Report:
        """Run the shutdown, and report its time since the first call of `join`.

        The scope's own report has only the time of the scope's close.
        """
        report = await self._run()
        seconds = asyncio.get_running_loop().time() - self._began
        # The scope's services are loops of the SDK, so the report does not count them.
        return dataclasses.replace(report, seconds=seconds, services=0)

    async def _run(self) -> Report:
        self._pushes.drain()
        await self._wait_for_work()
        until = asyncio.get_running_loop().time() + self._cleanup
        cut = [(entry, self._entry_of_cut(entry)) for entry in self._executor.cut()]
        by = until - self._cleanup * (1 - _SHARE)
        await self._end_work(by)
        if cut:  # the last events of the cut tasks are not stored yet
            await self._idle(by - asyncio.get_running_loop().time())
        await self._fail_unended_tasks(until)
        await self._idle(until - asyncio.get_running_loop().time())
        await self._end_inner(until)
        left = max(0.1, until - asyncio.get_running_loop().time())
        try:
            report = await self._scope.aclose(cleanup=left)
        finally:
            await self._pushes.close()
        return _with_cut(report, cut)

    async def _end_work(self, by: float) -> None:
        """Wait until the cut executors have ended; then cancel the tasks that they have left, and join those.

        The order matters: an executor may start tasks for its cleanup, and these must not be cancelled while
        the executor waits for them. A response that streams the last event of a task must not be cancelled
        either.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(by):
                await self._executor.ended()
                await self._tracker.streams_ended()
        work = self._tracker.work
        if work is not None:
            closing = work.close_with_parent(by)
            await closing.carry_out_if_nobody_does()
            await closing.done.wait()

    def _entry_of_cut(self, entry: Entry) -> ReportEntry:
        """Return the report entry of a task that is cut short now; its end is stored later."""
        age = 0.0 if entry.hold is None else self._scope.backend.clock() - entry.hold.since
        where = None if entry.hold is None else entry.hold.where
        return ReportEntry("a2a task", entry.task_id, self._scope.name, where, age, NOTHING)

    async def _wait_for_work(self) -> None:
        """Wait until the work has ended, or until the deadline, which a later caller may shorten."""
        deadline = None if self._deadline == math.inf else self._deadline
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout_at(deadline) as self._limit:
                    await self._scope.idle()
            finally:
                self._limit = None

    async def _idle(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._scope.idle()
            except TimeoutError:
                _log.warning(
                    "the cleanup time of the A2A server is over; still in flight: %s",
                    self._scope.frontier(),
                )

    async def _fail_unended_tasks(self, until: float) -> None:
        """Store FAILED for each accepted task that has no terminal state yet."""
        for entry in list(self._tracker.entries.values()):
            if not entry.owed:
                continue
            try:
                async with asyncio.timeout_at(until):
                    await end_task(self._store, entry.task_id, entry.context, STOPPED)
            except Exception:  # noqa: BLE001 - logged; the other tasks need their end as well
                _log.exception(
                    "task %s has no terminal state in its store: storing FAILED has failed; the next"
                    " start tries again if the outbox is a file",
                    entry.task_id,
                )

    async def _end_inner(self, until: float) -> None:
        """Call the SDK's `aclose` (1.1.2 and newer), which ends the SDK's loops; the scope ends the other tasks."""
        close = getattr(self._inner, "aclose", None)
        if close is None:
            return
        try:
            async with asyncio.timeout_at(until):
                await close()
        except Exception as error:  # noqa: BLE001 - the scope's report names what is left
            _log.warning("aclose() of the SDK's handler failed: %r; its tasks are cancelled", error)


def _with_cut(report: Report, cut: Sequence[tuple[Entry, ReportEntry]]) -> Report:
    """Return a report that names each task that was cut short once, with its stored state.

    A task whose executor completed it after the cancellation is not lost, and is left out.
    """
    named = {one.name for one in report.undelivered if one.kind == "a2a task"}  # still in flight
    added = [
        dataclasses.replace(described, details={"outcome": _outcome(entry)})
        for entry, described in cut
        if entry.task_id not in named and entry.state != versions.COMPLETED
    ]
    return dataclasses.replace(report, undelivered=(*report.undelivered, *added))


def _outcome(entry: Entry) -> str:
    if entry.ended:
        return f"cut short, and stored as {versions.state_name(entry.state)}"
    return "cut short, and no terminal state is stored"


async def end_task(store: TellingStore, task_id: str, context: Any, why: str) -> bool:
    """Store FAILED for a task; return False if the task has ended already, or waits for its client."""
    while True:
        stored = await store.get(task_id, context)
        task = getattr(stored, "task", stored)
        if task is None or task.status.state in versions.ENDS:
            return False
        try:
            await store.put(versions.failed_task(task, why), stored, context)
        except Exception as error:
            if not versions.is_concurrent(error):
                raise
        else:
            return True
