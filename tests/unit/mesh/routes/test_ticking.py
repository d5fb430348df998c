"""Callbacks that set themselves again: a hop is theirs only as long as they have an item of it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import detached
from quiesce.mesh import current_hop
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")
SECONDS = 0.001


class Ticker:
    """Looks into a queue again and again, in callbacks of the event loop."""

    def __init__(self, how: str = "method") -> None:
        self.jobs: asyncio.Queue[Any] = asyncio.Queue()
        self.hops: list[Hop | None] = []
        self.idle: list[Hop | None] = []
        self.current: Any = None
        self.is_over = False
        self.again: Any = self.tick if how == "method" else partial(self.tick)
        if how == "lambda":
            self.again = lambda: self.tick()  # noqa: PLW0108 - a function of its own

    def begin(self) -> None:
        """Begin outside of every hop."""
        with detached():
            asyncio.get_running_loop().call_soon(self.again)

    def tick(self) -> None:
        """Take what is there, and come back."""
        if self.jobs.empty():
            self.idle.append(current_hop())
        else:
            self.took(self.jobs.get_nowait())
        if not self.is_over:
            self.set_again()

    def took(self, _: Any) -> None:
        """Work on an item at once."""
        self.hops.append(current_hop())

    def set_again(self) -> None:
        """Come back soon."""
        asyncio.get_running_loop().call_later(SECONDS, self.again)

    async def several(self) -> None:
        """Wait for some callbacks that find nothing."""
        seen = len(self.idle)
        await until(lambda: len(self.idle) > seen + 2)


@pytest.mark.parametrize("how", ["method", "partial", "lambda"])
async def test_a_callback_that_sets_itself_again_leaves_the_hop(tmp_path: Path, how: str) -> None:
    """It works for the hop until it returns; the verdict names what is assumed."""

    async def scenario(case: Case) -> None:
        ticker = Ticker(how)
        ticker.begin()
        try:
            for number in (1, 2):
                cascade = await case.cascade(lambda: ticker.jobs.put_nowait("job"))
                await settles(cascade)
                assert len(ticker.hops) == number
                assert ticker.hops[-1] is not None
                await ticker.several()
                assert ticker.idle[-1] is None
                (assumed,) = (await cascade.settled()).assumptions
                assert (
                    "was done with an item from asyncio.Queue when it set itself again" in assumed
                )
                assert f"{__file__}:" in assumed
        finally:
            ticker.is_over = True
        assert ticker.hops[0] is not ticker.hops[1]

    await run(tmp_path, scenario)


class Keeping(Ticker):
    """Keeps an item, and works on it in later callbacks, until it is told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    def took(self, item: Any) -> None:
        """Keep it."""
        self.current = item

    def set_again(self) -> None:
        """Come back soon, as part of the hop if there is something left to do."""
        if self.current is not None:
            self.hops.append(current_hop())
        if self.gate.is_set():
            self.current = None
        super().set_again()


async def test_a_callback_that_keeps_the_item_holds_the_hop(tmp_path: Path) -> None:
    """It is a step of the work on the item, and so is the next one."""

    async def scenario(case: Case) -> None:
        ticker = Keeping()
        ticker.begin()
        try:
            cascade = await case.cascade(lambda: ticker.jobs.put_nowait(["job"]))
            await ticker.several()
            assert await is_open(cascade)
            ticker.gate.set()
            await settles(cascade)
            await ticker.several()
            assert None not in ticker.hops
            assert ticker.idle[-1] is None
        finally:
            ticker.is_over = True

    await run(tmp_path, scenario)


@pytest.mark.parametrize("with_item", [True, False])
async def test_a_timer_for_the_item_holds_the_hop(tmp_path: Path, *, with_item: bool) -> None:
    """The callback is called again with the item, or another one is."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        gate = asyncio.Event()
        tries: list[Hop | None] = []

        def attempt(job: Any = None) -> None:
            job = job or jobs.get_nowait()
            tries.append(current_hop())
            if not gate.is_set() and with_item:
                loop.call_later(SECONDS, attempt, job)
            elif not gate.is_set():
                loop.call_later(SECONDS, other)

        def other() -> None:
            attempt(["other"])

        cascade = await case.cascade(lambda: jobs.put_nowait(["job"]))
        with detached():
            loop.call_soon(attempt)
        await until(lambda: len(tries) > 3)
        assert await is_open(cascade)
        gate.set()
        await settles(cascade)
        assert None not in tries

    await run(tmp_path, scenario)
