"""A hop: the scope of the work on one message, in the agent that it was handed to.

Whatever the handler starts belongs to the hop, also what outlives the request. When nothing of it is in
flight, the hop has ended: it starts nothing and sends nothing any more. What holds:

1. A hop is busy from the step in which its message was taken, and its id written, until it has ended.
2. It ends in a step in which nothing of it is in flight, and nothing that has just ended can start more:
   a turn of the event loop lies between, unless the handler alone was ever in it, and has left no callback
   with the loop.
3. It ends once. Who cancels it, cancels all of it, and waits for its end as ever.
4. One that nobody has begun is held in a drain, for somebody still may; it is lost at the deadline, and as
   soon as nobody can begin it any more, because its part was dropped.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from sys import _getframe
from typing import TYPE_CHECKING, Any

from quiesce.core import failures
from quiesce.core import report as reports
from quiesce.core.harmless_text import harmless
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.light_scope import LightScope
from quiesce.core.tree import ScopeState, current, logger
from quiesce.mesh.protocol.receipt import ASSUMES, edge_mark
from quiesce.mesh.routes import early_sets
from quiesce.mesh.routes.following import Followed, called, hop_now
from quiesce.mesh.routes.shared_sends import share
from quiesce.mesh.routes.takers import takers
from quiesce.mesh.runtime.delegation import Handing

if TYPE_CHECKING:
    from quiesce.core.backends.base import Waiter
    from quiesce.core.closing import Closing
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode as Tree
    from quiesce.mesh.protocol import states
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.runtime.hop_parts import Part
    from quiesce.mesh.runtime.node import Node

__all__ = ["Hop", "current_hop"]

SHUT_DOWN = "its agent was shut down"
_NOT_BEGUN = "its agent took it, and never began to work on it"
_FROM_OUTSIDE = "code that is not its own cancelled some of its work"
_SERVER_ERRORS = 500
_LEFT_MAX = 32  # ways out of one hop that are named
_NAMED_MAX = 3  # pieces of work of one hop, in one line
_leaving = threading.Lock()


def current_hop() -> Hop | None:
    """Return the hop that the running code works for, or None."""
    node = current.get()
    hop = None if node is None else node._errand
    if hop is None and called:
        return hop_now()
    return hop if isinstance(hop, Hop) and hop._state is not ScopeState.CLOSED else None


def hop_of_node(node: Node) -> Hop | None:
    """Return the current hop if it is one of this node: what its clients send belongs to that.

    In a hop of another node of this process it belongs to nobody, which is seldom meant: it is said, once.
    """
    hop = current_hop()
    if hop is None or hop._mesh is node:
        return hop
    if hop._mesh not in node._strangers:
        node._strangers.add(hop._mesh)
        logger.warning(
            "a client of node %r sent a message in a hop of node %r. The message is not part of that hop, so no verdict "
            "waits for it. Use a client of node %r there", node.name, hop._mesh.name, hop._mesh.name,
        )  # fmt: skip
    return None


class Hop(LightScope):
    """The work on one message; made by `Node.handle()` and `Node.cascade()`.

    It is a `Scope`: whatever is started in it, by `spawn` or by any code that creates tasks, belongs to
    it, and has to end before the sender is told that the message is done.
    """

    __slots__ = (
        "_awaited", "_ended", "_is_left", "_left", "_mesh", "_record", "_status", "_unbegun", "_why", "mark", "packed",
        "rides",
    )  # fmt: skip

    _kind = "hop"
    _unseen_turns = 3  # one for a callback, two for that of a `gather`, one to spare

    def __init__(self, node: Node, record: states.HopRecord, name: str = "") -> None:
        """Open it below the node's own scope."""
        self._mesh = node
        self._record = record
        self._status: Status = "done"
        self._why = ""
        self._awaited = self._ended = self._is_left = False
        self._unbegun: Hold | None = None
        # See untracked() and opaque(); and clients/strays.py.
        self._left: dict[object, tuple[str, str, Sending]] | None = (
            dict(node._strays) if node._strays else None
        )
        self.rides: bool = False
        """Whether the answer to its message is about to be made, so that its receipt can be on it."""
        self.packed: bytes | None = None
        """Its receipt, if that is on the answer."""
        self.mark: str = edge_mark(record.edge)
        """What the message is called in settlements and logs."""
        LightScope.__init__(self, node._model, name or f"hop {self.mark}", _getframe(2).f_code)

    @property
    def _errand(self) -> Hop:
        return self

    @property
    def cascade(self) -> str:
        """The id of the cascade that it is part of."""
        return self._record.cascade.hex()

    @property
    def is_cancelled(self) -> bool:
        """Whether the cascade, or this part of it, was told to end."""
        return self._record.is_cancelled

    def delegate(self, to: str) -> Handing:
        """Hand a message to another agent: what is to be sent along, and what to do with its answer.

        ```python
        with hop.delegate("https://billing.example") as handing:
            response = await post(body, headers=handing.headers)
            receipt = response.headers.get("Cascade-Receipt")
            handing.answered(receipt, is_error=response.status_code >= 400)
        ```

        Args:
            to: the agent's address; of a node without HTTP, whatever its transport calls it by.

        *Raises*: `UsageError` if the hop has ended: what is sent now would belong to nobody. Also in
        another thread, or in another event loop than the node's.
        """
        self._check_here("send from")
        handing = Handing(self._mesh, self._record, to)
        if takers:
            share(self, handing)
        return handing

    def untracked(self, route: str, place: str, *, thing: object = None) -> None:
        """Record that work leaves the hop by a way that quiesce does not follow.

        The receipt names it, and no verdict is green. Called by quiesce where it sees such work; call it
        yourself where only you know. It may be called from any thread.

        Args:
            route: the way that the work takes, like `thread`.
            place: where it was started, like `app.py:12 in pay`.
            thing: what was started, if `tracked()` may be called when that has ended.
        """
        self._leave(thing, route, place, "is untracked")

    def tracked(self, thing: object) -> None:
        """Record that untracked work has ended, before the hop has. It may be called from any thread."""
        with _leaving:
            if self._left is not None:
                self._left.pop(thing, None)

    def opaque(self, route: str, place: str = "handed to a system that takes no part") -> None:
        """Record that the handler hands work to a system that takes no part, like a task queue.

        The verdict is then as for a message to an agent that takes no part: not green with
        `require="full"`, and not waited for with `require="participants"`.

        ```python
        hop.opaque("celery")
        send_invoice.delay(order)
        ```
        """
        self._leave(None, route, place, "is opaque")

    def _leave(self, thing: object, route: str, place: str, how: Sending) -> None:
        with _leaving:  # in whatever thread: what is posted to the loop may come after the end
            if self._left is None:
                self._left = {}
            if len(self._left) < _LEFT_MAX:
                self._left[(route, place) if thing is None else thing] = (route, place, how)
        if self._ended:  # so that may have come too late
            logger.warning(
                "%s has ended, and work that it left goes on, which no verdict waits for: %s, %s",
                self.name,
                route,
                place,
            )

    def working(self, name: str, kind: str = "handler") -> Part:
        """Do something as part of this hop, in the running task.

        For work that comes to a task by a way that quiesce does not follow: make the part in the handler, pass
        it along, and enter it in the task that does the work. The hop waits from the step in which the part
        was made until its block has ended, or the part is dropped.

        ```python
        jobs.append((hop.working("invoice"), order))  # in the handler
        ...
        async with part:  # in the worker
            await send_invoice(order)
        ```
        """
        from quiesce.mesh.runtime.hop_parts import Promised  # noqa: PLC0415 - which are parts of hops

        return Promised(self, kind, name, _getframe(1))

    # Its end.

    def assume(self, what: str) -> None:
        """Record something that quiesce takes to be so, and does not know; the receipt names the first of it.

        The hop is *done* all the same. See `Settlement.assumptions`.
        """
        if self._status == "done" and not self._why.startswith(ASSUMES):
            self._why = what

    def _fail(self, error: BaseException) -> None:
        """Record that it failed, for its sender; not how, which may be a secret."""
        if self._status == "done" and isinstance(error, self._backend.cancelled):
            self._cut_unheard(_FROM_OUTSIDE)
        elif self._status == "done":
            self._status, self._why = "failed", type(error).__name__

    def answered_with_error(self, status: int) -> None:
        """Record that its handler has answered with an error.

        By a server error frameworks tell of a failure. Any other error is an answer, which the sender has: the hop is
        *done*, and the verdict shows the status.
        """
        if self._status != "done":
            return
        if status >= _SERVER_ERRORS:
            self._status, self._why = "failed", f"it answered {status}"
        elif not self._why:
            self._why = f"it answered {status}"

    def _fail_unheard(self, error: BaseException, work: Any) -> bool:
        """Record that work failed for which nobody waits: in a drain, the report names it.

        Return whether it does.
        """
        if self._state is ScopeState.CLOSED:
            return False  # it was stuck, and is in the report as that
        self._fail(error)
        home = self._home_in_drain()
        if home is None or self.is_cancelled:
            return False
        home._failed.append(reports.report_entry(work, self.name, self._backend.clock(), error))
        return True

    def _cut_short(self) -> None:
        """Record that a drain of another tree cancels what is in flight here, and reports it."""
        if self._status == "done":
            self._status, self._why = "cancelled", SHUT_DOWN

    def _cut_unheard(self, why: str = SHUT_DOWN) -> None:
        """Record that other code cancels what is in flight here: in a drain, the report names the hop."""
        if self._status == "done" and self._state is not ScopeState.CLOSED:
            self._status, self._why = "cancelled", why
            home = self._home_in_drain()
            if home is not None and self._mesh._hops_scope._state is not ScopeState.CLOSING:
                home._cancelled.append(self)  # else the close has it

    def _home_in_drain(self) -> Scope | None:
        """Return the node's scope if it is drained, or soon will be: the server was told to end."""
        home = self._mesh._scope
        is_open = home is None or home._state is ScopeState.OPEN
        return home if not is_open or self._mesh._exchange.is_told_to_end() else None

    def _cancel(self) -> None:
        """Cancel all that runs; the hop ends when that has, however long it takes (3)."""
        if self._state is not ScopeState.CLOSED:
            self._spare_services()
            self._close(grace=0.0, cleanup=math.inf)

    @property
    def _keeps_shared(self) -> bool:
        """Whether it waits for a task that others await, too: handed on, it would outlive the hop's receipt."""
        return self.is_cancelled

    def _spares(self, waiter: object) -> bool:
        """Return whether a task that awaits one of the hop's is a worker, which has an item of the hop.

        If the cascade is cancelled, what the worker awaits ends by itself: its cancellation would end the worker.
        """
        return self.is_cancelled and isinstance(self._holds.get(waiter), Followed)

    def _spare_services(self) -> None:
        """Move the services to the node, as any other end does."""
        parent = self._parent
        assert parent is not None  # noqa: S101 - it is never a root
        for key, held in self._services.items():
            held._move(parent)
            parent._services[key] = held
        self._services.clear()

    def _close(self, **limits: Any) -> Closing:
        if self._leftovers == "parent" and not self._ended:
            self._leftovers = "cancel"  # or what it hands over would run on after its receipt
        return super()._close(**limits)

    def _part_ended(self) -> None:
        """End, if that was all; or as soon as it was (2)."""
        if self._ended:
            return
        if not self._awaited:
            self._awaited = True
            self.when_idle(self._finish)

    async def turned(self) -> None:
        """Wait for the turn of the loop in which it ends, if nothing of it is in flight, and if it is near.

        Who asks for its answer after that has its receipt on it, which is not posted then.

        *Cancel safety*: may be cancelled at any time; it ends all the same.
        """
        for _ in range(self._unseen_turns):
            if self._ended or self._holds:
                return
            waiter = self._backend.waiter()
            self._backend.soon(partial(_wake, waiter))  # after what sees that it has ended
            await waiter

    @property
    def _only_closers(self) -> bool:
        """Whether nothing of it runs but what waits for the node to be closed, and then goes on."""
        return self._filled and not self._holds and _has_closers(self)

    def _finish(self) -> None:
        if self._filled:
            if self._only_closers:
                # To them: those of a scope below it (see _ring), or of the node (see _closed).
                self._is_left = True
                self._mesh._exchange.look()
                return
            failures.take_over(self)  # of tasks that nobody has asked: now nobody will
            if self._contexts:
                self._cancel()  # it runs no more: what it has entered is left, and then it has ended
                return
        self._end("")
        if not self.dissolve() and self._closing is None:
            self._close(grace=0.0, cleanup=self._cleanup)  # services, which the node goes on with

    def _ring(self) -> None:
        super()._ring()
        if self._is_left and not self._ended:  # a scope below it is closed, perhaps the last
            self._is_left = False
            self.when_idle(self._finish)

    def _closed(self) -> None:
        if self._bond is not None:
            self._bond.end()
        if self._ended:
            return
        if not self._filled:  # by `dissolve_after`: the handler alone was ever in it
            self._end("")
            return
        report = self.report
        # What is stuck still runs: nobody can say that it has ended.
        if report is None or not report.stuck:
            is_cut = report is not None and (report.cancelled or report.undelivered)
            if self._unbegun is not None:
                self._status, self._why = "lost", _NOT_BEGUN
            self._end(SHUT_DOWN if is_cut or not self._awaited else "")

    def left_running(self) -> str:
        """Return what of it did not end when it was closed, and where that was started and is now, in words.

        Its handlers come first, if the close has ended those.
        """
        report = self.report
        stuck = () if report is None else report.stuck
        ended = () if report is None else report.cancelled
        found = [
            f"{reports.with_kind(item.kind, item.name)} was cancelled"
            for item in ended
            if item.kind == "handler"
        ][:1]
        found += [
            f"{reports.with_kind(item.kind, item.name)}, {reports.started(item.where)}"
            + (f", now at {item.stack[-1]}" if item.stack else "")
            for item in stuck[:_NAMED_MAX]
        ]
        more = [f"{len(stuck) - _NAMED_MAX} more"] if len(stuck) > _NAMED_MAX else []
        return f"{self.name} ({'; '.join([*found, *more])})"

    def _hold_unbegun(self) -> None:
        """Hold the hop in a drain if no task has begun it: or the drain would not see the hop (4)."""
        if not (self._holds or self._awaited or self._ended or self._unbegun):
            hold = Hold(self, "message", "not begun", NOTHING, self._code, 0, self._forsake)
            self._unbegun = hold
            self._insert(hold, hold)

    def _forsake(self) -> None:
        """Wait no more for somebody to begin it: the drain is over."""
        hold = self._unbegun
        if hold is not None and not hold.released:
            self._lose(
                (reports.report_entry(hold, self.name, self._backend.clock()),), given_up=True
            )
            hold.release()

    def _begun(self) -> None:
        if self._unbegun is not None:
            self._unbegun.release()
            self._unbegun = None

    def _drop(self) -> None:
        """Record that nobody can begin it, or end its part, any more (4)."""
        if self._ended or self._state is ScopeState.CLOSED:
            return
        if self._awaited or (self._holds and self._unbegun is None):
            logger.warning(
                "%s: the part that began it was dropped before its block ended. Let the block of "
                "`node.handle(...)` end",
                self.name,
            )
            return
        logger.warning(
            "%s is lost: its agent took the message, and dropped its part before a task began it. Write "
            "`async with node.handle(...)`", self.name,
        )  # fmt: skip
        self._status, self._why = "lost", _NOT_BEGUN
        self._begun()
        self._finish()

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._record.is_cancelled:
            self._status, self._why = "cancelled", ""
        elif why and self._status == "done":
            self._status, self._why = "cancelled", why
        if early_sets.of_hops:
            early_sets.tell_end(self)
        if self._left:
            mesh = self._mesh
            for route, place, how in dict.fromkeys(list(self._left.values())):
                edge = mesh._random(12)
                mesh._engine.leave(self._record, edge, route, place, mesh._clock(), how)
        self._mesh._ended(self, self._status, self._why)


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _has_closers(node: Tree) -> bool:
    children = (*node._children, *node._quiet)
    return bool(node._closers) or any(_has_closers(child) for child in children)


def job_failed(job: Any, error: BaseException) -> object:
    """Record in the hop of a job that the job failed; see `failures.REPORTED`."""
    node: Tree | None = job._node
    while node is not None and not isinstance(node, Hop):
        node = node._parent
    if node is not None:
        name = harmless(job.name)
        logger.error("%s %s of %s failed", job.kind, name, node.name, exc_info=error)
        if node._fail_unheard(error, job):
            return failures.REPORTED
    return None
