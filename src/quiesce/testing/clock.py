"""Time that does not depend on the machine, and an order of tasks that a seed decides.

`run(fn, clock="mock")` runs an async function in virtual time: as soon as nothing can run, time
jumps to the next timer, so a deadline of an hour costs nothing. What the clock cannot see, it
does not wait for: the work of threads and of other processes needs real time.

`run(fn, seed=7)` lets a seed decide which of several ready tasks runs first. Code that is right
is right in every order; a failure carries a note with the seed and how to run it again.

uvloop has a clock and a queue of its own, which nobody can replace: real time and its own order.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from quiesce.errors import ArgumentError, UsageError
from quiesce.testing.loop_steps import stepped_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["Backend", "Clock", "VirtualLoop", "run"]

T = TypeVar("T")
Backend = Literal["asyncio", "uvloop", "trio"]
Clock = Literal["real", "mock"]
BACKENDS: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
_START = 1000.0  # any time but 0, which is false


class JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits for time: it moves the loop's clock instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, jump to the next timer."""
        if self.loop.on_turn is not None:
            self.loop.on_turn()
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)  # no timer: only a thread or a signal can wake us
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class SeededLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop in which a seed decides the order of the tasks that are ready.

    Only steps of tasks change places, and only with each other: that callbacks run in the order
    in which they were registered is a promise of asyncio, on which its transports rely.
    """

    def __init__(
        self, selector: selectors.BaseSelector | None = None, *, seed: int | None = None
    ) -> None:
        """Without a seed the order is asyncio's own: first come, first served."""
        super().__init__(selector)
        self._random = None if seed is None else random.Random(seed)  # noqa: S311 - no secret

    def _run_once(self) -> None:
        if self._random is not None:
            self._shuffle(self._random)
        super()._run_once()  # type: ignore[misc]  # not in the stubs

    def _shuffle(self, order: random.Random) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]  # not in the stubs
        callbacks = [handle._callback for handle in ready]  # there is no public way
        places = [i for i, callback in enumerate(callbacks) if stepped_task(callback) is not None]
        if len(places) > 1:
            handles = [ready[i] for i in places]
            order.shuffle(handles)
            for place, handle in zip(places, handles, strict=True):
                ready[place] = handle


class VirtualLoop(SeededLoop):
    """An asyncio event loop whose time is virtual."""

    def __init__(self, *, seed: int | None = None) -> None:
        """Start at an arbitrary time."""
        self.now: float = _START
        self.on_turn: Callable[[], None] | None = None
        """Called in each turn of the loop, before it looks for what is ready."""
        selector = JumpingSelector()
        selector.loop = self
        super().__init__(selector, seed=seed)

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's
        """Wait for the threads of the executor, as long as that takes: virtual time would jump."""
        await super().shutdown_default_executor()


def run(
    fn: Callable[..., Coroutine[Any, Any, T]],
    *args: object,
    backend: Backend = "asyncio",
    clock: Clock = "mock",
    seed: int | None = None,
) -> T:
    """Run an async function to its end, on a fresh event loop; return what it returns.

    Args:
        fn: The function; it is called inside the event loop.
        *args: What it is called with.
        backend: `asyncio`, `uvloop` or `trio`.
        clock: `mock` lets time jump to the next timer as soon as nothing can run.
        seed: Decides which of the tasks that are ready runs first. A failure tells it.

    Raises:
        ArgumentError: uvloop has neither a mock clock nor a seed.
        UsageError: The package of the backend is missing, or this version cannot be seeded.
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
    """Refuse what cannot be, before anything runs."""
    if backend not in BACKENDS:
        message = f"backend is one of {', '.join(BACKENDS)}, not {backend!r}"
        raise ArgumentError(message)
    if clock not in {"real", "mock"}:
        message = f"clock is 'real' or 'mock', not {clock!r}"
        raise ArgumentError(message)
    if backend == "uvloop" and (clock == "mock" or seed is not None):
        message = "uvloop's time and order cannot be replaced: use clock='real', and no seed"
        raise ArgumentError(message)
    trio = sys.modules.get("trio")
    if asyncio._get_running_loop() is not None or (
        trio is not None and trio.lowlevel.in_trio_run()
    ):
        message = "this runs an event loop of its own: call it from a plain function"
        raise UsageError(message)
    if backend != "asyncio":
        try:
            __import__(backend)
        except ImportError as error:
            message = f"backend={backend!r} needs the package {backend}: pip install {backend}"
            raise UsageError(message) from error


def make_loop(backend: Backend, clock: Clock, seed: int | None) -> asyncio.AbstractEventLoop:
    """Make an event loop of asyncio's or uvloop's."""
    if backend == "uvloop":
        import uvloop  # noqa: PLC0415 - optional

        return uvloop.new_event_loop()
    return VirtualLoop(seed=seed) if clock == "mock" else SeededLoop(seed=seed)


@contextmanager
def seeded_trio(seed: int | None, *, required: bool = True) -> Iterator[None]:
    """Order trio's tasks by a seed, as pytest-trio and hypothesis do it."""
    if seed is None:
        yield
        return
    from trio._core import _run  # noqa: PLC0415 - optional

    scheduler: Any = _run
    if not hasattr(scheduler, "_r") or not hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        if not required:
            yield
            return
        message = "this version of trio cannot be seeded: leave `seed` out"
        raise UsageError(message)
    order, state = scheduler._r, scheduler._r.getstate()  # there is no public way
    allowed = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    order.seed(seed)
    try:
        yield
    finally:
        order.setstate(state)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = allowed
