"""Callers without an address, and a node that is drained: they ask for the receipts, and must be able to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.engine import Engine
from tests.stress import turns
from tests.unit.mesh.meshing import Lines, World, here, until
from tests.unit.mesh.serving import Exchange, answers

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


async def test_a_caller_that_has_gone_does_not_keep_a_closing_node_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hop whose caller never asks for its end has ended, and another one is at work for longer than it may ask."""
    rounds: list[float] = []
    due = Engine.due

    def counting(self: Any, now: float) -> Any:
        rounds.append(now)
        assert len(rounds) < 1000  # it ends a loop that would not end
        return due(self, now)

    monkeypatch.setattr(Engine, "due", counting)
    gates = [anyio.Event(), anyio.Event()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here().spawn(gates.pop(0).wait)
        await answers(scope, receive, send)

    first, _ = gates
    async with World() as world, Scope("server") as server:
        node = await world.add("b")
        served = node.asgi(app)
        for number in range(2):
            edge = bytes([number + 1]) * 12
            handed = codec.Handed(bytes(16), edge, "0" * 12, int(world.wall) + 300)
            headers = [(b"cascade", codec.request_header(handed).encode())]
            call = Exchange(served, "POST", "/", headers=headers)
            await call.run()
            assert "s=working" in (call.told or "")
        closing = server.spawn(node.drain, 100.0)
        await until(lambda: node.opened.exchange.is_ending)
        first.set()
        with anyio.move_on_after(3):
            await closing
        assert not closing.done()
        await node.aclose(0)
    assert len(rounds) < 100
