"""Holds for work that a scope does not own: a task of another scope (`Visitor`), and a scope of another tree (`Bond`).

Light scopes use both; see `light_scope`.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, ClassVar

from quiesce.core import callsites, frontier
from quiesce.core.backends.asyncio.thread_frames import chain_of
from quiesce.core.hold import NOTHING, Fate, Hold
from quiesce.core.tree import TreeNode, current

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token
    from types import CodeType

    from quiesce.core.light_scope import LightScope

__all__: list[str] = []

_NAMED_MAX = 3  # names of work in flight, in one line


_enter, _leave = current.set, current.reset  # globals are faster, and every request calls both


class Visitor(Hold):
    """The work of a task in a scope that does not own it, held under the task's own key.

    A subclass may add slots.
    """

    __slots__ = ("context_token", "own_task", "visit_key")

    fate: ClassVar[Fate] = "stuck"
    visit_key: object
    own_task: object
    context_token: Token[TreeNode | None]

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
        backend, holds = scope.backend, scope.holds
        clock, running = backend.clock, backend.task
        # Does the same as Hold.__init__(), but faster, because every request comes here.
        self.owner_node: TreeNode = scope
        self._kind = kind
        self.name_given = name
        self.began_at: float = clock()
        self._details = details
        self.place_code = code
        self.place_offset = 0
        self.stop_call = on_stop
        self.visit_key = key = self.own_task = running()
        if key in holds:
            self.visit_key = key = self  # the task works in this scope already
        if not holds:
            scope.note_busy()
        holds[key] = self
        self.context_token = _enter(scope)

    @property
    def outer(self) -> object:
        """The scope in which the task was before. If the task handles a request, that is the request's scope."""
        return self.context_token.old_value

    @property
    def released(self) -> bool:
        return self.visit_key not in self.owner_node.holds

    def release(self) -> None:
        """End the visit. Only the task itself may call it."""
        self.end()

    def end(self) -> None:
        """End the visit. The task's current scope is then the scope that it had before."""
        _leave(self.context_token)
        node = self.owner_node
        holds = node.holds
        if holds.pop(self.visit_key, None) is None:
            node.discard_hold(self.visit_key)
        elif not holds:
            node.note_idle()

    def list_frames(self) -> list[callsites.Frame]:
        return worker_chain(self.visit_key)


def worker_chain(worker: object) -> list[callsites.Frame]:
    """Return the frames of a task of any event loop, or of a thread, outermost first."""
    if isinstance(worker, Thread):
        return callsites.thread_chain(worker.ident)
    coro = getattr(worker, "coro", None)  # only tasks of trio have this; asyncio's have get_coro()
    return chain_of(worker) if coro is None else callsites.await_chain(coro)


class Bond(Hold):
    """A hold for a scope of another tree. The holder waits for that scope and stops it, like its own work."""

    __slots__ = ("_was_cut", "scope")

    fate: ClassVar[Fate] = "stuck"

    def __init__(self, outer: TreeNode, scope: LightScope) -> None:
        super().__init__(
            outer, "scope", scope.name_given, NOTHING, scope.place_code, scope.place_offset
        )
        # The age of the work, which may be older than the hold.
        self.began_at: float = scope.began_at
        self.scope: LightScope = scope
        self._was_cut = False

    @property
    def where(self) -> str | None:
        """The scope's own `where`; for a hop, the endpoint of its request."""
        return self.scope.where

    @property
    def details(self) -> Mapping[str, object]:
        """The work in flight in the scope now, or at the time when the holder stopped it."""
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
            self.owner_node.note_cancelled(self, service=False)
        self.release()

    def request_stop(self, *, force: bool = False) -> None:
        if self.scope.holds:
            self._details = self.details
            self._was_cut = True
            self.scope.note_cut_short()
        _stop_all(self.scope, force=force)


def _stop_all(node: TreeNode, *, force: bool) -> None:
    """Ask everything in flight in a scope to end."""
    if not force:
        node.backend.stop_all(node, node.holds)
    for held in list(node.holds.values()):
        if isinstance(held, TreeNode):
            _stop_all(held, force=force)
        elif force:
            held.request_stop(force=True)
