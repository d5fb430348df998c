"""Close the generators that a generator reads, in the task that began them.

With `async for x in inner(): yield x` in an async generator, closing the outer generator does not
close `inner()`: it is dropped, and Python passes it to the event loop's hook, which closes it in
another task. While a pump's task runs, a hook of the pump collects such generators, and the pump
closes them.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator


def is_handling(body: object, kind: type[BaseException]) -> bool:
    """Return whether a task's body is in an `except` or `finally` block for a kind of exception.

    The task object cannot be used for this: it runs `Nested.run_body`, which hides the body.
    """
    chain = callsites.links(body)
    return any(isinstance(found, kind) for link in chain for found in gc.get_referents(link))


class Nested:
    """Generators that were begun in one task and dropped before their end."""

    __slots__ = ("_finalizer", "_over", "dropped")

    def __init__(self) -> None:
        self.dropped: list[AsyncGenerator[Any, Any]] = []
        self._finalizer: Any = None  # the event loop's hook
        self._over = False

    def _take(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Keep a dropped generator. Python may call this in any thread, and after `end()`."""
        if not self._over:
            self.dropped.append(generator)
        elif self._finalizer is not None:
            self._finalizer(generator)

    @types.coroutine
    def run_body(self, body: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Run the body of a task; the hook is installed only while the body runs."""
        resume: Any = body.send
        argument: Any = None
        while True:
            before = sys.get_asyncgen_hooks()
            self._finalizer = before.finalizer
            sys.set_asyncgen_hooks(finalizer=self._take)
            try:
                awaited = resume(argument)
            except StopIteration:
                return
            finally:
                sys.set_asyncgen_hooks(finalizer=before.finalizer)
            try:
                argument = yield awaited
                resume = body.send
            except BaseException as error:  # noqa: BLE001 - every exception belongs to the body
                resume, argument = body.throw, error

    async def close(self, close: Callable[[Any], Awaitable[None]]) -> None:
        """Close the generators dropped so far, each one even if another fails; closing may drop more."""
        errors: list[BaseException] = []
        while self.dropped:
            try:
                await close(self.dropped.pop())
            except BaseException as error:  # noqa: BLE001 - raised below, when all are closed
                errors.append(error)
        if len(errors) > 1:
            message = "generators inside the generator failed to close"
            raise BaseExceptionGroup(message, errors)
        if errors:
            raise errors[0]

    def end(self) -> None:
        """Pass generators that are dropped from now on to the event loop: this task ends."""
        self._over = True
