"""Virtual time, and a task order that a seed decides, for tests that do not depend on the machine.

`run(fn, clock="mock")` runs an async function in virtual time: as soon as no task can run, time
jumps to the next timer, so a deadline of an hour costs nothing. The clock does not wait for work
that it cannot see: threads and other processes need real time.

`run(fn, seed=7)` lets a seed decide which of several ready tasks runs first. Correct code works in
every order. A failure carries a note with the seed and the call that runs it again.

The clock and the task queue of uvloop cannot be replaced: it has real time and its own order.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from quiesce.core.python_private import callback_of, running_loop
from quiesce.errors import ArgumentError, UsageError
from quiesce.testing.loop_steps import stepped_task
from quiesce.testing.trio_private import seeded_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["Backend", "Clock", "VirtualLoop", "run"]

T = TypeVar("T")
Backend = Literal["asyncio", "uvloop", "trio"]
Clock = Literal["real", "mock"]
BACKENDS: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
_START = 1000.0  # any time except 0, which is false


class JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits for a timer: it moves the loop's clock instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready files. If none is ready, jump to the next timer."""
        if self.loop.on_turn is not None:
            self.loop.on_turn()
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)  # no timer: only a thread or a signal can wake the loop
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class SeededLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop in which a seed decides the order of the ready tasks.

    Only steps of tasks change places, and only with each other. Other callbacks stay in the order
    in which they were registered: asyncio promises that order, and its transports rely on it.
    """

    def __init__(
        self, selector: selectors.BaseSelector | None = None, *, seed: int | None = None
    ) -> None:
        """Create the loop. Without a seed it has asyncio's own order: first come, first served."""
        super().__init__(selector)
        self._random = None if seed is None else random.Random(seed)  # noqa: S311 - no secret

    def _run_once(self) -> None:
        if self._random is not None:
            self._shuffle(self._random)
        super()._run_once()  # type: ignore[misc]  # not in the stubs

    def _shuffle(self, order: random.Random) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]  # not in the stubs
        callbacks = [callback_of(handle) for handle in ready]  # there is no public way
        places = [i for i, callback in enumerate(callbacks) if stepped_task(callback) is not None]
        if len(places) > 1:
            handles = [ready[i] for i in places]
            order.shuffle(handles)
            for place, handle in zip(places, handles, strict=True):
                ready[place] = handle


class VirtualLoop(SeededLoop):
    """An asyncio event loop with virtual time."""

    def __init__(self, *, seed: int | None = None) -> None:
        """Start at an arbitrary virtual time."""
        self.now: float = _START
        self.on_turn: Callable[[], None] | None = None
        """Called in each turn of the loop, before the loop looks for ready files."""
        selector = JumpingSelector()
        selector.loop = self
        super().__init__(selector, seed=seed)

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's
        """Wait in real time for the threads of the executor; a timeout in virtual time would jump."""
        await super().shutdown_default_executor()


def run(
    fn: Callable[..., Coroutine[Any, Any, T]],
    *args: object,
    backend: Backend = "asyncio",
    clock: Clock = "mock",
    seed: int | None = None,
) -> T:
    """Run an async function to its end on a fresh event loop, and return its result.

    Args:
        fn: The function; it is called inside the event loop.
        *args: The function's arguments.
        backend: `asyncio`, `uvloop` or `trio`.
        clock: `mock` lets time jump to the next timer as soon as no task can run.
        seed: Decides which of the ready tasks runs first. A failure names the seed.

    Raises:
        ArgumentError: uvloop supports neither a mock clock nor a seed.
        UsageError: The backend's package is not installed, or its version does not support a seed.
    """
    check_run(backend, clock, seed)
    try:
        if backend == "trio":
            return _run_trio(fn, args, clock, seed)
        with asyncio.Runner(loop_factory=lambda: make_loop(backend, clock, seed)) as runner:
            return runner.run(_call(fn, args))
    except BaseException as error:
        if seed is not None:
            name = getattr(fn, "__qualname__", None) or repr(fn)
            error.add_note(
                f"tasks ran in the order of seed {seed}; to run it again: quiesce.testing.run"
                f"({name}, …, backend={backend!r}, clock={clock!r}, seed={seed})"
            )
        raise


async def _call(fn: Callable[..., Coroutine[Any, Any, T]], args: tuple[object, ...]) -> T:
    return await fn(*args)


def _run_trio(
    fn: Callable[..., Coroutine[Any, Any, T]],
    args: tuple[object, ...],
    clock: Clock,
    seed: int | None,
) -> T:
    import trio.testing  # noqa: PLC0415 - optional

    mock = trio.testing.MockClock(autojump_threshold=0) if clock == "mock" else None
    with seeded_trio(seed):
        return trio.run(fn, *args, clock=mock)


def check_run(backend: Backend, clock: Clock, seed: int | None) -> None:
    """Raise an error for arguments that do not fit together, before anything runs."""
    if backend not in BACKENDS:
        message = f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}"
        raise ArgumentError(message)
    if clock not in {"real", "mock"}:
        message = f"clock must be 'real' or 'mock', not {clock!r}"
        raise ArgumentError(message)
    if backend == "uvloop" and (clock == "mock" or seed is not None):
        message = (
            "uvloop's time and order cannot be replaced: use clock='real' and leave `seed` out"
        )
        raise ArgumentError(message)
    trio = sys.modules.get("trio")
    if running_loop() is not None or (trio is not None and trio.lowlevel.in_trio_run()):
        message = "this starts its own event loop, but one is already running: call it from a plain function"
        raise UsageError(message)
    if backend != "asyncio":
        try:
            __import__(backend)
        except ImportError as error:
            message = f"backend={backend!r} needs the package {backend}: pip install {backend}"
            raise UsageError(message) from error


def make_loop(backend: Backend, clock: Clock, seed: int | None) -> asyncio.AbstractEventLoop:
    """Create an event loop of asyncio or uvloop."""
    if backend == "uvloop":
        import uvloop  # noqa: PLC0415 - optional

        return uvloop.new_event_loop()
    return VirtualLoop(seed=seed) if clock == "mock" else SeededLoop(seed=seed)
