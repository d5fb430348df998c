"""A coroutine that records how it ended.

A plant must learn the fate of its task without asking the system under test. So the coroutine
records its end itself. A coroutine that was dropped before its first step cannot do that; its state
shows it.
"""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__: list[str] = []

State = Literal["alive", "finished", "cut", "refused"]

_TURNS_MAX = 1000  # turns of the event loop to wait; a released task ends in a few


class ObservedWork:
    """An async function that can be started once, and the record of how it ended.

    Use it in place of an async function: calling it returns a coroutine of the given name.
    """

    def __init__(self, name: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.__name__ = self.__qualname__ = name
        self._body = body
        self._outcome: State = "cut"  # unless the work reaches its end
        self._created: Coroutine[Any, Any, None] | None = None  # made and not begun
        self._running: weakref.ref[Coroutine[Any, Any, None]] | None = None
        self.begun: anyio.Event = anyio.Event()
        self.task_name: str | None = None
        """The name of the task that runs it."""

    def __call__(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that does the work."""
        coro = self._run()
        named: Any = coro
        named.__name__ = named.__qualname__ = self.__name__  # shown in the repr of its task
        self._created = coro
        # A weak reference: the observer must not keep alive what the system under test has dropped.
        self._running = weakref.ref(coro)
        return coro

    async def _run(self) -> None:
        self._created = None
        self.task_name = anyio.get_current_task().name
        self.begun.set()
        await self._body()
        self._outcome = "finished"

    @property
    def called(self) -> bool:
        """Whether a coroutine has been made of it."""
        return self._running is not None

    @property
    def state(self) -> State:
        """Whether the work is alive, has finished, or was cut short; alive if it was never called."""
        if self._running is None:
            return "alive"
        coro = self._running()
        if coro is not None and inspect.getcoroutinestate(coro) != inspect.CORO_CLOSED:
            return "alive"
        return self._outcome

    def discard(self) -> None:
        """Close a coroutine that was made and never begun, to avoid Python's warning."""
        if self._created is not None:
            self._created.close()
            self._created = None

    async def ended(self) -> None:
        """Wait a few turns of the event loop, if necessary, for the end of released work."""
        for _ in range(_TURNS_MAX):
            if not self.called or self.state != "alive":
                break
            await anyio.lowlevel.checkpoint()
        self.discard()
        await anyio.lowlevel.checkpoint()  # its task ends a step later
