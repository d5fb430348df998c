"""What a stream can read."""

from __future__ import annotations

import inspect
from typing import Any

from quiesce.core.threads import ThreadCall
from quiesce.errors import ArgumentError

# The coroutines that tasks are made for that read a single item, as `asyncio.wait_for` on 3.11 makes them;
# `stream` adds its own.
SINGLE_READS: set[object] = {ThreadCall._finish.__code__}


def reads_only(task: object) -> bool:
    """Return whether a task was made for a single read: which task reads on is not known then."""
    get_coro = getattr(task, "get_coro", None)
    coro = get_coro() if get_coro is not None else getattr(task, "coro", None)
    return getattr(coro, "cr_code", None) in SINGLE_READS


def is_async_iterable(source: object) -> bool:
    """Return whether it can be read with `async for`, or at least with `anext()`."""
    return hasattr(type(source), "__aiter__") or hasattr(type(source), "__anext__")


def iterator_of(source: Any, stream: str) -> Any:
    """Return the iterator of an async iterable, or of what a function gives when it is called."""
    if not is_async_iterable(source):
        source = source()
        if not is_async_iterable(source):
            if inspect.iscoroutine(source):
                source.close()  # or it would complain that it was never awaited
            kind = type(source).__name__
            message = f"stream {stream!r} needs an async iterable; its function gave a {kind}"
            raise ArgumentError(message)
    return source.__aiter__() if hasattr(type(source), "__aiter__") else source


async def close_source(iterator: Any) -> None:
    """Close a generator, or whatever else can be closed."""
    aclose = getattr(iterator, "aclose", None)
    if aclose is None:
        return
    try:
        await aclose()
    except BaseExceptionGroup as group:
        # What closes a generator is an exception, and a task group around the `yield` puts it into
        # a group, which Python does not recognize any more.
        rest = group.split(GeneratorExit)[1]
        if rest is not None:
            raise rest from None


def without(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """Return what is left of an error; a task group mixes cancellation with other errors."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)[1]
    return None if isinstance(error, kind) else error


async def fail(error: Exception) -> Any:
    """Raise the error of an iterator that has failed before."""
    raise error
