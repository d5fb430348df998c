"""Items of one hop in the hands of another: a task or thread of a hop takes what another hop has put.

A worker that the first hop has started, and that takes items in a loop, works for the hop of its item meanwhile. Other
code works for its own hop: a handler that waits for an answer goes on with its own request. What is started or sent
then is held by one hop, although it may be work for the other one, too. So the other one records an assumption.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import current
from quiesce.mesh.routes import bytecode_flow
from quiesce.mesh.routes.following import Followed

if TYPE_CHECKING:
    from types import FrameType

    from quiesce.core.tree import TreeNode
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


def is_task_of(hop: Hop, key: object) -> bool:
    """Return whether a task is one of the hop's own, in a scope below it perhaps."""
    node: TreeNode = getattr(key, "_node", hop)
    held = (node if node._is_within(hop) else hop)._holds.get(key)
    return held is not None and not isinstance(held, Followed)


def is_worker(key: object, frames: list[FrameType]) -> bool:
    """Return whether a task or thread of the hop that the running code works for takes items in a loop.

    The task that runs the hop's handler is not a worker.
    """
    own = getattr(current.get(), "_errand", None)
    if key is None or own is None or not (isinstance(key, Thread) or is_task_of(own, key)):
        return False
    return any(bytecode_flow.is_in_loop(one.f_code, one.f_lasti) for one in frames)


def taker_name(key: Any) -> str:
    """Return what to call a task or thread in messages."""
    if key is None:
        return "a callback"
    kind = "thread" if isinstance(key, Thread) else "task"
    return f"{kind} {key.get_name() if hasattr(key, 'get_name') else key.name}"


class Beside:
    """What the hop that a taker works for had before, for the hop that it does not work for."""

    __slots__ = ("_edges", "_holds", "_hop", "_key", "_told", "_what")

    def __init__(self, hop: Hop, told: Hop, key: object, what: str) -> None:
        """Remember it.

        Args:
            hop: The hop that the taker works for.
            told: The other one.
            key: The taker.
            what: What the other one assumes of what is started or sent.
        """
        self._hop = hop
        self._told = told
        self._key = key
        self._what = what
        self._holds: frozenset[object] = frozenset(hop._holds)
        self._edges: frozenset[bytes] = frozenset(hop._record.edges)

    def tell(self) -> None:
        """Record the assumption if something was started or sent that is not over."""
        hop = self._hop
        if not hop._backend.here():  # what a thread starts is held there first
            hop._backend.post(self.tell)
        elif hop._holds.keys() - self._holds or hop._record.edges.keys() - self._edges:
            what = f"assumes that what {taker_name(self._key)} has started or sent {self._what}"
            self._told.assume(what)
