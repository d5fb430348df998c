"""What a streaming client reads from: a job fills it, whether the client reads or not.

The SDK's own stream is read by the client's request. If that stops half way, the SDK's task waits
for it when it ends; and if it is cancelled, so is the cleaning up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from quiesce.core.hold import Hold

__all__: list[str] = []

_ITEMS_MAX = 1024  # as many as the SDK keeps for a slow reader


class Feed:
    """Events on their way to one reader."""

    __slots__ = ("_error", "_left", "_loop", "_over", "_waiter", "hold", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._over = False
        self._left = False
        self.hold: Hold | None = None
        """What keeps the scope from being idle while the stream is work."""

    def put(self, item: Any) -> None:
        """Add an event; if too many wait, the stream ends with an error."""
        if self._left or self._over:
            return
        if len(self.items) >= _ITEMS_MAX:
            self.items.clear()
            self.end(BufferError("the client reads too slowly: ask for the task instead"))
            return
        self.items.append(item)
        if self._waiter is not None:
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """End, with an error or without; only the first time counts."""
        if not self._over:
            self._over = True
            self._error = error
            self._wake()

    def leave(self) -> None:
        """Record that no client reads any more."""
        self._left = True
        self.items.clear()
        self.end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for an event, or raise what the stream has ended with."""
        if self._waiter is not None:
            message = "the stream is being read already"
            raise RuntimeError(message)
        while not self.items:
            if self._over:
                error, self._error = self._error, None
                raise error if error is not None else StopAsyncIteration
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except BaseException:
                self.leave()
                raise
            finally:
                self._waiter = None


class FeedReader(AsyncGenerator[Any, None]):
    """The stream that a client is given; it begins when it is first read.

    A generator in all but name: one of Python's own would be a frame more for every event, and
    leaving it would have to be awaited.
    """

    __slots__ = ("_begin", "_feed")

    def __init__(self, begin: Callable[[], Awaitable[Feed]]) -> None:
        self._begin: Callable[[], Awaitable[Feed]] | None = begin
        self._feed: Feed | None = None

    async def __anext__(self) -> Any:
        feed = self._feed
        if feed is None:
            begin, self._begin = self._begin, None
            if begin is None:
                raise StopAsyncIteration
            feed = self._feed = await begin()
        if not feed.items:
            await feed.wait()
        return feed.items.popleft()

    async def asend(self, value: Any) -> Any:
        """Return the next event; the value is not used."""
        del value
        return await self.__anext__()

    async def athrow(
        self,
        kind: Any,
        error: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        """Leave, and raise what is thrown."""
        self._leave()
        return await super().athrow(kind, error, traceback)

    async def aclose(self) -> None:
        """Leave; what was begun goes on."""
        self._leave()

    def _leave(self) -> None:
        self._begin = None
        if self._feed is not None:
            self._feed.leave()

    def __del__(self) -> None:
        """Leave: no client can read any more."""
        self._leave()
