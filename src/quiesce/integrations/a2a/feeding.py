"""What a streaming client reads from: filled by a job that reads on whether it is read or not.

The SDK's own stream is read by the client's request. If that stops half way, the SDK's task waits
for it when it ends; and if it is cancelled, so is the cleaning up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from quiesce.core.hold import Hold

__all__: list[str] = []

_ITEMS_MAX = 1024  # as many as the SDK keeps for a slow reader


class Feed:
    """Events on their way to one reader."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._over = False
        self._left = False
        self.hold: Hold | None = None
        """What keeps the scope from being idle while the stream is work."""

    def put(self, item: Any) -> None:
        """Add an event; one too many, and the reader has lost the thread."""
        if self._left or self._over:
            return
        if len(self._items) >= _ITEMS_MAX:
            self._items.clear()
            self.end(BufferError("the client reads too slowly: ask for the task instead"))
            return
        self._items.append(item)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """End, with an error or without; only the first time counts."""
        if not self._over:
            self._over = True
            self._error = error
            self._wake()

    def leave(self) -> None:
        """Know that nobody reads any more."""
        self._left = True
        self._items.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            if self._over:
                error, self._error = self._error, None
                raise error if error is not None else StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()
