"""What has joined the drain of a server: nodes of the mesh, and what drains itself in its own way."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quiesce.core import report as reports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
        self._scopes: list[tuple[str, Scope]] = []
        self._reports: dict[str, Report] = {}

    def __bool__(self) -> bool:
        """Whether anything drains itself."""
        return bool(self._drains)

    def join(self, name: str, drain: Drain, scope: Scope | None = None) -> None:
        """Register something that drains itself when the app is drained."""
        self._drains[name if name not in self._drains else f"{name} {len(self._drains)}"] = drain
        if scope is not None:
            self._scopes.append((f"{name} task", scope))

    def met(self, node: Any) -> None:
        """Take note of a node that was opened below `scope`."""
        self.nodes.append(node)
        if self._on_node is not None:
            self._on_node(node)

    @property
    def broken(self) -> str | None:
        """Why a node rejects all messages, if one does."""
        for node in self.nodes:
            if node._scope is not None and node._broken is not None:
                return f"node {node.name!r} cannot write its journal"
        return None

    def in_flight(self) -> dict[str, int]:
        """Count what the parts have in flight, by what it is called."""
        found = {"hop": sum(len(node._hops) for node in self.nodes)}
        for word, scope in self._scopes:
            found[word] = found.get(word, 0) + len(scope.frontier().in_flight)
        return found

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


async def _drained(drain: Drain, grace: float, cleanup: float) -> Report:
    return await drain(grace, cleanup)
