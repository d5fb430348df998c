"""The parts of a hop: work for the hop in a task of another scope, such as the task of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quiesce.core import callsites, libraries, named_once
from quiesce.core.callsites import Callsite
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.tree import ScopeState
from quiesce.core.visitors import Visitor
from quiesce.errors import CascadeCancelled, UsageError
from quiesce.mesh.routes.following import code_place
from quiesce.mesh.routes.takers import at_work

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from quiesce.core.backends.base import Body
    from quiesce.mesh.protocol.codec import Handed
    from quiesce.mesh.routes.takers import Taker
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.shared_node import SharedNode

__all__: list[str] = []


class Visit(Visitor):
    """The hold of a task of another scope, while it works on a hop or on a part of it."""

    __slots__ = ("_body", "_hop", "_is_cut")

    @property
    def endpoint(self) -> object:
        """The function that handles the message, if its framework tells."""
        return None

    def __init__(self, hop: Hop, kind: str, name: str, place: Callsite | None = None) -> None:
        """Begin the work; the hop must not have ended. `place` is the code that began it, by default the hop's."""
        self._hop = hop
        self._is_cut = False
        backend = hop.backend
        self._body: Body | None = None if backend.late_body is not None else backend.body()
        if place is None:
            Visitor.__init__(self, hop, kind, name, NOTHING, hop.place_code, None)
        else:
            Visitor.__init__(self, hop, kind, name, NOTHING, place.f_code, None)
            self.place_offset: int = place.f_lasti

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        late_body = self._hop.backend.late_body
        if self._body is None and late_body is not None and not self.released:
            self._body = late_body(self.own_task)
        if self._body is not None:
            self._is_cut = True
            self._body.interrupt()

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End the part; return the exception that is left to raise."""
        hop = self._hop
        left = exc if self._body is None else self._body.leave(exc)
        if exc is not None:
            if left is None:  # the exception was this hop's cancellation
                left = CascadeCancelled(_why_ended(hop, self._kind))
            elif isinstance(left, Exception):
                hop.work_failed(left)
            elif hop.end_status == "done":
                hop.end_status, hop.end_reason = "cancelled", ""
        if self._is_cut and hop.end_status == "done" and not hop.is_cancelled:
            hop.note_cancelled(self, service=False)  # also if the handler swallowed it
            owner, key = hop.find_owner_of_running_task()
            if hop.phase is ScopeState.CLOSING and owner is not None:
                named_once.name_once(owner, key, hop)
        if self._kind == "handler":
            hop.opened.node.joined_work.handler_ends(hop, self)
        if hop.left_something() is not False or not hop.dissolve_after(self):
            self.end()
            hop.end_if_all()
        return left


def _why_ended(hop: Hop, part: str) -> str:
    """Return why a part of a hop ends before it is done; `part` is its kind."""
    if not hop.is_cancelled:
        return f"{hop.name} was cancelled, because its node is shutting down"
    if hop.record.is_root:
        where = ": its block ends here" if part == "cascade" else ""
        return f"cascade {hop.name.removeprefix('cascade ')!r} was cancelled{where}"
    return f"{hop.name} was cancelled with its cascade"


class Origin(NamedTuple):
    """The request of a hop: its name and place, for messages."""

    name: str
    where: str | None


class Part:
    """A piece of a hop's work, done by a task of another scope."""

    __slots__ = ("_kind", "_visit", "hop", "name", "place")

    name: str

    def __init__(self, hop: Hop, kind: str, name: str, frame: FrameType) -> None:
        """Describe the part; `frame` is that of the code that made it."""
        asker = libraries.starting_frame(frame)
        self.place: Callsite | None = (
            None if asker is None else Callsite(asker.f_code, asker.f_lasti)
        )
        self.hop: Hop = hop
        self._kind, self.name = kind, name
        self._visit: Visit | None = None

    @property
    def where(self) -> str | None:
        """The file and line that made the part."""
        return None if self.place is None else callsites.describe(*self.place)

    def enter(self) -> Hop:
        """Begin the part; return the hop.

        *Raises*: `CascadeCancelled` if the hop was cancelled; `UsageError` if the hop has ended.
        """
        hop = self.hop
        if hop.record.is_cancelled:
            raise CascadeCancelled(_why_ended(hop, self._kind))
        if hop.has_ended or hop.phase is ScopeState.CLOSED or self._visit is not None:
            message = (
                f"{hop.name} has ended, or this part of it was entered before: make a part with "
                "`hop.working(...)` while the hop runs, and enter it once"
            )
            raise UsageError(message)
        self._visit = Visit(hop, self._kind, self.name, self.place)
        hop.note_begun()
        return hop

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End the part; return the exception that is left to raise."""
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
        """End the part, without waiting for other work of the hop.

        *Cancel safety*: may be cancelled at any time; the part ends all the same.

        *Raises*: `CascadeCancelled` if the hop was cancelled inside the block.
        """
        left = self.leave(exc)
        if left is None or isinstance(left, Exception):
            await self.hop.turned()
        if left is not exc and left is not None:
            raise left


class Unentered(Hold):
    """The hold of a part that no task has entered yet. It must not refer to the part, so that a dropped part is freed."""

    __slots__ = ("_hop",)

    def __init__(self, hop: Hop, kind: str, name: str, place: Callsite | None) -> None:
        """Hold the hop."""
        self._hop = hop
        code, offset = place or (hop.place_code, 0)
        super().__init__(hop, kind, name, NOTHING, code, offset)
        hop.insert_hold(self, self)

    @property
    def name(self) -> str:
        """The name of the part, and its state."""
        return f"{self.name_given}, which no task has entered yet"

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        """Record that the part will not be done, because the hop is cancelled before a task began the part."""
        if not self.released:
            self._hop.note_cancelled(self, service=False)
        self.release()

    def part_dropped(self) -> None:
        """Record that no task can enter the part any more: if its work is done at all, the hop does not see it."""
        if not self.released:
            place = f"{self.name_given} started at {self._place()}"
            self._hop.untracked("part", f"{place}, and dropped before a task has entered it")
        self.release()

    def _place(self) -> str:
        code = self.place_code
        if code is None:
            return "an unknown place"
        return code_place(code, callsites.line_of(code, self.place_offset))


class Promised(Part):
    """A part that the hop waits for from the step in which the part was made."""

    __slots__ = ("_hold", "_taker")

    def __init__(self, hop: Hop, kind: str, name: str, frame: FrameType) -> None:
        super().__init__(hop, kind, name, frame)
        self._hold: Unentered | None = None
        self._taker: Taker | None = None
        if not (hop.has_ended or hop.phase is ScopeState.CLOSED):
            self._hold = Unentered(hop, kind, name, self.place)

    def enter(self) -> Hop:
        """Begin the part, as `Part.enter()` does. If a worker enters it, the worker works for this hop alone."""
        try:
            hop = super().enter()
        finally:
            hold, self._hold = self._hold, None
            if hold is not None:
                hold.release()
        self._taker = at_work.get()
        if self._taker is not None:
            at_work.set(None)
        return hop

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End the part, as `Part.leave()` does."""
        if self._taker is not None and at_work.get() is None:
            at_work.set(self._taker)
        self._taker = None
        return super().leave(exc)

    def __del__(self) -> None:
        """Release the hop, in its event loop. May run in any thread, at any moment."""
        hold = getattr(self, "_hold", None)
        if hold is not None:
            self.hop.backend.post(hold.part_dropped)


