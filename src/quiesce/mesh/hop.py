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
from functools import partial
from sys import _getframe
from typing import TYPE_CHECKING, Any

from quiesce.core import failures
from quiesce.core import report as reports
from quiesce.core.current import current_scope
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.light import LightScope, Stay
from quiesce.core.node import State, logger
from quiesce.errors import CascadeCancelled, UsageError
from quiesce.mesh.handing import Handing
from quiesce.mesh.receipt import mark

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.core.backends.base import Body, Waiter
    from quiesce.core.closing import Closing
    from quiesce.core.node import Node as Tree
    from quiesce.mesh import states
    from quiesce.mesh.node import Node
    from quiesce.mesh.receipt import Status

__all__ = ["Hop", "current_hop"]

_SHUT_DOWN = "its agent was shut down"
_NOT_BEGUN = "nobody has begun it"


def current_hop() -> Hop | None:
    """Give the hop that the running code works for, or None."""
    node: Tree | None = current_scope()
    while node is not None and not isinstance(node, Hop):
        node = node._parent
    return node


def hop_of(node: Node) -> Hop | None:
    """Give the current hop if it is one of this node: what its clients send belongs to that.

    In a hop of another node of this process it belongs to nobody, which is seldom meant: it is said, once.
    """
    hop = current_hop()
    if hop is None or hop._mesh is node:
        return hop
    if hop._mesh not in node._strangers:
        node._strangers.add(hop._mesh)
        logger.warning(
            "what a client of node %r sends in a hop of node %r is no part of that: nobody will know when "
            "it has ended. Use a client of node %r there", node.name, hop._mesh.name, hop._mesh.name,
        )  # fmt: skip
    return None


