"""Work of tasks in a scope that does not own them, and scopes that a scope of another tree holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from quiesce.core import callsites, frontier
from quiesce.core.backends.asyncio.swallowing import coro_of
from quiesce.core.hold import NOTHING, Fate, Hold
from quiesce.core.tree import TreeNode, current

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token
    from types import CodeType

    from quiesce.core.light_scope import LightScope

__all__: list[str] = []

_NAMED_MAX = 3  # names of work in flight, in one line


_enter, _leave = current.set, current.reset  # globals are quicker; every request calls both


class Visitor(Hold):
    """The work of a task in a scope that does not own it, held under the task's own key.

    A subclass may add slots.
    """

    __slots__ = ("_key", "_task", "_token")

    _fate: ClassVar[Fate] = "stuck"
    _key: object
    _task: object
    _token: Token[TreeNode | None]

    def __init__(
        self,
        scope: LightScope,
        kind: str,
        name: str,
        details: Mapping[str, object],
        code: CodeType | None,
        on_stop: Callable[[], object] | None,
    ) -> None:
        """Make `scope` the current scope of the running task, and hold the task's work there."""
        backend, holds = scope._backend, scope._holds
        clock, running = backend.clock, backend.task
        # As Hold.__init__(), but quicker: every request comes here.
        self._node: TreeNode = scope
        self._kind = kind
        self._name = name
        self._since = clock()
        self._details = details
        self._code = code
        self._offset = 0
        self._on_stop = on_stop
        self._key = key = self._task = running()
        if key in holds:
            self._key = key = self  # the task works in here already
        if not holds:
            scope._turned_busy()
        holds[key] = self
        self._token = _enter(scope)

    @property
    def released(self) -> bool:
        """Whether it has ended."""
        return self._key not in self._node._holds

    def release(self) -> None:
        """End the visit. Only the task itself may call it."""
        self.end()

    def end(self) -> None:
        """End the visit: the task's current scope is the one it had before."""
        _leave(self._token)
        node = self._node
        holds = node._holds
        if holds.pop(self._key, None) is None:
            node._discard(self._key)
        elif not holds:
            node._turned_idle()

    def _chain(self) -> list[callsites.Frame]:
        coro = getattr(self._key, "coro", None)  # of a trio task; asyncio's have get_coro()
        return callsites.await_chain(coro_of(self._key) if coro is None else coro)


class Bond(Hold):
    """The hold of a scope of another tree. The holder waits for that scope and stops it, like work."""

    __slots__ = ("_was_cut", "scope")

    _fate: ClassVar[Fate] = "stuck"

    def __init__(self, outer: TreeNode, scope: LightScope) -> None:
        super().__init__(outer, "scope", scope._name, NOTHING, scope._code, scope._offset)
        self._since = scope._since  # the age of the work, which may be older than the hold
        self.scope: LightScope = scope
        self._was_cut = False

    @property
    def details(self) -> Mapping[str, object]:
        """What is in flight in the scope, or was when its holder stopped it."""
        if self._was_cut:
            return self._details
        found = [
            f"{entry.kind} {entry.name}" for entry in frontier.take_frontier(self.scope).in_flight
        ]
        more = [f"{len(found) - _NAMED_MAX} more"] if len(found) > _NAMED_MAX else []
        return {"in_flight": ", ".join([*found[:_NAMED_MAX], *more])} if found else NOTHING

    def end(self) -> None:
        """Release the hold. If the holder stopped the scope's work, its report lists the scope as cancelled."""
        if self._was_cut and not self.released:
            self._node._job_cancelled(self, service=False)
        self.release()

    def _stop(self, *, force: bool = False) -> None:
        if self.scope._holds:
            self._details = self.details
            self._was_cut = True
            self.scope._cut_short()
        _stop_all(self.scope, force=force)


def _stop_all(node: TreeNode, *, force: bool) -> None:
    """Ask everything in flight in a scope to end."""
    if not force:
        node._backend.stop_all(node, node._holds)
    for held in list(node._holds.values()):
        if isinstance(held, TreeNode):
            _stop_all(held, force=force)
        elif force:
            held._stop(force=True)
