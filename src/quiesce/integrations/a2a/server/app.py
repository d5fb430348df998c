"""A whole A2A server in a few lines: `quiesce_app` builds an app with card, routes and a lifespan that drains."""

from __future__ import annotations

import asyncio
import inspect
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

# Options of the SDK's handler that `quiesce_app` sets from its own options.
_SET_BY = {"agent_executor": "quiesce_app(agent, card=card)", "task_store": "store="}


def quiesce_app(  # noqa: PLR0913 - each option has a useful default
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
    """Return a Starlette app that serves an agent and drains without losing tasks or pushes.

    ```python
    app = quiesce_app(Agent(), card=card, store=store, outbox="pushes.db")
    ```

    Serve it with `uvicorn app:app`. A `Quiesce` wraps the whole app. On SIGTERM it waits for the accepted
    tasks to end, stores a terminal state for the rest, and then passes the signal to the server. The
    request handler is `app.state.a2a`. The push sender, with its dead letters, is `app.state.push_sender`.

    Args:
        agent: The agent's executor.
        card: The agent's card. In 1.x, clients of 0.3 are served too if it has an interface of version 0.3.
        store: The task store. Without one, tasks are in memory, and a restart loses them.
        outbox: A file, an outbox, or a whole `DurablePushSender`, for push notifications. Without an
            outbox no pushes are sent, and tasks that a crash leaves open are not ended.
        allow_private: Whether pushes may go to private and loopback addresses: False, True, or the
            networks that they may go to. Set it on the `DurablePushSender` if `outbox` is a sender.
        grace: How many seconds tasks, open requests and hops may take to end after SIGTERM.
        cleanup: How many more seconds cancelled tasks may take to clean up, and the last pushes to be sent.
        rpc: The path at which JSON-RPC is served.
        rest: The path below which REST is served, if you set one. (In 0.3 it needs FastAPI.)
        routes: More routes, matched before the SDK's.
        node: The node of this agent, if the agent takes part in cascades. Its card then declares the
            extension, and each message of a cascade becomes a hop.
        notice: As for `Quiesce`, like the next two.
        hold_signal: Whether SIGTERM is held back from the server until the app is drained.
        exit_code: Whether the process exits with 1 if anything was lost.
        options: More options of the SDK's handler. Without a `push_config_store`, push configurations
            are kept in memory; those of open tasks are in the outbox as well.

    *Raises*: `ArgumentError` if an option is not valid; `SdkMissing` if Starlette is not installed.
    """
    _check(card, rpc, rest, options)
    if (sender := _sender(outbox, allow_private)) is not None:
        options.setdefault("push_sender", sender)
    if node is not None:
        from quiesce.integrations.a2a.mesh.extension import declare_cascades  # noqa: PLC0415 - only with a node

        card = declare_cascades(card, node)
        options["node"] = node
    handler = _handler(agent, card, store, grace, cleanup, options)

    served = [*routes, *_routes(handler, card, rpc, rest)]
    app = _starlette()(routes=served, lifespan=partial(_lifespan, handler, grace, cleanup))
    _add_layers(
        app, node, grace=grace, cleanup=cleanup, notice=notice, hold_signal=hold_signal,
        exit_code=exit_code,
    )  # fmt: skip
    app.state.a2a = handler
    app.state.push_sender = options.get("push_sender")
    return app


def _check(card: object, rpc: str, rest: str | None, options: dict[str, Any]) -> None:
    """Raise an error if the card, a path or an option is not valid."""
    _check_options(options)
    if not isinstance(card, AgentCard):
        message = f"card must be an AgentCard of a2a.types, not {type(card).__name__}"
        raise ArgumentError(message)
    for name, path in (("rpc", rpc), ("rest", rest)):
        if path and not path.startswith("/"):
            message = f"{name} must be a path that begins with '/', not {path!r}"
            raise ArgumentError(message)


def _check_options(options: dict[str, Any]) -> None:
    """Raise an error for an option that neither `quiesce_app` nor the SDK's handler has.

    *Raises*: `ArgumentError`, which lists all options.
    """
    own = inspect.signature(quiesce_app).parameters
    inner = inspect.signature(options.get("handler_class") or versions.Default).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in inner.values())
    handler_options = {*inner, "handler_class"} - {*own, "agent_executor", "task_store"}
    for name in options:
        if name in _SET_BY:
            message = f"{name!r} is not an option of quiesce_app(): write {_SET_BY[name]}"
            raise ArgumentError(message)
        if name not in handler_options and not takes_all:
            message = (
                f"{name!r} is not an option of quiesce_app(), which has: {', '.join(list(own)[1:-1])};"
                f" nor of the SDK's request handler, which has: {', '.join(sorted(handler_options))}"
            )
            raise ArgumentError(message)


@asynccontextmanager
async def _lifespan(
    handler: QuiescentRequestHandler, grace: float, cleanup: float, _: Any
) -> AsyncIterator[None]:
    async with handler:
        with _draining_at_interrupt(handler, grace, cleanup):
            yield


def _add_layers(app: Any, node: Node | None, **options: Any) -> None:
    """Add two layers to an app: the innermost opens hops, and the outermost drains the whole app."""
    if node is not None:
        from quiesce.mesh.transport.asgi_front import CascadeInside  # noqa: PLC0415 - as above

        app.add_middleware(CascadeInside, node=node)
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: Quiesce(build(), **options)
    app.drains_server = True  # see Quiesce


def _sender(outbox: Any, allow_private: bool | Iterable[str]) -> DurablePushSender | None:  # noqa: FBT001 - an option
    """Return the push sender for an outbox; None without an outbox."""
    if isinstance(outbox, DurablePushSender) or outbox is None:
        if allow_private is not False:
            message = (
                "allow_private has no effect here, because outbox is neither a file nor an Outbox:"
                " pass allow_private= to the DurablePushSender, or pass outbox="
            )
            raise ArgumentError(message)
        return outbox
    return DurablePushSender(outbox, allow_private=allow_private)


def _starlette() -> Any:
    try:
        from starlette.applications import Starlette  # noqa: PLC0415 - only for apps
    except ImportError:
        message = "quiesce_app needs Starlette, which is not installed: pip install 'a2a-sdk[http-server]'"
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
    """Return whether an interface of the card is for clients of 0.3."""
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
def _draining_at_interrupt(
    handler: QuiescentRequestHandler, grace: float, cleanup: float
) -> Iterator[None]:
    """Start the drain at Ctrl-C; the server gets the signal too.

    The server ends the lifespan only after all open requests. An open request may wait for its task, so the
    drain cannot wait for the end of the lifespan.
    """
    loop = asyncio.get_running_loop()
    draining: set[asyncio.Task[Any]] = set()

    def begin() -> None:
        with detached():  # a signal may interrupt any code, also in the context of a hop
            if not draining:
                draining.add(loop.create_task(handler.drain(grace=grace, cleanup=cleanup)))

    with heard(loop.call_soon_threadsafe, begin, (signal.SIGINT,)):
        yield
