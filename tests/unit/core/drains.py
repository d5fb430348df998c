"""What the tests of drains share: every way to start something, and a drain from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import anyio.lowlevel

from quiesce import Job, Report, Scope, ScopeClosed, detached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Start: TypeAlias = Callable[[Scope], Awaitable[None]]

# uvloop's time is real, so a grace that has to pass is short; one that must not is long.
SHORT_SECONDS = 0.05
JUST_SHORT_SECONDS = SHORT_SECONDS - 0.001  # clocks are floats
LONG_SECONDS = 60.0


@asynccontextmanager
async def manager() -> AsyncIterator[str]:
    """Return a context to enter."""
    yield "entered"


async def spawn(scope: Scope) -> None:
    """Start a job, and see it done."""
    await scope.spawn(anyio.lowlevel.checkpoint)


async def hold(scope: Scope) -> None:
    """Hold something for a moment."""
    with scope.hold("request", "sub-work"):
        await anyio.lowlevel.checkpoint()


async def child(scope: Scope) -> None:
    """Open a child scope, and use it."""
    below = scope.child("below")
    await spawn(below)
    await below.aclose()


async def enter(scope: Scope) -> None:
    """Enter a context."""
    assert await scope.enter(manager()) == "entered"


async def to_thread(scope: Scope) -> None:
    """Run something in a thread."""
    assert await scope.to_thread(int) == 0


async def outcome_of(start: Start, scope: Scope) -> str:
    """Try to start something, and tell what came of it."""
    try:
        await start(scope)
    except ScopeClosed as error:
        return "refused" if repr(scope.name) in str(error) else f"refused by {error}"
    return "allowed"


async def until_state(scope: Scope, state: str) -> None:
    """Let others run until the scope is in a state."""
    for _ in range(1000):
        if scope.state == state:
            return
        await anyio.lowlevel.checkpoint()
    message = f"{scope!r} never was {state}"
    raise AssertionError(message)


@asynccontextmanager
async def draining(scope: Scope, within: float | None = LONG_SECONDS) -> AsyncIterator[Job[Report]]:
    """Drain a scope from a job elsewhere; at the end of the block, see it drained."""
    with detached():
        elsewhere = await Scope.open("elsewhere")
    job = elsewhere.spawn(scope.drain, within)
    await until_state(scope, "closing" if within == 0 else "draining")
    yield job
    await job
    assert (await elsewhere.aclose()).ok


STARTS: list[Start] = [spawn, hold, child, enter, to_thread]
