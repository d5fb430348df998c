"""A hop lasts as long as anything that was started for its message; then it ends, once."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError
from quiesce.core.current import detached
from quiesce.errors import CascadeCancelled
from quiesce.mesh import Settled, Unknown, current_hop
from quiesce.mesh.runtime.hop import hop_of_node
from tests.stress import CANCELLED, lasting, turns
from tests.unit.mesh.meshing import HandlerError, World, fails, here, is_held_by, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from quiesce.mesh import Cascade, Hop

    Starter = Callable[[Hop, anyio.Event], object]

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


def by_spawn(hop: Hop, gate: anyio.Event) -> None:
    """Leave a job."""
    hop.spawn(gate.wait)


def by_task(_: Hop, gate: anyio.Event) -> None:
    """Leave a task that other code has made."""
    asyncio.get_running_loop().create_task(gate.wait())


def by_task_of_a_task(_: Hop, gate: anyio.Event) -> None:
    """Leave a task that ends, and has begun another."""

    async def first() -> None:
        asyncio.get_running_loop().create_task(gate.wait())

    asyncio.get_running_loop().create_task(first())


def by_last_callback(_: Hop, gate: anyio.Event) -> None:
    """Leave a task that begins another when it has ended."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(asyncio.sleep(0))
    task.add_done_callback(lambda _: loop.create_task(gate.wait()))


def by_child(hop: Hop, gate: anyio.Event) -> None:
    """Leave a scope below it that is busy."""
    hop.child("below").spawn(gate.wait)


def by_callback_of_a_job(hop: Hop, gate: anyio.Event) -> None:
    """Leave a job that begins another in its last step."""

    async def first() -> None:
        await turns(2)
        hop.spawn(gate.wait)

    hop.spawn(first)


STARTERS = [by_spawn, by_child, by_callback_of_a_job]
ADOPTED = [by_task, by_task_of_a_task, by_last_callback]


@pytest.mark.parametrize("start", STARTERS)
async def test_a_hop_lasts_as_long_as_the_work_that_its_handler_left(start: Starter) -> None:
    """A job, a busy scope, a job that another one began last: all of it belongs to the hop."""
    await is_held_by(start)


@on_asyncio
@pytest.mark.parametrize("start", ADOPTED)
async def test_a_hop_lasts_as_long_as_tasks_that_other_code_has_made(start: Starter) -> None:
    """A task, the task of a task, and one that begins in the callback of the last one."""
    await is_held_by(start)


@on_asyncio
@pytest.mark.quiesce(allow=["generator:*numbers"])
@pytest.mark.parametrize("at_the_end", [True, False])
async def test_a_hop_lasts_as_long_as_a_dropped_generator(*, at_the_end: bool) -> None:
    """The loop ends it in a task of its own, which it makes a turn later: `finally` is work as any other."""
    gate = anyio.Event()
    at_work: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            at_work.append("finally")
            await gate.wait()
            at_work.clear()

    async def handler(_: Hop) -> None:
        async for _number in numbers():
            break
        if not at_the_end:
            await turns(3)

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        early = await cascade.settled(within=0.01, require="participants")
        assert at_work
        assert isinstance(early, Unknown)
        gate.set()
        assert (await cascade.settled(5, require="participants")).ok
        assert not at_work


async def test_a_hop_lasts_as_long_as_a_hold() -> None:
    """What was taken, and waits to be worked on, is not forgotten; work on it is part of the hop."""
    seen: list[Hop | None] = []

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        held: list[tuple[Hop, Any]] = []

        async def take(hop: Hop) -> None:
            held.append((hop, hop.hold("message", "one")))

        async with root.cascade("c") as cascade:
            await world.hand("b", take)
        await turns(10)
        ((hop, hold),) = held
        assert not hop.has_ended
        async with hop.working("one") as found:
            assert found is hop
            hold.release()
            await turns(5)
            assert not hop.has_ended
            seen.append(current_hop())
        assert current_hop() is None
        assert seen == [hop]
        assert (await cascade.settled(5, require="participants")).ok


