"""What a request of an ASGI app is called, and where its handler is; looked up when people ask."""

from __future__ import annotations

import inspect
from contextlib import suppress
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
    """Return the file and line of the endpoint that a framework has found for a request; else those of the app.

    Starlette, FastAPI and others write the endpoint into the scope of the request.
    """
    method = str(request.get("method", ""))
    code = _code_of(request.get("endpoint"), method) or _code_of(app, "__call__")
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _code_of(target: Any, method: str) -> CodeType | None:
    """Return the code of a function, a method, or what has methods; None if it is none of these."""
    found: Any = None
    with suppress(Exception):  # it is the user's, and may be anything
        while hasattr(target, "func"):
            target = target.func
        target = inspect.unwrap(target)
        if isinstance(target, type):
            target = getattr(target, method.lower(), None) or target.__call__
        own = getattr(target, "__func__", target)
        found = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    return found if inspect.iscode(found) else None
