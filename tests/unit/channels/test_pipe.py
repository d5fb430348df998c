"""Pipes: a producer and its reader, which end together."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

from quiesce import (
    ArgumentError,
    Channel,
    ChannelClosed,
    JobCancelled,
    Report,
    Scope,
    ScopeClosed,
    UsageError,
    pipe,
)
from tests.stress import turns


async def count_to(channel: Channel[int], count: int = 5) -> None:
    """Produce some numbers."""
    for item in range(count):
        await channel.send(item)


async def count_for_ever(channel: Channel[int]) -> None:
    """Produce numbers until told otherwise."""
    item = 0
    while True:
        await channel.send(item)
        item += 1


async def collect(channel: Channel[int]) -> list[int]:
    """Read to the end."""
    return [item async for item in channel]


async def collect_until_cut(
    channel: Channel[int],
) -> tuple[list[int], BaseException | None]:
    """Read to the end, and tell why it came."""
    got: list[int] = []
    try:
        async for item in channel:
            got.append(item)  # noqa: PERF401 - what came before the end counts
    except ChannelClosed as end:
        return got, end.__cause__
    return got, None


async def fail(channel: Channel[int]) -> None:
    """Produce or read one, and fail."""
    if len(channel):
        await channel.receive()
    else:
        channel.send_nowait(0)
    raise KeyError


def report_of(scope: Scope) -> Report:
    """Return the report of a closed scope."""
    assert scope.report is not None
    return scope.report


@pytest.mark.parametrize("maxsize", [1, 2, None])
async def test_the_reader_gets_everything_and_the_end(maxsize: int | None) -> None:
    """When the producer is through, the reader reads the rest and returns; nothing is lost."""
    async with Scope("a") as scope:
        pair = pipe(count_to, collect, maxsize=maxsize, name="numbers")
        assert (pair.producer.name, pair.reader.name) == ("numbers producer", "numbers reader")
        assert await pair == [0, 1, 2, 3, 4]
        assert pair.channel.closed
    assert report_of(scope).completed == 2
    assert report_of(scope).ok


async def test_a_producer_that_fails_ends_the_reader() -> None:
    """What it sent is still read, then its error is the cause of the end; the report has it."""
    async with Scope("a", on_error=lambda *_: None) as scope:
        pair = pipe(fail, collect_until_cut)
        with pytest.raises(KeyError):
            await pair
        got, cause = await pair.reader
        assert got == [0]
        assert isinstance(cause, KeyError)
    assert report_of(scope).handled == 1


async def test_a_reader_that_fails_ends_the_producer() -> None:
    """Nobody reads any more: the producer is cancelled, what was left is undelivered."""
    scope = await Scope.open("a")
    pair = pipe(count_for_ever, fail, maxsize=3, scope=scope)
    with pytest.raises(KeyError):
        await pair
    assert pair.producer.outcome is not None
    assert pair.producer.outcome.status == "cancelled"
    report = await scope.aclose()
    assert [ended.name for ended in report.failed] == ["pipe reader"]
    assert len(report.undelivered) == len(pair.channel.undelivered) > 0


async def test_a_reader_that_has_enough_ends_the_producer() -> None:
    """It returns early, and the pipe gives its result; the producer was told to stop."""

    async def first(channel: Channel[int]) -> int:
        return await channel.receive()

    async with Scope("a") as scope:
        pair = pipe(count_for_ever, first, maxsize=1)
        assert await pair == 0
        assert pair.producer.done()
    assert report_of(scope).withdrawn == 1
    assert report_of(scope).completed == 1


@pytest.mark.parametrize("who", ["producer", "reader", "both"])
@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_one_ends_both(*, begun: bool, who: str) -> None:
    """Whichever is cancelled, before its first step or later, the other does not stay."""
    async with Scope("a") as scope:
        pair = pipe(count_for_ever, collect_until_cut, maxsize=2)
        if begun:
            await turns()
        chosen: dict[str, Any] = {"producer": pair.producer, "reader": pair.reader, "both": pair}
        assert chosen[who].cancel()
        if who == "producer":
            got, cause = await pair
            assert got or not begun  # on trio it may run up to its first wait
            assert isinstance(cause, JobCancelled)
        elif who == "reader":
            with pytest.raises(JobCancelled):
                await pair
        else:
            with suppress(JobCancelled):  # on trio, the reader may see the end first
                await pair
        await scope.idle()
        assert pair.channel.closed
        assert not pair.cancel()


async def test_a_waiter_that_is_cancelled_leaves_both_alone() -> None:
    """The pipe goes on, and can be awaited again."""
    async with Scope("a"):
        pair = pipe(count_to, collect, maxsize=1)
        with anyio.CancelScope() as cancel:
            cancel.cancel()
            await pair
        assert cancel.cancelled_caught
        assert await pair == [0, 1, 2, 3, 4]


async def test_a_drain_waits_for_both() -> None:
    """A pipe in flight is work: it is finished, not cut."""
    scope = await Scope.open("a")
    pair = pipe(count_to, collect, maxsize=1, scope=scope)
    report = await scope.drain(grace=5)
    assert await pair.reader == [0, 1, 2, 3, 4]
    assert report.ok
    assert report.completed == 2


async def test_a_close_ends_both() -> None:
    """Nothing of it is left, and what was sent is read or reported."""
    got: list[int] = []

    async def read(channel: Channel[int]) -> None:
        async for item in channel:
            got.append(item)
            await turns(3)

    scope = await Scope.open("a")
    pair = pipe(count_for_ever, read, maxsize=2, scope=scope)
    await turns(20)
    report = await scope.aclose()
    assert pair.producer.done()
    assert pair.reader.done()
    sent = pair.channel.stats.sent
    assert [*got, *pair.channel.undelivered] == list(range(sent))
    assert len(report.undelivered) == len(pair.channel.undelivered)


async def test_a_reader_that_has_not_begun_is_not_given_up() -> None:
    """A close that comes first gives nothing up."""
    go = anyio.Event()

    async def late(channel: Channel[int]) -> list[int]:
        await go.wait()
        return await collect(channel)

    async with Scope("a"):
        pair = pipe(count_to, late)
        await turns()
        assert pair.producer.done()
        pair.channel.close()
        await turns(20)
        go.set()
        assert await pair == [0, 1, 2, 3, 4]


async def test_a_producer_that_goes_on_after_the_close_is_told() -> None:
    """A reader that closes the channel throws the producer out."""

    async def close(channel: Channel[int]) -> int:
        await channel.receive()
        channel.close(immediate=True)
        await turns()
        return 1

    async with Scope("a", on_error=lambda *_: None) as scope:
        pair = pipe(count_for_ever, close, maxsize=1)
        with pytest.raises(ChannelClosed):
            await pair
    assert report_of(scope).handled == 1


@pytest.mark.parametrize("bad", [3, "no", None])
@pytest.mark.parametrize("which", [0, 1])
async def test_what_is_no_function_is_refused(which: int, bad: Any) -> None:
    """Both arguments are checked before anything starts."""
    functions: list[Any] = [count_to, collect]
    functions[which] = bad
    async with Scope("a") as scope:
        with pytest.raises(ArgumentError, match="not a function"):
            pipe(*functions)
        assert not scope.frontier()
        assert not scope.list_own_resources()


@pytest.mark.parametrize("which", [0, 1])
async def test_a_pair_that_cannot_be_started_leaves_nothing(which: int) -> None:
    """A function that is not async is seen when it is called: the other one does not stay."""
    functions: list[Any] = [count_to, collect]
    functions[which] = lambda _: 3
    async with Scope("a") as scope:
        with pytest.raises(ArgumentError, match="is not awaitable"):
            pipe(*functions)
        await turns()
        assert not scope.frontier()
        assert not scope.list_own_resources()


async def test_a_pipe_needs_an_open_scope() -> None:
    """As a channel and a job do."""
    with pytest.raises(UsageError, match="needs a scope"):
        pipe(count_to, collect)
    async with Scope("a") as scope:
        pass
    with pytest.raises(ScopeClosed):
        pipe(count_to, collect, scope=scope)
