"""Allows one fork in each turn of the event loop, so that a hundred starts do not block the loop.

A fork blocks the loop for about a millisecond. Without this queue, tasks that start processes at
the same time would fork one after the other in a single turn of the loop. With it, the first task
forks at once, and each other task in one of the following turns, so other tasks run in between.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.backends import Backend, Waiter


class Turns:
    """The order in which the tasks of one event loop may fork."""

    def __init__(self, backend: Backend) -> None:
        self.backend: Backend = backend
        self.taken: bool = False
        self.queue: deque[Waiter] = deque()

    async def take(self) -> None:
        """Wait for a turn; the caller forks in the step in which this returns.

        *Cancel safety*: if cancelled, no process was started, and the next task gets the turn.
        """
        while self.taken:
            waiter = self.backend.waiter()
            self.queue.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self.queue:
                    self.queue.remove(waiter)
                elif not waiter.cancelled():  # this task has the turn: pass it on
                    self._next()
                raise
        self.taken = True
        if not self.backend.soon(self._next):
            self.taken = False  # the loop has ended, so no task waits for a turn

    def _next(self) -> None:
        self.taken = False
        while self.queue:
            waiter = self.queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


_turns: dict[object, Turns] = {}  # by event loop; trio's guest mode has two loops in one thread


def of(backend: Backend) -> Turns:
    """Return the turns of an event loop."""
    turns = _turns.get(backend.loop)
    if turns is None:
        for loop, old in list(_turns.items()):
            if not old.backend.alive():
                _turns.pop(loop, None)
        turns = _turns[backend.loop] = Turns(backend)
    return turns
