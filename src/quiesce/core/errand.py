"""An errand: the scope of work that a hop starts in another scope, such as the scope of the app.

During a hop, a handler may call `app_scope.spawn(work)`. That work still belongs to the hop: the hop waits for the
work, the work sends its messages for the hop, and cancelling the hop cancels the work. So the work gets an `Errand`:
a child of the app's scope, which the hop holds until the errand is closed.

The `hop_served` of a scope is the hop around it. The running code works for the hop of its current scope.
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
    """A scope for a hop's work, opened below a scope outside of the hop. It closes when it is idle."""

    __slots__ = ("_hop",)

    def __init__(self, parent: Scope, hop: TreeNode) -> None:
        """Open the errand below `parent`, held by the hop.

        *Raises*: `ScopeClosed` if the closing of `parent` or of the hop has begun.
        """
        model = _models.get(parent)
        if model is None:
            model = Model(parent, services=parent.services_given, leftovers="parent")
            # If the hop adopts, it must also see the tasks that this work creates.
            model.adopts = hop.adopter is hop
            _models[parent] = model
        self._hop = hop
        hop.check_may_start()
        super().__init__(model, f"work for {hop.name_given}", hop.place_code)  # type: ignore[arg-type]  # a hop has one
        self.held_by(hop)
        self.backend.soon(self._watch)

    @property
    def hop_served(self) -> TreeNode | None:
        return self._hop

    def _watch(self) -> None:
        """Close the errand when it is idle. Called in the loop's next turn, when its first work was inserted."""
        self.when_idle(self._end)

    def _end(self) -> None:
        if not self.dissolve() and self.close_plan is None:
            self.plan_close(
                grace=0.0, cleanup=self.cleanup_seconds
            )  # the parent takes over the services

    def plan_close(self, **limits: Any) -> Closing:
        if self.holds:  # the parent closes: cancel the work here, so that the hop learns of it
            self.leftovers_policy = "cancel"
        return super().plan_close(**limits)

    def forget_key(self, key: Hashable, job: object) -> None:
        self.scope_model.parent.forget_key(key, job)

    def note_failed(self, held: Any, error: BaseException) -> None:
        self._hop.work_failed(error)
        self.scope_model.parent.note_failed(held, error)
