"""A hop: the scope of the work on one message, in the agent that has received the message.

All work that the handler starts belongs to the hop, also work that outlives the request. When the last of this
work has ended, the hop ends, and neither starts work nor sends messages after that. Invariants:

1. A hop is busy from the step that accepts its message and writes the message's id, until the hop has ended.
2. A hop ends in a step in which it has no work in flight, and no callback that could start more. To be sure, it
   waits for one more turn of the event loop, unless the handler was its only work and left no callback.
3. A hop ends once. Cancelling a hop cancels all its work, and the hop ends when the work has ended.
4. If no task has begun the hop yet, a drain waits for it, because a task still may. The hop is lost at the deadline,
   or when its first part was dropped, so that no task can begin it.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core import failures
from quiesce.core import report as reports
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.light_scope import LightScope
from quiesce.core.python_private import get_frame
from quiesce.core.tree import ScopeState, current, logger
from quiesce.mesh.protocol.receipt import ASSUMES, WHY_MAX, edge_mark
from quiesce.mesh.protocol.states import WORK_LIFE, WorkState
from quiesce.mesh.routes import early_sets
from quiesce.mesh.routes.following import Followed, called, hop_now
from quiesce.mesh.routes.shared_sends import share
from quiesce.mesh.routes.takers import takers
from quiesce.mesh.runtime.delegation import Handing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quiesce.core.backends.base import Waiter
    from quiesce.core.closing import Closing
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode as Tree
    from quiesce.mesh.protocol import states
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.runtime.hop_parts import Origin, Part, Visit
    from quiesce.mesh.runtime.node import Node
    from quiesce.mesh.runtime.open_node import OpenNode

__all__ = ["Hop", "current_hop"]

SHUT_DOWN = "its agent was shut down"
_NOT_BEGUN = "its agent took it, and never began to work on it"
_FROM_OUTSIDE = "code that is not its own cancelled some of its work"
_SERVER_ERRORS = 500
_LEFT_MAX = 32  # untracked pieces of work that one hop records
_leaving = threading.Lock()
_RUNNING, _ENDING, _ENDED = WorkState.RUNNING, WorkState.ENDING, WorkState.ENDED


def current_hop() -> Hop | None:
    """Return the hop that the running code works for, or None."""
    node = current.get()
    hop = None if node is None else node.hop_served
    if hop is None and called:
        return hop_now()
    return hop if isinstance(hop, Hop) and hop.phase is not ScopeState.CLOSED else None


def hop_of_node(node: Node) -> Hop | None:
    """Return the current hop if it is a hop of this node. Messages of the node's clients belong to it.

    If the current hop belongs to another node in this process, the message does not belong to any hop. This is
    usually a mistake, so the first such message logs a warning.
    """
    hop = current_hop()
    if hop is None or hop.mesh_node is node:
        return hop
    if hop.mesh_node not in node.strangers:
        node.strangers.add(hop.mesh_node)
        logger.warning(
            "a client of node %r sent a message in a hop of node %r. The message is not part of that hop, so no verdict "
            "waits for it. Use a client of node %r there", node.name, hop.mesh_node.name, hop.mesh_node.name,
        )  # fmt: skip
    return None


class Hop(LightScope):
    """The scope of the work on one message; made by `Node.handle()` and `Node.cascade()`.

    All work that is started in the hop, by `spawn` or by any code that creates tasks, belongs to the hop.
    The sender learns that the message is done only after all this work has ended.
    """

    __slots__ = (
        "_unbegun", "end_reason", "end_status", "late_assumptions", "left_sendings", "mark", "opened", "origin", "packed", "record",
        "rides", "work_state",
    )  # fmt: skip

    _kind = "hop"
    _unseen_turns = 3  # a callback takes one turn, the callback of a `gather` two; one to spare

    def __init__(self, opened: OpenNode, record: states.HopRecord, name: str = "") -> None:
        """Open the hop below the node's own scope."""
        self.opened: OpenNode = opened
        self.record: states.HopRecord = record
        self.end_status: Status = "done"
        self.end_reason: str = ""
        self.work_state: WorkState = _RUNNING
        self._unbegun: Hold | None = None
        self.late_assumptions: dict[str, str] | None = None
        # See untracked() and opaque(); and clients/strays.py.
        self.left_sendings: dict[object, tuple[str, str, Sending]] | None = (
            dict(opened.node.stray_sendings) if opened.node.stray_sendings else None
        )
        self.rides: bool = False
        """Whether the answer to the message will be made soon, so that it can carry the receipt."""
        self.packed: bytes | None = None
        """The receipt, if the answer carries it."""
        self.origin: Visit | Origin | None = None
        """The name of the request and the place of its endpoint, if an app serves the hop."""
        self.mark: str = edge_mark(record.edge)
        """The name of the message in settlements and logs."""
        LightScope.__init__(self, opened.hop_model, name or f"hop {self.mark}", get_frame(2).f_code)

    @property
    def hop_served(self) -> Hop:
        return self

    @property
    def mesh_node(self) -> Node:
        """The node that works on the message."""
        return self.opened.node

    @property
    def where(self) -> str | None:
        """The place of the request's endpoint; without a request, the file and line that began the hop."""
        return super().where if self.origin is None else self.origin.where

    @property
    def details(self) -> Mapping[str, object]:
        """The request, if the hop has one, and the state, unless the hop is open."""
        request = {} if self.origin is None else {"request": self.origin.name}
        return {**request, **super().details}

    @property
    def has_ended(self) -> bool:
        """Whether the hop has ended: it has no work in flight, and sends no more messages."""
        return self.work_state is _ENDED

    @property
    def cascade(self) -> str:
        """The id of the cascade that the hop belongs to."""
        return self.record.cascade.hex()

    @property
    def is_cancelled(self) -> bool:
        """Whether the cascade, or the part of it that this hop belongs to, was cancelled."""
        return self.record.is_cancelled

    def delegate(self, to: str) -> Handing:
        """Begin to hand a message to another agent; return its headers and the functions for its answer.

        ```python
        with hop.delegate("https://billing.example") as handing:
            response = await post(body, headers=handing.headers)
            receipt = response.headers.get("Cascade-Receipt")
            handing.answered(receipt, is_error=response.status_code >= 400)
        ```

        Args:
            to: the agent's address. Without HTTP, the name that the transport uses for the agent.

        *Raises*: `UsageError` if the hop has ended, because the message would belong to no hop; also in
        another thread or event loop than the node's.
        """
        self.check_here("send from")
        edge, header = self.opened.send_edge(self.record, to)
        handing = Handing(self.opened, edge, to, header)
        if takers:
            share(self, handing)
        return handing

    def untracked(self, route: str, place: str, *, thing: object = None) -> None:
        """Record that work leaves the hop by a way that quiesce does not follow.

        The receipt names this work, and the verdict is not green. quiesce calls this method when it notices
        such work. Call it yourself for work that quiesce cannot notice, from any thread.

        Args:
            route: how the work leaves, like `thread`.
            place: where the work was started, like `app.py:12 in pay`.
            thing: an object that stands for the work, to pass to `tracked()` when the work has ended.
        """
        self._leave(thing, route, place, "is untracked")

    def tracked(self, thing: object) -> None:
        """Record that untracked work has ended before the hop did. May be called from any thread."""
        with _leaving:
            if self.left_sendings is not None:
                self.left_sendings.pop(thing, None)

    def opaque(self, route: str, place: str = "handed to a system that takes no part") -> None:
        """Record that the handler hands work to a system that takes no part, like a task queue.

        This work then counts like a message to an agent that takes no part: with `require="full"` the
        verdict is not green, and with `require="participants"` the verdict does not wait for the work.

        ```python
        hop.opaque("celery")
        send_invoice.delay(order)
        ```
        """
        self._leave(None, route, place, "is opaque")

    def _leave(self, thing: object, route: str, place: str, how: Sending) -> None:
        with _leaving:  # in this thread: a call posted to the loop may come after the end
            if self.left_sendings is None:
                self.left_sendings = {}
            if len(self.left_sendings) < _LEFT_MAX:
                self.left_sendings[(route, place) if thing is None else thing] = (route, place, how)
        if self.has_ended:  # the receipt may already be made without this work
            logger.warning(
                "%s has ended, but work that left it may go on, and no verdict waits for that: %s, %s",
                self.name,
                route,
                place,
            )

    def working(self, name: str, kind: str = "handler") -> Part:
        """Return a part of this hop, for work that another task will do.

        Use it if the work reaches that task by a way that quiesce does not follow. Make the part in the handler,
        pass it to the task, and enter it there, once: the hop waits from the step in which the part was made until the
        part's block has ended. If the part is dropped before a task has entered it, its work is *untracked*: the
        verdict is not green, and names the line that made the part.

        ```python
        jobs.append((hop.working("invoice"), order))  # in the handler
        ...
        async with part:  # in the worker
            await send_invoice(order)
        ```
        """
        from quiesce.mesh.runtime.hop_parts import Promised  # noqa: PLC0415 - which are parts of hops

        return Promised(self, kind, name, get_frame(1))

    # Its end.

    def assume(self, what: str, *, also: bool = False) -> None:
        """Record an assumption that quiesce cannot check. The receipt names the first one, and later ones if `also` is set.

        The hop still counts as *done*. See `Settlement.assumptions`.
        """
        if self.end_status == "done" and not self.end_reason.startswith(ASSUMES):
            self.end_reason = what
        elif self.end_status == "done" and also:
            self.end_reason += f"; and {what}"

    def assume_last(self, key: str, what: str) -> None:
        """Record an assumption, once for each key. It comes after all others, and is left out if there is no room."""
        with _leaving:  # any thread may send a request
            if self.late_assumptions is None:
                self.late_assumptions = {}
            if len(self.late_assumptions) < _LEFT_MAX:
                self.late_assumptions.setdefault(key, what)

    def work_failed(self, error: BaseException) -> None:
        """Record that the hop failed, for its sender: only the exception's type, as its text may be secret."""
        if self.end_status == "done" and isinstance(error, self.backend.cancelled):
            self.note_cut_unheard(_FROM_OUTSIDE)
        elif self.end_status == "done":
            self.end_status, self.end_reason = "failed", type(error).__name__

    def answered_with_error(self, status: int) -> None:
        """Record that the handler has answered with an error.

        A server error counts as a failure of the hop. After any other error the hop counts as *done*, because the
        sender has the answer; the verdict shows the status.
        """
        if self.end_status != "done":
            return
        if status >= _SERVER_ERRORS:
            self.end_status, self.end_reason = "failed", f"it answered {status}"
        elif not self.end_reason:
            self.end_reason = f"it answered {status}"

    def note_failed_unheard(self, error: BaseException, work: Any) -> bool:
        """Record the failure of work that no code waits for. During a drain, put the failure into the report.

        Return whether the report has it.
        """
        if self.phase is ScopeState.CLOSED:
            return False  # the report has this work as stuck
        self.work_failed(error)
        home = self._home_in_drain()
        if home is None or self.is_cancelled:
            return False
        home.failed_entries.append(
            reports.report_entry(work, self.name, self.backend.clock(), error)
        )
        return True

    def note_cut_short(self) -> None:
        """Record that a drain of another tree of scopes cancels work of this hop, and reports it."""
        if self.end_status == "done":
            self.end_status, self.end_reason = "cancelled", SHUT_DOWN

    def note_cut_unheard(self, why: str = SHUT_DOWN) -> None:
        """Record that other code cancels work of this hop. During a drain, put the hop into the report."""
        if self.end_status == "done" and self.phase is not ScopeState.CLOSED:
            self.end_status, self.end_reason = "cancelled", why
            home = self._home_in_drain()
            if home is not None and self.opened.scope_of_hops.phase is not ScopeState.CLOSING:
                home.cancelled_holds.append(self)  # a close reports it by itself

    def _home_in_drain(self) -> Scope | None:
        """Return the node's scope if it is being drained, or if the server was told to end; else None."""
        home = self.opened.scope
        is_open = home is None or home.phase is ScopeState.OPEN
        return home if not is_open or self.opened.exchange.is_told_to_end() else None

    def cancel_work(self) -> None:
        """Cancel all work of the hop. The hop ends when the work has, which may take any time (3)."""
        if self.phase is not ScopeState.CLOSED:
            self._spare_services()
            self.plan_close(grace=0.0, cleanup=math.inf)

    @property
    def _keeps_shared(self) -> bool:
        """Whether the hop keeps its shared tasks. Handed to another scope, they would outlive the receipt."""
        return self.is_cancelled

    def _spares(self, waiter: object) -> bool:
        """Return whether a waiting task is a worker that handles an item of the hop, and so must not be cancelled.

        The task that the worker awaits is cancelled. Cancelling the worker, too, would end it for all other hops.
        """
        return self.is_cancelled and isinstance(self.holds.get(waiter), Followed)

    def _spare_services(self) -> None:
        """Move the services to the node, as at every other end of a hop."""
        parent = self.parent
        assert parent is not None  # noqa: S101 - a hop always has a parent
        for key, held in self.services.items():
            held.move_to(parent)
            parent.services[key] = held
        self.services.clear()

    def plan_close(self, **limits: Any) -> Closing:
        if self.leftovers_policy == "parent" and not self.has_ended:
            self.leftovers_policy = "cancel"  # work that is handed over would outlive the receipt
        return super().plan_close(**limits)

    def end_if_all(self) -> None:
        """End the hop if it is idle, or as soon as it is (2)."""
        if self.work_state is _RUNNING:
            self._enter(_ENDING)
            self.when_idle(self._finish)

    def _enter(self, state: WorkState) -> None:
        """Enter the next state of its work; `WORK_LIFE` lists the allowed steps."""
        self.work_state = WORK_LIFE.step(self.work_state, state)

    async def turned(self) -> None:
        """Wait up to three turns of the loop for the end of the hop, if it has no work in flight.

        If the hop has ended, the answer that is made next carries the receipt, and the node need not post it.

        *Cancel safety*: may be cancelled at any time; the hop ends all the same.
        """
        for _ in range(self._unseen_turns):
            if self.has_ended or self.holds:
                return
            waiter = self.backend.waiter()
            self.backend.soon(partial(_wake, waiter))  # runs after the callback that ends the hop
            await waiter

    @property
    def has_only_closers(self) -> bool:
        """Whether the hop's only running tasks are closers, which wait for the close of the node."""
        return self.filled and not self.holds and _has_closers(self)

    def _finish(self) -> None:
        if self.filled:
            if self.has_only_closers:
                # Closers of a scope below call ring_closing when they end; for the node's, see on_closed.
                self._enter(WorkState.LEFT)
                self.opened.exchange.look()
                return
            failures.take_over(self)  # failures of tasks whose result no code can ask for any more
            if self.contexts:
                self.cancel_work()  # no work is left: this only leaves the contexts, and then ends
                return
        self._end("")
        if not self.dissolve() and self.close_plan is None:
            # The node takes over the services.
            self.plan_close(grace=0.0, cleanup=self.cleanup_seconds)

    def ring_closing(self) -> None:
        super().ring_closing()
        if self.work_state is WorkState.LEFT:  # the last closer may have ended
            self._enter(_ENDING)
            self.when_idle(self._finish)

    def on_closed(self) -> None:
        if self.bond is not None:
            self.bond.end()
        if self.has_ended:
            return
        if not self.filled:  # closed by `dissolve_after`: the handler was the only work
            self._end("")
            return
        report = self.report
        # If work is stuck, it still runs, so the hop has not ended.
        if report is None or not report.stuck:
            is_cut = report is not None and (report.cancelled or report.undelivered)
            if self._unbegun is not None:
                self.end_status, self.end_reason = "lost", _NOT_BEGUN
            self._end(SHUT_DOWN if is_cut or self.work_state is _RUNNING else "")

    def hold_unbegun(self) -> None:
        """Add a hold during a drain if no task has begun the hop, so that the drain waits for the hop (4)."""
        if self.work_state is _RUNNING and not (self.holds or self._unbegun):
            hold = Hold(self, "message", "not begun", NOTHING, self.place_code, 0, self._forsake)
            self._unbegun = hold
            self.insert_hold(hold, hold)

    def _forsake(self) -> None:
        """Stop waiting for a task that begins the hop, at the deadline of the drain."""
        hold = self._unbegun
        if hold is not None and not hold.released:
            self.lose_items(
                (reports.report_entry(hold, self.name, self.backend.clock()),), given_up=True
            )
            hold.release()

    def note_begun(self) -> None:
        if self._unbegun is not None:
            self._unbegun.release()
            self._unbegun = None

    def drop_unbegun(self) -> None:
        """Record that the first part was dropped, so that no task can begin the hop or end that part (4)."""
        if self.has_ended or self.phase is ScopeState.CLOSED:
            return
        if self.work_state is not _RUNNING or (self.holds and self._unbegun is None):
            logger.warning(
                "%s: its `node.handle(...)` was dropped before the block ended. Let the block end",
                self.name,
            )
            return
        logger.warning(
            "%s is lost: its agent accepted the message, but never entered `node.handle(...)`. Write "
            "`async with node.handle(...)`", self.name,
        )  # fmt: skip
        self.end_status, self.end_reason = "lost", _NOT_BEGUN
        self.note_begun()
        self._enter(_ENDING)
        self._finish()

    def _end(self, why: str) -> None:
        if self.work_state is _ENDED:
            return
        self.work_state = WORK_LIFE.step(self.work_state, _ENDED)
        if self.record.is_cancelled:
            self.end_status, self.end_reason = "cancelled", ""
        elif why and self.end_status == "done":
            self.end_status, self.end_reason = "cancelled", why
        if early_sets.of_hops:
            early_sets.tell_end(self)
        opened = self.opened
        mesh = opened.node
        if mesh.joined_work.hops:
            mesh.joined_work.hop_ends(self)
        if self.end_status == "done" and not self.record.is_root:
            mesh.bystanders.tell(self)
        if self.late_assumptions or self.left_sendings:
            self._tell_left(opened)
        opened.note_hop_ended(self, self.end_status, self.end_reason)

    def _tell_left(self, opened: OpenNode) -> None:
        """Record the last assumptions in the receipt, and the work that has left."""
        for what in (self.late_assumptions or {}).values():
            is_first = not self.end_reason.startswith(ASSUMES)
            if is_first or len(f"{self.end_reason}; and {what}") <= WHY_MAX:
                self.assume(what, also=True)
        for route, place, how in dict.fromkeys(list((self.left_sendings or {}).values())):
            edge = opened.new_edge()
            opened.engine.leave(self.record, edge, route, place, opened.clock(), how)


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _has_closers(node: Tree) -> bool:
    children = (*node.children, *node.quiet_children)
    return bool(node.closers) or any(_has_closers(child) for child in children)
