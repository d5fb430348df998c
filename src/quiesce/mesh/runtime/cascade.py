"""A cascade, for whoever has begun it: when has all of it ended, who is still busy, make it end."""

from __future__ import annotations

from collections import Counter
from sys import _getframe
from typing import TYPE_CHECKING, Self

import anyio

from quiesce.core import arguments, libraries
from quiesce.core.current import detached
from quiesce.core.latch import Latch
from quiesce.errors import UsageError
from quiesce.mesh.protocol.receipt import Note, Receipt, edge_mark
from quiesce.mesh.routes import drivers
from quiesce.mesh.routes.following import frame_place
from quiesce.mesh.runtime import progress
from quiesce.mesh.runtime.hop_parts import Part
from quiesce.mesh.runtime.settlement import Unknown, settlement_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator
    from types import TracebackType

    from quiesce.mesh.protocol import states
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node
    from quiesce.mesh.runtime.progress import Busy, MeshFrontier
    from quiesce.mesh.runtime.settlement import Require, Settlement

__all__ = ["Cascade"]

# Of the time that a caller waits, so much is also for finding out who is still at it.
_LOOK_SHARE, _LOOK_MIN, _LOOK_MAX = 0.1, 0.05, 1.0


class Cascade:
    """Something that one agent begins, and others go on with; made by `Node.cascade()`.

    The block is its first hop: what is handed to others inside of it belongs to it. Ask for its end
    after the block: inside of it, it has not ended.
    """

    def __init__(self, node: Node, name: str) -> None:
        """Describe it; the block begins it."""
        self.name: str = name
        self._node = node
        self._hop: Hop | None = None
        self._part: Part | None = None
        self._record: states.HopRecord | None = None
        self._receipt: Receipt | None = None
        self._gate: Latch | None = None
        self._is_told = False
        self._began = self._ended_at = 0.0

    @property
    def id(self) -> str:
        """What it is called in every agent; empty before it has begun."""
        return "" if self._record is None else self._record.cascade.hex()

    async def __aenter__(self) -> Self:
        """Begin it."""
        if self._record is not None:
            message = (
                f"cascade {self.name!r} was begun before, and can be begun once: make a new one"
            )
            raise UsageError(message)
        hop = self._hop = self._node._begin(self)
        self._resume(hop._record)
        self._part = Part(hop, "cascade", self.name, _getframe(1))
        self._part.enter()
        drivers.begins(self)
        return self

    def _resume(self, record: states.HopRecord) -> None:
        self._record = record
        self._began = self._node._clock()
        self._gate = Latch(self._node._hops_scope._backend)
        if record.receipt is not None:
            self._settle(record.receipt)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End its first hop, as far as the block goes; what was handed to others goes on.

        *Cancel safety*: may be cancelled at any time; the block has ended.

        *Raises*: `CascadeCancelled` if it was told to end meanwhile.
        """
        assert self._part is not None  # noqa: S101 - entered
        await self._part.__aexit__(exc_type, exc, traceback)

    def _begun(self) -> states.HopRecord:
        if self._record is None:
            message = f"cascade {self.name!r} has not begun: use `async with`"
            raise UsageError(message)
        return self._record

    def _settle(self, receipt: Receipt) -> None:
        self._receipt = receipt
        self._ended_at = self._node._clock()
        if self._gate is not None:
            self._gate.open()

    def __del__(self) -> None:
        """Notify the node in its event loop that no code asks any longer: this may be any thread."""
        if self._receipt is not None and self._record is not None and not self._is_told:
            self._node._hops_scope._backend.post(self._node._dropped, self._record)

    def _wait_again(self) -> None:
        """Reset the gate, so that callers wait for the end again after the node could not write for a while."""
        if self._receipt is None and self._gate is not None and self._gate.is_open:
            self._gate = Latch(self._node._hops_scope._backend)

    def _abandon(self) -> None:
        """Record that its node will not hear of its end: nobody is to wait for it any more."""
        if self._gate is not None:
            self._gate.open()

    async def settled(
        self, within: float | None = None, *, require: Require = "full"
    ) -> Settlement:
        """Wait until all of it has ended, everywhere, or until that cannot be known; and tell which.

        It may be called any number of times.

        Args:
            within: how many seconds to wait; then it is `Unknown`, with what is open: what agents are at, and
                which do not answer. None: until the
                nodes have given up on those that are not heard of (`Patience.give_up`), or this node
                is closed or cannot write its journal: then it is `Unknown`, and not final. Inside of the block, or in a task that was started there, which are part of
                what is waited for, it has to be given.
            require: `"full"`: everything, by agents that all take part and keep a journal;
                `"participants"`: what agents that take part have done.

        *Cancel safety*: may be cancelled at any time; the cascade goes on.

        *Raises*: `UsageError` from work of its own block without `within`, which would wait for itself.
        """
        record = self._begun()
        arguments.one_of("require", require, ("full", "participants"))
        seconds = None if within is None else arguments.seconds("within", within)
        assert self._gate is not None  # noqa: S101 - begun
        if not self._gate.is_open:
            self._node._hops_scope._check_here("wait in")
        inside = "" if self._gate.is_open else self._inside()
        if inside and seconds is None:
            message = f"cascade {self.name!r} has not ended, and would wait for itself. {inside}, or give within=..."
            raise UsageError(message)
        look = 0.0 if seconds is None else min(_LOOK_MAX, seconds * _LOOK_SHARE)
        with anyio.move_on_after(None if seconds is None else seconds - look):
            await self._gate.wait()
        found: tuple[Busy, ...] = ()
        if look >= _LOOK_MIN and not self._gate.is_open:
            found = await self._look(record, self._gate, look)
        elif not self._gate.is_open:
            found = (progress.own_work(self._node, record),)  # there is no time to ask others
        receipt = self._receipt
        if receipt is None:
            return self._so_far(record, found, inside)
        self._is_told = True
        self._node._told(record.edge)
        took = self._ended_at - self._began
        return settlement_of(
            receipt, name=self.name, cascade=record.cascade, seconds=took, require=require
        )

    def _inside(self) -> str:
        """Return what to do, if the caller of `settled()` is work of its own block; else nothing."""
        hop, part = self._hop, self._part
        if hop is None or part is None:
            return ""
        owner, key = hop._owner_of_running_task()
        if owner is None or key not in owner._holds or not owner._is_within(hop):
            return ""
        caller = libraries.starting_frame(_getframe(2))
        call = "" if caller is None else f", at {frame_place(caller)}"
        block = "" if part.where is None else f" (it began at {part.where})"
        return f"It was waited for inside of its own block{call}: leave the block first{block}"

    async def _look(
        self, record: states.HopRecord, gate: Latch, seconds: float
    ) -> tuple[Busy, ...]:
        """Wait for its end for so long, and find out meanwhile who is still at it; agents may not answer."""
        found: list[Busy] = []

        async def look() -> None:
            transport = self._node._exchange._transport
            seen = await progress.ask_frontier(self.name, self._node, transport, record, seconds)
            found.extend(seen.entries)

        async with anyio.create_task_group() as group:
            with detached():  # the caller may be work of the cascade, and this is not
                group.start_soon(look)
            with anyio.move_on_after(seconds):
                await gate.wait()
            group.cancel_scope.cancel()
        return tuple(found)

    def _so_far(
        self, record: states.HopRecord, found: tuple[Busy, ...] = (), inside: str = ""
    ) -> Unknown:
        """Return what is known of it now, and what is not; and who was found not to answer."""
        own = edge_mark(record.edge)
        told = record.tally.sum()
        is_busy = self._hop is not None and not self._hop._ended
        notes = [Note(own, "", self._node.name, "unknown", None, "at work" if is_busy else "waits")]
        seen = {one.mark: one for one in found}
        advice = f": {seen[own].what}" if own in seen else ""
        advice += f". {inside}" if inside else ""
        missing = [f"when {self._node.name} ends its own work on the cascade{advice}"] * is_busy
        for edge, sent in record.edges.items():
            mark = edge_mark(edge)
            entry = seen.get(mark)
            what, why = _open_message(mark, sent, entry)
            since = None if entry is None else entry.seconds
            notes.append(Note(mark, own, sent.to, "unknown", since, why))
            missing.append(what)
        direct = {note.mark for note in notes}
        end = ", and was not told to end" if record.is_cancelled else ""
        lost = Counter((one.name, one.what) for one in found if one.state == "not reached")
        for (name, what), count in lost.items():
            sent_to = f" with {count} messages" if count > 1 else ""
            missing.append(f"what {name} does{sent_to}: it was not reached ({what}){end}")
        for entry in found:
            if entry.mark not in direct:
                if entry.state == "at work":
                    missing.append(_at_work(entry.mark, entry.name, entry))
                what = entry.state + (f": {entry.what}" if entry.what else "")
                notes.append(
                    Note(entry.mark, entry.parent, entry.name, "unknown", entry.seconds, what)
                )
        receipt = Receipt(
            "unknown", told.hops, told.failed, told.cancelled, told.lost, told.opaque,
            told.unknown + len(record.edges) + is_busy, told.volatile, told.untracked,
            told.undelivered, (*notes, *told.notes),
        )  # fmt: skip
        took = self._node._clock() - self._began
        return Unknown(self.name, record.cascade.hex(), receipt, took, missing=tuple(missing))

    async def frontier(self, within: float = 2.0) -> MeshFrontier:
        """Ask every agent that is known to be at it what it is at; those that do not answer are named.

        *Cancel safety*: may be cancelled at any time.
        """
        record = self._begun()
        seconds = arguments.seconds("within", within)
        transport = self._node._exchange._transport
        return await progress.ask_frontier(self.name, self._node, transport, record, seconds)

    async def watch(self, every: float = 1.0) -> AsyncGenerator[MeshFrontier, None]:
        """Yield who is still busy, again and again, until the cascade has settled.

        *Cancel safety*: may be cancelled at any time.
        """
        self._begun()
        seconds = arguments.seconds("every", every)
        assert self._gate is not None  # noqa: S101 - begun
        while not self._gate.is_open:
            yield await self.frontier()
            with anyio.move_on_after(seconds):
                await self._gate.wait()

    async def cancel(self) -> None:
        """Send all agents the request to end what they do for the cascade: `settled()` returns when they have.

        Each agent tells those that it has handed messages to. If one of them is dead, its sender tells those below
        it, if they are its peers and it has heard of them (`Patience.ask_every`). Others go on until the dead
        agent is back with its journal. `settled()` names it, and who was told and who was not.

        *Cancel safety*: there is nothing to wait for.

        *Raises*: `UsageError` if its node was closed and opened again since: `Node.recovered` has it then.
        """
        record, node = self._begun(), self._node
        node._check()
        if record.receipt is None and node._engine.detector.find_root(record.edge) is not record:
            message = (
                f"cascade {self.name!r} was begun before node {node.name!r} was opened again: what is left of it "
                "is in `node.recovered`"
            )
            raise UsageError(message)
        node._cancel(record)

    def __repr__(self) -> str:
        """Name it, and say whether it has settled."""
        state = "new" if self._record is None else "open" if self._receipt is None else "settled"
        return f"<Cascade {self.name!r} {state}>"


def _open_message(mark: str, sent: states.EdgeRecord, entry: Busy | None) -> tuple[str, str]:
    """Return what is not known of a message that is not closed, as a sentence and in few words.

    Only an agent that has said so, to the sender or to this question, has the message.
    """
    to, state = sent.to, "" if entry is None else entry.state
    if entry is not None and state == "at work":
        return _at_work(mark, to, entry), f"has the message, and is at work: {entry.what}"
    if entry is not None and state == "waits":
        waits = f"waits {entry.what or 'for the agents that it has sent messages to'}"
        text = (
            f"when message {mark} to {to} is closed: {to} has ended its own work on it, and {waits}"
        )
        return text, f"has ended its own work, {waits}"
    if sent.is_taken:
        text = f"when {to} ends its work on message {mark}: it has the message, and has not reported the end of its work yet"
        return text, "has the message, and has not reported the end of its work yet"
    text = f"whether {to} has message {mark}: it "
    if sent.error_status:
        said = f"answered {sent.error_status}, which does not say whether it took the message"
        return text + said, said
    return f"{text}has not answered", "has not answered: it is not known whether it has the message"


def _at_work(mark: str, name: str, entry: Busy) -> str:
    """Return that an agent has a message, since when, and what it does."""
    since = "" if entry.seconds is None else f" for {entry.seconds:.1f} s"
    return f"when {name} ends its work on message {mark}: it has the message, and is at work{since}: {entry.what}"


def recovered(node: Node, roots: Iterable[states.HopRecord]) -> Iterator[Cascade]:
    """Make cascades of those that an earlier process has begun; they have the names that they had."""
    for root in roots:
        cascade = node._cascades[root.edge] = Cascade(node, root.name or "recovered")
        cascade._resume(root)
        yield cascade
