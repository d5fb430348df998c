"""The name of a request of an ASGI app, and the place of its handler. Reports and frontiers look them up when shown."""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

__all__: list[str] = []

_NAME_MAX = 200


def handler_name(request: Mapping[str, Any]) -> str:
    """Return the method and the path of a request."""
    return f"{request.get('method', '')} {request.get('path', '')}".strip()[:_NAME_MAX]


def handler_place(app: Any, request: Mapping[str, Any]) -> str | None:
    """Return the file and line of a request's endpoint or, if the framework does not tell, of the app.

    Starlette, FastAPI and others write the endpoint into the request's ASGI scope. Return None for code that is not Python.
    """
    code = _endpoint_code(request) or app_code(app)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


class HandlerCode:
    """A stand-in for the code object of a request's handler, which is looked up at each read.

    It is needed because a request begins before its framework has found the endpoint.
    """

    __slots__ = ("_app", "_request")

    def __init__(self, app: CodeType, request: Mapping[str, Any]) -> None:
        """Use the code of the app until the request has an endpoint."""
        self._app = app
        self._request = request

    def co_lines(self) -> tuple[tuple[int, int, int | None], ...]:
        """Return an empty table of lines, so that the place shown is the first line of the function."""
        return ()

    def __getattr__(self, name: str) -> Any:
        return getattr(_endpoint_code(self._request) or self._app, name)


def app_code(app: Any) -> CodeType | None:
    """Return the code object of an app; None if it is not written in Python."""
    return _code_of(app, "__call__")


def _endpoint_code(request: Mapping[str, Any]) -> CodeType | None:
    return _code_of(request.get("endpoint"), str(request.get("method", "")))


def _code_of(target: Any, method: str) -> CodeType | None:
    """Return the code object of a function, a method, or a method of an object or class; None for other objects."""
    found: Any = None
    with suppress(Exception):  # `target` comes from the user, and may be any object
        while isinstance(target, partial):
            target = target.func
        target = inspect.unwrap(target)
        if isinstance(target, type):
            target = getattr(target, method.lower(), None) or target.__call__
        own = getattr(target, "__func__", target)
        found = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    return found if inspect.iscode(found) else None
