"""The cost of driving a scenario: a suspension that a sweep counts, beside a bare suspension."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks._harness import BARE, Result, Samples, compare, interleave, run_fresh
from benchmarks._subjects import now
from quiesce.testing.sweeps.driver import Points, drive
from quiesce.testing.sweeps.on_asyncio import watching

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Way = Callable[[int], Coroutine[Any, Any, float]]

    class SweepSizes(Protocol):
        """How much is measured."""

        @property
        def rounds(self) -> int:
            """How often each piece runs."""

        @property
        def suspensions(self) -> int:
            """The number of suspensions in one piece."""


DRIVEN = "driven"
WATCHED = 'driven, all tasks watched (where="all")'


async def suspending(count: int) -> None:
    """Suspend `count` times, and do nothing else."""
    for _ in range(count):
        await asyncio.sleep(0)


async def bare(count: int) -> float:
    """Await the scenario; return seconds a suspension."""
    begin = now()
    await suspending(count)
    return (now() - begin) / count


async def driven(count: int) -> float:
    """Await the scenario in the driver of a sweep, which counts its suspensions and does not cancel it."""
    points = Points((), _never)
    begin = now()
    await drive(suspending(count), points)
    seconds = now() - begin
    assert points.count == count
    return seconds / count


def _never(*_: object) -> None:
    message = "no point was chosen"
    raise AssertionError(message)


def watched(backend: str, count: int) -> float:
    """Await the scenario in the driver, on an event loop that also reports suspensions of other tasks."""
    if backend == "uvloop":
        import uvloop  # noqa: PLC0415 - optional

        base: Any = uvloop.Loop
    else:
        base = asyncio.SelectorEventLoop

    def make() -> asyncio.AbstractEventLoop:
        loop: Any = watching(base)()
        loop.on_suspension = _seen
        made: asyncio.AbstractEventLoop = loop
        return made

    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(driven(count))


def _seen(_: object) -> None:
    """Ignore a task's suspension."""


def sweep_driver(backend: str, sizes: SweepSizes) -> list[Result]:
    """Compare a suspension in the driver with a bare suspension."""
    count = sizes.suspensions

    def piece(way: Way) -> float:
        return run_fresh(backend, partial(way, count)) * 1e6

    pieces: dict[str, Callable[[], float]] = {
        BARE: partial(piece, bare),
        DRIVEN: partial(piece, driven),
        WATCHED: lambda: watched(backend, count) * 1e6,
    }
    found: dict[str, Samples] = interleave(f"{backend}: sweep_driver", pieces, sizes.rounds)
    return [
        compare(
            "sweep_driver_ratio",
            f"{count:,} suspensions of one task",
            found,
            unit="us a suspension",
            limit=1.3,
            ours=DRIVEN,
        )
    ]
