"""What a stream accepts as its source: how it is started, closed, and told apart."""

from __future__ import annotations

import inspect
from typing import Any

from quiesce.core.threads import ThreadCall
from quiesce.errors import ArgumentError

# The code of coroutines that exist to read a single item, as `asyncio.wait_for` on 3.11 starts one in a
# task; `stream` adds its own.
SINGLE_READS: set[object] = {ThreadCall.run_to_end.__code__}


def reads_only(task: object) -> bool:
    """Return whether a task exists for a single read. The task that reads on is then unknown."""
    get_coro = getattr(task, "get_coro", None)
    coro = get_coro() if get_coro is not None else getattr(task, "coro", None)
    return getattr(coro, "cr_code", None) in SINGLE_READS


def is_async_iterable(source: object) -> bool:
    """Return whether the object can be read with `async for`, or at least with `anext()`."""
    return hasattr(type(source), "__aiter__") or hasattr(type(source), "__anext__")


def iterator_of(source: Any, stream: str) -> Any:
    """Return the iterator of an async iterable, or of the async iterable that a function returns."""
    if not is_async_iterable(source):
        source = source()
        if not is_async_iterable(source):
            if inspect.iscoroutine(source):
                source.close()  # avoids the warning "was never awaited"
            kind = type(source).__name__
            message = f"stream {stream!r} needs an async iterable; its function returned a {kind}"
            raise ArgumentError(message)
    return source.__aiter__() if hasattr(type(source), "__aiter__") else source


async def close_source(iterator: Any) -> None:
    """Close a generator, or any other object that has `aclose()`."""
    aclose = getattr(iterator, "aclose", None)
    if aclose is None:
        return
    try:
        await aclose()
    except BaseExceptionGroup as group:
        # Closing raises GeneratorExit in the generator. A task group around the `yield` wraps it
        # in an exception group, which Python does not recognize as the end of the generator.
        rest = group.split(GeneratorExit)[1]
        if rest is not None:
            raise rest from None


def without(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """Return what remains of an error without a kind; a task group mixes cancellation and other errors."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)[1]
    return None if isinstance(error, kind) else error


async def fail(error: Exception) -> Any:
    """Raise an error that the iterator raised earlier."""
    raise error
