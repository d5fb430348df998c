"""The parts of a hop: what a task that is not the hop's own does for it, from where it begins to where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core import callsites, libraries, named_once
from quiesce.core.callsites import Callsite
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.tree import ScopeState
from quiesce.core.visitors import Visitor
from quiesce.errors import CascadeCancelled, UsageError

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from quiesce.core.backends.base import Body
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


class Visit(Visitor):
    """The work on a hop, or on a part of it, by a task that is not the hop's own."""

    __slots__ = ("_body", "_hop", "_is_cut")

    def __init__(self, hop: Hop, kind: str, name: str, place: Callsite | None = None) -> None:
        """Begin; the hop has not ended. What began it is at a place, or where the hop was made."""
        self._hop = hop
        self._is_cut = False
        backend = hop._backend
        self._body: Body | None = None if backend.late_body is not None else backend.body()
        if place is None:
            Visitor.__init__(self, hop, kind, name, NOTHING, hop._code, None)
        else:
            Visitor.__init__(self, hop, kind, name, NOTHING, place.f_code, None)
            self._offset = place.f_lasti

    def _stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        late_body = self._hop._backend.late_body
        if self._body is None and late_body is not None and not self.released:
            self._body = late_body(self._task)
        if self._body is not None:
            self._is_cut = True
            self._body.interrupt()

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End; return what is left to raise."""
        hop = self._hop
        left = exc if self._body is None else self._body.leave(exc)
        if exc is not None:
            if left is None:  # it was this hop that was told to end
                left = CascadeCancelled(f"{hop.name} ends early, because its cascade was cancelled")
            elif isinstance(left, Exception):
                hop._fail(left)
            elif hop._status == "done":
                hop._status, hop._why = "cancelled", ""
        if self._is_cut and hop._status == "done" and not hop.is_cancelled:
            hop._job_cancelled(self, service=False)  # also if the handler has swallowed that
            owner, key = hop._owner_of_running_task()
            if hop._state is ScopeState.CLOSING and owner is not None:
                named_once.name_once(owner, key, hop)
        if hop.left_something() is not False or not hop.dissolve_after(self):
            self.end()
            hop._part_ended()
        return left


class Part:
    """Something that is done as part of a hop, by a task that is not the hop's own."""

    __slots__ = ("_hop", "_kind", "_name", "_place", "_visit")

    def __init__(self, hop: Hop, kind: str, name: str, frame: FrameType) -> None:
        """Describe it; `frame` is the code that asked for it."""
        asker = libraries.starting_frame(frame)
        self._place: Callsite | None = (
            None if asker is None else Callsite(asker.f_code, asker.f_lasti)
        )
        self._hop = hop
        self._kind, self._name = kind, name
        self._visit: Visit | None = None

    @property
    def where(self) -> str | None:
        """The file and line that asked for it."""
        return None if self._place is None else callsites.describe(*self._place)

    def enter(self) -> Hop:
        """Begin.

        *Raises*: `CascadeCancelled` if the hop was told to end; `UsageError` if it has ended.
        """
        hop = self._hop
        if hop._record.is_cancelled:
            message = f"{hop.name} ends early, because its cascade was cancelled"
            raise CascadeCancelled(message)
        if hop._ended or hop._state is ScopeState.CLOSED or self._visit is not None:
            message = (
                f"{hop.name} has ended, or this part of it was entered before: make a part with "
                "`hop.working(...)` while the hop runs, and enter it once"
            )
            raise UsageError(message)
        self._visit = Visit(hop, self._kind, self._name, self._place)
        hop._begun()
        return hop

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End; return what is left to raise."""
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


class Promised(Part):
    """A part that holds its hop from the step in which it was made."""

    __slots__ = ("_hold",)

    def __init__(self, hop: Hop, kind: str, name: str, frame: FrameType) -> None:
        super().__init__(hop, kind, name, frame)
        self._hold: Hold | None = None
        if not (hop._ended or hop._state is ScopeState.CLOSED):
            code, offset = self._place or (hop._code, 0)
            self._hold = Hold(hop, kind, name, NOTHING, code, offset, self._cut)
            hop._insert(self._hold, self._hold)

    def enter(self) -> Hop:
        """Begin, as `Part.enter()` does."""
        try:
            return super().enter()
        finally:
            self._forsake()

    def _cut(self) -> None:
        """Record that the part will not be done: the hop is told to end, and no task has begun the part."""
        if self._hold is not None and not self._hold.released:
            self._hop._job_cancelled(self._hold, service=False)
        self._forsake()

    def _forsake(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def __del__(self) -> None:
        """Release the hop, in its event loop: this may be any thread, in the midst of anything."""
        hold = getattr(self, "_hold", None)
        if hold is not None:
            self._hop._backend.post(hold.release)


class FirstPart(Part):
    """The part that begins a hop; if it is dropped, nobody else can (4)."""

    __slots__ = ()

    def __del__(self) -> None:
        """Notify the hop in its event loop: this may be any thread."""
        if self._visit is None or not self._visit.released:
            self._hop._backend.post(self._hop._drop)
