"""The event stream that a streaming client reads from; a job fills it, also if the client stops reading.

The SDK's own stream runs in the client's request. If the client stops reading it halfway, the SDK's task
cannot end. If the request is cancelled, the SDK's cleanup is cancelled too. So the request handler reads
the SDK's stream in a job, and gives the client a stream of this module.
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

_ITEMS_MAX = 1024  # the SDK's own limit for a slow reader


class Feed:
    """A queue of events for one reader."""

    __slots__ = ("_error", "_has_ended", "_left", "_loop", "_waiter", "hold", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._has_ended = False
        self._left = False
        self.hold: Hold | None = None
        """Keeps the scope from being idle until the task ends or waits for its client."""

    def put(self, item: Any) -> None:
        """Add an event; if too many events wait, end the stream with an error."""
        if self._left or self._has_ended:
            return
        if len(self.items) >= _ITEMS_MAX:
            self.items.clear()
            message = (
                f"the stream has ended: the client has not read {_ITEMS_MAX} events;"
                " get the task to see its state"
            )
            self.end(BufferError(message))
            return
        self.items.append(item)
        if self._waiter is not None:
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, with an error or without; only the first call has an effect."""
        if not self._has_ended:
            self._has_ended = True
            self._error = error
            self._wake()

    def leave(self) -> None:
        """Record that the client has stopped reading, and drop the events."""
        self._left = True
        self.items.clear()
        self.end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for an event, or raise the error that the stream has ended with."""
        if self._waiter is not None:
            message = "another task is reading this stream: read it in one task at a time"
            raise RuntimeError(message)
        while not self.items:
            if self._has_ended:
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
    """The stream that the client's request reads; the work begins when the first event is read.

    It has the methods of an asynchronous generator. A real generator would cost one more frame for every
    event, and would have to be closed with `await`.
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
        """Return the next event; the sent value is ignored."""
        del value
        return await self.__anext__()

    async def athrow(
        self,
        kind: Any,
        error: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        """Stop reading, and raise the given exception."""
        self._leave()
        return await super().athrow(kind, error, traceback)

    async def aclose(self) -> None:
        """Stop reading; the task goes on."""
        self._leave()

    def _leave(self) -> None:
        self._begin = None
        if self._feed is not None:
            self._feed.leave()

    def __del__(self) -> None:
        """Stop reading, because nothing refers to this stream any more."""
        self._leave()
