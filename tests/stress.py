"""Helpers for the tests of closing: jobs and contexts that are hard to close, and runs with a time limit."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio
import pytest
import trio
import uvloop

from quiesce.core.graveyard import graveyards
from quiesce.core.roots import roots

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from quiesce import Report, Scope

    Main = Callable[[], Coroutine[Any, Any, Any]]

E = TypeVar("E", bound=BaseException)

CANCELLED: tuple[type[BaseException], ...] = (asyncio.CancelledError, trio.Cancelled)


SCHEDULING = {
    "asyncio": 0.001,
    "trio": 0.001,
    "uvloop": 10.0,
}  # virtual time has none; a machine may be busy


async def turns(count: int = 8) -> None:
    """Wait for some turns of the event loop."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def lasting(seconds: float) -> None:
    """Wait for some seconds, like a slow cleanup; a cancel scope does not end the wait."""
    with anyio.move_on_after(seconds, shield=True):
        await anyio.sleep_forever()


async def failing(error: BaseException) -> None:
    """Raise an error at once."""
    raise error


async def failing_when_cancelled(error: BaseException) -> None:
    """Wait to be cancelled, then raise an error in place of the cancellation."""
    try:
        await anyio.sleep_forever()
    finally:
        raise error


class Raising(Generic[E]):
    """An async context manager like `pytest.raises`, for use in one `async with` with others."""

    def __init__(self, kind: type[E] | tuple[type[E], ...]) -> None:
        """Expect an exception of this kind."""
        self._raises = pytest.raises(kind)

    async def __aenter__(self) -> pytest.ExceptionInfo[E]:
        return self._raises.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self._raises.__exit__(exc_type, exc, traceback)


async def timed_close(scope: Scope, within: float) -> tuple[Report, float]:
    """Close a scope; return the report, and the seconds by the loop's clock."""
    begun = anyio.current_time()
    report = await scope.aclose(cleanup=within)
    return report, anyio.current_time() - begun


class Stubborn:
    """Work that does not end when it is cancelled, but when it is released.

    On asyncio it counts how often it was cancelled. On trio the shield keeps cancellation away:
    swallowing it would be a busy loop there.
    """

    def __init__(self) -> None:
        """Make the work; `run` starts it."""
        self.deliveries = 0
        self.release = anyio.Event()

    async def run(self) -> None:
        """Run until released, and ignore cancellation."""
        with anyio.CancelScope(shield=True):
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.deliveries += 1

    async def __aenter__(self) -> Self:
        """Enter a block whose end releases the work, also if the test fails."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the work, and wait until it has ended."""
        self.release.set()
        with anyio.CancelScope(shield=True):
            await turns(20)


class Resource:
    """A context manager that records when, and in which task, it was entered and left."""

    def __init__(self, name: str = "resource", log: list[str] | None = None) -> None:
        """Make a resource that is not entered yet."""
        self.name = name
        self.log: list[str] = [] if log is None else log
        self.tasks: list[int] = []
        self.error: BaseException | None = None

    @property
    def is_open(self) -> bool:
        """Whether the resource is entered and not left."""
        return self.log.count(f"enter {self.name}") > self.log.count(f"exit {self.name}")

    async def opening(self) -> None:
        """Do nothing at the entry; subclasses override this."""
        await anyio.lowlevel.checkpoint()

    async def leaving(self) -> None:
        """Do nothing at the exit; subclasses override this."""

    async def __aenter__(self) -> Self:
        await self.opening()
        self.tasks.append(anyio.get_current_task().id)
        self.log.append(f"enter {self.name}")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.tasks.append(anyio.get_current_task().id)
        self.error = exc
        self.log.append(f"exit {self.name}")
        await self.leaving()


def run_plainly(backend: str, main: Main) -> Any:
    """Run a coroutine function as a program does, without the tests' own checks."""
    if backend == "trio":
        return trio.run(main)
    factory = uvloop.new_event_loop if backend == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def run_bounded(backend: str, main: Main, seconds: float = 10.0) -> Any:
    """Run a coroutine function as a program does, in a thread that is abandoned if the program hangs.

    An event loop that hangs while it is being closed would survive the test's own timeout.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(run_plainly(backend, main))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"the program hangs on {backend}")
    if errors:
        raise errors[0]
    return results[0]


def unclosed() -> list[str]:
    """Return the warnings about scopes that were never closed, and remove them from the record."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        roots.prune()
        gc.collect()
    graveyards.clear()
    return [str(warning.message) for warning in caught]
