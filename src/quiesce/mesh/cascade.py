"""A cascade, for whoever has begun it: when has all of it ended, who is still busy, make it end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import anyio

from quiesce.core import arguments
from quiesce.core.gate import Gate
from quiesce.errors import UsageError
from quiesce.mesh import frontier
from quiesce.mesh.hop import Part
from quiesce.mesh.receipt import Note, Receipt, mark
from quiesce.mesh.settlement import Unknown, settle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from quiesce.mesh import states
    from quiesce.mesh.frontier import MeshFrontier
    from quiesce.mesh.hop import Hop
    from quiesce.mesh.node import Node
    from quiesce.mesh.settlement import Require, Settlement

__all__ = ["Cascade"]


class Cascade:
    """Something that one agent begins, and others go on with; made by `Node.cascade()`.

    The block is its first hop: what is handed to others inside of it belongs to it. It may be asked
    for its end inside of the block, too, but ends only after it.
    """

    def __init__(self, node: Node, name: str) -> None:
        """Describe it; the block begins it."""
        self.name: str = name
        self._node = node
        self._hop: Hop | None = None
        self._part: Part | None = None
        self._record: states.Hop | None = None
        self._receipt: Receipt | None = None
        self._gate: Gate | None = None
        self._began = self._ended_at = 0.0

    @property
    def id(self) -> str:
        """What it is called in every agent; empty before it has begun."""
        return "" if self._record is None else self._record.cascade.hex()

    async def __aenter__(self) -> Self:
        """Begin it."""
        if self._record is not None:
            message = f"cascade {self.name!r} was begun before: make a new one"
            raise UsageError(message)
        hop = self._hop = self._node._begin(self)
        self._resume(hop._record)
        self._part = Part(hop, "cascade", self.name)
        self._part.enter()
        return self

    def _resume(self, record: states.Hop) -> None:
        self._record = record
        self._began = self._node._clock()
        self._gate = Gate(self._node._hops_scope._backend)
        if record.receipt is not None:
            self._settle(record.receipt)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End its first hop, as far as the block goes; what was handed to others goes on.

        *Raises*: `CascadeCancelled` if it was told to end meanwhile.
        """
        assert self._part is not None  # noqa: S101 - entered
        left = self._part.leave(exc)
        if left is not exc and left is not None:
            raise left

    def _begun(self) -> states.Hop:
        if self._record is None:
            message = f"cascade {self.name!r} has not begun: use `async with`"
            raise UsageError(message)
        return self._record

    def _settle(self, receipt: Receipt) -> None:
        self._receipt = receipt
        self._ended_at = self._node._clock()
        if self._gate is not None:
            self._gate.open()

    def _abandon(self) -> None:
        """Know that its node will not hear of its end: nobody is to wait for it any more."""
        if self._gate is not None:
            self._gate.open()

    async def settled(
        self, within: float | None = None, *, require: Require = "full"
    ) -> Settlement:
        """Wait until all of it has ended, everywhere, or until that cannot be known; and tell which.

        It may be called from anywhere, any number of times.

        Args:
            within: how many seconds to wait; then it is `Unknown`, with what is open. None: until the
                nodes have given up on those that are not heard of (`Patience.give_up`), or this node
                is closed.
            require: `"full"`: everything, by agents that all take part and keep a journal;
                `"participants"`: what agents that take part have done.

        *Cancel safety*: may be cancelled at any time; the cascade goes on.
        """
        record = self._begun()
        arguments.one_of("require", require, ("full", "participants"))
        seconds = None if within is None else arguments.seconds("within", within)
        assert self._gate is not None  # noqa: S101 - begun
        with anyio.move_on_after(seconds):
            await self._gate.wait()
        receipt = self._receipt
        if receipt is None:
            return self._so_far(record)
        self._node._told(record.edge)
        took = self._ended_at - self._began
        return settle(
            receipt, name=self.name, cascade=record.cascade, seconds=took, require=require
        )

    def _so_far(self, record: states.Hop) -> Unknown:
        """Tell what is known of it now, and what is not."""
        own = mark(record.edge)
        told = record.tally.sum()
        is_busy = self._hop is not None and not self._hop._ended
        notes = [Note(own, "", self._node.name, "unknown", None, "at work" if is_busy else "waits")]
        missing = ["the end of what was begun here"] if is_busy else []
        for edge, sent in record.edges.items():
            notes.append(Note(mark(edge), own, sent.to, "unknown", None, "no receipt yet"))
            missing.append(f"what became of message {mark(edge)} to {sent.to}")
        receipt = Receipt(
            "unknown", told.hops, told.failed, told.cancelled, told.lost, told.opaque,
            told.unknown + len(record.edges) + is_busy, told.volatile, (*notes, *told.notes),
        )  # fmt: skip
        took = self._node._clock() - self._began
        return Unknown(self.name, record.cascade.hex(), receipt, took, missing=tuple(missing))

    async def frontier(self, within: float = 2.0) -> MeshFrontier:
        """Ask every agent that is known to be at it what it is at; those that do not answer are named.

        *Cancel safety*: may be cancelled at any time.
        """
        record = self._begun()
        return await frontier.look(
            self._node, self._node._exchange._transport, record, arguments.seconds("within", within)
        )

    async def watch(self, every: float = 1.0) -> AsyncGenerator[MeshFrontier, None]:
        """Tell again and again who is still busy, until it has settled.

        *Cancel safety*: may be cancelled at any time.
        """
        self._begun()
        assert self._gate is not None  # noqa: S101 - begun
        while not self._gate.is_open:
            yield await self.frontier()
            with anyio.move_on_after(arguments.seconds("every", every)):
                await self._gate.wait()

    async def cancel(self) -> None:
        """Have all of it end, everywhere: `settled()` tells when it has.

        *Cancel safety*: there is nothing to wait for.
        """
        self._node._cancel(self._begun())

    def __repr__(self) -> str:
        """Name it, and say whether it has settled."""
        state = "new" if self._record is None else "open" if self._receipt is None else "settled"
        return f"<Cascade {self.name!r} {state}>"
