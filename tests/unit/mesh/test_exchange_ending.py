"""Callers without an address, and a node that is drained: they ask for the receipts, and must be able to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope
from tests.stress import turns
from tests.unit.mesh.meshing import Lines, World, until

if TYPE_CHECKING:
    from quiesce.core.job import Job
    from quiesce.core.report import Report
    from quiesce.mesh import Cascade, Hop, Node


class SlowLines(Lines):
    """A network whose answers are on their way until the word is given."""

    def __init__(self) -> None:
        super().__init__()
        self.arrive = anyio.Event()

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Return the answer of a node, when it arrives."""
        reply = await super().call(to, path, body)
        await self.arrive.wait()
        return reply


class Asked:
    """A node that is drained with two hops, whose caller has no address, and asks for both."""

    def __init__(self, world: World, scope: Scope, cleanup: float) -> None:
        self.lines = world.lines = SlowLines()
        self._world = world
        self._scope = scope
        self._cleanup = cleanup
        self._gates = (anyio.Event(), anyio.Event())
        self.node: Node
        self.cascade: Cascade

    async def drained(self) -> Job[Report]:
        """Start the drain, and end the first hop in it, which is told; then the second, while that answer is under way."""
        root, self.node = await self._world.add("a", url=None), await self._world.add("b")
        calls = self.node.opened.exchange

        async with root.cascade("c") as self.cascade:
            for gate in self._gates:

                async def handler(hop: Hop, gate: anyio.Event = gate) -> None:
                    hop.spawn(gate.wait)

                await self._world.hand("b", handler)
            await until(lambda: len(calls.waiting_polls) == 2)
        draining = self._scope.spawn(partial(self.node.drain, 60.0, cleanup=self._cleanup))
        await until(lambda: self.node.health.state == "draining")
        self._gates[0].set()
        await until(lambda: self.lines.replies)
        self._gates[1].set()
        await until(lambda: not self.node.opened.running_hops)
        await turns(20)
        return draining


async def test_a_node_that_is_drained_stays_open_for_the_next_question() -> None:
    """Its caller was told of one hop, is about to ask for the other one, and would find nobody."""
    async with World() as world, Scope("drain") as scope:
        there = Asked(world, scope, 5.0)
        draining = await there.drained()
        assert not draining.done()
        there.lines.arrive.set()
        assert (await there.cascade.settled(5, require="participants")).ok
        assert (await draining).ok


@pytest.mark.parametrize("cleanup", [0.02, 5.0])
async def test_a_caller_that_does_not_ask_again_is_not_waited_for(cleanup: float) -> None:
    """It is gone, or it asks the next process: a drain waits a second for it, and never longer than its cleanup."""
    async with World() as world, Scope("drain") as scope:
        there = Asked(world, scope, cleanup)
        report = await (await there.drained())
        assert report.ok
        assert report.seconds < 5.0
        there.lines.arrive.set()
