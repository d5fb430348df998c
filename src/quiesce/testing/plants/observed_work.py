"""Coroutines under observation: what became of them, whoever ran them and however they ended.

A plant has to know the fate of what it planted without asking the system under test. So the
coroutine tells it by itself; and one that was dropped before its first step, which cannot, is
known by its state.
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

_TURNS_MAX = 1000  # of the event loop: a task that was let go ends in a few


class ObservedWork:
    """An async function that can be started once, and what became of it.

    Call it where an async function is wanted: it gives a coroutine. Its name is the name given.
    """

    def __init__(self, name: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Describe it; `body` is what it does."""
        self.__name__ = self.__qualname__ = name
        self._body = body
        self._outcome: State = "cut"  # unless it gets to its end
        self._created: Coroutine[Any, Any, None] | None = None  # and not begun
        self._running: weakref.ref[Coroutine[Any, Any, None]] | None = None
        self.begun: anyio.Event = anyio.Event()
        self.task_name: str | None = None
        """What the task is called that runs it."""

    def __call__(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine."""
        coro = self._run()
        named: Any = coro
        named.__name__ = named.__qualname__ = self.__name__  # the repr of its task has it
        self._created = coro
        # Weakly: an observer must not keep alive what the system under test has dropped.
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
        """Whether anybody has made a coroutine of it."""
        return self._running is not None

    @property
    def state(self) -> State:
        """Whether it is alive, or has finished, or was cut short; alive if it was never called."""
        if self._running is None:
            return "alive"
        coro = self._running()
        if coro is not None and inspect.getcoroutinestate(coro) != inspect.CORO_CLOSED:
            return "alive"
        return self._outcome

    def discard(self) -> None:
        """Close a coroutine that was made and never begun, so that it does not complain."""
        if self._created is not None:
            self._created.close()
            self._created = None

    async def ended(self) -> None:
        """Wait some turns of the event loop, if need be, for the end of what was let go."""
        for _ in range(_TURNS_MAX):
            if not self.called or self.state != "alive":
                break
            await anyio.lowlevel.checkpoint()
        self.discard()
        await anyio.lowlevel.checkpoint()  # its task ends a step later
