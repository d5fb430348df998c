"""Joined work: one message starts a task or a timer, and a later message of the same kind adds its job to that work.

An example is `if task is None: task = create_task(flush())` with the jobs in a list. The first hop waits for the task.
quiesce cannot see that a second hop has left the task a job. So a hop may have to record an assumption: its handler has
left nothing behind, but work goes on that the same handler has left for a message of another cascade; or that another
handler has left, if this handler may call the function that has started the work.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from threading import Thread
from types import CodeType
from typing import TYPE_CHECKING, Any

from quiesce.core.report import with_kind
from quiesce.mesh.routes.bystanders import is_users_task
from quiesce.mesh.routes.reached_code import may_call
from quiesce.mesh.routes.takers import watched

if TYPE_CHECKING:
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.hop_parts import Visit

__all__: list[str] = []

_KINDS = frozenset({"task", "timer"})
_NUMBERED = re.compile(r"[^/\s]*\d[^/\s]*")  # a part of a path that differs between messages

_HOPS_MAX = 8  # hops that are examined


@lru_cache(maxsize=1024)
def _without_numbers(name: str) -> str:
    return _NUMBERED.sub("*", name)


class JoinedWork:
    """The hops of a node that go on after their handlers."""

    def __init__(self) -> None:
        self.by_handler: dict[str, dict[Hop, None]] = {}
        """By the name of the handler, without numbers, its hops that go on."""
        self.hops: dict[Hop, tuple[str, bool]] = {}
        """The name of the handler, and whether it has left tasks and the like, and not only items in queues."""

    def handler_ends(self, hop: Hop, visit: Visit) -> None:
        """Record that a handler leaves work behind. If it leaves none, record what the hop assumes."""
        if len(hop.holds) <= 1:  # only the handler itself
            if self.hops:
                self._assume_not_joined(hop, _without_numbers(visit.name), visit.endpoint)
        elif hop not in self.hops:
            name = _without_numbers(visit.name)
            self.hops[hop] = (name, any(map(_may_be_joined, hop.holds.values())))
            self.by_handler.setdefault(name, {})[hop] = None

    def hop_ends(self, hop: Hop) -> None:
        """Forget the work that the handler of a hop has left. If that was only queue items, record what the hop assumes."""
        found = self.hops.pop(hop, None)
        if found is None:
            return
        name, has_work = found
        hops = self.by_handler[name]
        del hops[hop]
        if not hops:
            del self.by_handler[name]
        elif not (has_work or hop.filled):
            self._assume_not_joined(hop, name)

    def _assume_not_joined(self, hop: Hop, name: str, endpoint: Any = None) -> None:
        for other in islice(self.by_handler.get(name, ()), _HOPS_MAX):
            found = None if other.cascade == hop.cascade else _joinable(other)
            if found is not None:
                _assume(hop, found, "the same handler")
                return
        for other in islice(self.hops if endpoint is not None else (), _HOPS_MAX):
            found = None if other.cascade == hop.cascade else _joinable(other)
            code = getattr(found, "started_code", None) or getattr(found, "place_code", None)
            if found is not None and isinstance(code, CodeType) and may_call(endpoint, code):
                _assume(hop, found, "another handler")
                return


def _joinable(hop: Hop) -> Any:
    """Return work of a hop that another hop may have joined; None if there is none."""
    return next(filter(_may_be_joined, hop.holds.values()), None)


def _assume(hop: Hop, found: Any, who: str) -> None:
    hop.assume(
        f"assumes that {with_kind(found.kind, found.name)}, which {who} has left for another message at"
        f" {found.where}, has nothing to do for this one"
    )


def _may_be_joined(held: Any) -> bool:
    """Return whether a hold is work of the user's code to which other hops may have given jobs unseen.

    Jobs for a worker of a queue are followed. A call in an executor does one job only.
    """
    if held.kind == "thread":
        return isinstance(getattr(held, "thing", None), Thread)
    return held.kind in _KINDS and held not in watched and is_users_task(held)