@pytest.mark.real_time
async def test_a_hop_lasts_as_long_as_a_thread() -> None:
    """Also if whoever waits for the thread was cancelled: the function has not returned."""
    gate = threading.Event()

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")

        async def handler(hop: Hop) -> None:
            begun = anyio.Event()

            def block() -> None:
                hop.from_thread(begun.set).result()
                gate.wait()

            job = hop.spawn(hop.to_thread, block)
            await begun.wait()
            job.cancel()

        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        await turns(20)
        assert len(world.nodes["b"].opened.running_hops) == 1
        assert isinstance(await cascade.settled(within=0), Unknown)
        gate.set()
        assert (await cascade.settled(5, require="participants")).ok


async def test_the_same_task_may_work_for_it_twice_at_once() -> None:
    """A block in a block: the hop ends after the outer one."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            hop = here()
            async with hop.working("outer"):
                async with hop.working("inner"):
                    assert current_hop() is hop
                await turns(5)
                assert current_hop() is hop
            await turns(5)
            assert not hop.has_ended
            assert current_hop() is hop
        assert isinstance(await cascade.settled(1), Settled)
        assert hop.has_ended


async def test_nothing_can_be_done_as_part_of_an_ended_hop() -> None:
    """Neither work, nor a message."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            hop = here()
            part = hop.working("once")
            async with part:
                pass
            with pytest.raises(UsageError):
                part.enter()
        assert (await cascade.settled(1)).ok
        with pytest.raises(UsageError, match="has ended"):
            async with hop.working("more"):
                pass
        with pytest.raises(UsageError, match="has ended"):
            hop.delegate("http://b")