class FirstPart(Part):
    """The part that begins a hop. If it is dropped, no other task can begin the hop (4)."""

    __slots__ = ()

    def __del__(self) -> None:
        """Notify the hop, in its event loop. May run in any thread."""
        if self._visit is None or not self._visit.released:
            self.hop.backend.post(self.hop.drop_unbegun)


class ClaimedPart(FirstPart):
    """The part that begins a hop of a node with a shared store. The hop is there when the store has given it to this node."""

    __slots__ = ("_handed", "_shared")

    def __init__(self, shared: SharedNode, handed: Handed, frame: FrameType) -> None:
        asker = libraries.starting_frame(frame)
        self.place: Callsite | None = (
            None if asker is None else Callsite(asker.f_code, asker.f_lasti)
        )
        self._kind = self.name = "handler"
        self._visit = None
        self._shared, self._handed = shared, handed

    def enter(self) -> Hop:
        """Begin the part, after `claim()`."""
        if not hasattr(self, "hop"):
            message = (
                "the message may not begin yet, because the node shares its store with others: use `async with"
                " node.handle(...)`"
            )
            raise UsageError(message)
        return super().enter()

    async def claim(self) -> Hop:
        """Claim the message in the store; return its hop.

        *Raises*: `EdgeRefused`, `StoreLost`.
        """
        self.hop: Hop = await self._shared.admit(self._handed)
        return self.hop

    async def __aenter__(self) -> Hop:
        """Claim the message, and begin."""
        await self.claim()
        return self.enter()

    def __del__(self) -> None:
        """Notify the hop, if there is one."""
        if hasattr(self, "hop"):
            super().__del__()


async def claimed(part: Part) -> Part:
    """Return the first part of a message when its hop is there. Without a shared store it is there at once.

    *Cancel safety*: if cancelled, the message does not run, and a copy of it may.

    *Raises*: `EdgeRefused`, `StoreLost`.
    """
    if isinstance(part, ClaimedPart):
        await part.claim()
    return part