class Hop(LightScope):
    """The work on one message; made by `Node.handle()` and `Node.cascade()`.

    It is a `Scope`: whatever is started in it, by `spawn` or by any code that creates tasks, belongs to
    it, and has to end before the sender is told that the message is done.
    """

    __slots__ = (
        "_awaited", "_ended", "_is_left", "_mesh", "_record", "_status", "_unbegun", "_why", "mark", "packed", "rides",
    )  # fmt: skip

    _kind = "hop"
    _unseen_turns = 3  # one for a callback, two for that of a `gather`, one to spare

    def __init__(self, node: Node, record: states.Hop, name: str = "") -> None:
        """Open it below the node's own scope."""
        self._mesh = node
        self._record = record
        self._status: Status = "done"
        self._why = ""
        self._awaited = self._ended = self._is_left = False
        self._unbegun: Hold | None = None
        self.rides: bool = False
        """Whether the answer to its message is about to be made, so that its receipt can be on it."""
        self.packed: bytes | None = None
        """Its receipt, if that is on the answer."""
        self.mark: str = mark(record.edge)
        """What the message is called in settlements and logs."""
        super().__init__(node._model, name or f"hop {self.mark}", _getframe(2).f_code)

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
            handing.answered(response.headers.get("Cascade-Receipt"))
        ```

        Args:
            to: the agent's address; of a node without HTTP, whatever its transport calls it by.

        *Raises*: `UsageError` if the hop has ended: what is sent now would belong to nobody. Also in
        another thread, or in another event loop than the node's.
        """
        self._check_here("send from")
        return Handing(self._mesh, self._record, to)

    def working(self, name: str, kind: str = "handler") -> Part:
        """Do something as part of this hop, in the running task.

        For work that comes to a task from elsewhere, like a message from a queue: inside of the block,
        this is the current hop, and it does not end before the block has.
        """
        return Part(self, kind, name)

    # Its end.

    def _fail(self, error: BaseException) -> None:
        """Tell others that it failed; not how, which may be a secret."""
        if self._status == "done":
            self._status, self._why = "failed", type(error).__name__

    def _cancel(self) -> None:
        """Cancel all that runs; the hop ends when that has, however long it takes (3)."""
        if self._state is not State.CLOSED:
            self._spare_services()
            self._close(grace=0.0, cleanup=math.inf)

    def _spare_services(self) -> None:
        """Have the node go on with the services, as it does after any other end."""
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
            self._end(_SHUT_DOWN if is_cut or not self._awaited else "")

    def _hold_unbegun(self) -> None:
        """Be held, in a drain, if nobody has begun it: or nobody would see that it is there (4)."""
        if not (self._holds or self._awaited or self._ended or self._unbegun):
            hold = Hold(self, "message", "not begun", NOTHING, self._code, 0, self._forsake)
            self._unbegun = hold
            self._insert(hold, hold)

    def _forsake(self) -> None:
        """Wait no more for somebody to begin it: the drain is over."""
        hold = self._unbegun
        if hold is not None and not hold.released:
            self._lose((reports.ended(hold, self.name, self._backend.clock()),), given_up=True)
            hold.release()

    def _begun(self) -> None:
        if self._unbegun is not None:
            self._unbegun.release()
            self._unbegun = None

    def _drop(self) -> None:
        """Know that nobody can begin it, or end its part, any more (4)."""
        if self._ended or self._state is State.CLOSED:
            return
        if self._awaited or (self._holds and self._unbegun is None):
            logger.warning("%s was begun by a part that was dropped before it ended", self.name)
            return
        logger.warning(
            "%s was taken, and its part was dropped before anybody has begun it: it is lost. Write "
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
        self._mesh._ended(self, self._status, self._why)


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _has_closers(node: Tree) -> bool:
    children = (*node._children, *node._quiet)
    return bool(node._closers) or any(_has_closers(child) for child in children)


def failed(job: Any, error: BaseException) -> None:
    """Have the hop of a job that failed know of it."""
    node: Tree | None = job._node
    while node is not None and not isinstance(node, Hop):
        node = node._parent
    if node is not None:
        logger.error("%s %s of %s failed", job.kind, job.name, node.name, exc_info=error)
        node._fail(error)


class Visit(Stay):
    """The work on a hop, or on a part of it, by a task that is not the hop's own."""

    __slots__ = ("_body", "_hop")

    def __init__(self, hop: Hop, kind: str, name: str) -> None:
        """Begin; the hop has not ended."""
        self._hop = hop
        backend = hop._backend
        self._body: Body | None = None if backend.late_body is not None else backend.body()
        Stay.__init__(self, hop, kind, name, NOTHING, hop._code, None)

    def _stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        late_body = self._hop._backend.late_body
        if self._body is None and late_body is not None and not self.released:
            self._body = late_body(self._task)
        if self._body is not None:
            self._body.interrupt()

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End; gives what is left to raise."""
        hop = self._hop
        left = exc if self._body is None else self._body.leave(exc)
        if exc is not None:
            if left is None:  # it was this hop that was told to end
                left = CascadeCancelled(f"{hop.name} was told to end")
                if hop._status == "done":
                    hop._status, hop._why = "cancelled", _SHUT_DOWN
            elif isinstance(left, Exception):
                hop._fail(left)
            elif hop._status == "done":
                hop._status, hop._why = "cancelled", ""
        if hop.left_something() is not False or not hop.dissolve_after(self):
            self.end()
            hop._part_ended()
        return left


class Part:
    """Something that is done as part of a hop, by a task that is not the hop's own."""

    __slots__ = ("_hop", "_kind", "_name", "_visit")

    def __init__(self, hop: Hop, kind: str, name: str) -> None:
        self._hop = hop
        self._kind, self._name = kind, name
        self._visit: Visit | None = None

    def enter(self) -> Hop:
        """Begin.

        *Raises*: `CascadeCancelled` if the hop was told to end; `UsageError` if it has ended.
        """
        hop = self._hop
        if hop._record.is_cancelled:
            message = f"{hop.name} was told to end"
            raise CascadeCancelled(message)
        if hop._ended or hop._state is State.CLOSED or self._visit is not None:
            message = (
                f"{hop.name} has ended, or this part of it: nothing can be done as that any more"
            )
            raise UsageError(message)
        self._visit = Visit(hop, self._kind, self._name)
        hop._begun()
        return hop

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End; gives what is left to raise."""
        assert self._visit is not None  # noqa: S101 - entered
        return self._visit.leave(exc)

    async def __aenter__(self) -> Hop:
        """Begin."""
        return self.enter()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, and go on: what was started in the hop is not waited for.

        *Cancel safety*: may be cancelled at any time; the part has ended.

        *Raises*: `CascadeCancelled` if the hop was told to end meanwhile.
        """
        left = self.leave(exc)
        if left is None or isinstance(left, Exception):
            await self._hop.turned()
        if left is not exc and left is not None:
            raise left


class Taken(Part):
    """The part that begins a hop; if it is dropped, nobody else can (4)."""

    __slots__ = ()

    def __del__(self) -> None:
        """Have the hop know, in its event loop: this may be any thread."""
        if self._visit is None or not self._visit.released:
            self._hop._backend.post(self._hop._drop)