@on_asyncio
async def test_services_outlive_a_hop_and_detached_work_is_not_part_of_it() -> None:
    """A service does not keep it, and ends with the node; what is detached is not looked at."""
    ended: list[str] = []

    async def lasts(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    async with World() as world:
        node = await world.add("a", services=["pool-*"])
        loop = asyncio.get_running_loop()
        async with node.cascade("c") as cascade:
            loop_task = loop.create_task(lasts("pool"), name="pool-1")
            with detached():
                assert current_hop() is None
                stranger = loop.create_task(lasts("stranger"))
            await turns(2)
        assert isinstance(await cascade.settled(1), Settled)
        await turns(5)
        assert ended == []
        await node.drain(1)
        assert ended == ["pool"]
        assert loop_task.cancelled()
        stranger.cancel()
        await turns(3)
        assert ended == ["pool", "stranger"]


@on_asyncio
async def test_loops_go_on_after_it_was_cancelled() -> None:
    """Whoever else uses the pool is not part of the cascade."""
    ended: list[str] = []

    async def pool() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("pool")

    async with World() as world:
        node = await world.add("a", services=["pool-*"])
        cascade = node.cascade("c")

        async def begin_pool() -> None:
            asyncio.get_running_loop().create_task(pool(), name="pool-1")

        with pytest.raises(CascadeCancelled):
            async with cascade:
                await begin_and_cancel(begin_pool, cascade)
        found = await cascade.settled(1)
        assert found.receipt.cancelled == 1
        assert ended == []
        await node.drain(1)
        assert ended == ["pool"]


async def begin_and_cancel(begin: Callable[[], Awaitable[None]], cascade: Cascade) -> None:
    """Begin something in a cascade, then have that cancelled."""
    await begin()
    await turns(2)
    await cascade.cancel()
    await anyio.sleep_forever()


# How it ends.


async def leaves_a_failing_job(hop: Hop) -> None:
    """Leave a job that fails."""
    hop.spawn(fails, hop)


async def cancels_itself(_: Hop) -> None:
    """Cancel itself, so that the cancellation is not one of the cascade."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("handler", "status", "why"),
    [
        (nothing, "done", ""),
        (fails, "failed", "HandlerError"),
        (leaves_a_failing_job, "failed", "HandlerError"),
        (cancels_itself, "done", ""),
    ],
)
async def test_the_receipt_says_how_a_hop_ended(
    handler: Callable[[Hop], Awaitable[None]], status: str, why: str
) -> None:
    """Not more than the kind of a failure: what it says may be a secret."""
    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Settled)
        note = found.receipt.notes[1]
        assert (note.name, note.status, note.why) == ("b", status, why)
        assert found.receipt.failed == (status == "failed")


@on_asyncio
async def test_a_failed_task_that_was_not_awaited_is_a_failure() -> None:
    """Though nobody has spawned it: it was part of the work."""
    tasks: list[asyncio.Task[None]] = []

    async def handler(hop: Hop) -> None:
        tasks.append(asyncio.get_running_loop().create_task(fails(hop)))

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5, require="participants")
        assert found.receipt.failed == 1
        with pytest.raises(HandlerError):
            await tasks[0]


async def test_a_hop_may_be_cancelled_from_outside() -> None:
    """The handler's own task was: the hop was cut short, the cancellation is passed on."""
    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            hop = here()
            with hop.delegate("http://b") as handing:
                part = node.handle(handing.header)
                with anyio.CancelScope() as scope:
                    async with part:
                        scope.cancel()
                        await anyio.sleep_forever()
                assert scope.cancelled_caught
                handing.answered(node.opened.answer(part.hop))
        found = await cascade.settled(5, require="participants")
        assert found.receipt.cancelled == 1


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_hop_is_cancelled_with_its_cascade_in_the_midst(swallows: bool) -> None:  # noqa: FBT001 - a case
    """Handler and jobs are; one that swallows it and returns has been cancelled all the same."""
    ended: list[str] = []

    async def job() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("job")

    async def handler(hop: Hop) -> None:
        hop.spawn(job)
        try:
            await anyio.sleep_forever()
        except CANCELLED:
            ended.append("handler")
            if not swallows:
                raise

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")

        async def hand() -> None:
            await world.hand("b", handler)

        async with root.cascade("c") as cascade:
            hop = here()
            hop.spawn(hand)
            await turns(10)
        assert len(world.nodes["b"].opened.running_hops) == 1
        await cascade.cancel()
        found = await cascade.settled(5, require="participants")
        assert sorted(ended) == ["handler", "job"]
        assert found.receipt.cancelled == 2
        assert isinstance(found, Settled)


async def test_a_cancelled_one_ends_when_its_cleanup_has() -> None:
    """However long that takes: before it there is no receipt, after it there is."""
    async with World() as world:
        root, _ = await world.add("a", url=None), await world.add("b")
        cleaned: list[float] = []

        async def slow() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                await lasting(0.3)
                cleaned.append(anyio.current_time())

        async def handler(hop: Hop) -> None:
            assert hop.cleanup_seconds > 0.3  # and what is read is there to be set
            hop.cleanup_seconds = 0.05  # it has no say: nobody is told before the end
            hop.spawn(slow)
            await turns(2)

        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        await turns(5)
        await cascade.cancel()
        assert isinstance(await cascade.settled(0.1), Unknown)
        assert not cleaned
        found = await cascade.settled(5, require="participants")
        assert len(cleaned) == 1
        assert found.receipt.cancelled == 1


async def test_queued_work_of_a_cancelled_hop_does_not_begin() -> None:
    """A message of it that comes from a queue is not worked on."""
    async with World() as world:
        node, stop = await world.add("a"), anyio.Event()

        async def lasts() -> None:
            with anyio.CancelScope(shield=True):
                await stop.wait()

        async with node.cascade("c") as cascade:
            hop = here()
            hop.spawn(lasts)
            await turns(2)
        await cascade.cancel()
        with pytest.raises(CascadeCancelled, match=r"^cascade 'c' was cancelled$"):
            hop.working("late").enter()
        stop.set()
        assert (await cascade.settled(1)).receipt.cancelled == 1
        with pytest.raises(CascadeCancelled):
            hop.working("later").enter()


async def test_the_client_of_another_node_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """What it sends in a hop that is not its node's belongs to nobody; outside of hops there is nothing to say."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        assert hop_of_node(node) is None
        async with node.cascade("c"):
            assert hop_of_node(node) is here()
            assert [hop_of_node(other) for _ in range(3)] == [None] * 3
        assert caplog.text.count("Use a client of node 'a' there") == 1


@on_asyncio
@pytest.mark.real_time
async def test_a_cascade_is_waited_for_in_its_event_loop() -> None:
    """Another one would never be told of its end."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade, Scope("thread") as scope:
            ask = partial(asyncio.run, cascade.settled(1))
            with pytest.raises(UsageError, match="from another thread or event loop"):
                await scope.to_thread(ask)
