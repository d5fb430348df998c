"""The interface between the part that drains a server program and the parts that join its drain.

An ASGI server program may have several parts that each have work in flight: requests, a node of the mesh, the
handler of an SDK. The part that drains the program sets `drain_of_server` around the app's lifespan. The other
parts find it when they open, join it, and leave the deadlines, the report and the exit code to it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import signal
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope

    Drain = Callable[[float, float], Awaitable[Report]]

__all__: list[str] = []


class InFlight(NamedTuple):
    """The work that a part of a server has in flight."""

    counts: Mapping[str, int]
    """How many pieces of work of each kind are in flight, by the name of the kind."""
    stands_for: Collection[object] = ()
    """The scopes and hops whose work `counts` includes, so that other parts do not count it again."""


class ServerDrain(Protocol):
    """The part that drains a server program."""

    @property
    def scope(self) -> Scope:
        """The scope that is drained, together with all scopes below it."""

    @property
    def seconds(self) -> float:
        """The longest time that the drain may take."""

    @property
    def services(self) -> tuple[str, ...]:
        """The name patterns of services that the server declares. They apply in hops, too."""

    @property
    def unheld(self) -> tuple[signal.Signals, ...]:
        """The signals that reach the server without delay; the server then waits for its open requests."""

    def join(
        self, name: str, drain: Drain, in_flight: Callable[[], InFlight] | None = None
    ) -> None:
        """Register `drain(grace, cleanup)`. The drain of the server calls it and includes its report.

        The server may call `drain` again, with shorter times that replace the first ones. The server calls
        `in_flight` when the drain begins, to count the work.
        """

    def met(self, node: object) -> None:
        """Register a node of the mesh, so that its calls are answered during the drain, too."""


drain_of_server: ContextVar[ServerDrain | None] = ContextVar("quiesce_server_drain", default=None)
