"""A cascade, for the program that began it: wait for its verdict, list the busy agents, cancel it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Self

import anyio

from quiesce.core import arguments, libraries
from quiesce.core.current import detached
from quiesce.core.latch import Latch
from quiesce.core.python_private import get_frame
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
    from quiesce.mesh.runtime.open_node import OpenNode
    from quiesce.mesh.runtime.progress import Busy, MeshFrontier
    from quiesce.mesh.runtime.settlement import Require, Settlement

__all__ = ["Cascade"]

# The share of a caller's waiting time in which the node also asks which agents are still busy.
_LOOK_SHARE, _LOOK_MIN, _LOOK_MAX = 0.1, 0.05, 1.0
_AWAY = "If it has stopped, start it again with its journal, and await settled() again"


class Cascade:
    """Work that one agent begins and other agents continue; made by `Node.cascade()`.

    The `async with` block is the first hop of the cascade. Messages that are sent inside the block belong
    to the cascade. Call `settled()` after the block, because the cascade cannot end inside it.
    """

    def __init__(self, node: Node, name: str) -> None:
        """Describe the cascade; the block begins it."""
        self.name: str = name
        self._node = node
        self._opening: OpenNode | None = None
        self._hop: Hop | None = None
        self._part: Part | None = None
        self._record: states.HopRecord | None = None
        self._receipt: Receipt | None = None
        self._gate: Latch | None = None
        self._is_told = False
        self._began: float | None = None  # None if the journal does not say
        self._ended_at = 0.0

    @property
    def id(self) -> str:
        """The id of the cascade, the same in every agent; empty before the cascade has begun."""
        return "" if self._record is None else self._record.cascade.hex()

    async def __aenter__(self) -> Self:
        """Begin the cascade."""
        if self._record is not None:
            message = (
                f"cascade {self.name!r} was begun before, and can begin only once: make a new one"
            )
            raise UsageError(message)
        opened = self._node.opened
        hop = self._hop = opened.begin_root(self)
        self.resume_root(opened, hop.record, opened.clock())
        self._part = Part(hop, "cascade", self.name, get_frame(1))
        self._part.enter()
        try:
            await opened.written()
        except BaseException as error:
            self._part.leave(error)
            raise
        drivers.begins(self)
        return self

    def resume_root(self, opened: OpenNode, record: states.HopRecord, began: float | None) -> None:
        self._opening = opened
        self._record = record
        self._began = began
        self._gate = Latch(self._opened.scope_of_hops.backend)
        if record.receipt is not None:
            self.settle_with(record.receipt)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block's part of the first hop. Work that other agents do goes on.

        *Cancel safety*: may be cancelled at any time; the block ends all the same.

        *Raises*: `CascadeCancelled` if the cascade was cancelled inside the block.
        """
        assert self._part is not None  # noqa: S101 - entered
        await self._part.__aexit__(exc_type, exc, traceback)

    @property
    def _opened(self) -> OpenNode:
        assert self._opening is not None  # noqa: S101 - begun
        return self._opening

    def _begun(self) -> states.HopRecord:
        if self._record is None:
            message = f"cascade {self.name!r} has not begun: use `async with`"
            raise UsageError(message)
        return self._record

    def settle_with(self, receipt: Receipt) -> None:
        self._receipt = receipt
        self._ended_at = self._opened.clock()
        if self._gate is not None:
            self._gate.open()

    def __del__(self) -> None:
        """Notify the node, in its event loop, that no code can ask for the verdict. May run in any thread."""
        opened = self._opening
        if self._receipt is not None and opened is not None and not self._is_told:
            opened.scope_of_hops.backend.post(opened.note_dropped, self._record)

    def _took(self, until: float) -> float | None:
        return None if self._began is None else until - self._began

    def wait_again(self) -> None:
        """Reset the gate, so that callers wait for the end again after the node could not write for a while."""
        if self._receipt is None and self._gate is not None and self._gate.is_open:
            self._gate = Latch(self._opened.scope_of_hops.backend)

    def abandon_wait(self) -> None:
        """Record that the node cannot learn the verdict, and wake the callers that wait for it."""
        if self._gate is not None:
            self._gate.open()

    async def settled(
        self, within: float | None = None, *, require: Require = "full"
    ) -> Settlement:
        """Wait until the cascade has ended in every agent, or until that cannot be known; return the verdict.

        It may be called any number of times.

        Args:
            within: how many seconds to wait. After that the verdict is `Unknown`; it lists what the agents
                still do, and which agents do not answer. None: wait until the nodes give up on agents that do not
                answer (`Patience.give_up`), or until this node is closed or cannot write its journal; then the
                verdict is `Unknown`, but not final. Inside the block, and in tasks that were started there,
                `within` is required, because they are part of the cascade.
            require: `"full"`: all work has ended, and all agents take part and keep a journal.
                `"participants"`: all work of the agents that take part has ended.

        *Cancel safety*: may be cancelled at any time; the cascade goes on.

        *Raises*: `UsageError` without `within` if the caller is work of the block, which would wait for itself.
        """
        record = self._begun()
        arguments.one_of("require", require, ("full", "participants"))
        seconds = None if within is None else arguments.seconds("within", within)
        assert self._gate is not None  # noqa: S101 - begun
        if not self._gate.is_open:
            self._opened.scope_of_hops.check_here("wait in")
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
            found = (progress.own_work(self._opened, record),)  # no time is left to ask other nodes
        receipt = self._receipt
        if receipt is None:
            return self._so_far(record, found, inside)
        self._is_told = True
        self._node.opened.note_told(record.edge)
        took = self._took(self._ended_at)
        return settlement_of(
            receipt, name=self.name, cascade=record.cascade, seconds=took, require=require
        )

    def _inside(self) -> str:
        """Return advice if the caller of `settled()` is work of the block; otherwise an empty text."""
        hop, part = self._hop, self._part
        if hop is None or part is None:
            return ""
        owner, key = hop.find_owner_of_running_task()
        if owner is None or key not in owner.holds or not owner.is_within(hop):
            return ""
        caller = libraries.starting_frame(get_frame(2))
        call = "" if caller is None else f", at {frame_place(caller)}"
        block = "" if part.where is None else f" (it began at {part.where})"
        return f"It was waited for inside of its own block{call}: leave the block first{block}"

    async def _look(
        self, record: states.HopRecord, gate: Latch, seconds: float
    ) -> tuple[Busy, ...]:
        """Wait for the verdict for `within` seconds, and ask in the meantime which agents are busy."""
        found: list[Busy] = []

        async def look() -> None:
            transport = self._opened.exchange.transport_used
            seen = await progress.ask_frontier(self.name, self._opened, transport, record, seconds)
            found.extend(seen.entries)

        async with anyio.create_task_group() as group:
            with detached():  # the caller may be work of the cascade, but this question is not
                group.start_soon(look)
            with anyio.move_on_after(seconds):
                await gate.wait()
            group.cancel_scope.cancel()
        return tuple(found)

    def _so_far(
        self, record: states.HopRecord, found: tuple[Busy, ...] = (), inside: str = ""
    ) -> Unknown:
        """Return an `Unknown` verdict with the known facts, the missing facts, and the agents that did not answer."""
        own = edge_mark(record.edge)
        told = record.tally.sum()
        is_busy = self._hop is not None and not self._hop.has_ended
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
            missing.append(f"what {name} does{sent_to}: it was not reached ({what}){end}. {_AWAY}")
        for entry in found:
            if entry.mark not in direct:
                if entry.state == "at work":
                    missing.append(_at_work(entry.mark, entry.name, entry))
                what = entry.state + (f": {entry.what}" if entry.what else "")
                notes.append(
                    Note(entry.mark, entry.parent, entry.name, "unknown", entry.seconds, what)
                )
        unknown = told.unknown + len(notes) - (not is_busy)  # its own hop has ended, if not busy
        notes += told.notes
        hops = told.hops + sum(note.status == "unknown" for note in notes)
        receipt = Receipt(
            "unknown", hops, told.failed, told.cancelled, told.lost, told.opaque,
            unknown, told.volatile, told.untracked, told.undelivered, tuple(notes),
        )  # fmt: skip
        took = self._took(self._opened.clock())
        return Unknown(self.name, record.cascade.hex(), receipt, took, missing=tuple(missing))

    async def frontier(self, within: float = 2.0) -> MeshFrontier:
        """Ask all agents that may be busy with the cascade for their work. Agents that do not answer are listed as not reached.

        *Cancel safety*: may be cancelled at any time.
        """
        record = self._begun()
        seconds = arguments.seconds("within", within)
        transport = self._opened.exchange.transport_used
        return await progress.ask_frontier(self.name, self._opened, transport, record, seconds)

    async def watch(self, every: float = 1.0) -> AsyncGenerator[MeshFrontier, None]:
        """Yield a new `frontier()` every few seconds, until the cascade has settled.

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
        """Ask all agents to end their work for the cascade. `settled()` returns when they have ended it.

        Each agent passes the request to the agents that it has sent messages to. If such an agent is dead, its
        sender passes the request to the agents below the dead one, if they are peers of the sender and it knows of
        them (`Patience.ask_every`). Other agents below it go on until the dead agent is back with its journal.
        `settled()` names the dead agent, the agents that got the request, and those that did not.

        *Cancel safety*: `cancel()` never waits, so it cannot be cancelled.

        *Raises*: `UsageError` if the node was closed and opened again since; use `Node.recovered` then.
        """
        record, node = self._begun(), self._node
        node.opened.check_accepts()
        if record.receipt is None and node.opened is not self._opening:
            message = (
                f"cascade {self.name!r} was begun before node {node.name!r} was opened again: use the cascade "
                "of that name in `node.recovered`"
            )
            raise UsageError(message)
        node.opened.cancel_hop(record)

    def __repr__(self) -> str:
        """Return the cascade's name, and whether it has settled."""
        state = "new" if self._record is None else "open" if self._receipt is None else "settled"
        return f"<Cascade {self.name!r} {state}>"


def _open_message(mark: str, sent: states.EdgeRecord, entry: Busy | None) -> tuple[str, str]:
    """Return the missing fact about an open message, as a sentence and in a few words.

    The text says that an agent has the message only if the agent itself has said so.
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
    """Return the sentence that an agent has a message, with the time and the agent's work."""
    seconds = entry.seconds
    is_at = "is at work" if seconds is None else f"has been at work for {seconds:.1f} s"
    return f"when {name} ends its work on message {mark}: it has the message, and {is_at}: {entry.what}"


def recovered(opened: OpenNode, roots: Iterable[states.HopRecord]) -> Iterator[Cascade]:
    """Yield the cascades that an earlier process has begun, with their earlier names."""
    now, wall = opened.clock(), opened.node.wall()
    for root in roots:
        name = root.name or "recovered"
        cascade = opened.known_cascades[root.edge] = Cascade(opened.node, name)
        # An older journal has no time of the beginning. If the clock was set back, the time is useless.
        is_said = root.at is not None and root.at <= wall
        cascade.resume_root(opened, root, now - wall + (root.at or 0.0) if is_said else None)
        yield cascade
