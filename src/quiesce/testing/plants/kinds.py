"""The kinds of things that can be planted: how each is put into flight, seen, and taken out.

Whoever shuts down knows nothing of the plant. So each kind sees its own fate with its own eyes:

- *finished*: it came to its end, or was ended as such a thing should be;
- *cut*: it is gone, and did not come to its end;
- *refused*: it was not let in, and whoever brought it was told;
- *alive*: none of these.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import anyio
import anyio.lowlevel

from quiesce.channels.channel import Channel
from quiesce.core.backends import running_backend
from quiesce.core.scope import Scope
from quiesce.errors import UsageError
from quiesce.streams.stream import Stream, stream
from quiesce.testing.plants.observed_work import ObservedWork, renamed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from quiesce.core.hold import Hold
    from quiesce.testing.plants.observed_work import State

__all__: list[str] = []

Way: TypeAlias = "Callable[[Any, Any], Any]"

BEGIN_SECONDS = 10.0  # for what was planted to begin
_numbers = itertools.count(1)


class NotApplicable(UsageError):  # noqa: N818 - it says what is so, and is no fault
    """There is no way to plant this kind into such a target; `why` says it in short."""

    def __init__(self, kind: str, why: str) -> None:
        """Carry the reason."""
        super().__init__(f"{why}: plant it by a way of your own, by={{{kind!r}: …}}")
        self.why: str = why


class Planted(ABC):
    """Something that was put into flight; given by `plant()`."""

    kind: ClassVar[str]
    """What it is called in `PLANTS`."""
    about: ClassVar[str]
    """The same in words."""

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it; nothing is in flight yet."""
        self.name: str = f"planted {self.kind} {next(_numbers)}"
        self._target = target
        self._seconds = seconds
        self._way = way
        self._release = anyio.Event()

    # Asking.

    @property
    @abstractmethod
    def state(self) -> State:
        """What became of it: alive, finished, cut (short) or refused."""

    def alive(self) -> bool:
        """Return whether it is still in flight."""
        return self.state == "alive"

    def is_named_in(self, text: str) -> bool:
        """Return whether a text speaks of it."""
        return any(mentions(text, name) for name in self._names())

    def _names(self) -> list[str]:
        return [self.name]

    # Planting and removing.

    async def put(self) -> None:
        """Put it into flight: by the caller's own way, else into the scope, else unowned."""
        if self._way is not None:
            await self._put_by(self._way)
        elif isinstance(self._target, Scope):
            await self._put_into(self._target)
        else:
            await self._put_alone()

    @abstractmethod
    async def _put_by(self, way: Way) -> None:
        """Put it into the target as the caller says."""

    @abstractmethod
    async def _put_into(self, scope: Scope) -> None:
        """Put it into a scope."""

    @abstractmethod
    async def _put_alone(self) -> None:
        """Put it into the event loop, owned by nobody."""

    def let_go(self) -> None:
        """End it, in this step or soon, whatever it has to swallow for that."""
        self._release.set()

    @abstractmethod
    async def remove(self) -> None:
        """End it, and wait until it has ended."""

    # For the kinds.

    async def _work(self) -> None:
        """Run for a while."""
        with anyio.move_on_after(self._seconds):
            await self._release.wait()

    async def _ask(self, way: Way, seed: object) -> object:
        """Plant by the caller's way, which may be async."""
        given: object = way(self._target, seed)
        # Only a coroutine: a way that starts a task may well return the task.
        return await given if inspect.iscoroutine(given) else given

    def _cannot(self, why: str) -> NotApplicable:
        return NotApplicable(self.kind, why)


class PlantedTask(Planted):
    """A task that is in the middle of an await, and would end by itself before long."""

    kind = "task"
    about = "a task in the middle of an await"

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it."""
        super().__init__(target, seconds, way)
        self.work: ObservedWork = ObservedWork(self.name, self._body)
        self._tasks: list[object] = []  # strongly: nobody else might

    async def _body(self) -> None:
        await self._work()

    @property
    def state(self) -> State:
        """What became of it."""
        return self.work.state

    def _names(self) -> list[str]:
        return [self.name, *self._task_names(self.work)]

    def _task_names(self, work: ObservedWork) -> list[str]:
        return [] if work.task_name is None else [work.task_name]

    async def _put_by(self, way: Way) -> None:
        await self._ask(way, self.work)
        await self._begun()

    async def _put_into(self, scope: Scope) -> None:
        self._start_in(scope, self.work)
        await self._begun()

    async def _put_alone(self) -> None:
        self._start_alone(self.work)
        await self._begun()

    def _start_in(self, scope: Scope, work: ObservedWork) -> None:
        self._tasks.append(scope.spawn(work, name=work.__name__))

    def _start_alone(self, work: ObservedWork) -> None:
        if running_backend().name == "trio":
            raise self._cannot("on trio every task has a nursery that owns it")
        self._tasks.append(asyncio.create_task(work(), name=work.__name__))

    async def _begun(self) -> None:
        with anyio.move_on_after(BEGIN_SECONDS):
            await self.work.begun.wait()
            await anyio.lowlevel.checkpoint()  # it is in its await now
            return
        message = f"{self.about} was planted, and has not begun within {BEGIN_SECONDS:.0f} s"
        raise UsageError(message)

    async def remove(self) -> None:
        """End the work, and wait for its end."""
        self.let_go()
        await self.work.ended()


class PlantedStubbornTask(PlantedTask):
    """A task that swallows every cancellation, and never ends until the plant is removed."""

    kind = "stubborn task"
    about = "a task that swallows cancellation"

    async def _body(self) -> None:
        while not self._release.is_set():
            with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                await self._release.wait()


class PlantedLateStart(PlantedTask):
    """A task whose end, however it ends, starts another one in the same place.

    A shutdown that cancels what it finds is over before the other one begins, or is not; only one
    that refuses, or looks again, has it.
    """

    kind = "late start"
    about = "a task that is started during the close"

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it."""
        super().__init__(target, seconds, way)
        self.late: ObservedWork = ObservedWork(self.name, self._work)
        self.work.__name__ = self.work.__qualname__ = f"starter of {self.late.__name__!r}"
        self.refusal: Exception | None = None

    async def _body(self) -> None:
        try:
            await self._work()
        except GeneratorExit:
            raise  # collected: nothing can be awaited, nor started, here
        except BaseException:
            await self._start_late()
            raise
        else:
            await self._start_late()

    async def _start_late(self) -> None:
        if self._release.is_set():
            return
        try:
            if self._way is not None:
                with anyio.CancelScope(shield=True):
                    await self._ask(self._way, self.late)
            elif isinstance(self._target, Scope):
                self._start_in(self._target, self.late)
            else:
                self._start_alone(self.late)
        except Exception as error:  # noqa: BLE001 - whatever the system under test refuses with
            self.refusal = error
            self.late.discard()

    @property
    def state(self) -> State:
        """What became of the late one; alive, if the first one is."""
        if self.refusal is not None:
            return "refused"
        return self.late.state

    def _names(self) -> list[str]:
        # Of the one that starts it, as long as that is what is alive.
        return [self.name, *self._task_names(self.late if self.late.called else self.work)]

    async def remove(self) -> None:
        """End both, and wait for their ends."""
        await super().remove()
        await self.late.ended()


