"""Callbacks that a hop has left with the loop: however many others there are, and of what else."""

from __future__ import annotations

import asyncio
import gc
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import detached
from quiesce.core.backends.asyncio.backend import AsyncioBackend
from tests.foreign_private import handles_of
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh import Hop


class Own(asyncio.SelectorEventLoop):
    """A loop that has its callbacks elsewhere, as those of GUI toolkits do."""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]  # any will do
        """Schedule a call that does not show which context the callback runs in."""
        context = copy_context() if context is None else context
        return super().call_soon(partial(context.run, callback, *args), context=Context())


async def _ended(hop: Hop) -> None:
    for _ in range(500):  # turns: no time goes by in a loop that never rests
        if not hop.has_ended:
            await asyncio.sleep(0)
    assert hop.has_ended


async def _ended_early(count: int, leave: Callable[[Any], object]) -> int:
    """Return how many of so many hops at once have ended while what they have left is at work."""
    early = 0
    gate = asyncio.Event()

    async def work(begun: asyncio.Event) -> None:
        begun.set()
        await gate.wait()

    async def handle(world: World, header: str) -> None:
        nonlocal early
        begun = asyncio.Event()
        kept: list[object] = []
        async with world.nodes["b"].handle(header) as hop:
            leave(lambda *_: kept.append(asyncio.create_task(work(begun))))
        await begun.wait()
        early += hop.has_ended

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c"):
            given = [here().delegate("http://b") for _ in range(count)]
            with detached():
                tasks = [asyncio.create_task(handle(world, handing.header)) for handing in given]
        with anyio.fail_after(5):
            await asyncio.gather(*tasks)
        gate.set()
    return early


async def _step() -> None:
    await asyncio.sleep(0)


def _of_callback(start: Callable[..., object], turns: int = 6) -> None:
    """Call `start` some turns later: more than a hop waits for where it cannot know."""
    if turns:
        asyncio.get_running_loop().call_soon(_of_callback, start, turns - 1)
    else:
        start()


def _of_gather(start: Callable[..., object]) -> None:
    asyncio.gather(_step(), _step()).add_done_callback(start)


@pytest.mark.backends("asyncio")  # see test_hop_last_step.py
@pytest.mark.parametrize("leave", [_of_callback, _of_gather])
@pytest.mark.parametrize("count", [1, 100])
async def test_the_end_of_hops_is_known_however_many_end_at_once(
    count: int, leave: Callable[[Any], object]
) -> None:
    """A loop that is busy has hundreds of callbacks."""
    assert await _ended_early(count, leave) == 0


@pytest.mark.backends("asyncio")
async def test_it_is_not_known_of_a_loop_that_has_its_callbacks_elsewhere() -> None:
    """There a turn of the loop lies between, as on uvloop."""

    def leave(start: Callable[..., object]) -> None:
        asyncio.get_running_loop().call_soon(start)

    def run() -> int:
        with asyncio.Runner(loop_factory=Own) as runner:
            return runner.run(_ended_early(1, leave))

    assert await asyncio.to_thread(run) == 0


@pytest.mark.backends("asyncio")
async def test_a_service_that_never_rests_does_not_keep_its_hop() -> None:
    """It is no work of it; nor is it what it has left with the loop."""

    async def ticker() -> None:
        while True:  # noqa: ASYNC110 - as services do that are always busy
            await asyncio.sleep(0)

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b", services=["ticker"])
        kept: list[Any] = []

        async def handler(hop: Hop) -> None:
            kept.extend((hop, asyncio.create_task(ticker(), name="ticker")))

        async with root.cascade("c"):
            await world.hand("b", handler)
        try:
            await _ended(kept[0])
        finally:
            kept[1].cancel()


class _Socket(asyncio.BaseTransport):
    def reads(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do as the loop does when something has come."""
        loop.call_soon(self._read_ready)

    def ends(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do as the transport does when it is closed."""
        loop.call_soon(self._call_connection_lost)

    def _read_ready(self) -> None:
        """As the loop calls it, in the context of whoever has opened it, as often as something comes."""

    def _call_connection_lost(self) -> None:
        """As it is left with the loop by one who closes it."""


@pytest.mark.backends("asyncio")
async def test_sockets_that_others_use_do_not_keep_the_hop_that_has_opened_them() -> None:
    """A pool's connections are of whoever was the first: what comes in is not what he has left."""
    loop = asyncio.get_running_loop()
    found: list[bool | None] = []

    async def handler(hop: Hop) -> None:
        _Socket().reads(loop)
        found.append(hop.left_something())
        _Socket().ends(loop)
        found.append(hop.left_something())

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c"):
            await world.hand("b", handler)
    assert found == [False, True]


@pytest.mark.backends("asyncio")
async def test_there_is_one_look_at_a_time() -> None:
    """Or there were one more each time that it has nothing to do."""
    loop: Any = asyncio.get_running_loop()
    looks: list[int] = []

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")

        async def handler(hop: Hop) -> None:
            def again() -> None:
                hop.hold("x", "y").release()
                looks.append(sum("_look" in repr(handle) for handle in handles_of(loop)))
                if len(looks) < 40:
                    loop.call_soon(again)

            loop.call_soon(again)

        async with root.cascade("c"):
            await world.hand("b", handler)
        for _ in range(60):
            await asyncio.sleep(0)
    assert len(looks) == 40
    assert max(looks) < 5


class _Dropped:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._itself = loop, self

    def __del__(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(int)


@pytest.mark.backends("asyncio")
async def test_what_is_collected_meanwhile_may_leave_callbacks() -> None:
    """As parts and cascades that were dropped do, and generators."""
    loop: Any = asyncio.get_running_loop()
    backend = AsyncioBackend(loop)
    threshold = gc.get_threshold()
    for _ in range(30):
        loop.call_soon(int)
    for count in range(200):
        _Dropped(loop)
        gc.set_threshold(1 + count % 7)
        try:
            backend.about_to_run()
        finally:
            gc.set_threshold(*threshold)
        if len(handles_of(loop)) > 60:
            await asyncio.sleep(0)
            for _ in range(30):
                loop.call_soon(int)
