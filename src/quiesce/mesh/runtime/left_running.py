"""Describes the work of a closed node's hops that still runs, with advice for each kind of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core import report as reports

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_NAMED_MAX = 3  # pieces of work of one hop, in one line
_ADVICE = {
    "item": "The worker of an item was started with the app, and the drain does not cancel it: give it more grace, or let it"
    " stop at the shutdown",
    "thread": "Nothing can stop a thread: give it more grace, or have its function end when the server is told to stop",
    "process": "The drain does not end a child process: give it more grace, or end it at the shutdown",
    "callback": "The drain does not cancel a callback that waits for another thread: give it more grace",
}
_OTHER = "Let this work end when it is cancelled"


def describe_left(hops: Iterable[Hop]) -> str:
    """Return a text that names the work of closed hops that still runs, with advice for each kind."""
    hops = list(hops)
    kinds = [item.kind for hop in hops if hop.report is not None for item in hop.report.stuck]
    advice = dict.fromkeys(_ADVICE.get(kind, _OTHER) for kind in kinds)
    named = "; ".join(map(_describe, hops))
    text = f"{named}. If the node has a journal, it stays locked until this process ends"
    return ". ".join([text, *(advice or [_OTHER])])


def _describe(hop: Hop) -> str:
    """Return a text about the work of a closed hop that has not ended: where it was started, and where it is now.

    If the close has cancelled a handler, the handler comes first.
    """
    report = hop.report
    stuck = () if report is None else report.stuck
    ended = () if report is None else report.cancelled
    found = [
        f"{reports.with_kind(item.kind, item.name)} was cancelled"
        for item in ended
        if item.kind == "handler"
    ][:1]
    found += [
        f"{reports.with_kind(item.kind, item.name)}, {reports.started(item.where)}"
        + (f", now at {item.stack[-1]}" if item.stack else "")
        for item in stuck[:_NAMED_MAX]
    ]
    more = [f"{len(stuck) - _NAMED_MAX} more"] if len(stuck) > _NAMED_MAX else []
    return f"{hop.name} ({'; '.join([*found, *more])})"
