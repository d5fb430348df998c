"""One fork a turn of the event loop: a hundred starts at once must not hold up everything else.

A fork takes about a millisecond, in which nothing else runs. Tasks that start processes at the
same time would do so one after the other in a single turn of the loop. Here the first goes
ahead at once, and the others in the turns that follow, in between what else there is to do.
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

        *Cancel safety*: nothing was started; the turn goes to the next.
        """
        while self.taken:
            waiter = self.backend.waiter()
            self.queue.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self.queue:
                    self.queue.remove(waiter)
                elif not waiter.cancelled():  # it was given the turn
                    self._next()
                raise
        self.taken = True
        if not self.backend.soon(self._next):
            self.taken = False  # the loop is at its end: nobody waits for a turn

    def _next(self) -> None:
        self.taken = False
        while self.queue:
            waiter = self.queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


_turns: dict[
    object, Turns
] = {}  # of each event loop; there may be two in a thread (trio's guest mode)


def of(backend: Backend) -> Turns:
    """Return the turns of an event loop."""
    turns = _turns.get(backend.loop)
    if turns is None:
        for loop, old in list(_turns.items()):
            if not old.backend.alive():
                _turns.pop(loop, None)
        turns = _turns[backend.loop] = Turns(backend)
    return turns
