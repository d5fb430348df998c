"""What has joined the drain of a server: nodes of the mesh, and what drains itself in its own way."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quiesce.core import report as reports
from quiesce.core.server_drain import InFlight
from quiesce.core.visitors import Visitor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope

    Drain = Callable[[float, float], Awaitable[Report]]

__all__: list[str] = []


class Parts:
    """The parts of a server program, while one app of it runs; see `quiesce.core.server_drain`."""

    def __init__(
        self,
        scope: Scope,
        seconds: float,
        on_node: Callable[[Any], object] | None,
        services: tuple[str, ...] = (),
    ) -> None:
        self.scope: Scope = scope
        """What is opened below it is drained along with the requests."""
        self.seconds: float = seconds
        """How long the drain takes at most."""
        self.services: tuple[str, ...] = services
        """The patterns of names that are loops, not work; in hops as well."""
        self.unheld: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
        """The signals that the server hears of at once."""
        self.nodes: list[Any] = []
        self._on_node = on_node
        self._drains: dict[str, Drain] = {}
        self._counts: list[Callable[[], InFlight]] = []
        self._reports: dict[str, Report] = {}

    def __bool__(self) -> bool:
        """Whether anything drains itself."""
        return bool(self._drains)

    def join(
        self, name: str, drain: Drain, in_flight: Callable[[], InFlight] | None = None
    ) -> None:
        """Register something that drains itself when the app is drained."""
        self._drains[name if name not in self._drains else f"{name} {len(self._drains)}"] = drain
        if in_flight is not None:
            self._counts.append(in_flight)

    def met(self, node: Any) -> None:
        """Take note of a node that was opened below `scope`."""
        self.nodes.append(node)
        if self._on_node is not None:
            self._on_node(node)

    @property
    def broken(self) -> str | None:
        """Why a node rejects all messages, if one does."""
        for node in self.nodes:
            if node.own_scope is not None and node.opened.write_error is not None:
                return f"node {node.name!r} cannot write its journal"
        return None

    def in_flight(self) -> InFlight:
        """Count what the parts have in flight, each thing once: a task of a protocol is not counted as a hop, too.

        A hop stands for the request that it is handled in.
        """
        parts = [count() for count in self._counts]
        told = {scope for part in parts for scope in part.stands_for}
        hops = [hop for node in self.nodes for hop in node.opened.running_hops.values()]
        found = {"hop": sum(hop not in told for hop in hops)}
        for part in parts:
            for word, n in part.counts.items():
                found[word] = found.get(word, 0) + n
        for hop in hops:
            told.update(one.outer for one in hop.holds.values() if isinstance(one, Visitor))
        return InFlight({word: n for word, n in found.items() if n}, told)

    @property
    def unposted(self) -> int:
        """How many receipts the nodes have still to post to other agents."""
        return sum(node.opened.engine.unposted for node in self.nodes)

    async def drain(self, root: Scope, grace: float, cleanup: float) -> None:
        """Drain all of them at the same time, and keep their reports."""
        jobs = {
            name: root.spawn(_drained, drain, grace, cleanup, name=f"drain of {name}", service=True)
            for name, drain in self._drains.items()
        }
        for name, job in jobs.items():
            self._reports[name] = await job

    def merged_with(self, report: Report) -> Report:
        """Return one report of all of it."""
        others = tuple(self._reports.values())
        if not others:
            return report
        every = (report, *others)
        joined: dict[str, Any] = {
            word: reports.chain_items((), [getattr(one, word) for one in every])
            for word in ("cancelled", "failed", "undelivered", "stuck")
        }
        counts: dict[str, Any] = {
            word: sum(getattr(one, word) for one in every)
            for word in ("completed", "withdrawn", "handed_over", "services", "handled")
        }
        seconds = max(one.seconds for one in every)
        return replace(report, seconds=seconds, **counts, **joined)


def counted_in_flight(found: Mapping[str, int], unposted: int) -> str:
    """Return what a drain waits for, in words: counts of what is in flight, and receipts that are still to be posted."""
    told = [f"{n} {word}{'s' * (n != 1)}" for word, n in found.items() if n]
    receipts = f"{unposted} receipt{'s' * (unposted != 1)} to be posted"
    in_flight = f"{', '.join(told) or 'nothing'} in flight"
    return f"{in_flight}, {receipts}" if unposted else in_flight


async def _drained(drain: Drain, grace: float, cleanup: float) -> Report:
    return await drain(grace, cleanup)
