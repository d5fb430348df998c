"""Virtual time that jumps, and an order of tasks that a seed decides."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce.errors import ArgumentError, UsageError
from quiesce.testing import trio_private
from quiesce.testing.clock import VirtualLoop, run
from tests.foreign_private import trio_random, without_trio_seed

if TYPE_CHECKING:
    from quiesce.testing.clock import Backend, Clock

WITH_MOCK: tuple[Backend, ...] = ("asyncio", "trio")
ALL: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
HOUR = 3600.0


async def lasting(seconds: float) -> float:
    """Take that long, and give how long it took by the loop's clock."""
    begun = anyio.current_time()
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()
    return anyio.current_time() - begun


async def order(count: int) -> list[int]:
    """Start tasks that are all ready at once, and return the order in which they ran."""
    ran: list[int] = []

    async def work(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        ran.append(number)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(work, number)
    return ran


@pytest.mark.parametrize("backend", WITH_MOCK)
def test_time_jumps_when_nothing_can_run(backend: Backend) -> None:
    """An hour of waiting costs nothing."""
    begun = time.monotonic()
    assert run(lasting, HOUR, backend=backend) == pytest.approx(HOUR)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("backend", WITH_MOCK)
def test_timers_come_in_their_order(backend: Backend) -> None:
    """Of two that wait, the one that waits shorter comes first, at its time."""

    async def main() -> list[float]:
        begun, came = anyio.current_time(), list[float]()

        async def wait(seconds: float) -> None:
            await lasting(seconds)
            came.append(anyio.current_time() - begun)

        async with anyio.create_task_group() as group:
            group.start_soon(wait, 2 * HOUR)
            group.start_soon(wait, HOUR)
        return came

    assert run(main, backend=backend) == pytest.approx([HOUR, 2 * HOUR])


@pytest.mark.parametrize("backend", ALL)
def test_real_time_is_the_machines(backend: Backend) -> None:
    """Without the mock clock, time passes as it does outside."""
    begun = time.monotonic()
    assert run(lasting, 0.005, backend=backend, clock="real") >= 0.004
    assert time.monotonic() - begun >= 0.004


def test_what_other_threads_do_still_wakes_the_loop() -> None:
    """With no timer set, the virtual loop waits for a thread."""

    async def main() -> str:
        return await asyncio.to_thread(str, "done")

    assert run(main) == "done"


def test_threads_are_waited_for_when_the_loop_ends() -> None:
    """Virtual time does not jump over asyncio's own patience with an executor."""
    stop = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, stop.wait)

    loop = VirtualLoop()
    loop.run_until_complete(main())
    threading.Timer(0.02, stop.set).start()
    patience = {} if sys.version_info < (3, 12) else {"timeout": 0.001}
    loop.run_until_complete(loop.shutdown_default_executor(**patience))
    assert stop.is_set()
    loop.close()


@pytest.mark.parametrize("clock", ["real", "mock"])
@pytest.mark.parametrize("backend", WITH_MOCK)
def test_a_seed_decides_the_order(backend: Backend, clock: Clock) -> None:
    """The same seed gives the same order, and some seeds give different ones."""
    orders = [run(order, 6, backend=backend, clock=clock, seed=seed) for seed in range(8)]
    again = [run(order, 6, backend=backend, clock=clock, seed=seed) for seed in range(8)]
    assert orders == again
    assert len(set(map(tuple, orders))) > 4
    assert all(sorted(ran) == list(range(6)) for ran in orders)


def test_without_a_seed_asyncio_keeps_its_order() -> None:
    """First come, first served."""
    assert run(order, 6) == list(range(6))


def test_a_seed_leaves_the_order_of_callbacks_alone() -> None:
    """Only tasks change places: asyncio promises the order of callbacks, and relies on it."""

    async def main() -> list[int]:
        loop, came = asyncio.get_running_loop(), list[int]()
        for number in range(20):
            loop.call_soon(came.append, number)
        others = [asyncio.create_task(asyncio.sleep(0)) for _ in range(20)]
        await asyncio.wait(others)
        return came

    assert all(run(main, seed=seed) == list(range(20)) for seed in range(5))


@pytest.mark.parametrize("backend", WITH_MOCK)
def test_a_failure_tells_its_seed(backend: Backend) -> None:
    """What was raised carries the seed, and how to run it again."""

    async def failing() -> None:
        raise KeyError

    with pytest.raises(KeyError) as caught:
        run(failing, backend=backend, seed=7)
    (note,) = caught.value.__notes__
    assert f"backend={backend!r}, clock='mock', seed=7" in note
    with pytest.raises(KeyError) as caught:
        run(failing, backend=backend)
    assert not hasattr(caught.value, "__notes__")


def test_trio_is_random_again_afterwards() -> None:
    """Its random numbers go on where they were, and its own order is back."""
    before = trio_random()
    run(order, 3, backend="trio", seed=1)
    assert trio_random() == before


def test_a_trio_that_cannot_be_seeded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version without the names that are needed is not run in a random order by mistake."""
    without_trio_seed(monkeypatch)
    with pytest.raises(UsageError, match="does not support a seed"):
        run(order, 3, backend="trio", seed=1)
    with trio_private.seeded_trio(1, required=False):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "curio"},
        {"clock": "sun"},
        {"backend": "uvloop"},
        {"backend": "uvloop", "clock": "real", "seed": 1},
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """A backend or clock that there is none of is an error at once."""
    with pytest.raises(ArgumentError):
        run(order, 1, **options)


def test_it_runs_no_loop_inside_a_loop() -> None:
    """Called from async code, it says what to do."""

    async def main() -> None:
        with pytest.raises(UsageError, match="plain function"):
            run(order, 1)

    asyncio.run(main())
    trio.run(main)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without trio, it says what to install."""
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(UsageError, match="pip install trio"):
        run(order, 1, backend="trio")


def test_each_turn_can_be_seen() -> None:
    """The virtual loop calls `on_turn` before each look for what is ready."""
    loop = VirtualLoop()
    turns: list[float] = []
    loop.on_turn = lambda: turns.append(loop.time())
    loop.run_until_complete(lasting(HOUR))
    loop.close()
    assert turns[-1] - turns[0] == pytest.approx(HOUR)
    assert len(turns) < 9
