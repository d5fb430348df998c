"""Asks another node for receipts that it cannot post to this node: when, and for which edges.

Each node gets one question at a time, and answers it as soon as one of its edges is closed. Rules:

1. When an edge is added, the question is sent again with it, but not so often that no answer ever comes.
2. If there are more edges than fit into a question, the questions take them in turn, and each waits for less
   time. So every edge is asked for about equally often, up to some ten thousand edges.
3. After each failure the next question waits longer. If the node shows a sign of life, the next question comes
   soon. If something other than a node answers, the questions are seldom until a node answers.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING

import anyio

from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce.mesh.protocol.scheduler import Patience

__all__: list[str] = []

_POLL_SECONDS = 10.0  # how long a question waits; a server that stops may have to wait for it
_LATE_SECONDS = 10.0  # how long the answer may take after that
_GATHER_SECONDS = 0.02  # the first wait for more edges, before a question is repeated with them
_PAUSE_SECONDS = 1.0  # the pause if a question was answered at once without news


class Asked:
    """One question to a node, and its outcome."""

    __slots__ = ("began", "call", "is_answered", "is_interrupted", "seconds", "why")

    def __init__(self, call: NodeCall, seconds: float) -> None:
        self.call: NodeCall = call
        self.seconds: float = seconds
        self.began: float = anyio.current_time()
        self.is_answered: bool = False
        self.is_interrupted: bool = False
        self.why: str = ""  # why it failed, if the failure will not pass by itself


class Pull:
    """The questions to one node, and the edges to ask for."""

    __slots__ = (
        "_anew_at",
        "_failures",
        "_is_wrong",
        "_out",
        "_patience",
        "_puts",
        "_rest",
        "edges",
        "to",
    )

    def __init__(self, to: str, patience: Patience) -> None:
        self.to: str = to
        self.edges: dict[bytes, None] = {}
        self._patience = patience
        self._failures = 0
        self._is_wrong = False
        self._puts = 0  # questions in a row that were interrupted without an answer
        self._anew_at = 0.0
        self._out: anyio.CancelScope | None = None
        self._rest: anyio.CancelScope | None = None

    def add(self, edge: bytes) -> None:
        """Add an edge. It goes into the next question (1), or waits for its turn (2)."""
        self.edges[edge] = None
        if self._out is not None and len(self.edges) <= codec.ITEMS_MAX:
            self._out.deadline = self._anew_at

    @contextmanager
    def asking(self) -> Iterator[Asked]:
        """Yield the next question; the block sends it, and is interrupted if more edges are added."""
        edges = tuple((edge, False) for edge in islice(self.edges, codec.ITEMS_MAX))
        wait = max(_PAUSE_SECONDS, _POLL_SECONDS / ceil(len(self.edges) / codec.ITEMS_MAX))
        asked = Asked(NodeCall(self.to, (), edges, wait), wait + _LATE_SECONDS)
        hold = min(_PAUSE_SECONDS, _GATHER_SECONDS * 2.0 ** min(self._puts, 30))
        self._anew_at = asked.began + hold
        try:
            with anyio.CancelScope() as self._out:
                yield asked
            asked.is_interrupted = self._out.cancel_called
        finally:
            self._out = None

    async def rest(self, asked: Asked, is_open: Callable[[bytes], bool]) -> None:
        """Wait until the next question is due."""
        if asked.is_answered:
            self._failures = 0
        elif not asked.is_interrupted:
            self._failures += 1
            self._is_wrong = bool(asked.why)
        seen = dict.fromkeys(edge for edge, _ in asked.call.asks)
        others = (edge for edge in self.edges if edge not in seen)
        self.edges = {edge: None for edge in (*others, *seen) if is_open(edge)}
        is_short = anyio.current_time() < asked.began + _PAUSE_SECONDS
        is_in_vain = asked.is_interrupted and not asked.is_answered
        self._puts = self._puts + 1 if is_in_vain and is_short else 0
        if asked.is_interrupted:
            return
        if self._failures:
            await self._back_off()
        elif is_short and all(edge in self.edges for edge in seen):
            await anyio.sleep(_PAUSE_SECONDS)

    async def _back_off(self) -> None:
        patience = self._patience
        wait = min(patience.retry_most, patience.retry_first * 2.0 ** min(self._failures, 30))
        if self._is_wrong:
            wait = patience.retry_most
        wait *= 0.5 + 0.5 * random.random()  # noqa: S311 - so that not all come back at once
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + wait) as self._rest:
                await anyio.sleep_forever()
        finally:
            self._rest = None

    def contact(self, now: float, *, is_node: bool) -> None:
        """Record a sign of life from the agent: if the last question failed, ask again soon (3).

        May be called outside of tasks, in a callback.
        """
        if self._failures and (is_node or not self._is_wrong):
            self._failures = 1
            if self._rest is not None:
                # Not at once: the agent may send many messages but answer no question.
                soon = now + self._patience.retry_first
                self._rest.deadline = min(self._rest.deadline, soon)