class PlantedStream(Planted):
    """An async generator that was read once and left, with something open around its `yield`.

    Nobody wants the rest. It is *finished* when its `finally` has run to the end.
    """

    kind = "unread stream"
    about = "a stream that nobody reads to its end"

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it."""
        super().__init__(target, seconds, way)
        self._generator: AsyncGenerator[str, None] | None = None
        self._stream: Stream[str] | None = None
        self._state: State = "alive"
        self._read = False

    def _open(self) -> AsyncGenerator[str, None]:
        self._generator = renamed(self._generate(), self.name)
        return self._generator

    async def _generate(self) -> AsyncGenerator[str, None]:
        try:
            self._read = True
            yield self.name
            yield self.name
        finally:
            self._state = "cut"
            await anyio.lowlevel.checkpoint()  # as a connection's goodbye would
            self._state = "finished"

    @property
    def state(self) -> State:
        """What became of it."""
        return self._state

    async def _put_by(self, way: Way) -> None:
        await self._ask(way, self._open)
        if not self._read:
            message = "the stream was to be read once by the way that plants it, and was not"
            raise UsageError(message)

    async def _put_into(self, scope: Scope) -> None:
        self._stream = stream(self._open, scope=scope, name=self.name)
        await anext(self._stream)

    async def _put_alone(self) -> None:
        await anext(self._open())

    async def remove(self) -> None:
        """Close it, unless somebody does at this moment."""
        if self._stream is not None:
            await self._stream.aclose()
        elif self._generator is not None:
            with suppress(RuntimeError):
                await self._generator.aclose()


class PlantedItem(Planted):
    """An item in a queue that nobody reads."""

    kind = "queued item"
    about = "an item in a queue without a reader"

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it."""
        super().__init__(target, seconds, way)
        self._channel: Channel[str] | None = None
        self._there: Callable[[], bool] = bool

    @property
    def state(self) -> State:
        """What became of it."""
        if self._channel is None:
            return "alive" if self._there() else "finished"
        if self._channel.undelivered:
            return "cut"
        return "alive" if len(self._channel) else "finished"

    async def _put_by(self, way: Way) -> None:
        self._there = question(self, await self._ask(way, self.name))

    async def _put_into(self, scope: Scope) -> None:
        self._channel = Channel[str](1, name=self.name, scope=scope)
        await self._channel.send(self.name)

    async def _put_alone(self) -> None:
        raise self._cannot("nobody can know of a queue that belongs to nobody")

    async def remove(self) -> None:
        """Take it out again, if it is still in the scope's channel."""
        if self._channel is not None and len(self._channel):
            await self._channel.receive()
            self._channel.close()


class PlantedDelegation(Planted):
    """Work that was handed to another, who has not acknowledged it."""

    kind = "delegation"
    about = "a delegation that is not acknowledged"

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it."""
        super().__init__(target, seconds, way)
        self._hold: Hold | None = None
        self._there: Callable[[], bool] = bool

    @property
    def state(self) -> State:
        """What became of it."""
        if self._hold is None:
            return "alive" if self._there() else "finished"
        if not self._hold.released:
            return "alive"
        assert isinstance(self._target, Scope)  # noqa: S101 - it has the hold
        return "cut" if self._target.state == "closed" else "finished"

    async def _put_by(self, way: Way) -> None:
        self._there = question(self, await self._ask(way, self.name))

    async def _put_into(self, scope: Scope) -> None:
        self._hold = scope.hold("delegation", self.name, to="an agent that does not answer")

    async def _put_alone(self) -> None:
        raise self._cannot("nobody can know of a delegation that belongs to nobody")

    async def remove(self) -> None:
        """Release it."""
        if self._hold is not None:
            self._hold.release()


def mentions(text: str, name: str) -> bool:
    """Return whether a text has a name in it, and not only as the beginning of a longer one."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def question(planted: Planted, answer: object) -> Callable[[], bool]:
    """Check that a way has given what tells whether the thing is still there."""
    if not callable(answer):
        message = (
            f"by={{{planted.kind!r}: …}} has to return a function that tells whether "
            f"{planted.about} is still there, not {answer!r}"
        )
        raise UsageError(message)
    return lambda: bool(answer())
