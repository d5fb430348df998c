"""Queues that drop items when they are put: what no worker can take holds no hop."""

from __future__ import annotations

import asyncio
import pickle
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import current_hop
from tests.foreign_private import drop_last
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")


class Item:
    """A job for a customer; those for one customer are equal."""

    def __init__(self, customer: str, hops: list[Hop | None]) -> None:
        self.customer = customer
        self.hops = hops

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and other.customer == self.customer

    def __hash__(self) -> int:
        return hash(self.customer)


class OnlyNew(asyncio.Queue[Any]):
    """Drops what it has seen before."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self.seen: set[Any] = set()

    def _put(self, item: Any) -> None:
        if item not in self.seen:
            self.seen.add(item)
            super()._put(item)


class InSet(asyncio.Queue[Any]):
    """Has each item once."""

    def _init(self, _: int) -> None:
        self._queue: Any = set()

    def _put(self, item: Any) -> None:
        self._queue.add(item)

    def _get(self) -> Any:
        return self._queue.pop()


class Newest(asyncio.Queue[Any]):
    """Has the newest item of each customer."""

    def _init(self, _: int) -> None:
        self._queue: Any = OrderedDict()

    def _put(self, item: Item) -> None:
        self._queue[item.customer] = item

    def _get(self) -> Any:
        return self._queue.popitem(last=False)[1]


class WithNumbers(OnlyNew):
    """Keeps each item with a number."""

    def _put(self, item: Any) -> None:
        if item not in self.seen:
            self.seen.add(item)
            self._queue.append((len(self.seen), item))  # type: ignore[attr-defined]  # a deque

    def _get(self) -> Any:
        return super()._get()[1]


class Last(asyncio.Queue[Any]):
    """Has room for one item: the newest."""

    def _init(self, _: int) -> None:
        self._queue: Any = deque(maxlen=1)


@pytest.mark.parametrize(
    ("kind", "is_merged"),
    [(OnlyNew, True), (InSet, True), (WithNumbers, True), (Newest, False), (Last, False)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_an_item_that_a_queue_drops_holds_no_hop(
    tmp_path: Path, kind: Any, *, is_merged: bool
) -> None:
    """The other one holds its hop until the work on it is over; so does one that the queue has merged with it."""

    async def scenario(case: Case) -> None:
        jobs = kind()
        hops: list[Hop | None] = []
        gate = asyncio.Event()

        async def worker() -> None:
            while True:
                job = await jobs.get()
                job.hops.append(current_hop())
                await gate.wait()
                jobs.task_done()

        cascades = [
            await case.cascade(lambda: jobs.put_nowait(Item("ann", hops))) for _ in range(2)
        ]
        if not is_merged:
            await settles(cascades.pop(0))
        case.app.spawn(worker, service=True)
        await until(lambda: hops)
        for cascade in cascades:
            assert await is_open(cascade)
        gate.set()
        for cascade in cascades:
            await settles(cascade)
        assert len(hops) == 1
        assert hops[0] is not None

    await run(tmp_path, scenario)


async def test_the_same_item_put_twice_and_kept_once(tmp_path: Path) -> None:
    """Two hops put one object: both of them wait for it."""

    async def scenario(case: Case) -> None:
        jobs = OnlyNew()
        one, two = [await case.cascade(lambda: jobs.put("go")) for _ in range(2)]
        for cascade in (one, two):
            assert await is_open(cascade)
        assert await jobs.get() == "go"
        for cascade in (one, two):
            assert await is_open(cascade)
        jobs.task_done()
        for cascade in (one, two):
            await settles(cascade)

    await run(tmp_path, scenario)


async def test_an_item_holds_its_hop_if_a_queue_keeps_something_else(tmp_path: Path) -> None:
    """Its entries do not show which items they are made from."""

    class Packed(asyncio.Queue[Any]):
        def _init(self, _: int) -> None:
            self._queue: Any = {}

        def _put(self, item: Any) -> None:
            self._queue[item[0]] = pickle.dumps(item)

    async def scenario(case: Case) -> None:
        jobs = Packed()
        cascades = [await case.cascade(lambda: jobs.put_nowait(["ann"])) for _ in range(2)]
        for cascade in cascades:
            assert await is_open(cascade)

    await run(tmp_path, scenario)


async def test_one_object_put_again_and_again_into_a_ring(tmp_path: Path) -> None:
    """The ring has dropped the oldest of them: the newest hop waits for the last that is left."""

    class Ring(asyncio.Queue[str]):
        def _put(self, item: str) -> None:
            entries: Any = self._queue  # type: ignore[attr-defined]  # its own
            if len(entries) == 2:
                entries.popleft()
            entries.append(item)

    async def scenario(case: Case) -> None:
        jobs = Ring()
        cascades = [await case.cascade(lambda: jobs.put_nowait("refresh")) for _ in range(3)]
        for _ in range(2):
            assert await is_open(cascades[2])
            await jobs.get()
        assert await is_open(cascades[2])
        await turns(2)
        jobs.task_done()
        jobs.task_done()
        for cascade in cascades:
            await settles(cascade)

    await run(tmp_path, scenario)


async def test_what_code_removes_from_the_inside_of_a_queue_is_not_kept(tmp_path: Path) -> None:
    """Items of no hop, in a queue that a hop has used once; those that are left are told apart still."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[object] = asyncio.Queue()
        gone: list[weakref.ref[object]] = []
        cascade = await case.cascade(lambda: jobs.put_nowait("go"))
        for _ in range(2000):
            item = Item("ann", [])
            gone.append(weakref.ref(item))
            jobs.put_nowait(item)
            if jobs.qsize() > 10:
                drop_last(jobs)
        del item
        assert sum(one() is not None for one in gone) < 1000
        assert await is_open(cascade)
        assert await jobs.get() == "go"
        await turns(2)
        jobs.task_done()
        await settles(cascade)

    await run(tmp_path, scenario)
