"""Async generators that any task may read, leave and close.

A plain async generator runs in the task that happens to step it. If the reader leaves it half-read, by
`break` or because it was cancelled, the garbage collector closes it later, in yet another task.
Whatever is open around its `yield` breaks, and no task waits for its `finally`. A stream runs the
whole generator in one job of a scope instead; `pump` has that job.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from quiesce.core import arguments
from quiesce.core.owner import owner_of
from quiesce.core.python_private import get_frame
from quiesce.errors import ArgumentError
from quiesce.streams.pump import Pump
from quiesce.streams.sources import SINGLE_READS, is_async_iterable

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable
    from types import TracebackType

    from quiesce.core.scope import Scope

__all__ = ["Stream", "stream"]

T = TypeVar("T")


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

    Nothing starts before the first read. From then on the stream is work in flight of the scope
    until the generator has ended. It ends by itself, or because it is closed: by `aclose()`, at the
    end of an `async with` block, by the scope's close, when the stream is dropped, or when its reader is
    cancelled.

    Differences from a plain generator:

    - The generator runs in its own task. It sees the context variables as they were at the first
      read; the reader does not see variables that the generator sets.
    - A reader that is cancelled while it waits for an item ends the generator, as with a plain
      generator. But the reader does not wait: the generator ends in its own task, and the scope
      waits for it.
    - Closing the stream in the middle of a step cancels that step, even if it is the generator's own
      cleanup, which reading ahead may have reached. (A plain generator cannot be closed in a step.) On
      trio a cancellation persists: a `finally` that awaits has to be shielded, as in every task.

    Args:
        source: An async generator or another async iterable; or a function without arguments that
            returns one. The stream's own task calls the function.
        buffer: The number of items to read ahead. 0: the generator runs only while a reader waits.
            Items that are buffered when the stream is closed are dropped.
        resumable: Whether the stream stays open when its reader is cancelled. The next reader then gets
            the item, so `asyncio.wait_for(anext(stream), 15)` may be tried again.
        scope: The owning scope; the current scope by default.
        name: The stream's name in frontiers, reports and errors; the generator's name by default.

    *Raises*: `ScopeClosed` if the scope has begun to close, now or at the first read, except for
    work that is being drained; `UsageError` if no scope is open here.
    """
    called = _check_source(source)
    if name is not None:
        called = arguments.check_text("name", name)
    _check_buffer(buffer)
    owner = owner_of("a stream", scope)
    pump: Pump[T] = Pump(owner, source, buffer, called, get_frame(1))
    return Stream(pump, resumable=bool(resumable))


def _check_buffer(buffer: object) -> None:
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
        message = f"buffer must be a number of items, 0 or more, not {buffer!r}"
        raise ArgumentError(message)


def _check_source(source: object) -> str:
    """Return the source's name. Raise `ArgumentError` if it cannot be read."""
    if inspect.iscoroutine(source):
        name: str = source.__qualname__
        source.close()  # avoids the warning "was never awaited"
        message = f"{name}(…) is a coroutine: a stream needs an async generator, with `yield`"
        raise ArgumentError(message)
    if not is_async_iterable(source) and (not callable(source) or isinstance(source, type)):
        message = f"{source!r} is neither an async iterable nor a function that returns one"
        raise ArgumentError(message)
    return str(getattr(source, "__qualname__", type(source).__qualname__))


class Stream(Generic[T]):
    """An async iterator whose source runs in its own task; made by `stream()`.

    One task at a time may read; any task may close. As an async context manager it closes at the
    end of the block. A stream that is dropped before its end closes too: the scope waits for
    that, and no task is notified.
    """

    __slots__ = ("_pump", "_resumable")

    def __init__(self, pump: Pump[T], *, resumable: bool = False) -> None:
        """Wrap a pump; use `stream()` instead."""
        self._pump = pump
        self._resumable = resumable

    @property
    def name(self) -> str:
        """The name given to `stream()`, or the generator's name."""
        return self._pump.name

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Wait for the next item.

        *Cancel safety*: if cancelled, the stream is closed, and the cancellation is passed on at once.
        A resumable stream stays open, and the next reader gets the item.

        *Raises*: the generator's error, once, then `StopAsyncIteration`; `ScopeClosed` if the
        scope has closed the stream; `JobCancelled` if another task cancelled the stream's task;
        `UsageError` if another task is reading, or if the generator reads itself.
        """
        pump = self._pump
        items = pump.items
        if not items or pump.waiting_reader is not None:
            try:
                await pump.read()
            except pump.backend.cancelled:
                await self._abandoned()
                raise
        if len(items) <= pump.wake_at_items:
            pump.wake()
        return items.popleft()

    async def _abandoned(self) -> None:
        """Close the stream because its reader was cancelled; do not leave it to the garbage collector.

        The exception refers to this frame, and this frame to the stream. A program that keeps the
        exception, or a task that ended with it, would otherwise keep the generator running.
        """
        if not self._resumable:
            self._pump.close()

    async def aclose(self) -> None:
        """End the generator, and wait until its `finally` blocks have run in its own task.

        Any task may call it, any number of times. A generator that never began runs no code.

        *Cancel safety*: if cancelled, the closing continues and the scope waits for it; the
        cancellation is passed on at once.

        *Raises*: the error that the generator raises while it is closed; `UsageError` if the
        generator itself calls this.
        """
        self._pump.check_here()
        await self._pump.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close as `aclose()` does."""
        await self.aclose()

    def __del__(self) -> None:
        """Close the stream: no task can read it any longer.

        The garbage collector may call this in any thread and at any point, so it only posts the close.
        """
        pump: Pump[T] | None = getattr(self, "_pump", None)
        if pump is not None:
            pump.was_dropped()

    def __repr__(self) -> str:
        return f"<Stream {self._pump.name!r} {self._pump.state}>"


SINGLE_READS.add(Stream.__anext__.__code__)
