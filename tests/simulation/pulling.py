"""Asking for receipts that nobody posts: what `exchange.py` and `pulling.py` of the project do, without tasks.

There it is one question to each node; here it is one for each edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.mesh.protocol.facts import Closed
from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply

if TYPE_CHECKING:
    from quiesce.mesh.protocol.facts import Record
    from tests.simulation.agent import Agent

WAIT = 10.0
LATE = 10.0
PAUSE = 1.0


class Pulls:
    """The questions of one process that wait for an answer, and those that it lets wait."""

    def __init__(self, agent: Agent) -> None:
        """Ask nothing yet."""
        self._agent = agent
        self._number = 0
        self._out: dict[bytes, int] = {}
        self._waiting: dict[bytes, list[tuple[str, int, int, NodeCall]]] = {}

    # Who asks: `Exchange.pull` and `Exchange._pull_from`.

    def pull(self, edge: bytes, to: str) -> None:
        """Ask for an edge until it is closed."""
        agent = self._agent
        if not agent.engine.known.is_open(edge):
            return
        self._number += 1
        number = self._out[edge] = self._number
        agent.world.traffic.controls += 1
        call = agent.engine.asking(NodeCall(to, (), ((edge, False),), WAIT))
        agent.world.carry(agent.key, to, "polled", agent.key, agent.life, number, call)
        agent.later(WAIT + LATE, self._again, number, edge, to)

    def _again(self, number: int, edge: bytes, to: str) -> None:
        if self._out.get(edge) == number:
            self.pull(edge, to)

    def told(self, number: int, call: NodeCall, reply: NodeReply) -> None:
        """Take the answer to a question, the first time."""
        ((edge, _),) = call.asks
        if self._out.get(edge) == number:
            self._number += 1
            self._out[edge] = self._number
            self._agent.heard(call.to, reply)
            self._agent.later(PAUSE, self._again, self._number, edge, call.to)

    # Who is asked: `Exchange.serve` and `Exchange.closed`.

    def polled(self, caller: str, life: int, number: int, call: NodeCall) -> None:
        """Answer a question; as long as the edge is worked on, only after a while."""
        agent = self._agent
        reply = agent.answer_call(call)
        agent.commit()
        ((edge, _),) = call.asks
        if any(answer.kind == "working" for _, answer in reply.answers):
            self._waiting.setdefault(edge, []).append((caller, life, number, call))
            agent.later(WAIT, self._answer, edge)
        else:
            agent.world.carry(agent.key, caller, "pulled", life, number, call, reply)

    def _answer(self, edge: bytes) -> None:
        agent = self._agent
        for caller, life, number, call in self._waiting.pop(edge, ()):
            reply = agent.answer_call(call)
            agent.commit()
            agent.world.carry(agent.key, caller, "pulled", life, number, call, reply)

    def written(self, records: list[Record]) -> None:
        """Answer those who wait for an edge that is closed now: `Node._commit`."""
        for record in records:
            if type(record) is Closed and record.edge in self._waiting:
                self._agent.later(0.0, self._answer, record.edge)
