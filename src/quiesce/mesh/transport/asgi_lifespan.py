"""The lifespan of an app that takes part in the mesh: its node is open from startup to shutdown.

Inside a `Quiesce`, which drains requests and hops together, the node opens below the scope that `Quiesce` drains, and
closes with it. Without a `Quiesce`, this module drains the node before the app gets its shutdown message, because hops
may need resources that the app then closes.
"""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from quiesce.core import exit_threads, process_exit
from quiesce.core.announce import say
from quiesce.core.report import Report
from quiesce.core.server_drain import drain_of_server
from quiesce.core.signals import heard
from quiesce.core.tree import current, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce.core.asgi_types import App, Message, Receive, Send
    from quiesce.core.scope import Scope
    from quiesce.mesh.runtime.node import Node


__all__: list[str] = []

AROUND = "quiesce.mesh"
"""A key in the scope of a lifespan: the name of a node around the app, which is drained separately."""
_ANSWER_SECONDS = 1.0  # for sending the answers of cancelled handlers
_FAILED_LATE = (
    "the app's lifespan failed after its startup, but the server goes on serving. So node %r stays open until the"
    " shutdown, and the app will not get its shutdown message"
)
_ONLY_THE_NODE = (
    "This does not drain requests outside of cascades. Quiesce(app, node=node) drains them, too"
)


class NodeLifespan:
    """One lifespan of an app, and of its node."""

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
        self._is_told = False  # whether a signal has told the server to stop
        self._has_served = has_served
        self._is_silent = False  # whether the server never served, for example if its port is taken
        self._begun = False
        self._is_answered = False  # whether the startup was answered
        self._is_over = False  # whether the startup failed or the shutdown was received
        self._why = "the lifespan has ended"

    async def run(self, app: App, scope: Message) -> None:
        """Run the app's lifespan from startup to shutdown.

        If the app returns early, or raises between startup and shutdown, the server goes on serving. Then this method
        serves the rest of the lifespan, so that the node stays open. If the app raises during startup, the server gets
        `lifespan.startup.failed`; some servers would otherwise go on without the node.

        *Raises*: the error that the app raises in its startup or shutdown.
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
                        logger.exception(_FAILED_LATE, self._node.name)
                await self._serve_rest()
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

    async def _serve_rest(self) -> None:
        """Serve the rest of a lifespan after the app has returned, or all of it if the app does not support one."""
        while not self._is_over:
            if self._begun and not self._is_answered:
                await self._send({"type": "lifespan.startup.complete"})
            message = await self._receive()
            if message["type"] == "lifespan.shutdown":
                await self._send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        node, owner = self._node, self._owner
        if owner is None:
            home = self._home = (await node.open()).get_open_scope()
            self._signals.enter_context(
                heard(
                    home.backend.post,
                    self._on_signal,
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
        owner.join(f"node {node.name}", partial(self._drain_for_server, owner.scope))
        self._signals.enter_context(hearing(node))

    async def _drain_for_server(self, requests: Scope, grace: float, cleanup: float) -> Report:
        """Drain the node's handlers of connections, before the server's drain cancels requests and the rest of the node.

        Return an empty report: the report of the server's requests includes the node.
        """
        exchange = self._node.opened.exchange
        exchange.told_to_end(grace + cleanup)  # another node's open question is also a request
        if await exchange.links.handlers.cut(grace, cleanup):
            with anyio.move_on_after(min(cleanup, _ANSWER_SECONDS)):
                await requests.idle()
        return Report(requests.name, 0, 0, (), (), (), ())

    def _is_busy(self) -> bool:
        """Return whether the node has hops for which the drain waits."""
        home = self._home
        return home is not None and home.close_plan is None and bool(self._node.opened.running_hops)

    def _on_signal(self) -> None:
        """Start the grace at the signal, because the server first waits for its open requests."""
        node, home = self._node, self._home
        if home is not None and self._is_told:
            home.plan_close(grace=0.0, cleanup=self._cleanup)  # a second signal
        elif self._cut_at is None and node.own_scope is home and home is not None:
            self._is_told = True
            self._begin_drain("told to stop", home)
            node.opened.exchange.told_to_end(
                self._grace + self._cleanup
            )  # the node is closed by then
            node.opened.exchange.service("deadline", self._at_the_deadline, home)

    async def _at_the_deadline(self, home: Scope) -> None:
        """Close the node at the end of the grace. That answers open questions, for which the server waits."""
        await anyio.sleep(self._grace)
        home.plan_close(grace=0.0, cleanup=self._cleanup)

    async def _close(self) -> None:
        """Drain the node, unless a `Quiesce` drains it or it has closed before.

        If the app's lifespan is itself part of a hop, this waits for all other hops, and the node closes later.
        """
        home = self._home
        if home is None:
            return
        cut_at = self._cut_at
        if cut_at is None:
            cut_at = self._begin_drain(self._why, home)
        await home.drain(max(0.0, cut_at - home.backend.clock()), cleanup=self._cleanup)
        report = home.report
        if report is None:
            return
        self._home = None
        seconds = home.backend.clock() - cut_at + self._grace
        # Counted from the signal, as the server waited first.
        report = replace(report, seconds=seconds)
        if self._node.is_telling_drain and not (self._is_silent and report.ok):
            say(logger, logging.INFO if report.ok else logging.ERROR, str(report))
        exit_threads.watch_exit_threads()
        if not report.ok and self._is_told:
            process_exit.lost()

    def _begin_drain(self, why: str, home: Scope) -> float:
        """Log that the node drains, and how to drain the rest of the server. Return the time when the grace ends."""
        count, unposted = len(self._node.opened.running_hops), self._node.opened.engine.unposted
        hops = f"{count or 'no'} hop{'s' * (count != 1)} in flight"
        if unposted:
            hops += f", {unposted} receipt{'s' * (unposted != 1)} to be posted"
        text = f"{why}: node {self._node.name!r} is draining, grace {self._grace:g} s: {hops}"
        self._is_silent = not (self._has_served() or self._is_told or count or unposted)
        if self._node.is_telling_drain and not self._is_silent:
            say(logger, logging.INFO, f"{text}. {_ONLY_THE_NODE}", str(home.frontier()))
        self._cut_at = home.backend.clock() + self._grace
        return self._cut_at


@contextmanager
def hearing(node: Node, seconds: float = 30.0) -> Iterator[None]:
    """Answer other nodes' open questions soon after a signal tells the server to end.

    The server waits for these questions. The node answers each when its own work has ended, or after a time limit.

    A signal that is held back does not count: the server then goes on serving.

    Args:
        node: A node that is open.
        seconds: That time limit, if there is no drain of the whole server.
    """
    owner = drain_of_server.get()
    numbers = (signal.SIGTERM, signal.SIGINT) if owner is None else owner.unheld
    limit = seconds if owner is None else owner.seconds

    def told() -> None:
        if node.own_scope is not None:
            node.opened.exchange.told_to_end(limit)

    with heard(node.get_open_scope().backend.post, told, numbers):
        yield
