"""How a server ends: what may finish does, the rest is told to stop, and nothing is left unsaid."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from quiesce.core import arguments
from quiesce.core.report import ReportEntry
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.outlasting import outlast
from quiesce.integrations.a2a.server.executor import STOPPED

if TYPE_CHECKING:
    from quiesce.core.job import Job
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.push.push_sender import Pushes
    from quiesce.integrations.a2a.server.executor import OwnedExecutor
    from quiesce.integrations.a2a.server.task_store import TellingStore
    from quiesce.integrations.a2a.server.task_tracker import Entry, Tracker

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")
_SHARE = 0.5  # of the cleaning up, for executors that were cut, and what they have left running


class End:
    """The one end of a server. Every caller joins it, and can only make it sooner."""

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
        self._deadline = math.inf
        self._cleanup = math.inf
        self._limit: asyncio.Timeout | None = None

    async def join(self, grace: float | None, cleanup: float) -> Report:
        """Begin the end, or make it sooner, and wait for it."""
        wait = math.inf if grace is None else arguments.seconds("grace", grace)
        self._cleanup = min(self._cleanup, arguments.seconds("cleanup", cleanup))
        self._tighten(asyncio.get_running_loop().time() + wait)
        if self._job is None:
            self._job = self._scope.spawn(self._timed, name="end", service=True)
        job = self._job
        try:
            report = await job
        except asyncio.CancelledError:
            self._tighten(-math.inf)
            with suppress(Exception):  # the cancellation is what the caller gets
                await outlast(cast("asyncio.Task[Report]", job))  # on asyncio a job is one
            raise
        finally:
            await self._scope.aclose()  # it waits for the end of that very job, its last
        return report

    def _tighten(self, deadline: float) -> None:
        if deadline < self._deadline:
            self._deadline = deadline
            if self._limit is not None and not self._limit.expired():
                self._limit.reschedule(deadline)

    async def _timed(self) -> Report:
        """Run, and report the time of all of it: that of the scope is only the time of its last step."""
        clock = asyncio.get_running_loop().time
        began = clock()
        report = await self._run()
        return dataclasses.replace(
            report, seconds=clock() - began, services=0
        )  # which are the SDK's

    async def _run(self) -> Report:
        self._pushes.drain()
        await self._quiet()
        until = asyncio.get_running_loop().time() + self._cleanup
        cut = [self._described(entry) for entry in self._executor.cut()]
        by = until - self._cleanup * (1 - _SHARE)
        await self._end_work(by)
        if cut:  # their last events are still to be stored
            await self._idle(by - asyncio.get_running_loop().time())
        await self._answer_for_all(until)
        await self._idle(until - asyncio.get_running_loop().time())
        await self._end_inner(until)
        left = max(0.1, until - asyncio.get_running_loop().time())
        try:
            report = await self._scope.aclose(cleanup=left)
        finally:
            await self._pushes.close()
        return dataclasses.replace(report, undelivered=(*report.undelivered, *cut))

    async def _end_work(self, by: float) -> None:
        """Wait for executors that were told to stop; then cancel what they have left, and join it.

        Not the other way round: what an executor starts to clean up is not to be cancelled under it. A response
        that streams the task's last event is not to be cancelled either.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(by):
                await self._executor.ended()
                await self._tracker.streams_ended()
        work = self._tracker.work
        if work is not None:
            closing = work._close_with_parent(by)
            await closing.carry_out_if_nobody_does()
            await closing.done.wait()

    def _described(self, entry: Entry) -> ReportEntry:
        """Say in the report what was cut short, although it was answered for."""
        age = 0.0 if entry.hold is None else self._scope._backend.clock() - entry.hold.since
        where = None if entry.hold is None else entry.hold.where
        details = {"outcome": "cut short, and stored as failed"}
        return ReportEntry("a2a task", entry.task_id, self._scope.name, where, age, details)

    async def _quiet(self) -> None:
        """Wait for the work to end, up to the deadline, which may come nearer meanwhile."""
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
                _log.warning("still in flight: %s", self._scope.frontier())

    async def _answer_for_all(self, until: float) -> None:
        """Store a terminal state for each task that was accepted, and has none by now."""
        for entry in list(self._tracker.entries.values()):
            if not entry.owed:
                continue
            try:
                async with asyncio.timeout_at(until):
                    await end_task(self._store, entry.task_id, entry.context, STOPPED)
            except Exception:  # noqa: BLE001 - logged; the others are to be answered for as well
                _log.exception("task %s could not be ended in its store", entry.task_id)

    async def _end_inner(self, until: float) -> None:
        """Ask the SDK to end its own loops (1.1.2 and newer); the scope ends the other tasks."""
        close = getattr(self._inner, "aclose", None)
        if close is None:
            return
        try:
            async with asyncio.timeout_at(until):
                await close()
        except Exception as error:  # noqa: BLE001 - the scope's close tells what is left
            _log.warning("the SDK's aclose(): %r", error)


async def end_task(store: TellingStore, task_id: str, context: Any, why: str) -> bool:
    """Store FAILED for a task that has no terminal state; False if it has one, or waits."""
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
