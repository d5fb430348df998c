"""Checks the options of the middleware, and the application that it wraps."""

from __future__ import annotations

import fnmatch
import inspect
import re
from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.core.handler_naming import app_code
from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import CodeType

    from quiesce.core.asgi_types import App, AsgiScope, Receive, Send

__all__: list[str] = []

FRONTIER_PATH = "/quiesce/frontier"
_TELL_SHARE = 0.1  # the share of the grace that a WebSocket's app has after its disconnect
_ASGI_PARAMETERS = 3


class MiddlewareSettings:
    """The checked options of one middleware, which are those of `Quiesce`."""

    __slots__ = (
        "cleanup", "code", "exit_code", "grace", "hang_up", "hold_signal", "is_service",
        "name", "notice", "own_paths", "ready", "retry_after", "services",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - each is an option
        self,
        app: object,
        *,
        name: str,
        grace: float,
        cleanup: float,
        notice: float,
        hang_up: float | None,
        services: Iterable[str],
        retry_after: int,
        ready: str | None,
        frontier: str | bool | None,
        hold_signal: bool,
        exit_code: bool,
    ) -> None:
        number: object = retry_after
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            message = (
                f"retry_after must be a whole number of seconds, 0 or more, not {retry_after!r}"
            )
            raise ArgumentError(message)
        self.retry_after: int = retry_after
        self.name: str = arguments.check_text("name", name)
        self.grace: float = arguments.seconds("grace", grace)
        self.cleanup: float = arguments.seconds("cleanup", cleanup)
        self.notice: float = arguments.seconds("notice", notice)
        asked = self.grace if hang_up is None else arguments.seconds("hang_up", hang_up)
        self.hang_up: float = min(asked, self.grace * (1 - _TELL_SHARE))
        self.services: tuple[str, ...] = tuple(arguments.patterns("services", services))
        found = re.compile("|".join(map(fnmatch.translate, self.services)) or r"(?!)")
        self.is_service: Callable[[str], object] = found.fullmatch
        self.ready: str | None = _path("ready", ready)
        shown = _path("frontier", FRONTIER_PATH if frontier is True else frontier or None)
        self.own_paths: frozenset[str | None] = frozenset((self.ready, shown)) - {None}
        self.hold_signal: bool = hold_signal
        self.exit_code: bool = exit_code
        self.code: CodeType = app_code(app) or awaitable.__code__
        """The place of the app's code, for reports."""


def _path(what: str, value: str | None) -> str | None:
    if value is not None and not arguments.check_text(what, value).startswith("/"):
        message = f"{what} must be a path that begins with '/', or None, not {value!r}"
        raise ArgumentError(message)
    return value


def check_app(app: object) -> None:
    """Raise unless `app` can be called like an ASGI application."""
    if not callable(app):
        hint = ": import it, and pass the application itself" if isinstance(app, str) else ""
        message = f"Quiesce() wraps an ASGI application, not {app!r}{hint}"
        raise ArgumentError(message)
    if isinstance(app, type):
        message = (
            f"Quiesce() wraps an ASGI application, not the class {app.__name__}: make an instance"
        )
        raise ArgumentError(message)
    try:
        inspect.signature(app).bind(*[None] * _ASGI_PARAMETERS)
    except TypeError:
        message = (
            f"{app!r} is not an ASGI application: it cannot be called as app(scope, receive, send)"
        )
        raise ArgumentError(message) from None
    except ValueError:
        pass  # a function written in C has no signature


def check_place(grace: object) -> None:
    """Raise if a node is passed as the grace."""
    if hasattr(grace, "asgi"):
        message = (
            f"the second argument of Quiesce() is the grace in seconds, not {grace!r}:"
            " write Quiesce(app, node=node)"
        )
        raise TypeError(message)


def check_bare(app: object, *, is_quiesce: bool) -> None:
    """Raise if `app` drains its server itself: a node must be part of that drain, so it is passed to that app."""
    if hasattr(app, "drains_server"):
        given, instead = (
            ("Quiesce(Quiesce(app), node=node)", "Quiesce(app, node=node), once")
            if is_quiesce
            else ("Quiesce(quiesce_app(agent), node=node)", "quiesce_app(agent, node=node)")
        )
        message = (
            f"{given}: the inner app already drains its server, and the node must be part of that drain."
            f" Write {instead}"
        )
        raise ArgumentError(message)


def awaitable(app: App, scope: AsgiScope, receive: Receive, send: Send) -> Awaitable[None]:
    """Call an application, and check that it is async."""
    made: Any = app(scope, receive, send)
    if not hasattr(made, "__await__"):
        message = (
            f"{app!r} is not an ASGI application: it returned {made!r}, which cannot be awaited"
        )
        raise ArgumentError(message)
    called: Awaitable[None] = made
    return called
