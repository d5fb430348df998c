"""Channel readers that are services: an item in their hand is work, and what is lost of it is named."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import pytest

from quiesce import Channel, Report, Scope, ScopeClosed, start_process
from tests.stress import turns
from tests.unit.core.drains import LONG_SECONDS, SHORT_SECONDS, STARTS, draining, until_state

SOON_SECONDS = 5  # a busy machine has time for what takes a few turns; far less than the grace

Start: TypeAlias = Callable[[Scope], Awaitable[None]]


async def nested(scope: Scope) -> None:
    """Open a scope for the item, as a block in the current scope."""
    async with Scope("per item") as inner:
        await inner.spawn(turns)
    assert scope.state == "draining"


async def process(scope: Scope) -> None:
    """Run a program."""
    started = await start_process([sys.executable, "-S", "-c", ""], scope=scope)
    assert await started.wait() == 0


async def forward(scope: Scope) -> None:
    """Pass something on to the next reader."""
    await Channel[int](scope=scope, fan_out=True).send(1)


def named(report: Report | None) -> list[object]:
    """Return the items that a report lists as undelivered."""
    assert report is not None
    return [entry.details["item"] for entry in report.undelivered]


@pytest.mark.real_time  # of a program
@pytest.mark.parametrize("start", [*STARTS, nested, process, forward])
async def test_a_service_may_start_what_its_item_needs(start: Start) -> None:
    """In a drain, as a job may: nothing is lost, and the drain waits for what was started."""
    handled: list[int] = []

    async def read() -> None:
        async for item in channel:
            await until_state(scope, "draining")
            await start(scope)
            handled.append(item)

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    scope.spawn(read, service=True)
    for item in range(3):
        channel.send_nowait(item)
    await turns()
    report = await scope.drain(grace=LONG_SECONDS)
    assert handled == [0, 1, 2]
    assert report.ok, str(report)


async def test_a_service_may_start_for_a_batch_or_an_item_of_a_tap() -> None:
    """Every loop over a channel counts."""
    handled: list[object] = []

    async def read_batches() -> None:
        async for items in channel.batches():
            await until_state(scope, "draining")
            await scope.spawn(turns)
            handled.append(items)

    async def read_tap() -> None:
        async for item in tap:
            await until_state(scope, "draining")
            await scope.spawn(turns)
            handled.append(item)

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    tap = channel.tap()
    scope.spawn(read_batches, service=True)
    scope.spawn(read_tap, service=True)
    channel.send_nowait(1)
    await turns()
    assert (await scope.drain(grace=LONG_SECONDS)).ok
    assert sorted(handled, key=str) == [1, [1]]


async def test_what_a_service_has_started_for_its_item_is_waited_for() -> None:
    """Also when the reader has come back for the next."""
    go, begun = anyio.Event(), anyio.Event()
    done: list[int] = []

    async def work(item: int) -> None:
        begun.set()
        await go.wait()
        done.append(item)

    async def read() -> None:
        async for item in channel:
            await until_state(scope, "draining")
            scope.spawn(work, item)

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    scope.spawn(read, service=True)
    channel.send_nowait(7)
    await turns()
    async with draining(scope):
        with anyio.fail_after(LONG_SECONDS):
            await begun.wait()
        await turns()
        assert scope.state == "draining"
        go.set()
    assert done == [7]
    assert scope.report is not None
    assert scope.report.ok


async def test_a_service_without_an_item_may_start_nothing() -> None:
    """Not before its first item, not after it has left the loop, and not another service."""
    refused: list[str] = []
    go, has_left = anyio.Event(), anyio.Event()

    def attempt(who: str) -> None:
        try:
            job = scope.spawn(turns)
        except ScopeClosed:
            refused.append(who)
        else:
            job.cancel()

    async def read() -> None:
        async for _ in channel:
            break
        has_left.set()
        await go.wait()
        attempt("left")

    async def other() -> None:
        await go.wait()
        attempt("other")

    async def read_in_vain() -> None:
        await go.wait()
        attempt("in vain")
        async for _ in channel:
            pass

    async def handle() -> None:
        async for _ in busy:
            await go.wait()
            await turns()

    scope = await Scope.open("a")
    channel, busy = Channel[int](scope=scope), Channel[int](scope=scope)
    for service in (read, other, read_in_vain, handle):
        scope.spawn(service, service=True)
    channel.send_nowait(1)
    busy.send_nowait(1)
    await has_left.wait()
    async with draining(scope):
        go.set()
    assert sorted(refused) == ["in vain", "left", "other"]


async def test_an_item_of_an_outer_channel_is_not_work_of_the_draining_scope() -> None:
    """The drain does not wait for it, so it starts nothing there."""
    refused = anyio.Event()

    async def read() -> None:
        async for _ in channel:
            await until_state(inner, "draining")
            with pytest.raises(ScopeClosed):
                inner.spawn(turns)
            refused.set()

    async with Scope("outer") as outer:
        inner = outer.child("inner")
        channel = Channel[int](scope=outer)
        inner.spawn(read, service=True)
        inner.spawn(refused.wait)
        channel.send_nowait(1)
        await turns()
        assert (await inner.drain(grace=LONG_SECONDS)).ok


async def test_a_part_of_the_reader_may_start_what_the_item_needs(backend: str) -> None:
    """A task that the reader awaits for its item: of a nursery on trio, adopted on asyncio."""
    started: list[int] = []

    async def start() -> None:
        await turns()
        await scope.spawn(turns)
        started.append(1)

    async def read() -> None:
        async for _ in channel:
            await until_state(scope, "draining")
            async with anyio.create_task_group() as group:
                group.start_soon(start)
                group.start_soon(start)

    scope = await Scope.open("a", adopt=backend != "trio")
    channel = Channel[int](scope=scope)
    scope.spawn(read, service=True)
    channel.send_nowait(1)
    await turns()
    report = await scope.drain(grace=LONG_SECONDS)
    assert report.ok, str(report)
    assert started == [1, 1]


# --- an item in the hand of a reader that dies --------------------------------------------------


@pytest.mark.parametrize("service", [True, False])
@pytest.mark.parametrize("batch", [True, False])
async def test_the_item_of_a_reader_that_fails_is_named(*, service: bool, batch: bool) -> None:
    """With what is left in the channel, and once; a job is named itself, and its item is in its error."""

    async def read() -> None:
        async for _ in channel.batches(1) if batch else channel:
            await until_state(scope, "draining")
            raise KeyError

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    scope.spawn(read, service=service)
    for item in range(3):
        channel.send_nowait(item)
    await turns()
    begin = anyio.current_time()
    report = await scope.drain(grace=LONG_SECONDS)
    assert anyio.current_time() - begin < SOON_SECONDS  # no reader is left
    assert len(report.failed) == 1
    assert sorted(named(report), key=str) == ([0, 1, 2] if service else [1, 2])
    assert ("of channel channel, taken by job" in str(report)) is service
    assert channel.undelivered == (1, 2)


@pytest.mark.parametrize("cleaning", [True, False])
@pytest.mark.parametrize("service", [True, False])
async def test_the_item_of_a_reader_that_the_close_cancels_is_named(
    *, service: bool, cleaning: bool
) -> None:
    """A service counts as stopped, but its item was work, also if it cleans up after its loop; a job is named itself."""

    async def read() -> None:
        try:
            async for _ in channel:
                await anyio.sleep_forever()
        finally:
            if cleaning:
                with anyio.CancelScope(shield=True):
                    await turns()

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    scope.spawn(read, service=service)
    channel.send_nowait(7)
    await turns()
    report = await scope.drain(grace=SHORT_SECONDS)
    assert (named(report), len(report.cancelled)) == (([7], 0) if service else ([], 1))
    assert not report.ok


async def test_an_item_that_a_cancelled_reader_still_handles_is_not_named() -> None:
    """It answers its cancellation by finishing the item."""
    handled: list[int] = []

    async def read(*, comes_back: bool) -> None:
        async for item in channel:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                handled.append(item)
                if not comes_back:
                    return

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)

    async def leave() -> None:
        await read(comes_back=False)

    async def come_back() -> None:
        await read(comes_back=True)

    scope.spawn(leave, service=True)
    scope.spawn(come_back, service=True)
    channel.send_nowait(7)
    channel.send_nowait(8)
    await turns()
    report = await scope.drain(grace=SHORT_SECONDS)
    assert sorted(handled) == [7, 8]
    assert named(report) == []


async def test_an_item_of_a_reader_that_left_its_loop_well_is_not_named() -> None:
    """It has broken out of the loop, and fails later, for another reason."""
    left = anyio.Event()

    async def read() -> None:
        async for _ in channel:
            break
        left.set()
        await turns()
        raise KeyError

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    job = scope.spawn(read, service=True)
    channel.send_nowait(7)
    await left.wait()
    with pytest.raises(KeyError):
        await job
    report = await scope.drain(grace=LONG_SECONDS)
    assert len(report.failed) == 1
    assert named(report) == []


async def test_what_was_cancelled_on_request_or_passed_to_on_error_is_not_named() -> None:
    """A job that was withdrawn, and a failure that `on_error` was given, are not a loss; nor is their item."""

    async def read() -> None:
        async for item in channel:
            if item:
                raise KeyError
            await anyio.sleep_forever()

    scope = await Scope.open("a", on_error=lambda _job, _error: None)
    channel = Channel[int](scope=scope)
    job = scope.spawn(read)
    channel.send_nowait(0)
    await turns()
    job.cancel()
    await turns()
    scope.spawn(read, service=True)
    channel.send_nowait(1)
    await turns()
    report = await scope.drain(grace=LONG_SECONDS)
    assert (report.withdrawn, report.handled, report.ok) == (1, 1, True)


async def test_the_item_of_a_service_that_was_cancelled_is_named() -> None:
    """The service is a loop, which may be stopped at any time; the item in its hand was work."""

    async def read() -> None:
        async for _ in channel:
            await anyio.sleep_forever()

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    job = scope.spawn(read, service=True)
    channel.send_nowait(7)
    await turns()
    job.cancel()
    await turns()
    report = await scope.drain(grace=LONG_SECONDS)
    assert named(report) == [7]


@pytest.mark.backends("asyncio", "uvloop")
async def test_the_item_of_a_failed_task_that_no_scope_owns_is_named() -> None:
    """Nothing else in the report tells of it; on trio a nursery lets the failure out."""

    async def read() -> None:
        async for _ in channel:
            raise KeyError

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    channel.send_nowait(7)
    task = asyncio.get_running_loop().create_task(read())
    await asyncio.wait([task])
    await turns()
    assert isinstance(task.exception(), KeyError)
    assert named(await scope.drain(grace=LONG_SECONDS)) == [7]


async def test_the_item_of_a_cancelled_task_of_a_service_is_named() -> None:
    """A service may read in several tasks of a group of its own."""

    async def read() -> None:
        async for _ in channel:
            await anyio.sleep_forever()

    async def serve() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(read)

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope)
    scope.spawn(serve, service=True)
    await turns()
    channel.send_nowait(7)
    channel.send_nowait(8)
    await turns()
    report = await scope.drain(grace=SHORT_SECONDS)
    assert sorted(named(report), key=str) == [7, 8]


async def test_an_item_is_not_kept_while_its_reader_waits_for_the_next() -> None:
    """What was handled can be collected."""

    class Item:
        gone = False

        def __del__(self) -> None:
            Item.gone = True

    async def read() -> None:
        async for _ in channel:
            pass

    async with Scope("a") as scope:
        channel = Channel[Item | None](scope=scope)
        scope.spawn(read, service=True)
        channel.send_nowait(Item())
        await scope.idle()
        channel.send_nowait(None)  # the loop's own variable refers to the item until then
        await scope.idle()
        assert Item.gone
