"""Seed 003's shape, rebuilt: a registry of requests, each with a producer, a queue, a subscriber.

A thousand requests in flight are torn down at a random moment, by a drain or a close, while late
ones still try to start and subscribers are gone. It must never deadlock (the tests run in virtual
time, and have a limit), never leak (the harness looks), and the report must add up.
"""

from __future__ import annotations

import random
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from quiesce import Channel, ChannelClosed, Pipe, Report, Scope, ScopeClosed, pipe

REQUESTS = 1000
MANNERS = ("reads", "reads", "slow", "gone", "fails", "hangs", "deaf")


class Registry:
    """The requests in flight, and what became of their events."""

    def __init__(self, seed: int, scope: Scope) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test wants to be replayed
        self.scope = scope
        self.pipes: list[Pipe[tuple[int, int], None]] = []
        self.accepted: list[tuple[int, int]] = []
        self.read: list[tuple[int, int]] = []
        self.refused = 0

    def start(self) -> None:
        """Handle one more request."""
        number = len(self.pipes)
        manner = self.random.choice(MANNERS)
        events = self.random.choice((0, 1, 3, 20))

        async def produce(queue: Channel[tuple[int, int]]) -> None:
            for event in range(events):
                await queue.send((number, event))
                self.accepted.append((number, event))
                await anyio.lowlevel.checkpoint()
            if manner == "hangs":
                await anyio.sleep_forever()

        async def subscribe(queue: Channel[tuple[int, int]]) -> None:
            async for event in queue:
                self.read.append(event)
                if manner == "gone":
                    return
                if manner == "fails":
                    raise LookupError(event)
                if manner == "deaf":
                    queue.close(
                        immediate=True
                    )  # as a terminal event does; its own reader is this one
                for _ in range(5 if manner == "slow" else 0):
                    await anyio.lowlevel.checkpoint()

        try:
            maxsize = self.random.choice((1, 2, None))
            self.pipes.append(
                pipe(produce, subscribe, maxsize=maxsize, name=f"{number}", scope=self.scope)
            )
        except ScopeClosed:
            self.refused += 1

    async def keep_starting(self) -> None:
        """Bring late requests until the registry has been closed for a while."""
        while self.refused < 10:
            self.start()
            await anyio.lowlevel.checkpoint()

    def add_up(self, report: Report) -> None:
        """Check that every job and every event is in exactly one place."""
        jobs = report.completed + report.withdrawn + len(report.cancelled) + len(report.failed)
        assert jobs == 2 * len(self.pipes)
        assert not report.stuck
        unread = [item.details["item"] for item in report.undelivered]
        assert Counter(self.read + unread) == Counter(self.accepted)
        assert all(isinstance(item.error, LookupError | ChannelClosed) for item in report.failed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
async def test_a_registry_is_torn_down_at_any_moment(seed: int) -> None:
    """A thousand requests end, late ones are refused, and the report adds up."""
    scope = await Scope.open("registry")
    registry = Registry(seed, scope)
    async with Scope("clients") as clients:
        for _ in range(REQUESTS):
            registry.start()
        clients.spawn(registry.keep_starting)
        for _ in range(registry.random.randrange(30)):
            await anyio.lowlevel.checkpoint()
        if registry.random.random() < 0.5:
            report = await scope.aclose(cleanup=5)
        else:
            report = await scope.drain(grace=0.05, cleanup=5)
    registry.add_up(report)
    assert registry.refused == 10
