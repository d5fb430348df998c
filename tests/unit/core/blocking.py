"""What the tests of threads share: a function that blocks, and a thread that is nobody's."""

from __future__ import annotations

import concurrent.futures
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread

from quiesce.core import graveyard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce import Scope

PATIENCE_SECONDS = 20.0  # a guard against hangs; nothing waits that long unless it is broken


class Blocking:
    """A function that blocks its thread until it is let go, and tells how far it is."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.ended = threading.Event()
        self._error = error

    def __call__(self) -> str:
        """Begin, block, end."""
        self.begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        self.ended.set()
        if self._error is not None:
            raise self._error
        return "value"


@contextmanager
def thread(fn: Callable[[], object]) -> Iterator[concurrent.futures.Future[Any]]:
    """Run something in a thread of its own, that is not the event loop's or anyio's."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(fn())
        except BaseException as error:
            future.set_exception(error)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    yield future
    runner.join(PATIENCE_SECONDS)
    assert not runner.is_alive()


async def until(event: threading.Event) -> None:
    """Wait for a thread, without blocking the loop, with a thread of anyio's own."""
    limiter = anyio.CapacityLimiter(1)
    assert await anyio.to_thread.run_sync(event.wait, PATIENCE_SECONDS, limiter=limiter)


async def settled() -> None:
    """Let what threads have posted to the loop arrive."""
    done = anyio.Event()
    token = anyio.lowlevel.current_token()
    with thread(lambda: anyio.from_thread.run_sync(done.set, token=token)):
        await done.wait()


async def buried(scope: Scope) -> None:
    """Wait until what was stuck in a scope has ended, and the loop knows.

    A thread has returned before it can say so: that its function has ended is not enough.
    """
    with anyio.fail_after(PATIENCE_SECONDS):
        while any(grave.name == scope.name for grave in graveyard.graveyards):
            await settled()
