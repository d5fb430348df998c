"""Async generators that may be read, left and closed from any task.

A plain async generator runs in whatever task happens to step it. Left half-read, by `break` or by
a reader that was cancelled, it is closed by the garbage collector, in yet another task, at some
later time: what it has open around its `yield` breaks, and nobody waits for its `finally`. Here a
job of a scope does all of it; pump.py is that job.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from quiesce.core import arguments
from quiesce.core.owner import owner_of
from quiesce.errors import ArgumentError
from quiesce.streams.pump import Pump
from quiesce.streams.sources import SINGLE_READS, is_async_iterable

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable
    from types import TracebackType

    from quiesce.core.scope import Scope

__all__ = ["Stream", "stream"]

T = TypeVar("T")

_getframe = sys._getframe


def stream(
    source: AsyncIterable[T] | AsyncIterator[T] | Callable[[], AsyncIterable[T]],
    *,
    buffer: int = 0,
    resumable: bool = False,
    scope: Scope | None = None,
    name: str | None = None,
) -> Stream[T]:
    """Read an async generator through a job of a scope, so that any task may read and close it.

    ```python
    async for message in stream(client.messages()):
        if message.final:
            break  # the generator's `finally` runs in its own task, and the scope waits for it
    ```

    Nothing is started before the first read. From then on the stream is in flight in the scope
    until the generator has ended, by itself or because it was closed: by `aclose()`, by the end of
    an `async with`, by the scope's close, by dropping the stream, or because its reader was cancelled.

    What differs from a plain generator:

    - It runs in its own task, and sees the context variables as they were at the first read; what
      it sets is not seen by the reader.
    - A reader that is cancelled while it waits for an item ends the generator, as it ends a plain
      one. But the reader does not wait: the generator ends in its own task, and the scope waits.
    - Closing it in the middle of a step cancels that step, be it the generator's own cleanup: a
      buffer may have brought it there. (A plain generator cannot be closed then.) On trio a
      cancellation lasts: a `finally` that awaits after that has to be shielded, as in every task.

    Args:
        source: An async generator, or any other async iterable; or a function without arguments
            that gives one, which is called in the stream's own task.
        buffer: How many items are read ahead. 0: the generator runs only while somebody waits.
            What is buffered when the stream is closed is dropped.
        resumable: Whether a cancelled reader leaves the stream open. Then the item that it waited for
            is the next reader's, and `asyncio.wait_for(anext(stream), 15)` may be tried again.
        scope: Whose work it is; the current scope by default.
        name: What it is called in frontiers, reports and errors; the generator's name by default.

    *Raises*: `ScopeClosed` if the scope's closing has begun, now or at the first read, except for
    work that is being drained; `UsageError` if no scope is open here.
    """
    called = _check_source(source)
    if name is not None:
        called = arguments.check_text("name", name)
    _check_buffer(buffer)
    owner = owner_of("a stream", scope)
    pump: Pump[T] = Pump(owner, source, buffer, called, _getframe(1))
    return Stream(pump, resumable=bool(resumable))


def _check_buffer(buffer: object) -> None:
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
        message = f"buffer must be a number of items, 0 or more, not {buffer!r}"
        raise ArgumentError(message)


def _check_source(source: object) -> str:
    """Return the name of what is to be read, if it can be."""
    if inspect.iscoroutine(source):
        name: str = source.__qualname__
        source.close()  # or it would complain that it was never awaited
        message = f"{name}(…) is a coroutine: a stream needs an async generator, with `yield`"
        raise ArgumentError(message)
    if not is_async_iterable(source) and (not callable(source) or isinstance(source, type)):
        message = f"{source!r} is neither an async iterable nor a function that gives one"
        raise ArgumentError(message)
    return str(getattr(source, "__qualname__", type(source).__qualname__))


class Stream(Generic[T]):
    """An async iterator whose source runs in a task of its own; made by `stream()`.

    One task at a time may read; any task may close. It is also an async context manager that
    closes at the end of the block. Dropped before its end, it closes as well, but nobody is told
    when: the scope waits for it.
    """

    __slots__ = ("_pump", "_resumable")

    def __init__(self, pump: Pump[T], *, resumable: bool = False) -> None:
        """Make a handle of a stream; use `stream()`."""
        self._pump = pump
        self._resumable = resumable

    @property
    def name(self) -> str:
        """The name given to `stream()`, or the generator's."""
        return self._pump.name

    def __aiter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> T:
        """Wait for the next item.

        *Cancel safety*: if cancelled, the stream is closed; the cancellation is passed on at once.
        A resumable stream stays open, and the item is the next reader's.

        *Raises*: what the generator raises, once, then `StopAsyncIteration`; `ScopeClosed` if the
        scope has closed the stream; `JobCancelled` if its task was cancelled by others;
        `UsageError` if somebody else reads, or the generator itself.
        """
        pump = self._pump
        items = pump._items
        if not items or pump._reader is not None:
            try:
                await pump.read()
            except pump._backend.cancelled:
                await self._abandoned()
                raise
        if len(items) <= pump._wake_from:
            pump.wake()
        return items.popleft()

    async def _abandoned(self) -> None:
        """Close the stream, as its reader was cancelled; here, and not when the stream is collected.

        The exception refers to this frame, and this frame to the stream. A program that keeps the
        exception, or a task that ended with it, would keep the generator running.
        """
        if not self._resumable:
            self._pump.close()

    async def aclose(self) -> None:
        """End the generator, and wait until its `finally` blocks have run, in its own task.

        Any task may call it, any number of times. One that never began runs nothing.

        *Cancel safety*: the closing goes on, and the scope waits for it; the cancellation is
        passed on at once.

        *Raises*: what the generator raises while it is closed; `UsageError` from the generator
        itself.
        """
        self._pump.check_here()
        await self._pump.wait_closed()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close, as `aclose()` does."""
        await self.aclose()

    def __del__(self) -> None:
        """Close it: no code can read it any longer.

        It may be collected in any thread, and in the middle of anything, so this only posts.
        """
        pump: Pump[T] | None = getattr(self, "_pump", None)
        if pump is not None:
            pump.was_dropped()

    def __repr__(self) -> str:
        """Name the stream and how it stands."""
        return f"<Stream {self._pump.name!r} {self._pump.state}>"


SINGLE_READS.add(Stream.__anext__.__code__)
