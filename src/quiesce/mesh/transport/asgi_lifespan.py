"""The life of an app that takes part in the mesh: its node is open for as long.

Inside of a `Quiesce`, which drains requests and hops together, the node is opened below the scope that is
drained there, and closed with it. Alone, the node is drained before the app is told to shut down: its hops
may need what the app closes then.
"""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import exit_threads, process_exit
from quiesce.core.announce import say
from quiesce.core.server_drain import drain_of_server
from quiesce.core.signals import heard
from quiesce.core.tree import current, logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping

    from quiesce.core.scope import Scope
    from quiesce.mesh.runtime.node import Node

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

__all__: list[str] = []

AROUND = "quiesce.mesh"
"""In the scope of a lifespan: that there is a node around the app, which is drained apart."""
_LEFT = (
    "the app's lifespan failed after its startup, and the server still serves. So node %r stays open until the"
    " shutdown, of which the app is not told"
)
_ALONE = "Requests outside of cascades are the server's: Quiesce(app, node=node) drains them, too"


class NodeLifespan:
    """One lifespan of an app, with its node."""

    def __init__(
        self,
        node: Node,
        receive: Receive,
        send: Send,
        times: tuple[float, float],
        has_served: Callable[[], bool],
    ) -> None:
        self._node = node
        self._raw_receive = receive
        self._raw_send = send
        self._grace, self._cleanup = times
        self._owner = drain_of_server.get()
        self._signals = ExitStack()
        self._home: Scope | None = None
        self._cut_at: float | None = None
        self._is_told = False
        self._has_served = has_served
        self._is_silent = False  # the server has not served at all, as when its port is taken
        self._begun = False
        self._is_answered = False  # the startup
        self._is_over = False  # it has failed, or the shutdown was received
        self._why = "the lifespan has ended"

    async def run(self, app: App, scope: Message) -> None:
        """Run the app from its startup to its shutdown; when the app returns, serve the rest of its lifespan.

        The server goes on to serve then, and the node with it. So it is if the app raises between its startup and its
        shutdown. If the app raises in its startup, the server is told that it failed: some would serve on, without the
        node.

        *Raises*: what the app raises in its startup or in its shutdown.
        """
        if self._owner is None:
            scope = {**scope, AROUND: self._node.name}
        with self._signals:
            try:
                try:
                    await app(scope, self._receive, self._send)
                except Exception as error:
                    if self._begun and not self._is_answered:
                        text = f"{type(error).__name__}: {error}"
                        await self._send({"type": "lifespan.startup.failed", "message": text})
                    if self._is_over:
                        raise
                    if self._begun:
                        logger.exception(_LEFT, self._node.name)
                await self._live_on()
            finally:
                await self._close()

    async def _receive(self) -> Message:
        message = await self._raw_receive()
        if message["type"] == "lifespan.startup" and not self._begun:
            self._begun = True
            try:
                await self._open()
            except Exception as error:
                self._is_answered = self._is_over = True
                await self._raw_send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
        elif message["type"] == "lifespan.shutdown":
            self._why = "the server shuts down"
            await self._close()
            self._is_over = True
        return message

    async def _send(self, message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown"):
            await self._close()
        await self._raw_send(message)
        if message["type"].startswith("lifespan.startup"):
            self._is_answered = True
            if message["type"] == "lifespan.startup.failed":
                self._is_over = True
                self._why = "the startup failed"

    async def _live_on(self) -> None:
        """Serve the lifespan of an app that has none; or the rest of it, if the app has left."""
        while not self._is_over:
            if self._begun and not self._is_answered:
                await self._send({"type": "lifespan.startup.complete"})
            message = await self._receive()
            if message["type"] == "lifespan.shutdown":
                await self._send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        node, owner = self._node, self._owner
        if owner is None:
            home = self._home = (await node.open())._opened()
            self._signals.enter_context(
                heard(
                    home._backend.post,
                    self._told_to_end,
                    sets_exit_code=True,
                    is_busy=self._is_busy,
                )
            )
            return
        token = current.set(owner.scope)
        try:
            await node.open()
        finally:
            current.reset(token)
        owner.met(node)
        self._signals.enter_context(hearing(node))

    def _is_busy(self) -> bool:
        """Return whether the node has hops that the drain lets go on."""
        home = self._home
        return home is not None and home._closing is None and bool(self._node._hops)

    def _told_to_end(self) -> None:
        """Count the grace from the signal: the server waits for its open requests first."""
        node, home = self._node, self._home
        if home is not None and self._is_told:
            home._close(grace=0.0, cleanup=self._cleanup)  # a second signal
        elif home is not None and self._cut_at is None and node._scope is home:
            self._is_told = True
            self._begin("told to stop", home)
            node._exchange.told_to_end(self._grace + self._cleanup)  # it is closed by then
            node._exchange.service("deadline", self._at_the_deadline, home)

    async def _at_the_deadline(self, home: Scope) -> None:
        """Close the node: its open questions, for which the server waits, are answered with the end."""
        await anyio.sleep(self._grace)
        home._close(grace=0.0, cleanup=self._cleanup)

    async def _close(self) -> None:
        """Drain the node, unless that is done by what is around it, or was done before.

        If the app's lifespan itself is part of a hop, all other hops have ended, and the node is closed later.
        """
        home = self._home
        if home is None:
            return
        cut_at = self._cut_at
        if cut_at is None:
            cut_at = self._begin(self._why, home)
        await home.drain(max(0.0, cut_at - home._backend.clock()), cleanup=self._cleanup)
        report = home.report
        if report is None:
            return
        self._home = None
        seconds = home._backend.clock() - cut_at + self._grace
        report = replace(report, seconds=seconds)  # since the signal: the server has waited before
        if self._node._tells_drain and not (self._is_silent and report.ok):
            say(logger, logging.INFO if report.ok else logging.ERROR, str(report))
        exit_threads.watch_exit_threads()
        if not report.ok and self._is_told:
            process_exit.lost()

    def _begin(self, why: str, home: Scope) -> float:
        """Say that the node drains, and what would drain the rest of the server; return when the grace is over."""
        count, unposted = len(self._node._hops), self._node._engine.unposted
        hops = f"{count or 'no'} hop{'s' * (count != 1)} in flight"
        if unposted:
            hops += f", {unposted} receipt{'s' * (unposted != 1)} to be posted"
        text = f"{why}: node {self._node.name!r} is draining, grace {self._grace:g} s: {hops}"
        self._is_silent = not (self._has_served() or self._is_told or count or unposted)
        if self._node._tells_drain and not self._is_silent:
            say(logger, logging.INFO, f"{text}. {_ALONE}", str(home.frontier()))
        self._cut_at = home._backend.clock() + self._grace
        return self._cut_at


@contextmanager
def hearing(node: Node, seconds: float = 30.0) -> Iterator[None]:
    """Answer questions as soon as the node's own work has ended, once the server was told to end.

    The server waits for them. Not if the signal is held back: then the server goes on to serve.

    Args:
        node: A node that is open.
        seconds: How long a question may wait for that, if nothing drains the whole server.
    """
    owner = drain_of_server.get()
    numbers = (signal.SIGTERM, signal.SIGINT) if owner is None else owner.unheld
    limit = seconds if owner is None else owner.seconds

    def told() -> None:
        if node._scope is not None:
            node._exchange.told_to_end(limit)

    with heard(node._opened()._backend.post, told, numbers):
        yield
