"""The record of one start: which number it has, and which line and thread started it."""

from __future__ import annotations

import asyncio
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from quiesce.core.python_private import running_loop

if TYPE_CHECKING:
    from types import AsyncGeneratorType

    from quiesce.testing.leaks.findings import Finding
    from quiesce.testing.leaks.started_at import StartPlace


# A task of anyio's plugin that runs all tests.
_RUNNERS = frozenset({"TestRunner._run_tests_and_fixtures"})


def current_task() -> Any:
    """Return the running task of any backend; None outside a task."""
    loop = running_loop()
    if loop is not None:
        return asyncio.current_task(loop)
    trio = sys.modules.get("trio")
    try:
        return None if trio is None else trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):
        return None


def is_runner(task: Any) -> bool:
    """Return whether a test runner uses the task to run test after test."""
    # Checked by attributes, not by class: tests replace asyncio.Task by other classes.
    coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
    return getattr(coroutine, "__qualname__", "") in _RUNNERS


def has_ended(task: Any) -> bool:
    """Return whether a task of asyncio or trio has ended."""
    return bool(task.done() if hasattr(task, "done") else task.coro.cr_frame is None)


class Birth:
    """The record of when and where something was started."""

    __slots__ = ("main", "number", "place", "reported", "root", "thread")

    def __init__(self, number: int, place: StartPlace | None) -> None:
        self.number: int = number
        self.place: StartPlace | None = place
        self.root: int = number
        """The number of the first task in the chain of parents that led to this task."""
        self.reported: bool = False
        self.thread: int = get_ident()
        self.main: bool = False
        """Whether the task was made for an event loop to run until it ends."""

    @property
    def where(self) -> str | None:
        """The file and line that started it."""
        return None if self.place is None else str(self.place)


class Event(NamedTuple):
    """A leftover that can be seen only once."""

    finding: Finding
    born: int
    """The number of its start."""
    seen: int
    """The number of the moment in which it was seen."""


class GeneratorReading:
    """The record of an async generator that a task began to read."""

    __slots__ = ("generator", "loop", "number", "place", "task")

    def __init__(
        self,
        generator: AsyncGeneratorType[Any, Any],
        number: int,
        place: StartPlace | None,
    ) -> None:
        loop = running_loop()
        task = current_task()
        self.generator: ref[AsyncGeneratorType[Any, Any]] = ref(generator)
        self.number: int = number
        self.place: StartPlace | None = place
        self.loop: ref[Any] | None = None if loop is None else ref(loop)
        self.task: ref[Any] | None = None if task is None else ref(task)

    @property
    def where(self) -> str | None:
        """The file and line that began to read it."""
        return None if self.place is None else str(self.place)

    def open(self, current: object = None) -> AsyncGeneratorType[Any, Any] | None:
        """Return the generator if it is neither exhausted nor closed, and no other task reads it."""
        generator = self.generator()
        if generator is None or generator.ag_frame is None:
            return None
        reader = None if self.task is None else self.task()
        if reader is None or reader is current or is_runner(reader) or has_ended(reader):
            return generator
        return None

    def over(self) -> bool:
        """Return whether the generator is gone, exhausted or closed."""
        generator = self.generator()
        return generator is None or generator.ag_frame is None
