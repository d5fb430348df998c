"""An errand: work for a hop in a scope that is not the hop's own.

A handler may start work anywhere: `app_scope.spawn(work)` in the midst of a hop starts it in the scope of the
app. That work is still the hop's: the hop waits for it, what it sends is sent for the hop, and it is cancelled
with the hop. So it gets a scope of its own, an `Errand`: a child of the scope that was asked for, which the hop
holds until the errand is over.

Each scope knows the hop around it as `_errand`; the hop that the running code works for is that of the current
scope.
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
    """Work for a hop in another scope, until nothing of it is in flight."""

    __slots__ = ("_hop",)

    def __init__(self, parent: Scope, hop: TreeNode) -> None:
        """Open it below `parent`, held by the hop.

        *Raises*: `ScopeClosed` if either of the two accepts nothing more.
        """
        model = _models.get(parent)
        if model is None:
            model = Model(parent, services=parent._services_given, leftovers="parent")
            model.adopts = hop._adopter is hop  # whose node sees every task of the loop
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
        """Wait for its end from the next turn on: by then it has begun, or never will."""
        self.when_idle(self._end)

    def _end(self) -> None:
        if not self.dissolve() and self._closing is None:
            self._close(grace=0.0, cleanup=self._cleanup)  # services: the parent goes on with them

    def _close(self, **limits: Any) -> Closing:
        if (
            self._holds
        ):  # the scope above is closed: what is cut there is cut here, and the hop knows
            self._leftovers = "cancel"
        return super()._close(**limits)

    def _forget_key(self, key: Hashable, job: object) -> None:
        self._model.parent._forget_key(key, job)

    def _job_failed(self, held: Any, error: BaseException) -> None:
        self._hop._fail(error)
        self._model.parent._job_failed(held, error)
