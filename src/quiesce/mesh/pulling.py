"""Asking a node for receipts that it does not post: when, and for which edges.

There is one question at a time to each node. It is answered as soon as one of its edges is closed, and is
put anew when there are more. One that failed is put again later each time; soon, as soon as the node is
heard of.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from quiesce.mesh import wire
from quiesce.mesh.courier import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce.mesh.courier import Patience

__all__: list[str] = []

_POLL_SECONDS = 10.0  # a server that is told to stop may wait for it
_LATE_SECONDS = 10.0  # for the answer, after that
_GATHER_SECONDS = 0.02  # for more edges, before all of them are asked for again
_PAUSE_SECONDS = 1.0  # if a question is answered at once, and nothing has changed


class Asked:
    """One question."""

    __slots__ = ("began", "call", "is_answered", "is_interrupted", "seconds")

    def __init__(self, call: Call, seconds: float) -> None:
        self.call = call
        self.seconds = seconds
        self.began: float = anyio.current_time()
        self.is_answered = self.is_interrupted = False


class Pull:
    """The edges that one node is asked for."""

    __slots__ = ("_failures", "_out", "_patience", "_rest", "edges", "to")

    def __init__(self, to: str, patience: Patience) -> None:
        self.to = to
        self.edges: dict[bytes, None] = {}
        self._patience = patience
        self._failures = 0
        self._out: anyio.CancelScope | None = None
        self._rest: anyio.CancelScope | None = None

    def add(self, edge: bytes) -> None:
        """Ask for one more."""
        self.edges[edge] = None
        if self._out is not None:
            self._out.cancel()

    @contextmanager
    def asking(self) -> Iterator[Asked]:
        """Ask, in the block; it is interrupted if there are more edges to ask for."""
        edges = tuple((edge, False) for edge in list(self.edges)[: wire.ITEMS_MAX])
        asked = Asked(Call(self.to, (), edges, _POLL_SECONDS), _POLL_SECONDS + _LATE_SECONDS)
        try:
            with anyio.CancelScope() as self._out:
                yield asked
            asked.is_interrupted = self._out.cancel_called
        finally:
            self._out = None

    async def rest(self, asked: Asked, is_open: Callable[[bytes], bool]) -> None:
        """Wait until the next question is to be put."""
        if asked.is_answered:
            self._failures = 0
        elif not asked.is_interrupted:
            self._failures += 1
        self.edges = {edge: None for edge in self.edges if is_open(edge)}
        if asked.is_interrupted:
            await anyio.sleep(_GATHER_SECONDS)
        elif self._failures:
            await self._back_off()
        elif anyio.current_time() < asked.began + _PAUSE_SECONDS and all(
            is_open(edge) for edge, _ in asked.call.asks
        ):
            await anyio.sleep(_PAUSE_SECONDS)

    async def _back_off(self) -> None:
        patience = self._patience
        wait = min(patience.retry_most, patience.retry_first * 2.0 ** min(self._failures, 30))
        wait *= 0.5 + 0.5 * random.random()  # noqa: S311 - so that not all come back at once
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + wait) as self._rest:
                await anyio.sleep_forever()
        finally:
            self._rest = None

    def contact(self) -> None:
        """Know that the node is there: if the last question failed, the next one is put soon."""
        if self._failures:
            self._failures = 1
            if self._rest is not None:
                # Not at once: it may say a lot, and answer no question.
                soon = anyio.current_time() + self._patience.retry_first
                self._rest.deadline = min(self._rest.deadline, soon)
