"""A pattern that names a function declares what runs it, and not what its code starts; and the advice follows that."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import queue
import re
import sched
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import detached
from quiesce.mesh import Settled, Unknown
from tests.stress import turns
from tests.unit.mesh.meshing import World, until
from tests.unit.mesh.routes.test_ways import WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


class Shop:
    """Its handler leaves work of some kind, which ends when the shop is closed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.over = threading.Event()
        self.left: list[Any] = []
        self.ends: list[Callable[[], object]] = [self.over.set]
        self.pool = ThreadPoolExecutor(2)

    def work(self) -> None:
        """Work until the shop is closed."""
        self.over.wait(30)

    async def handle(self, _: Hop) -> None:  # noqa: PLR0912, PLR0915 - all kinds are of one handler
        """Leave work of the kind."""
        loop = asyncio.get_running_loop()
        kind, *by = self.kind.split(" by ")
        work: Any = (lambda: self.work()) if by else self.work  # noqa: PLW0108 - one of this function
        if kind == "task":
            event = asyncio.Event()
            self.left.append(loop.create_task(event.wait()))
            self.ends.append(event.set)
        elif kind == "timer of a thread":
            timer = threading.Timer(0.001, work)
            timer.start()
            self.ends.append(timer.join)
        elif kind == "thread":
            thread = threading.Thread(target=work)
            thread.start()
            self.ends.append(thread.join)
        elif kind == "timer":
            self.left.append(loop.call_later(3600, work))
            self.ends.append(self.left[0].cancel)
        elif kind == "scheduler":
            scheduler = sched.scheduler(time.monotonic, lambda _: None)
            event_due = scheduler.enter(3600, 1, work)
            self.ends.append(functools.partial(scheduler.cancel, event_due))
        elif kind == "executor":
            self.left.append(loop.run_in_executor(self.pool, work))
        elif kind == "pool":
            self.left.append(self.pool.submit(work))
        elif kind == "callback of a pool":
            with detached():
                future = self.pool.submit(work)
            future.add_done_callback(lambda _: None)
        elif kind == "thread pool":
            threads = ThreadPool(1)
            self.left.append(threads.apply_async(work))
            self.ends += [threads.close, threads.join]
        elif kind == "to_thread":
            self.left.append(loop.create_task(asyncio.to_thread(work)))
        elif kind == "other loop":
            other = asyncio.new_event_loop()
            with detached():
                thread = threading.Thread(target=other.run_forever)
                thread.start()
            other.call_soon_threadsafe(work)
            self.ends += [
                lambda: other.call_soon_threadsafe(other.stop), thread.join, other.close,
            ]  # fmt: skip
        elif kind == "queue":
            items: queue.Queue[int] = queue.Queue()
            items.put(1)
            self.left.append(items)
            self.ends.append(self.left.clear)  # nobody can take it any more
        elif kind == "queue of processes":
            waiting: Any = multiprocessing.get_context("fork").SimpleQueue()
            waiting.put(1)
            self.ends.append(waiting.close)
        else:
            child = subprocess.Popen(  # noqa: ASYNC220 - as handlers do
                [sys.executable, "-c", WAITS], stdin=subprocess.PIPE
            )
            self.ends.append(child.communicate)

    def close(self) -> None:
        """End what was left."""
        while self.ends:
            self.ends.pop(0)()
        self.pool.shutdown()


KINDS = (
    "task", "timer of a thread", "timer of a thread by lambda", "thread", "thread by lambda", "timer", "timer by lambda",
    "scheduler", "executor", "executor by lambda", "pool", "pool by lambda", "callback of a pool", "thread pool",
    "to_thread", "other loop", "queue", "process",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "Shop.handle") for kind in KINDS), ("queue", "Shop.*"), ("process", "Shop.*")],
)
async def test_what_a_declared_handler_starts_is_work(tmp_path: Path, kind: str, name: str) -> None:
    """The pattern has the name of the handler, not of what it starts; and a class is not a module."""
    shop = Shop(kind)
    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b", services=[f"{__name__}.{name}"])
        try:
            async with world.nodes["a"].cascade("c") as cascade:
                await world.hand("b", shop.handle)
            await turns(10)
            assert isinstance(await cascade.settled(0.05), Unknown)
            shop.close()
            assert isinstance(await cascade.settled(5), Settled)
        finally:
            shop.close()


async def test_a_job_that_a_declared_handler_hands_over_is_named(tmp_path: Path) -> None:
    """Its own name declares it."""
    shop = Shop("queue of processes")
    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b", services=[f"{__name__}.Shop.handle"])
        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", shop.handle)
        assert isinstance(await cascade.settled(5, require="participants"), Unknown)
        shop.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"task", "to_thread"}])
async def test_a_pattern_for_a_module_declares_what_its_code_starts(
    tmp_path: Path, kind: str
) -> None:
    """It is a library whose loops, threads and timers are not work."""
    shop = Shop(kind)
    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b", services=[f"{__name__}.*"])
        try:
            async with world.nodes["a"].cascade("c") as cascade:
                await world.hand("b", shop.handle)
            assert isinstance(await cascade.settled(5), Settled)
        finally:
            with detached():
                shop.close()


# Advice.


class Keeper:
    """Has a loop of its own."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def keep(self) -> None:
        """Wait until it is over."""
        self.over.wait(30)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """Make one that is over in the end."""
    made = Keeper()
    yield made
    made.over.set()
    for thread in threading.enumerate():
        if thread.name == "keeps":
            thread.join()


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (lambda keeper: keeper.keep, "Keeper.keep"),
        (lambda keeper: functools.partial(keeper.keep), "Keeper.keep"),
        (lambda keeper: keeper.over.wait, None),
        (lambda keeper: functools.partial(keeper.over.wait, 30), None),
        (lambda keeper: lambda: keeper.keep(), None),  # noqa: PLW0108 - another one may be work
    ],
)
async def test_the_advice_for_a_daemon_thread_never_names_the_handler(
    tmp_path: Path, keeper: Keeper, target: Any, name: str | None
) -> None:
    """It names the user's function that the thread runs, or else `detached()`."""
    places: list[str] = []

    async def handler(_: Hop) -> None:
        threading.Thread(target=target(keeper), daemon=True, name="keeps").start()

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        (hold,) = world.nodes["b"].opened.hop_threads.values()
        places += [*found.missing, str(hold.details)]
        keeper.over.set()
        await until(lambda: not world.nodes["b"].opened.hop_threads)
    assert len(places) == 2
    for text in places:
        line = re.search(r"Node\(services=(\[.*\])\)", text)
        if name is None:
            assert line is None, text
            assert "`with quiesce.detached():` around the code that starts it" in text
        else:
            assert line is not None, text
            assert json.loads(line[1]) == [f"{__name__}.{name}"]
