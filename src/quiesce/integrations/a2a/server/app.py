"""A whole A2A server in a few lines: card, routes, and a lifespan that drains."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from a2a.types import AgentCard

from quiesce.core.current import detached
from quiesce.core.signals import heard
from quiesce.errors import ArgumentError, SdkMissing
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.push.push_sender import DurablePushSender
from quiesce.integrations.a2a.server.request_handler import QuiescentRequestHandler
from quiesce.integrations.asgi import Quiesce

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterable, Iterator

    from quiesce.integrations.a2a.push.push_outbox import Outbox
    from quiesce.mesh.runtime.node import Node

__all__ = ["quiesce_app"]


def quiesce_app(  # noqa: PLR0913 - each has a default that does
    agent: Any,
    *,
    card: Any,
    store: Any = None,
    outbox: str | os.PathLike[str] | Outbox | DurablePushSender | None = None,
    allow_private: bool | Iterable[str] = False,
    grace: float = 30.0,
    cleanup: float = 5.0,
    rpc: str = "/",
    rest: str | None = None,
    routes: Iterable[Any] = (),
    node: Node | None = None,
    notice: float = 0.0,
    hold_signal: bool = True,
    exit_code: bool = True,
    **options: Any,
) -> Any:
    """Build a Starlette app that serves an agent, and loses neither tasks nor pushes.

    ```python
    app = quiesce_app(Agent(), card=card, store=store, outbox="pushes.db")
    ```

    `uvicorn app:app` then serves it. Its outermost part is a `Quiesce`: SIGTERM lets the accepted tasks
    end, gives a terminal state to the rest, and only then reaches the server. The handler is
    `app.state.a2a`; what sends pushes, and has their dead letters, is `app.state.push_sender`.

    Args:
        agent: The agent's executor.
        card: The agent's card. In 1.x, an interface of version 0.3 on it serves clients of 0.3, too.
        store: Where tasks are kept; in memory by default, where a restart forgets them.
        outbox: A file, or an outbox, or a whole `DurablePushSender`, for push notifications;
            without one, none are sent, and nothing is known of tasks after a crash.
        allow_private: Whether pushes may go to private and loopback addresses: False, True, or the
            networks that they may go to. Only with an `outbox` that is not a `DurablePushSender`.
        grace: How many seconds tasks, open requests and hops may take to end after SIGTERM.
        cleanup: How many more what was cut short may take, and the last pushes.
        rpc: Where JSON-RPC is served.
        rest: Below which path REST is served; not at all by default. (In 0.3 it needs FastAPI.)
        routes: More routes, asked before those of the SDK.
        node: The node of this agent, if it takes part in cascades: its card says so, and messages that
            are part of one become hops.
        notice: As for `Quiesce`, and so are the next two.
        hold_signal: Whether SIGTERM is held back from the server until the app is drained.
        exit_code: Whether the process exits with 1 if anything was lost.
        options: For the SDK's handler. Push configurations are kept in memory, unless there is a
            `push_config_store`; those of open tasks are in the outbox as well.

    *Raises*: `ArgumentError` if an option cannot be; `SdkMissing` if Starlette is not installed.
    """
    _check(card, rpc, rest)
    if (sender := _sender(outbox, allow_private)) is not None:
        options.setdefault("push_sender", sender)
    if node is not None:
        from quiesce.integrations.a2a.mesh.extension import declare_cascades  # noqa: PLC0415 - only with a node

        card = declare_cascades(card, node)
        options["node"] = node
    handler = _handler(agent, card, store, grace, cleanup, options)

    served = [*routes, *_routes(handler, card, rpc, rest)]
    app = _starlette()(routes=served, lifespan=partial(_lifespan, handler, grace, cleanup))
    _wrap(
        app, node, grace=grace, cleanup=cleanup, notice=notice, hold_signal=hold_signal,
        exit_code=exit_code,
    )  # fmt: skip
    app.state.a2a = handler
    app.state.push_sender = options.get("push_sender")
    return app


def _check(card: object, rpc: str, rest: str | None) -> None:
    """Refuse a card that is not one, and paths that are not."""
    if not isinstance(card, AgentCard):
        message = f"card must be an AgentCard of a2a.types, not {type(card).__name__}"
        raise ArgumentError(message)
    for name, path in (("rpc", rpc), ("rest", rest)):
        if path and not path.startswith("/"):
            message = f"{name} must be a path that begins with '/', and is {path!r}"
            raise ArgumentError(message)


@asynccontextmanager
async def _lifespan(
    handler: QuiescentRequestHandler, grace: float, cleanup: float, _: Any
) -> AsyncIterator[None]:
    async with handler:
        with _hearing_interrupts(handler, grace, cleanup):
            yield


def _wrap(app: Any, node: Node | None, **options: Any) -> None:
    """Make the innermost part of an app open hops, and the outermost drain all of it."""
    if node is not None:
        from quiesce.mesh.transport.asgi_front import CascadeInside  # noqa: PLC0415 - as above

        app.add_middleware(CascadeInside, node=node)
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: Quiesce(build(), **options)
    app.drains_server = True  # see Quiesce


def _sender(outbox: Any, allow_private: bool | Iterable[str]) -> DurablePushSender | None:  # noqa: FBT001 - an option
    """Make what sends pushes, if there is an outbox."""
    if isinstance(outbox, DurablePushSender) or outbox is None:
        if allow_private is not False:
            message = (
                "allow_private is for an outbox that is a file or an Outbox: give it to the"
                " DurablePushSender, or give an outbox"
            )
            raise ArgumentError(message)
        return outbox
    return DurablePushSender(outbox, allow_private=allow_private)


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
    grace: float,
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
        grace=grace,
        cleanup=cleanup,
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
    """Return whether clients of 0.3 are told that they may talk to it."""
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
def _hearing_interrupts(
    handler: QuiescentRequestHandler, grace: float, cleanup: float
) -> Iterator[None]:
    """Begin the drain with Ctrl-C, which is not held back from the server.

    The server waits for open requests before it ends the lifespan, and an open request may be waiting for
    its task.
    """
    loop = asyncio.get_running_loop()
    draining: set[asyncio.Task[Any]] = set()

    def begin() -> None:
        with detached():  # a signal comes in the midst of anything, the handler's own tasks too
            if not draining:
                draining.add(loop.create_task(handler.drain(grace=grace, cleanup=cleanup)))

    with heard(loop.call_soon_threadsafe, begin, (signal.SIGINT,)):
        yield
