"""The options of a WebSocket bridge: they are checked here, and decide who may connect."""

from __future__ import annotations

import hmac
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from quiesce.core import arguments
from quiesce.errors import ArgumentError
from quiesce.integrations.acp.sdk_connection import check_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from quiesce.core.scope import Scope

__all__ = ["WebSocketOptions"]

_MESSAGE_BYTES_MAX = 16 * 1024 * 1024
_SESSION_OPTIONS = {"name", "node", "use_unstable_protocol"}


class WebSocketOptions(TypedDict, total=False):
    """The options of `serve_websocket()` and `open_websocket_server()`."""

    path: str | None
    """The only path that is served; None, the default: any path."""
    token: str | Collection[str] | None
    """The token, or tokens, of which clients send one as `Authorization: Bearer …`; None: not needed."""
    origins: Collection[str] | None
    """The web origins that may connect, as browsers send them; by default none; None: all."""
    connections_max: int
    """How many connections are served at a time (100)."""
    message_bytes_max: int
    """The longest message that is accepted (16 MiB)."""
    idle_seconds: float | None
    """After how many seconds without a message or request a connection is closed (300); None: never."""
    grace: float
    """How many seconds running requests have to finish when their client is gone (1)."""
    cleanup: float
    """How many seconds cancelled requests have to clean up (5)."""
    scope: Scope | None
    """The owning scope; by default the current one."""
    agent_options: Mapping[str, Any]
    """Options of the SDK's `run_agent`, such as `use_unstable_protocol`."""
    websockets_options: Mapping[str, Any]
    """Options of `websockets.asyncio.server.serve`, such as `ssl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketSettings:
    """The checked options of one bridge."""

    path: str | None
    tokens: tuple[bytes, ...] | None
    origins: frozenset[str] | None
    connections_max: int
    idle_seconds: float | None
    grace: float
    cleanup: float
    agent_options: Mapping[str, Any]
    listener_options: Mapping[str, Any]

    def refusal(self, path: str, origins: list[str], authorization: list[str]) -> Refusal | None:
        """Return the status and text that refuse a client; None if it may connect."""
        if self.path is not None and path.partition("?")[0] != self.path:
            return 404, "nothing is served here"
        if self.origins is not None and not self.origins.issuperset(origins):
            return 403, "this origin may not connect"
        if self.tokens is not None and not _known(self.tokens, authorization):
            return 401, "a valid token is required"
        return None


Refusal = tuple[int, str]


def settings_of(
    host: str | None, port: int | None, options: Mapping[str, Any]
) -> WebSocketSettings:
    """Return the checked options.

    Raises:
        ArgumentError: An option does not exist, or cannot work.
    """
    unknown = options.keys() - WebSocketOptions.__annotations__
    if unknown:
        known = ", ".join(WebSocketOptions.__annotations__)
        message = f"unknown option {', '.join(sorted(unknown))}; the options are {known}"
        raise ArgumentError(message)
    agent_options = options.get("agent_options", {})
    check_options("run_agent", agent_options.keys() - _SESSION_OPTIONS)
    idle = options.get("idle_seconds", 300.0)
    bytes_max = options.get("message_bytes_max", _MESSAGE_BYTES_MAX)
    return WebSocketSettings(
        path=options.get("path"),
        tokens=_tokens(options.get("token")),
        origins=_origins(options.get("origins", ())),
        connections_max=_at_least_one("connections_max", options.get("connections_max", 100)),
        idle_seconds=None if idle is None else arguments.seconds("idle_seconds", idle),
        grace=arguments.seconds("grace", options.get("grace", 1.0)),
        cleanup=arguments.seconds("cleanup", options.get("cleanup", 5.0)),
        agent_options=agent_options,
        listener_options={
            "host": host,
            "port": port,
            "max_size": _at_least_one("message_bytes_max", bytes_max),
            "compression": None,
            **options.get("websockets_options", {}),
        },
    )


def factory_of(factory: Any) -> Callable[[Any], Any]:
    """Return a function that takes the connection, even if the given factory takes no argument.

    Raises:
        ArgumentError: The factory is not callable, for example because it is an agent.
    """
    if not callable(factory):
        message = (
            "serve_websocket() needs a function or class that makes an agent for each connection,"
            f" not {factory!r}"
        )
        raise ArgumentError(message)
    try:
        inspect.signature(factory).bind()
    except (TypeError, ValueError):
        given: Callable[[Any], Any] = factory
        return given
    return lambda _: factory()


def _known(tokens: tuple[bytes, ...], given: list[str]) -> bool:
    """Return whether a token is known; the time taken does not reveal how much of it matched."""
    if len(given) != 1:
        return False
    scheme, _, token = given[0].partition(" ")
    told = token.strip().encode(errors="surrogateescape")  # a header may have any bytes
    found = [hmac.compare_digest(told, each) for each in tokens]
    return scheme.lower() == "bearer" and any(found)


def _tokens(token: Any) -> tuple[bytes, ...] | None:
    if token is None:
        return None
    tokens = (token,) if isinstance(token, str) else tuple(token)
    if not tokens or not all(_is_token(each) for each in tokens):
        message = (
            "token must be a non-empty ASCII string or a list of them; None lets every client in"
        )
        raise ArgumentError(message)
    return tuple(each.strip().encode() for each in tokens)


def _is_token(token: Any) -> bool:
    return isinstance(token, str) and bool(token.strip()) and token.isascii()


def _origins(origins: Any) -> frozenset[str] | None:
    if isinstance(origins, str):
        message = f"origins must be a list, such as [{origins!r}]; None lets every origin in"
        raise ArgumentError(message)
    return None if origins is None else frozenset(origins)


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{name} must be a number of at least 1, not {value!r}"
        raise ArgumentError(message)
    return value
