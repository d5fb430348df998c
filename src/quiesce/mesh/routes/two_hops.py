"""Two hops: a task or thread of one hop takes an item that another hop has put.

If the taker is a worker that takes items in a loop, it works for the hop of the item. Any other taker goes on with its
own hop: a handler that waits for an answer continues its own request. Either way, only one hop holds the work that the
taker then starts or sends, although the work may be for the other hop. So the other hop records an assumption.
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
    """Return whether a task belongs to the hop, or to a scope below it."""
    node: TreeNode = getattr(key, "owner_node", hop)
    held = (node if node.is_within(hop) else hop).holds.get(key)
    return held is not None and not isinstance(held, Followed)


def is_worker(key: object, frames: list[FrameType]) -> bool:
    """Return whether a task or thread takes items in a loop and belongs to the running code's hop.

    The task that runs the hop's handler is not a worker.
    """
    own = getattr(current.get(), "hop_served", None)
    if key is None or own is None or not (isinstance(key, Thread) or is_task_of(own, key)):
        return False
    return any(bytecode_flow.is_in_loop(one.f_code, one.f_lasti) for one in frames)


def taker_name(key: Any) -> str:
    """Return the name of a task or thread for messages."""
    if key is None:
        return "a callback"
    kind = "thread" if isinstance(key, Thread) else "task"
    return f"{kind} {key.get_name() if hasattr(key, 'get_name') else key.name}"


class DoubtfulWork:
    """Work that a taker starts or sends for one hop, and that may belong to another hop.

    It records the holds of the first hop at the start, to see later whether the taker has added any.
    """

    __slots__ = ("_edges", "_holds", "_hop", "_key", "_told", "_what")

    def __init__(self, hop: Hop, told: Hop, key: object, what: str) -> None:
        """Record what the hop holds now.

        Args:
            hop: The hop for which the taker works.
            told: The other hop, which records an assumption.
            key: The taker.
            what: The assumption, as the end of a sentence about the work.
        """
        self._hop = hop
        self._told = told
        self._key = key
        self._what = what
        self._holds: frozenset[object] = frozenset(hop.holds)
        self._edges: frozenset[bytes] = frozenset(hop.record.edges)

    def tell(self) -> None:
        """Record the assumption if the taker has started or sent something that is not over."""
        hop = self._hop
        # Posted, so that the hop first inserts the holds from this thread.
        if not hop.backend.here():
            hop.backend.post(self.tell)
        elif hop.holds.keys() - self._holds or hop.record.edges.keys() - self._edges:
            what = f"assumes that what {taker_name(self._key)} has started or sent {self._what}"
            self._told.assume(what)
