"""The closing of one scope, carried out by a closing task that no caller can cancel.

The order: wait for the work until the grace ends · cancel and join the rest, with the child
scopes · stop the services · leave the contexts, last entered first · hand the report to the
closers (jobs that closed their own scope) · join the closers.

Cancelling goes in rounds. Cancelled work may start more work in its cleanup (on asyncio: adopted
tasks). That runs on until the work that started it has ended, and is cancelled in the next round.
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
_LAST_CALL_TURNS = 50  # of the loop: a task needs three to end and be seen, and may have helpers
_CLOSER_SECONDS = 5.0  # for a job that closed its own scope to end by itself
_ROUNDS_MAX = 8  # of cancelling; then the services are stopped, and each round waits first
_WARN_SECONDS = 10.0  # until an unbounded wait logs a warning; doubled after each


class Closing:
    """The closing of one scope: its deadlines, which callers can only shorten, and its report."""

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
        backend = scope._backend
        self._scope = scope
        self.bell: Bell = backend.bell()
        self.quiet: Latch = Latch(backend)  # only closers are left
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
        self._rounds = 0  # of cancelling
        self._stuck: list[reports.ReportEntry] = []

    # Called by any task, in one step.

    def tighten(self, *, grace: float, cleanup: float, join_by: float = math.inf) -> None:
        """Shorten the deadlines; a later caller can only make them stricter."""
        now = self._scope._backend.clock()
        self._grace_until = min(self._grace_until, now + grace)
        self.cleanup = min(self.cleanup, cleanup)
        self.join_by = min(self.join_by, join_by)
        if self._scope._state is ScopeState.CLOSING:
            self.join_by = min(self.join_by, now + cleanup)
        if self.quiet.is_open:
            self._closers_by = min(self._closers_by, join_by, now + cleanup)
        if grace <= 0:
            self._hurried = True
            self.join_by = min(self.join_by, now + self.cleanup)  # passed to the children
            self._stop_admitting()
        self.bell.ring()

    def start(self) -> None:
        """Start the closing task (invariant 5). Finish at once if nothing is left to close."""
        scope = self._scope
        closers = scope._closers or scope._quiet
        if not (self._something_left() or closers or scope._context is not None):
            if scope._leftovers == "parent":
                self._hand_over()
            self._be_quiet()
            self._finish()
            return
        name = f"quiesce close {scope.name}"
        self._owned = scope._backend.own(self.carry_out, name, self._interrupt)

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
        if scope._state is ScopeState.CLOSED:
            return
        if scope._leftovers == "parent":
            return  # the work is handed over, and goes on
        if scope._state is not ScopeState.CLOSING:
            scope.enter_state(ScopeState.CLOSING)
        for child in list(scope._children):
            child._close_with_parent(self.join_by)

    # The closing task.

    async def carry_out(self) -> None:
        """Close the scope. The body of the closing task: bounded, and cancellation does not end it."""
        try:
            await self._wait_out_the_grace()
            if self._scope._leftovers == "parent":
                self._hand_over()
            await self._cancel_and_join()
            self._be_quiet()
            await self._join_closers()
        except BaseException as error:
            self._failure = error  # a defect of quiesce: the callers raise it instead of waiting
            raise
        finally:
            self._finish()

    async def _wait_out_the_grace(self) -> None:
        scope, clock = self._scope, self._scope._backend.clock
        warn_after, tick = _WARN_SECONDS, _TICK_SECONDS_MIN
        scope._backend.look_at_parts(scope)
        while scope._holds and clock() < self._grace_until and not self.bell.interrupted:
            warn_at = self._started + warn_after
            unbounded = self._grace_until == math.inf
            until = warn_at if unbounded else self._grace_until
            if any(resource._forsaken() for resource in scope._all_resources()):
                if scope._only_forsaken():
                    if scope._leftovers == "parent":
                        break  # the parent may have a reader
                    for resource in scope._all_resources():
                        if resource._forsaken():
                            resource._shut()
                    continue
                # No event tells when the last possible reader or writer has gone: check again.
                until = min(until, clock() + tick)
                tick = min(tick * _TICK_GROWTH, _TICK_SECONDS_MAX)
            await self.bell.wait(until)
            if unbounded and scope._holds and clock() >= warn_at:
                warn_after *= 2
                logger.warning(
                    "the close of scope %r has waited %.0f s (it has no deadline) for:\n%s",
                    scope.name, clock() - self._started, frontier.take_frontier(scope),
                )  # fmt: skip

        hurried = self._hurried or self.bell.interrupted
        self.expired = bool(scope._holds) and not hurried and scope._leftovers == "cancel"

    def _hand_over(self) -> None:
        scope = self._scope
        assert scope._parent is not None  # noqa: S101 - checked when the scope was opened
        self._handed_over += scope._hand_over(scope._parent)

    async def _cancel_and_join(self) -> None:
        scope, clock = self._scope, self._scope._backend.clock
        if scope._state is not ScopeState.CLOSING:
            scope.enter_state(ScopeState.CLOSING)
        self.join_by = min(self.join_by, clock() + self.cleanup)
        scope._backend.look_at_parts(scope)
        for resource in scope._all_resources():
            resource._shut()
        if scope._context is not None:
            await self._leave(scope._context)
        for child in list(scope._quiet):
            child._close_with_parent(self.join_by)
        while self._something_left():
            for child in list(scope._children):
                child._close_with_parent(self.join_by)
            await self._end(scope._holds)
            await self._join_children()
            await self._end(scope._services)
            for context in reversed(scope._contexts.copy()):
                if scope._holds and clock() < self.join_by:
                    break  # new work, which may use the contexts: end it first
                contexts.close_context(scope, context, self.join_by)
                await self._join_children()
            if clock() >= self.join_by:
                break

    def _something_left(self) -> bool:
        scope = self._scope
        entered = any(context.node._closing is None for context in scope._contexts)
        return bool(scope._holds or scope._children or scope._services or entered)

    async def _join_children(self) -> None:
        for child in list(self._scope._children):
            if child._closing is not None:
                await child._closing.carry_out_if_nobody_does()
        while self._scope._children:
            await self.bell.wait(None)  # bounded: the children have the same deadline

    async def _leave(self, context: contexts.Context[object]) -> None:
        """Leave the context that this scope was made for, before cancelling what it started."""
        context.ask_to_exit(self._scope._reason)
        scope = self._scope
        while context.host in scope._services and scope._backend.clock() < self.join_by:
            await self.bell.wait(self.join_by)
        await self._turns(scope._services)  # without time left, it may still leave without waiting

    async def _end(self, table: dict[object, Held]) -> None:
        """Cancel everything in the table until it is empty or the deadline has passed.

        If every round leaves new work, return after some rounds: the caller then stops the services,
        which may have started that work, and calls again. From then on each round waits first.
        """
        clock = self._scope._backend.clock
        last_round = self._rounds + _ROUNDS_MAX
        asked: dict[object, Held] = {}
        tick = _TICK_SECONDS_MIN
        look_at = -math.inf
        while table:
            now = clock()
            if now >= self.join_by:
                await self._last_call(table)
                return
            if asked.keys().isdisjoint(table):
                # The first round, or the next one: everything cancelled before has ended.
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
                    if held._swallowed():
                        stopping.stop(self._scope, held)
                tick = max(
                    min(tick * _TICK_GROWTH, _TICK_SECONDS_MAX), (clock() - now) / _LOOK_SHARE
                )
                look_at = clock() + tick
            await self.bell.wait(min(self.join_by, look_at))

    def _cancel_all(self, table: dict[object, Held]) -> dict[object, Held]:
        """Ask everything in the table to end; return the holds that can be asked."""
        scope = self._scope
        if table is scope._holds and scope._context is None:  # contexts hand no tasks on
            self._handed_over += scope._backend.stop_all(scope, table)
        else:
            for held in list(table.values()):
                held._stop()
        asked = {key: held for key, held in table.items() if held._stops}
        self._rounds += bool(asked)
        return asked

    async def _pause(self, seconds: float) -> None:
        """Wait this long, even if the bell is rung."""
        clock = self._scope._backend.clock
        until = min(clock() + seconds, self.join_by)
        while clock() < until:
            await self.bell.wait(until)

    async def _last_call(self, table: dict[object, Held]) -> None:
        """Cancel once more, to cut a slow cleanup short. Whatever still runs then is stuck."""
        clock = self._scope._backend.clock
        needs = {
            key: stopping.stop(self._scope, held, force=True) for key, held in list(table.items())
        }
        await self._turns(table)
        slow = {key: seconds for key, seconds in needs.items() if seconds}
        until = clock() + max(slow.values(), default=0.0)
        while not slow.keys().isdisjoint(table) and clock() < until:
            await self.bell.wait(until)
        if slow:
            await self._turns(table)  # for tasks that waited for the slow ones

    async def _turns(self, table: dict[object, Held]) -> None:
        """Yield to the loop so that cancelled tasks in the table can end."""
        for _ in range(_LAST_CALL_TURNS):
            if table:
                await self.bell.yield_once()

    # The end.

    def _be_quiet(self) -> None:
        """Resume the closers, with a report of everything but themselves."""
        scope = self._scope
        self._take_stock(scope._holds, scope._services)
        if scope._holds:
            scope._holds.clear()
            scope._turned_idle()
        scope._services.clear()
        self.early_report = self._write()
        parent = scope._parent
        if self.by_parent and parent is not None:
            parent._parts[scope] = self.early_report
        self.quiet.open()
        for child in scope._quiet:
            child._ring()  # its closers may have waited for this close
        if parent is not None and scope in parent._children:
            del parent._children[scope]
            parent._quiet[scope] = None
            parent._ring()

    def _take_stock(self, *tables: dict[object, Held]) -> None:
        """Record what is left after the deadline as stuck or undelivered."""
        scope = self._scope
        now = scope._backend.clock()
        for table in tables:
            for held in table.values():
                if isinstance(held, TreeNode) or held._fate == "nothing":
                    continue
                stuck = held._fate == "stuck"
                item = reports.report_entry(held, scope.name, now, stack=stuck)
                if stuck:
                    self._stuck.append(item)
                else:
                    scope._undelivered.append((item,))
            bury_held(scope, table)
        failures.take_over(scope)

    async def _join_closers(self) -> None:
        """Wait for the closers, and for the work they have started since."""
        scope, clock = self._scope, self._scope._backend.clock
        while self._parent_is_busy_closing():
            await self.bell.wait(None)  # bounded by the parent's deadline; a closer may wait for it
        limit = clock() + min(self.cleanup, _CLOSER_SECONDS)
        while (scope._closers or scope._quiet) and clock() < min(limit, self._closers_by):
            await self.bell.wait(min(limit, self._closers_by))
        if scope._closers:
            await self._turns(scope._closers)  # they may have been resumed only just now
            await self._last_call(scope._closers)
        while scope._quiet:
            await self.bell.wait(None)  # bounded, as above
        if self._something_left():
            self.join_by = min(limit, self._closers_by)
            await self._cancel_and_join()

    def _parent_is_busy_closing(self) -> bool:
        parent = self._scope._parent
        closing = parent._closing if parent is not None and self.by_parent else None
        return bool(self._scope._closers) and closing is not None and not closing.quiet.is_open

    def _finish(self) -> None:
        scope = self._scope
        for resource in scope._own_resources():
            resource._shut()
            resource._gone()
        self._take_stock(scope._holds, scope._services, scope._closers)
        for table in (scope._services, scope._closers):
            table.clear()
        if scope._holds:
            scope._holds.clear()
            scope._turned_idle()
        self.report = self._write()
        if scope._state is not ScopeState.CLOSED:  # a light scope may have been dissolved before
            scope.enter_state(ScopeState.CLOSED)
            scope._closed()
        self.quiet.open()
        self.done.open()
        parent = scope._parent
        if self.by_parent and parent is not None:
            parent._parts[scope] = self.report
        scope._detach()

    def _write(self) -> reports.Report:
        scope = self._scope
        now = scope._backend.clock()
        parts = scope._parts.values()
        cut = reports.Cut(tuple(scope._cancelled), scope.name, now)
        stopped = 0 if scope._context is not None else scope._stopped  # not the context's host
        return reports.Report(
            scope=scope.name,
            completed=scope._completed + sum(part.completed for part in parts),
            withdrawn=scope._withdrawn + sum(part.withdrawn for part in parts),
            cancelled=reports.chain_items(cut, [part.cancelled for part in parts]),
            failed=reports.chain_items(scope._failed, [part.failed for part in parts]),
            undelivered=reports.chain_items(
                (), [*scope._undelivered, *(part.undelivered for part in parts)]
            ),
            stuck=reports.chain_items(
                [*self._stuck, *scope._left_running()], [part.stuck for part in parts]
            ),
            handed_over=self._handed_over,  # not the children's: they handed over to this scope
            services=stopped + sum(part.services for part in parts),
            handled=scope._handled + sum(part.handled for part in parts),
            seconds=now - self._started,
        )

    # Called by tasks that wait for the close.

    async def carry_out_if_nobody_does(self) -> None:
        """Run the close in the caller's task, if the ending loop could not start a closing task."""
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
        """Return the report; `early`, for closers: the report of everything but them."""
        if self._failure is not None:
            raise self._failure  # a defect of quiesce
        report = self.early_report if early or self.report is None else self.report
        assert report is not None  # noqa: S101 - it is set before the latch is opened
        return report
