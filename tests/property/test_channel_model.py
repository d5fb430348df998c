"""Random programs of senders, readers, cancellations and closes, against plain bookkeeping.

The promise: every item whose `send()` has returned is received exactly once, or undelivered; an
item whose `send()` has raised was never in the channel. One producer's items come in its order.
A failure prints the seed, which replays the program.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import Channel, ChannelClosed, ChannelFull, Job, Scope

PROGRAMS = 120  # a part
SETTLE_TURNS = 12


class Program:
    """One random program, and what it has seen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test wants to be replayed
        self.scope: Scope = None  # type: ignore[assignment]  # set before anything else runs
        self.channel: Channel[tuple[int, int]] = None  # type: ignore[assignment]  # likewise
        self.accepted: list[tuple[int, int]] = []
        self.refused: list[tuple[int, int]] = []
        self.received: list[tuple[int, int]] = []
        self.jobs: list[Job[Any]] = []

    async def pause(self) -> None:
        """Let others run for a random number of turns."""
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 5))):
            await anyio.lowlevel.checkpoint()

    async def produce(self, producer: int, count: int, manner: str) -> None:
        """Send some items; each send either returns or raises, and both are noted."""
        for number in range(count):
            item = (producer, number)
            try:
                if manner == "nowait":
                    self.channel.send_nowait(item)
                else:
                    await self.channel.send(item)
            except ChannelFull:
                self.refused.append(item)
                await anyio.lowlevel.checkpoint()
            except ChannelClosed:
                self.refused.append(item)
                return
            except anyio.get_cancelled_exc_class():
                self.refused.append(item)
                raise
            else:
                self.accepted.append(item)
            await self.pause()

    async def read(self, manner: str, count: int) -> None:
        """Read until the end, or until one has had enough."""
        try:
            if manner == "for":
                async for item in self.channel:
                    self.received.append(item)
                    await self.pause()
                    count -= 1
                    if not count:
                        return
            elif manner == "batches":
                async for items in self.channel.batches(self.random.choice((None, 1, 3))):
                    self.received += items
                    await self.pause()
                    count -= 1
                    if not count:
                        return
            while manner in {"receive", "batch"} and count:
                if manner == "receive":
                    self.received.append(await self.channel.receive())
                else:
                    self.received += await self.channel.batch(self.random.choice((None, 2)))
                await self.pause()
                count -= 1
        except ChannelClosed:
            return

    async def impatient(self) -> None:
        """Wait for an item several times, and never longer than a few turns."""
        for _ in range(10):
            with anyio.CancelScope() as patience:
                self.scope.spawn(self.expire, patience, self.random.choice((0, 1, 2)))
                self.received.append(await self.channel.receive())
            await self.pause()

    async def expire(self, patience: anyio.CancelScope, turns: int) -> None:
        """End somebody's patience after some turns."""
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        patience.cancel()

    def act(self) -> None:
        """Do one random thing."""
        choose = self.random.choice
        kind = choose(("produce", "produce", "read", "read", "impatient", "cancel", "cancel"))
        if kind == "produce":
            number = len(self.jobs)
            count, manner = choose((1, 3, 12)), choose(("send", "send", "nowait"))
            self.jobs.append(self.scope.spawn(self.produce, number, count, manner))
        elif kind == "read":
            manner = choose(("for", "receive", "batch", "batches"))
            self.jobs.append(self.scope.spawn(self.read, manner, choose((1, 4, 1000))))
        elif kind == "impatient":
            self.jobs.append(self.scope.spawn(self.guarded, self.impatient))
        elif self.jobs:
            choose(self.jobs).cancel()

    async def guarded(self, fn: Any) -> None:
        """See the end of the channel as an end."""
        try:
            await fn()
        except ChannelClosed:
            return

    async def run(self) -> None:
        """Run the program, close in a random way, and add up."""
        maxsize = self.random.choice((1, 2, 5, None))
        async with await_scope("model") as self.scope:
            self.channel = Channel(maxsize, scope=self.scope)
            for _ in range(self.random.choice((3, 8, 15))):
                self.act()
                await self.pause()
            way = self.random.choice(("close", "readers", "immediate", "aclose", "drain"))
            if way == "close":
                self.channel.close()
            elif way == "readers":
                self.channel.read_by(*self.jobs)
            elif way == "immediate":
                self.channel.close(immediate=True)
            report = await (
                self.scope.aclose() if way == "aclose" else self.scope.drain(grace=0.005)
            )
        self.add_up([item.details["item"] for item in report.undelivered])

    def add_up(self, reported: list[Any]) -> None:
        """Check that each item is in exactly one place."""
        undelivered = list(self.channel.undelivered)
        assert reported == undelivered
        assert Counter(self.received + undelivered) == Counter(self.accepted)
        assert not set(self.refused) & set(self.accepted)
        statistics = self.channel.stats
        assert statistics.sent == len(self.accepted)
        assert statistics.received == len(self.received)
        assert (statistics.depth, statistics.senders_waiting, statistics.readers_waiting) == (
            0,
            0,
            0,
        )


def await_scope(name: str) -> Scope:
    """Make a scope whose block does not complain of what the program loses on purpose."""
    return Scope(name, on_error=lambda _job, _error: None)


@pytest.mark.parametrize("part", range(5))
async def test_every_item_is_in_one_place(part: int) -> None:
    """Whoever is cancelled and however it ends, each accepted item is received or undelivered."""
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        program = Program(seed)
        try:
            await program.run()
        except BaseException as error:
            error.add_note(f"replay with Program({seed})")
            raise
