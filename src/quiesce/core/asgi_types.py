"""The types of an ASGI application's three arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__: list[str] = []

Message = MutableMapping[str, Any]
AsgiScope = MutableMapping[str, Any]
"""A scope in the sense of the ASGI specification: the description of one request or connection."""
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
"""An application. Frameworks declare different types for its arguments, so this accepts any."""
