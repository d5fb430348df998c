"""The one drain of a server, and the parts that join it.

An ASGI server program may have several parts that each have work in flight: requests, a node of the mesh, the
handler of an SDK. The part that drains the program sets `drain_of_server` around the app's lifespan. The other
parts find it when they open, join it, and leave the deadlines, the report and the exit code to it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import signal
    from collections.abc import Awaitable, Callable, Mapping

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope

    Drain = Callable[[float, float], Awaitable[Report]]

__all__: list[str] = []


class ServerDrain(Protocol):
    """The part that drains a server program."""

    @property
    def scope(self) -> Scope:
        """The scope that is drained, with everything that is opened below it."""

    @property
    def seconds(self) -> float:
        """How long the drain takes at most."""

    @property
    def services(self) -> tuple[str, ...]:
        """The patterns of names that the server declares as services. They are services in hops, too."""

    @property
    def unheld(self) -> tuple[signal.Signals, ...]:
        """The signals that reach the server at once: it then waits for its open requests."""

    def join(
        self, name: str, drain: Drain, in_flight: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        """Register `drain(grace, cleanup)`. The drain of the server calls it, and includes its report.

        It may be called again, with a shorter time that replaces the first. When the drain begins, `in_flight`
        counts what is in flight, by what one of it is called.
        """

    def met(self, node: object) -> None:
        """Register a node of the mesh. Its calls are answered during the drain, too."""


drain_of_server: ContextVar[ServerDrain | None] = ContextVar("quiesce_server_drain", default=None)
