"""The middleware itself: which call is handled how."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from quiesce.core.frontier import Frontier
from quiesce.errors import UsageError
from quiesce.integrations.asgi import answers, middleware_settings
from quiesce.integrations.asgi.application import Application
from quiesce.integrations.asgi.lifespan import Lifespan
from quiesce.integrations.asgi.request_exchange import RequestExchange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.core.asgi_types import App, AsgiScope, Receive, Send
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.mesh.runtime.node import Node

__all__ = ["Quiesce"]

logger: logging.Logger = logging.getLogger("quiesce.asgi")

_MARK = "quiesce"  # in the scope of a call: who handles it already
_PROBES = {"GET", "HEAD"}
_KINDS = {"lifespan", "http", "websocket"}


class Quiesce:
    """An ASGI app that is drained on SIGTERM, and says what was lost.

    ```python
    app = Quiesce(app, grace=30)
    ```

    Every request has a scope, which adopts (on asyncio) whatever its handler starts; what still runs
    when the response is out goes on below the app's scope. On SIGTERM the readiness path answers 503 at
    once; new requests are served for another `notice` seconds and refused then (503, `Retry-After`); open
    requests, streams, background tasks and hops of the mesh have `grace` seconds, and what is left then is
    cancelled and reported. Only after that the server hears of the signal. The beginning and the report are
    logged (`quiesce.asgi`), or written to standard error if logging is not configured, and the exit code is
    1 if anything was lost. A handler may wait for the drain by `await quiesce.current_scope().closing()`.

    It is the outermost of the wrappers of an app. Wrappers inside (`node.asgi()`, an A2A handler, another
    `Quiesce`) leave the drain to it: its times count, and its report has all of it.

    Args:
        app: The ASGI application.
        grace: How many seconds open requests, WebSockets, background tasks and hops have.
        cleanup: How many seconds what was cancelled may take to clean up.
        node: The node of the mesh that the app takes part with, as by `node.asgi(app)`: messages of
            cascades become hops, and the node is open from before the app's startup until the drain is over.
        notice: For how many seconds after SIGTERM new requests are still served, while load balancers
            find out by the readiness path.
        hang_up: How many seconds a WebSocket goes on in a drain before its app receives
            `websocket.disconnect`, code 1001; None: shortly before the deadline.
        services: Patterns (as in `fnmatch`) of names that are loops, not work: of requests that never
            end by themselves (`"GET /events"`, `"WS /feed"`), and of adopted tasks. They do not hold up
            a drain, and to end them is not a loss. In hops they count as those of `Node(services=…)` do: no
            verdict waits for such a task.
        retry_after: The seconds that `Retry-After` names.
        ready: The path of the readiness probe; None: none.
        frontier: The path that shows what is in flight, as JSON; True: `/quiesce/frontier`; None,
            the default: none. It shows paths and source lines: keep it from the public.
        hold_signal: Whether SIGTERM is held back from the server until the app is drained. Without it,
            the drain begins when the server shuts its lifespan down.
        exit_code: Whether the process exits with 1 if anything was lost.
        name: What the app is called in frontiers and reports.

    Raises:
        ArgumentError: an option cannot be, or `app` cannot be an ASGI application.
        TypeError: the second argument is a node, which is to be given as `node=`.
    """

    drains_server = True
    """That nothing else may drain what is around it: see `Node.asgi()`."""

    def __init__(  # noqa: PLR0913 - each is an option
        self,
        app: App,
        grace: float = 30.0,
        *,
        cleanup: float = 5.0,
        node: Node | None = None,
        notice: float = 0.0,
        hang_up: float | None = None,
        services: Iterable[str] = (),
        retry_after: int = 1,
        ready: str | None = "/quiesce/ready",
        frontier: str | bool | None = None,
        hold_signal: bool = True,
        exit_code: bool = True,
        name: str = "app",
    ) -> None:
        """Wrap an application; nothing is opened before the server calls."""
        middleware_settings.check_app(app)
        middleware_settings.check_place(grace)
        if node is not None:
            from quiesce.mesh.transport.links import check_node  # noqa: PLC0415 - only with a node

            check_node(node)
            middleware_settings.check_bare(app, is_quiesce=isinstance(app, Quiesce))
        self.app: App = app if node is None else node.asgi(app)
        self._node = node
        self._settings = middleware_settings.MiddlewareSettings(
            app, name=name, grace=grace, cleanup=cleanup, notice=notice, hang_up=hang_up,
            services=services, retry_after=retry_after, ready=ready, frontier=frontier,
            hold_signal=hold_signal, exit_code=exit_code,
        )  # fmt: skip
        self._application: Application | None = None
        self._entry: App = self._handle  # behind what answers other nodes, if there is a node

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the app: code that uses `app.state` goes on to work after `app = Quiesce(app)`.

        *Raises*: `AttributeError` if the app has no such attribute.
        """
        if name.startswith("_"):  # of a class of its own, or before it was made
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(self.app, name)

    # Asking.

    @property
    def scope(self) -> Scope | None:
        """The scope of all requests and what they have left running; None before the startup."""
        return None if self._application is None else self._application.requests

    @property
    def draining(self) -> bool:
        """Whether the drain has begun: not ready any more."""
        return self._application is not None and self._application.draining

    @property
    def report(self) -> Report | None:
        """What became of everything; None until the drain is over."""
        return None if self._application is None else self._application.report

    async def drain(self) -> Report:
        """Stop as on SIGTERM, the notice included, but leave the server running.

        *Cancel safety*: the drain goes on.

        *Raises*: `UsageError` if the app does not run here.
        """
        application = self._application
        if application is None or not application.is_open:
            message = "the app does not run in this event loop: there is nothing to drain"
            raise UsageError(message)
        return await application.stopped("drain()", notice=self._settings.notice)

    # Serving.

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Handle a call of the server: a lifespan, a request, a WebSocket.

        *Cancel safety*: the app is cancelled, and its end waited for, before it is passed on.
        """
        kind = scope["type"]
        if _MARK in scope or kind not in _KINDS:
            # Another one around it does it all.
            await middleware_settings.awaitable(self.app, scope, receive, send)
            return
        scope[_MARK] = self
        await self._entry(scope, receive, send)

    async def _handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        application = self._application
        if kind == "lifespan":
            await self._live(scope, receive, send)
            return
        if application is not None:
            application.served = True
        if kind == "http" and self._is_own(scope):
            await self._answer(scope, send)
        elif application is not None and application.lives and application.serves:
            await RequestExchange(application, self.app, scope, receive, send).run()
        else:
            await self._serve(scope, receive, send)

    async def _live(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if "quiesce.mesh" in scope:
            await self._refuse_order(receive, send)
        self._entry = self._handle
        application = self._application = await Application.open(
            self._settings, lives=True, on_node=self._answer_nodes
        )
        await Lifespan(application, self.app, scope).run(receive, send)

    def _answer_nodes(self, node: Node) -> None:
        """Answer other nodes outside of the requests: hops that are drained need their receipts."""
        from quiesce.mesh.transport.asgi_front import CascadeFront  # noqa: PLC0415 - only with a node

        self._entry = CascadeFront(node, self._entry, inside=self.app)

    @staticmethod
    async def _refuse_order(receive: Receive, send: Send) -> None:
        """Fail the startup inside of a node that is opened and closed around this.

        *Raises*: `UsageError`, always.
        """
        from quiesce.mesh.transport.asgi_server import WRONG_ORDER  # noqa: PLC0415 - as above

        await receive()
        await send({"type": "lifespan.startup.failed", "message": WRONG_ORDER})
        raise UsageError(WRONG_ORDER)

    async def _serve(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve while there is no lifespan, or a drain: seldom."""
        application = self._application
        if application is not None and not application.serves and application.refuses:
            await answers.refuse_request(scope, send, self._settings.retry_after)
            return
        if application is None or not application.is_open:
            # Mounted below another app, or without a lifespan: open for as long as there is work.
            application = await Application.open(self._settings, lives=False)
            self._application = application
        try:
            await RequestExchange(application, self.app, scope, receive, send).run()
        finally:
            if not application.lives:
                await application.close_if_idle()

    def _is_own(self, scope: AsgiScope) -> bool:
        """Return whether something is asked of us and not of the app."""
        own = self._settings.own_paths
        return answers.path_of(scope) in own and scope.get("method") in _PROBES

    async def _answer(self, scope: AsgiScope, send: Send) -> None:
        if answers.path_of(scope) == self._settings.ready:
            await answers.ready(scope, send, why_not=self._why_not_ready())
        else:
            await answers.frontier(scope, send, self._in_flight())

    def _why_not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        if self._node is not None and self._node.health.state == "closed":
            return f"node {self._node.name!r} is not open"
        return None if self._application is None else self._application.parts.broken

    def _in_flight(self) -> str:
        if self._application is None:  # no request so far, and no lifespan
            return Frontier("requests", "new", ()).to_json(indent=1)
        return self._application.requests.frontier().to_json(indent=1)
