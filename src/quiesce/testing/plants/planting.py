"""Put a task into a system under test, to see what the system's shutdown does with it.

If a planted task survives your shutdown and your gate stays green, the gate proves nothing.
The code that shuts down does not know the plant, so the plant observes the fate of its task itself:

- *finished*: the task came to its end;
- *cut*: the task is gone, and did not come to its end;
- *refused*: the system raised an error instead of starting the task;
- *alive*: none of these.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.lowlevel

from quiesce.core import arguments
from quiesce.core.backends import running_backend
from quiesce.core.scope import Scope
from quiesce.errors import UsageError
from quiesce.testing.plants.observed_work import ObservedWork

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from quiesce.testing.plants.observed_work import State

__all__ = ["PLANTS", "Planted", "plant"]

Way: TypeAlias = "Callable[[Any, Any], Any]"

ABOUT: dict[str, str] = {
    "task": "a task in the middle of an await",
    "stubborn task": "a task that swallows cancellation",
    "late start": "a task that is started during the close",
}
PLANTS: tuple[str, ...] = tuple(ABOUT)
"""The kinds of tasks that `plant()` can plant."""

_BEGIN_SECONDS = 10.0  # how long a planted task may take to begin
_numbers = itertools.count(1)


@asynccontextmanager
async def plant(
    target: object, kind: str = "task", *, seconds: float = 0.2, by: Way | None = None
) -> AsyncIterator[Planted]:
    """Put a task into a system, and remove it at the end of the block.

    ```python
    async with plant(scope, "task") as planted:
        report = await scope.aclose()
        assert not planted.alive()
    ```

    Args:
        target: A `Scope`; or any other object, in which case the task is put into the event loop without
            an owner, where that is possible.
        kind: One of `PLANTS`. `"task"`: a task that awaits, and soon ends by itself.
            `"stubborn task"`: a task that swallows every cancellation. `"late start"`: a task that
            starts another task in the same place when it ends, however it ends.
        seconds: How long the work takes if it ends by itself.
        by: How to put a task into a target that is not a scope: a function, async or not, that is
            called with the target and an async function to start.

    At the end of the block the task has ended, whatever the shutdown did.

    *Cancel safety*: if cancelled, the task is removed as well.

    *Raises*: `UsageError` if the task cannot be planted there, or does not begin.
    """
    arguments.one_of("kind", kind, PLANTS)
    planted = Planted(target, kind, arguments.seconds("seconds", seconds), by)
    try:
        await planted.put()
        yield planted
    finally:
        with anyio.CancelScope(shield=True):
            await planted.remove()


class Planted:
    """A task that was planted; returned by `plant()`."""

    def __init__(self, target: object, kind: str, seconds: float, way: Way | None) -> None:
        self.kind: str = kind
        """One of `PLANTS`."""
        self.name: str = f"planted {kind} {next(_numbers)}"
        """The name of its task."""
        self.refusal: Exception | None = None
        """The error that the system raised when the late task was to start."""
        self.late: ObservedWork | None = None
        """The late task, if the kind is a late start."""
        self._target = target
        self._seconds = seconds
        self._way = way
        self._release = anyio.Event()
        self._tasks: list[object] = []  # strong references: there may be no others
        name, body = self.name, self._swallow if kind == "stubborn task" else self._work
        if kind == "late start":
            # A shutdown that cancels what it finds may be over before the late task begins. Only a
            # shutdown that refuses new work, or looks again, catches the late task.
            self.late = ObservedWork(self.name, self._work)
            name, body = f"starter of {self.name!r}", self._start_late
        self._work_planted = ObservedWork(name, body)

    @property
    def state(self) -> State:
        """The state of the task: alive, finished, cut (short) or refused."""
        if self.refusal is not None:
            return "refused"
        return (self.late or self._work_planted).state

    def alive(self) -> bool:
        """Return whether the task is still in flight."""
        return self.state == "alive"

    def is_named_in(self, text: str) -> bool:
        """Return whether a text names the planted task, or the task that runs it."""
        late = self.late
        running = late if late is not None and late.called else self._work_planted
        names = [self.name, *filter(None, [running.task_name])]
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)

    async def put(self) -> None:
        """Start the task, and wait until it is in its await."""
        await self._start(self._work_planted)
        with anyio.move_on_after(_BEGIN_SECONDS):
            await self._work_planted.begun.wait()
            await anyio.lowlevel.checkpoint()  # the task reaches its await
            return
        message = f"{ABOUT[self.kind]} was planted but did not begin within {_BEGIN_SECONDS:.0f} s: does the target run it?"
        raise UsageError(message)

    def release(self) -> None:
        """Release the task: it ends in this step or soon."""
        self._release.set()

    async def remove(self) -> None:
        """End the task, and wait until it has ended."""
        self.release()
        await self._work_planted.ended()
        if self.late is not None:
            await self.late.ended()

    async def _start(self, work: ObservedWork) -> None:
        """Start work in the caller's way if there is one, else in the scope, else without an owner."""
        if self._way is not None:
            given: object = self._way(self._target, work)
            if inspect.iscoroutine(given):  # not a task that the function has started
                await given
        elif isinstance(self._target, Scope):
            self._tasks.append(self._target.spawn(work, name=work.__name__))
        elif running_backend().name == "trio":
            message = "on trio every task has a nursery that owns it: pass by=, a function that starts the task"
            raise UsageError(message)
        else:
            self._tasks.append(asyncio.create_task(work(), name=work.__name__))

    # The bodies of the tasks.

    async def _work(self) -> None:
        with anyio.move_on_after(self._seconds):
            await self._release.wait()

    async def _swallow(self) -> None:
        while not self._release.is_set():
            with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                await self._release.wait()

    async def _start_late(self) -> None:
        try:
            await self._work()
        except GeneratorExit:
            raise  # collected: a coroutine cannot await or start anything here
        except BaseException:
            await self._try_late()
            raise
        await self._try_late()

    async def _try_late(self) -> None:
        assert self.late is not None  # noqa: S101 - only a late start comes here
        if self._release.is_set():
            return
        try:
            with anyio.CancelScope(shield=True):
                await self._start(self.late)
        except Exception as error:  # noqa: BLE001 - any error of the system under test is a refusal
            self.refusal = error
            self.late.discard()
