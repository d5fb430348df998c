"""An errand: work for a hop in a scope that is not the hop's own.

A handler may start work anywhere: during a hop, `app_scope.spawn(work)` starts work in the scope of the app. That
work still belongs to the hop: the hop waits for it, its messages are sent for the hop, and cancelling the hop
cancels it. So it gets an `Errand`: a child of the app's scope, which the hop holds until the errand is closed.

Each scope has the hop around it as `_errand`. The running code works for the hop of its current scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from quiesce.core.light_scope import LightScope, Model

if TYPE_CHECKING:
    from collections.abc import Hashable

    from quiesce.core.closing import Closing
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode

__all__: list[str] = []

_models: WeakKeyDictionary[Scope, Model] = WeakKeyDictionary()


class Errand(LightScope):
    """The scope of work for a hop below another scope. It closes when it is idle."""

    __slots__ = ("_hop",)

    def __init__(self, parent: Scope, hop: TreeNode) -> None:
        """Open it below `parent`, held by the hop.

        *Raises*: `ScopeClosed` if the closing of `parent` or of the hop has begun.
        """
        model = _models.get(parent)
        if model is None:
            model = Model(parent, services=parent._services_given, leftovers="parent")
            model.adopts = hop._adopter is hop  # then the hop's node sees every task of the loop
            _models[parent] = model
        self._hop = hop
        hop._admit()
        super().__init__(model, f"work for {hop._name}", hop._code)  # type: ignore[arg-type]  # a hop has one
        self.held_by(hop)
        self._backend.soon(self._watch)

    @property
    def _errand(self) -> TreeNode | None:
        return self._hop

    def _watch(self) -> None:
        """Close the errand once it is idle, from the next turn on: by then its work has begun, or never will."""
        self.when_idle(self._end)

    def _end(self) -> None:
        if not self.dissolve() and self._closing is None:
            self._close(grace=0.0, cleanup=self._cleanup)  # hands the services to the parent

    def _close(self, **limits: Any) -> Closing:
        if self._holds:  # the parent closes: cancel the work here, and report it to the hop
            self._leftovers = "cancel"
        return super()._close(**limits)

    def _forget_key(self, key: Hashable, job: object) -> None:
        self._model.parent._forget_key(key, job)

    def _job_failed(self, held: Any, error: BaseException) -> None:
        self._hop._fail(error)
        self._model.parent._job_failed(held, error)
