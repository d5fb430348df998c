"""Marks calls of an SDK whose requests are not messages of a hop, or carry their edge in another way.

The adapters use this: a hop then neither records these requests as untracked nor adds an edge to them.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Self

from quiesce.mesh.clients.sending import within
from quiesce.mesh.runtime.hop import current_hop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__: list[str] = []


def declared(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async function or async generator function whose requests are neither recorded nor messages."""

    @functools.wraps(call)
    def called(*args: Any, **options: Any) -> Any:
        found = call(*args, **options)
        if inspect.iscoroutine(found):
            return _awaited(found)
        return _Events(found) if hasattr(found, "__anext__") else found

    return called


async def _awaited(call: Coroutine[Any, Any, Any]) -> Any:
    token = within.set(current_hop())
    try:
        return await call
    finally:
        within.reset(token)


class _Events:
    """An iterator over an async generator that takes each step in the caller's context."""

    def __init__(self, events: Any) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await _awaited(_next(self._events))

    async def aclose(self) -> None:
        await self._events.aclose()


async def _next(events: Any) -> Any:
    return await anext(events)
