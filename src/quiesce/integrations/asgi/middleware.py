"""`Quiesce`, the middleware, and how it handles each kind of call."""

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

_MARK = "quiesce"  # a key in the ASGI scope of a call: the `Quiesce` that handles the call
_PROBES = {"GET", "HEAD"}
_KINDS = {"lifespan", "http", "websocket"}


class Quiesce:
    """An ASGI app that is drained on SIGTERM and reports what was lost.

    ```python
    app = Quiesce(app, grace=30)
    ```

    Every request has a scope. On asyncio the scope adopts all tasks that the handler starts; tasks that still
    run after the response go on below the app's scope. On SIGTERM:

    1. The readiness path answers 503 at once. New requests are still served for `notice` seconds.
    2. New requests are refused (503 with `Retry-After`). Open requests, streams, background tasks and hops of
       the mesh have `grace` seconds. The work that is left then is cancelled and reported.
    3. The server gets the signal. The exit code is 1 if work was lost.

    The beginning and the report are logged (`quiesce.asgi`), or written to standard error if logging is not
    configured. A handler can wait for the drain: `await quiesce.current_scope().closing()`.

    `Quiesce` must be the outermost wrapper of the app. Wrappers inside (`node.asgi()`, an A2A handler, another
    `Quiesce`) leave the drain to it: its times apply, and its report includes their work.

    Args:
        app: The ASGI application.
        grace: How many seconds open requests, WebSockets, background tasks and hops have to finish.
        cleanup: How many seconds cancelled work may take to clean up.
        node: The app's node in a mesh, as in `node.asgi(app)`: messages of cascades become hops. The node is
            open from before the app's startup until the drain is over.
        notice: How many seconds after SIGTERM new requests are still served, so that load balancers have
            time to notice the readiness path.
        hang_up: How many seconds a WebSocket goes on in a drain before its app receives
            `websocket.disconnect`, code 1001; None: shortly before the deadline.
        services: Patterns (as in `fnmatch`) of names that are loops, not work: of requests that never
            end by themselves (`"GET /events"`, `"WS /feed"`), and of adopted tasks. A drain does not wait
            for them, and ending them is not a loss. In hops they apply like those of `Node(services=…)`: a
            verdict does not wait for such a task.
        retry_after: The number of seconds in `Retry-After`.
        ready: The path of the readiness probe; None: no probe.
        frontier: The path that shows the work in flight as JSON; True: `/quiesce/frontier`; None, the
            default: no such path. It shows paths and source lines, so do not make it public.
        hold_signal: Whether SIGTERM is held back from the server until the app is drained. If not, the
            drain begins when the server shuts its lifespan down.
        exit_code: Whether the process exits with 1 if work was lost.
        name: The app's name in frontiers and reports.

    Raises:
        ArgumentError: an option cannot work, or `app` is not an ASGI application.
        TypeError: the second argument is a node; pass it as `node=`.
    """

    drains_server = True
    """Shows `Node.asgi()` that this app drains its server, so that no node may be put around it."""

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
        """Wrap an application; nothing is opened before the server's first call."""
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
        self._entry: App = self._handle  # inside a `CascadeFront`, if the app has a node

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the app, so that `app.state` still works after `app = Quiesce(app)`.

        *Raises*: `AttributeError` if the app has no such attribute.
        """
        if name.startswith("_"):  # private names, also those that are read before `__init__`
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(self.app, name)

    # Asking.

    @property
    def scope(self) -> Scope | None:
        """The scope of all requests and of the work that they have left running; None before the startup."""
        return None if self._application is None else self._application.requests

    @property
    def draining(self) -> bool:
        """Whether the drain has begun."""
        return self._application is not None and self._application.draining

    @property
    def report(self) -> Report | None:
        """How everything has ended; None until the drain is over."""
        return None if self._application is None else self._application.report

    async def drain(self) -> Report:
        """Stop as on SIGTERM, the notice included, but leave the server running.

        *Cancel safety*: if cancelled, the drain goes on.

        *Raises*: `UsageError` if the app does not run in this event loop.
        """
        application = self._application
        if application is None or not application.is_open:
            message = "the app does not run in this event loop: there is nothing to drain"
            raise UsageError(message)
        return await application.stopped("drain()", notice=self._settings.notice)

    # Serving.

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Handle a call of the server: a lifespan, a request or a WebSocket.

        *Cancel safety*: if cancelled, the app is cancelled, and has ended before the cancellation is passed on.
        """
        kind = scope["type"]
        if _MARK in scope or kind not in _KINDS:
            # Another `Quiesce` around this one handles the call.
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
        """Answer calls of other nodes even during a drain, because draining hops need their receipts."""
        from quiesce.mesh.transport.asgi_front import CascadeFront  # noqa: PLC0415 - only with a node

        self._entry = CascadeFront(node, self._entry, inside=self.app)

    @staticmethod
    async def _refuse_order(receive: Receive, send: Send) -> None:
        """Fail the startup, because a node around this app would be drained separately.

        *Raises*: always `UsageError`.
        """
        from quiesce.mesh.transport.asgi_server import WRONG_ORDER  # noqa: PLC0415 - as above

        await receive()
        await send({"type": "lifespan.startup.failed", "message": WRONG_ORDER})
        raise UsageError(WRONG_ORDER)

    async def _serve(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve a request without a lifespan or during a drain. These cases are rare."""
        application = self._application
        if application is not None and not application.serves and application.refuses:
            await answers.refuse_request(scope, send, self._settings.retry_after)
            return
        if application is None or not application.is_open:
            # The app is mounted below another app, or the server has no lifespan: the run is open while the app has work.
            application = await Application.open(self._settings, lives=False)
            self._application = application
        try:
            await RequestExchange(application, self.app, scope, receive, send).run()
        finally:
            if not application.lives:
                await application.close_if_idle()

    def _is_own(self, scope: AsgiScope) -> bool:
        """Return whether the middleware itself answers a request."""
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
        if self._application is None:  # there was no lifespan and no request yet
            return Frontier("requests", "new", ()).to_json(indent=1)
        return self._application.requests.frontier().to_json(indent=1)
