"""A whole A2A server in a few lines: card, routes, and a lifespan that drains."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from quiesce.core.current import detached
from quiesce.core.signals import heard
from quiesce.errors import SdkMissing
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.handler import QuiescentRequestHandler
from quiesce.integrations.a2a.pushing import DurablePushSender

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable, Iterator

    from quiesce.integrations.a2a.outbox import Outbox
    from quiesce.mesh.node import Node

__all__ = ["quiesce_app"]


def quiesce_app(  # noqa: PLR0913 - each has a default that does
    agent: Any,
    *,
    card: Any,
    store: Any = None,
    outbox: str | os.PathLike[str] | Outbox | DurablePushSender | None = None,
    drain: float = 30.0,
    cleanup: float = 5.0,
    rpc: str = "/",
    rest: str | None = None,
    routes: Iterable[Any] = (),
    watch_signals: bool = True,
    node: Node | None = None,
    **options: Any,
) -> Any:
    """Build a Starlette app that serves an agent, and loses neither tasks nor pushes.

    ```python
    app = quiesce_app(Agent(), card=card, store=store, outbox="pushes.db")
    ```

    `uvicorn app:app` then serves it. On SIGTERM it refuses new messages, lets the accepted tasks
    end, and gives a terminal state to the rest. The handler is `app.state.a2a`; what sends pushes,
    and has their dead letters, is `app.state.push_sender`.

    Args:
        agent: The agent's executor.
        card: The agent's card. In 1.x, one with an interface of protocol version 0.3 has clients of
            0.3 served as well.
        store: Where tasks are kept; in memory by default, where a restart forgets them.
        outbox: A file, or an outbox, or a whole `DurablePushSender`, for push notifications;
            without one, none are sent, and nothing is known of tasks after a crash.
        drain: How many seconds tasks may take to end after SIGTERM.
        cleanup: How many more what was cut short may take, and the last pushes.
        rpc: Where JSON-RPC is served.
        rest: Below which path REST is served; not at all by default. (In 0.3 it needs FastAPI.)
        routes: More routes, asked before those of the SDK.
        watch_signals: Whether to begin with the signal itself. Servers wait for open requests
            before they end the lifespan, and an open request may be waiting for its task.
        node: The node of this agent, if it takes part in cascades: its card says so, messages that are
            part of one become hops, and the node is open while the app is.
        options: For the SDK's handler. Push configurations are kept in memory, unless there is a
            `push_config_store`; those of tasks that have not ended are in the outbox as well.

    *Raises*: `SdkMissing` if Starlette is not installed.
    """
    if outbox is not None:
        sender = outbox if isinstance(outbox, DurablePushSender) else DurablePushSender(outbox)
        options.setdefault("push_sender", sender)
    if node is not None:
        from quiesce.integrations.a2a.mesh import declare_cascades  # noqa: PLC0415 - for those alone

        card = declare_cascades(card, node)
        options["node"] = node
    handler = _handler(agent, card, store, drain, cleanup, options)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with handler:
            with _watching(handler, drain, cleanup, wanted=watch_signals):
                yield

    app = _starlette()(routes=[*routes, *_routes(handler, card, rpc, rest)], lifespan=lifespan)
    if node is not None:
        _join(app, node)
    app.state.a2a = handler
    app.state.push_sender = options.get("push_sender")
    return app


def _join(app: Any, node: Node) -> None:
    """Have an app take part in the mesh: its innermost part opens hops, its outermost answers nodes."""
    from quiesce.mesh.front import CascadeFront, CascadeInside  # noqa: PLC0415 - same

    app.add_middleware(CascadeInside, node=node)
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: CascadeFront(node, build())


def _starlette() -> Any:
    try:
        from starlette.applications import Starlette  # noqa: PLC0415 - only for apps
    except ImportError:
        message = "quiesce_app needs Starlette: pip install 'a2a-sdk[http-server]'"
        raise SdkMissing(message, name="starlette") from None
    return Starlette


def _handler(
    agent: Any,
    card: Any,
    store: Any,
    drain: float,
    cleanup: float,
    options: dict[str, Any],
) -> QuiescentRequestHandler:
    from a2a.server.tasks import (  # noqa: PLC0415 - only for apps
        InMemoryPushNotificationConfigStore,
        InMemoryTaskStore,
    )

    if "push_sender" in options:
        options.setdefault("push_config_store", InMemoryPushNotificationConfigStore())
    if versions.FIRST:
        options.setdefault("agent_card", card)
    return QuiescentRequestHandler(
        agent_executor=agent,
        task_store=InMemoryTaskStore() if store is None else store,
        drain_seconds=drain,
        cleanup_seconds=cleanup,
        **options,
    )


def _routes(handler: Any, card: Any, rpc: str, rest: str | None) -> list[Any]:
    if not versions.FIRST:
        return _old_routes(handler, card, rpc, rest)
    from a2a.server import routes  # noqa: PLC0415 - only for apps, and not in 0.3

    old = {"enable_v0_3_compat": any(map(_is_old, card.supported_interfaces))}
    made = [
        *routes.create_agent_card_routes(card),
        *routes.create_jsonrpc_routes(handler, rpc, **old),
    ]
    if rest is not None:
        made += routes.create_rest_routes(handler, path_prefix=rest, **old)
    return made


def _is_old(interface: Any) -> bool:
    """Tell whether clients of 0.3 are told that they may talk to it."""
    return bool(interface.protocol_version.startswith("0."))


def _old_routes(handler: Any, card: Any, rpc: str, rest: str | None) -> list[Any]:
    from a2a.server.apps import A2AStarletteApplication  # noqa: PLC0415 - not in 1.x
    from starlette.routing import Mount  # noqa: PLC0415 - only for apps

    made: list[Any] = A2AStarletteApplication(card, handler).routes(rpc_url=rpc)
    if rest is not None:
        from a2a.server.apps import A2ARESTFastAPIApplication  # noqa: PLC0415 - the same

        made.append(Mount(rest, app=A2ARESTFastAPIApplication(card, handler).build()))
    return made


@contextmanager
def _watching(
    handler: QuiescentRequestHandler,
    drain: float,
    cleanup: float,
    *,
    wanted: bool,
) -> Iterator[None]:
    """Begin the drain with the signal, and leave the signal to the server as well."""
    if not wanted:
        yield
        return
    loop = asyncio.get_running_loop()
    draining: set[asyncio.Task[Any]] = set()

    def begin() -> None:
        with detached():  # a signal comes in the midst of anything, the handler's own tasks too
            if not draining:
                draining.add(loop.create_task(handler.drain(within=drain, cleanup=cleanup)))

    with heard(loop.call_soon_threadsafe, begin):
        yield
