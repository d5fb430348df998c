"""Calls of an SDK that are no messages, or carry their edge in another way: what they send in a hop is accounted for."""

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
    """Return the same function, async or an async generator, whose requests are neither noticed nor messages."""

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
    """What an async generator yields; an iterator of its own, so that each step is taken in the caller's context."""

    def __init__(self, events: Any) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await _awaited(_next(self._events))

    async def aclose(self) -> None:
        """Close the generator."""
        await self._events.aclose()


async def _next(events: Any) -> Any:
    return await anext(events)
