"""The one drain of a server, and what takes part in it.

An ASGI server program may be made of several parts that each have work in flight: requests, a node of the
mesh, the handler of an SDK. Whichever of them drains the program sets `drain_of_server` around the app's
lifespan. The others find it there when they open, and leave the times, the report and the exit code to it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import signal
    from collections.abc import Awaitable, Callable

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope

    Drain = Callable[[float, float], Awaitable[Report]]

__all__: list[str] = []


class ServerDrain(Protocol):
    """What drains a server program."""

    @property
    def scope(self) -> Scope:
        """The scope that is drained: what is opened below it is drained along."""

    @property
    def seconds(self) -> float:
        """How long the drain takes at most."""

    @property
    def services(self) -> tuple[str, ...]:
        """The patterns of names that the server has declared as services: they are services in hops, too."""

    @property
    def unheld(self) -> tuple[signal.Signals, ...]:
        """The signals that the server hears of at once: then it waits for its open requests."""

    def join(self, name: str, drain: Drain, scope: Scope | None = None) -> None:
        """Register `drain(grace, cleanup)`: the drain calls it, and its report is part of the whole.

        It may be called again with a shorter time, which then counts. What `scope` has in flight is counted
        when the drain begins.
        """

    def met(self, node: object) -> None:
        """Take note of a node of the mesh whose calls are to be answered also in the drain."""


drain_of_server: ContextVar[ServerDrain | None] = ContextVar("quiesce_server_drain", default=None)
