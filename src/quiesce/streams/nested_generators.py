"""Generators inside a generator: closed where they were begun.

`async for x in inner(): yield x` in an async generator does not close `inner()` when the outer one
is closed: it is dropped, and Python hands it to the event loop's hook, which closes it in another
task. While a pump's task runs, its own hook takes such generators, and the pump closes them.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator


def handles(body: object, kind: type[BaseException]) -> bool:
    """Return whether a task's body is handling an exception of a kind, in an `except` or a `finally`.

    `Nested.own` hides the body from a look at the task itself.
    """
    chain = callsites.links(body)
    return any(isinstance(found, kind) for link in chain for found in gc.get_referents(link))


class Nested:
    """The generators that were begun in one task and dropped half-read."""

    __slots__ = ("_finalizer", "_over", "dropped")

    def __init__(self) -> None:
        self.dropped: list[AsyncGenerator[Any, Any]] = []
        self._finalizer: Any = None  # the event loop's
        self._over = False

    def _take(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Keep what was dropped; Python calls it, perhaps in another thread or after our end."""
        if not self._over:
            self.dropped.append(generator)
        elif self._finalizer is not None:
            self._finalizer(generator)

    @types.coroutine
    def own(self, body: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Run the body of a task, with our hook in force while it runs, and no longer."""
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
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the body's
                resume, argument = body.throw, error

    async def close(self, close: Callable[[Any], Awaitable[None]]) -> None:
        """Close what was dropped so far, each although another failed; closing may drop more."""
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
        """Leave to the event loop what is dropped from now on: this task ends."""
        self._over = True
