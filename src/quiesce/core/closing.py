"""The close of one scope, run by a closing task that callers cannot cancel.

The order: wait for the work until the grace ends · cancel and join the rest, with the child
scopes · stop the services · leave the contexts, last entered first · hand the report to the
closers (jobs that closed their own scope) · join the closers.

Cancelling goes in rounds. Cancelled work may start new work in its cleanup (on asyncio: adopted
tasks). The next round begins when all work cancelled before has ended, and cancels the new work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quiesce.core import contexts, failures, frontier
from quiesce.core import report as reports
from quiesce.core.current import stopping
from quiesce.core.graveyard import bury_held
from quiesce.core.latch import Latch
from quiesce.core.tree import ScopeState, TreeNode, logger

if TYPE_CHECKING:
    from quiesce.core.backends import Bell
    from quiesce.core.hold import Held
    from quiesce.core.scope import Scope

_TICK_SECONDS_MIN = 0.01  # until the first check whether a job has swallowed its cancellation
_TICK_SECONDS_MAX = 0.25
_TICK_GROWTH = 1.5
_LOOK_SHARE = 0.1  # at most this share of the time goes into these checks
_LAST_CALL_TURNS = 50  # turns of the loop: ending one task takes three, and it may wait for others
_CLOSER_SECONDS = 5.0  # the time that a closer has to end by itself
_ROUNDS_MAX = 8  # rounds of cancelling; then the services are stopped, and each round waits first
_WARN_SECONDS = 10.0  # until an unbounded wait logs a warning; doubled after each warning


class Closing:
    """The close of one scope: its deadlines, which callers can only shorten, and its report."""

    __slots__ = (
        "_closers_by",
        "_failure",
        "_grace_until",
        "_handed_over",
        "_hurried",
        "_owned",
        "_rounds",
        "_scope",
        "_started",
        "_stuck",
        "bell",
        "by_parent",
        "cleanup",
        "done",
        "early_report",
        "expired",
        "join_by",
        "patience",
        "quiet",
        "report",
        "waiters",
    )

    def __init__(self, scope: Scope, *, by_parent: bool) -> None:
        backend = scope.backend
        self._scope = scope
        self.bell: Bell = backend.bell()
        self.quiet: Latch = Latch(backend)  # opened when everything but the closers has ended
        self.done: Latch = Latch(backend)
        self.patience: int = 0  # number of callers still waiting for a graceful drain
        self.waiters: set[object] = set()  # the tasks that wait for this close
        self.by_parent: bool = by_parent
        self._owned = True
        self._hurried = False
        self.expired: bool = False  # whether the grace ended with work left
        self.report: reports.Report | None = None
        self.early_report: reports.Report | None = None
        self._failure: BaseException | None = None
        self._started = backend.clock()
        self._grace_until = math.inf
        self.cleanup: float = math.inf
        self.join_by: float = math.inf
        self._closers_by = math.inf
        self._handed_over = 0
        self._rounds = 0  # rounds of cancelling so far
        self._stuck: list[reports.ReportEntry] = []

    # Called by any task, in one step.

    def tighten(self, *, grace: float, cleanup: float, join_by: float = math.inf) -> None:
        """Shorten the deadlines; a later caller can only make them stricter."""
        now = self._scope.backend.clock()
        self._grace_until = min(self._grace_until, now + grace)
        self.cleanup = min(self.cleanup, cleanup)
        self.join_by = min(self.join_by, join_by)
        if self._scope.phase is ScopeState.CLOSING:
            self.join_by = min(self.join_by, now + cleanup)
        if self.quiet.is_open:
            self._closers_by = min(self._closers_by, join_by, now + cleanup)
        if grace <= 0:
            self._hurried = True
            self.join_by = min(self.join_by, now + self.cleanup)  # also the children's deadline
            self._stop_admitting()
        self.bell.ring()

    def start(self) -> None:
        """Start the closing task (invariant 5). Finish at once if nothing is left to close."""
        scope = self._scope
        closers = scope.closers or scope.quiet_children
        if not (self._has_work_left() or closers or scope.own_context is not None):
            if scope.leftovers_policy == "parent":
                self._hand_over()
            self._resume_closers()
            self._finish()
            return
        name = f"quiesce close {scope.name}"
        self._owned = scope.backend.own(self.carry_out, name, self._interrupt)

    def _interrupt(self) -> None:
        """End all waits early: the event loop is shutting down and cancels every task."""
        self.bell.interrupted = True
        self.bell.ring()

    def desert(self) -> None:
        """Record that a caller stopped waiting for a drain. The last one ends the grace."""
        self.patience -= 1
        if self.patience <= 0:
            self._grace_until = -math.inf
            self._hurried = True
            self._stop_admitting()
            self.bell.ring()

    def _stop_admitting(self) -> None:
        """Refuse all new work from this step on, here and in the child scopes (invariant 4)."""
        scope = self._scope
        if scope.phase is ScopeState.CLOSED:
            return
        if scope.leftovers_policy == "parent":
            return  # the work goes on in the parent
        if scope.phase is not ScopeState.CLOSING:
            scope.enter_state(ScopeState.CLOSING)
        for child in list(scope.children):
            child.close_with_parent(self.join_by)

    # The closing task.

    async def carry_out(self) -> None:
        """Close the scope. The body of the closing task, which ends by its deadlines, not by cancellation."""
        try:
            await self._wait_out_the_grace()
            if self._scope.leftovers_policy == "parent":
                self._hand_over()
            await self._cancel_and_join()
            self._resume_closers()
            await self._join_closers()
        except BaseException as error:
            self._failure = error  # a defect of quiesce: callers of the close raise it
            raise
        finally:
            self._finish()

    async def _wait_out_the_grace(self) -> None:
        scope, clock = self._scope, self._scope.backend.clock
        warn_after, tick = _WARN_SECONDS, _TICK_SECONDS_MIN
        scope.backend.look_at_parts(scope)
        while scope.holds and clock() < self._grace_until and not self.bell.interrupted:
            warn_at = self._started + warn_after
            unbounded = self._grace_until == math.inf
            until = warn_at if unbounded else self._grace_until
            if any(resource.is_forsaken() for resource in scope.list_all_resources()):
                if scope.is_only_forsaken():
                    if scope.leftovers_policy == "parent":
                        break  # the parent takes over the resources, and may have a reader
                    for resource in scope.list_all_resources():
                        if resource.is_forsaken():
                            resource.shut_down()
                    continue
                # Code may drop the last possible reader or writer without an event: check again.
                until = min(until, clock() + tick)
                tick = min(tick * _TICK_GROWTH, _TICK_SECONDS_MAX)
            await self.bell.wait(until)
            if unbounded and scope.holds and clock() >= warn_at:
                warn_after *= 2
                logger.warning(
                    "the close of scope %r has no deadline, and has waited %.0f s for:\n%s",
                    scope.name, clock() - self._started, frontier.take_frontier(scope),
                )  # fmt: skip

        hurried = self._hurried or self.bell.interrupted
        self.expired = bool(scope.holds) and not hurried and scope.leftovers_policy == "cancel"

    def _hand_over(self) -> None:
        scope = self._scope
        assert scope.parent is not None  # noqa: S101 - checked when the scope was opened
        self._handed_over += scope.hand_over_to(scope.parent)

    async def _cancel_and_join(self) -> None:
        scope, clock = self._scope, self._scope.backend.clock
        if scope.phase is not ScopeState.CLOSING:
            scope.enter_state(ScopeState.CLOSING)
        self.join_by = min(self.join_by, clock() + self.cleanup)
        scope.backend.look_at_parts(scope)
        for resource in scope.list_all_resources():
            resource.shut_down()
        if scope.own_context is not None:
            await self._leave(scope.own_context)
        for child in list(scope.quiet_children):
            child.close_with_parent(self.join_by)
        while self._has_work_left():
            for child in list(scope.children):
                child.close_with_parent(self.join_by)
            await self._end(scope.holds)
            await self._join_children()
            await self._end(scope.services)
            for context in reversed(scope.contexts.copy()):
                if scope.holds and clock() < self.join_by:
                    break  # leaving a context started work that may use the others: end it first
                contexts.close_context(scope, context, self.join_by)
                await self._join_children()
            if clock() >= self.join_by:
                break

    def _has_work_left(self) -> bool:
        scope = self._scope
        entered = any(context.node.close_plan is None for context in scope.contexts)
        return bool(scope.holds or scope.children or scope.services or entered)

    async def _join_children(self) -> None:
        for child in list(self._scope.children):
            if child.close_plan is not None:
                await child.close_plan.carry_out_if_nobody_does()
        while self._scope.children:
            await self.bell.wait(None)  # bounded: the children have the same deadline

    async def _leave(self, context: contexts.Context[object]) -> None:
        """Leave the context that this scope was made for, before the context's tasks are cancelled."""
        context.ask_to_exit(self._scope.close_reason)
        scope = self._scope
        while context.host in scope.services and scope.backend.clock() < self.join_by:
            await self.bell.wait(self.join_by)
        await self._yield_turns(scope.services)  # late, but it may need no time

    async def _end(self, table: dict[object, Held]) -> None:
        """Cancel everything in the table until the table is empty or the deadline has passed.

        If every round finds new work, return after `_ROUNDS_MAX` rounds. The caller then stops the
        services, which may have started that work, and calls again. From then on each round waits first.
        """
        clock = self._scope.backend.clock
        last_round = self._rounds + _ROUNDS_MAX
        asked: dict[object, Held] = {}
        tick = _TICK_SECONDS_MIN
        look_at = -math.inf
        while table:
            now = clock()
            if now >= self.join_by:
                await self._cancel_once_more(table)
                return
            if asked.keys().isdisjoint(table):
                # Begin a round: everything that was cancelled before has ended.
                if self._rounds >= last_round:
                    return
                if self._rounds >= _ROUNDS_MAX:
                    await self._pause(tick)
                asked = self._cancel_all(table)
                slowly = not asked or self._rounds > _ROUNDS_MAX
                tick = min(tick * _TICK_GROWTH, _TICK_SECONDS_MAX) if slowly else tick
                look_at = clock() + tick
            elif now >= look_at:
                for held in [held for key, held in table.items() if key in asked]:
                    if held.goes_on_regardless():
                        stopping.stop(self._scope, held)
                tick = max(
                    min(tick * _TICK_GROWTH, _TICK_SECONDS_MAX), (clock() - now) / _LOOK_SHARE
                )
                look_at = clock() + tick
            await self.bell.wait(min(self.join_by, look_at))

    def _cancel_all(self, table: dict[object, Held]) -> dict[object, Held]:
        """Ask everything in the table to end; return the holds that can be stopped."""
        scope = self._scope
        if table is scope.holds and scope.own_context is None:  # a context keeps its shared tasks
            self._handed_over += scope.backend.stop_all(scope, table)
        else:
            for held in list(table.values()):
                held.request_stop()
        asked = {key: held for key, held in table.items() if held.can_be_stopped}
        self._rounds += bool(asked)
        return asked

    async def _pause(self, seconds: float) -> None:
        """Wait for this time or until `join_by`, even if the bell rings."""
        clock = self._scope.backend.clock
        until = min(clock() + seconds, self.join_by)
        while clock() < until:
            await self.bell.wait(until)

    async def _cancel_once_more(self, table: dict[object, Held]) -> None:
        """Cancel once more, to interrupt slow cleanups. Work that runs after this is stuck."""
        clock = self._scope.backend.clock
        needs = {
            key: stopping.stop(self._scope, held, force=True) for key, held in list(table.items())
        }
        await self._yield_turns(table)
        slow = {key: seconds for key, seconds in needs.items() if seconds}
        until = clock() + max(slow.values(), default=0.0)
        while not slow.keys().isdisjoint(table) and clock() < until:
            await self.bell.wait(until)
        if slow:
            await self._yield_turns(table)  # so that tasks that waited for the slow ones can end

    async def _yield_turns(self, table: dict[object, Held]) -> None:
        """Yield to the loop so that cancelled tasks in the table can end."""
        for _ in range(_LAST_CALL_TURNS):
            if table:
                await self.bell.yield_once()

    # The end.

    def _resume_closers(self) -> None:
        """Resume the closers, with a report of everything but themselves."""
        scope = self._scope
        self._record_leftovers(scope.holds, scope.services)
        if scope.holds:
            scope.holds.clear()
            scope.note_idle()
        scope.services.clear()
        self.early_report = self._write()
        parent = scope.parent
        if self.by_parent and parent is not None:
            parent.child_reports[scope] = self.early_report
        self.quiet.open()
        for child in scope.quiet_children:
            child.ring_closing()  # the child's closers may wait for this close
        if parent is not None and scope in parent.children:
            del parent.children[scope]
            parent.quiet_children[scope] = None
            parent.ring_closing()

    def _record_leftovers(self, *tables: dict[object, Held]) -> None:
        """Record everything that is left after the deadline, as stuck or undelivered."""
        scope = self._scope
        now = scope.backend.clock()
        for table in tables:
            for held in table.values():
                if isinstance(held, TreeNode) or held.fate == "nothing":
                    continue
                stuck = held.fate == "stuck"
                item = reports.report_entry(held, scope.name, now, stack=stuck)
                if stuck:
                    self._stuck.append(item)
                else:
                    scope.undelivered_items.append((item,))
            bury_held(scope, table)
        failures.take_over(scope)

    async def _join_closers(self) -> None:
        """Wait for the closers, and close the work that they start afterwards."""
        scope, clock = self._scope, self._scope.backend.clock
        while self._parent_is_busy_closing():
            await self.bell.wait(None)  # bounded by the parent's deadline
        limit = clock() + min(self.cleanup, _CLOSER_SECONDS)
        while (scope.closers or scope.quiet_children) and clock() < min(limit, self._closers_by):
            await self.bell.wait(min(limit, self._closers_by))
        if scope.closers:
            await self._yield_turns(scope.closers)  # the closers may have been resumed in this turn
            await self._cancel_once_more(scope.closers)
        while scope.quiet_children:
            await self.bell.wait(None)  # bounded: the children have the same deadline
        if self._has_work_left():
            self.join_by = min(limit, self._closers_by)
            await self._cancel_and_join()

    def _parent_is_busy_closing(self) -> bool:
        parent = self._scope.parent
        closing = parent.close_plan if parent is not None and self.by_parent else None
        return bool(self._scope.closers) and closing is not None and not closing.quiet.is_open

    def _finish(self) -> None:
        scope = self._scope
        for resource in scope.list_own_resources():
            resource.shut_down()
            resource.note_scope_closed()
        self._record_leftovers(scope.holds, scope.services, scope.closers)
        for table in (scope.services, scope.closers):
            table.clear()
        if scope.holds:
            scope.holds.clear()
            scope.note_idle()
        self.report = self._write()
        if scope.phase is not ScopeState.CLOSED:  # a dissolved light scope is closed already
            scope.enter_state(ScopeState.CLOSED)
            scope.on_closed()
        self.quiet.open()
        self.done.open()
        parent = scope.parent
        if self.by_parent and parent is not None:
            parent.child_reports[scope] = self.report
        scope.detach_node()

    def _write(self) -> reports.Report:
        scope = self._scope
        now = scope.backend.clock()
        parts = scope.child_reports.values()
        cut = reports.Cut(tuple(scope.cancelled_holds), scope.name, now)
        stopped = (
            0 if scope.own_context is not None else scope.stopped_count
        )  # the host task of a context is not the user's service
        return reports.Report(
            scope=scope.name,
            completed=scope.completed_count + sum(part.completed for part in parts),
            withdrawn=scope.withdrawn_count + sum(part.withdrawn for part in parts),
            cancelled=reports.chain_items(cut, [part.cancelled for part in parts]),
            failed=reports.chain_items(scope.failed_entries, [part.failed for part in parts]),
            undelivered=reports.chain_items(
                (), [*scope.undelivered_items, *(part.undelivered for part in parts)]
            ),
            stuck=reports.chain_items(
                [*self._stuck, *scope.list_left_running()], [part.stuck for part in parts]
            ),
            handed_over=self._handed_over,  # without the children's, which this scope took over
            services=stopped + sum(part.services for part in parts),
            handled=scope.handled_count + sum(part.handled for part in parts),
            seconds=now - self._started,
        )

    # Called by tasks that wait for the close.

    async def carry_out_if_nobody_does(self) -> None:
        """Run the close in the caller's task if the loop is ending, so that it started no closing task."""
        if not self._owned:
            self._owned = True
            await self.carry_out()

    def has_result(self, *, early: bool) -> bool:
        """Return whether `result()` has a report to return or an error to raise."""
        return (
            self._failure is not None
            or self.report is not None
            or (early and self.early_report is not None)
        )

    def result(self, *, early: bool) -> reports.Report:
        """Return the report. With `early`, for closers, return the report without the closers."""
        if self._failure is not None:
            raise self._failure  # a defect of quiesce
        report = self.early_report if early or self.report is None else self.report
        assert report is not None  # noqa: S101 - it is set before the latch is opened
        return report
