"""What a node tells to functions that watch it: `Node.subscribe()`. A page, metrics and traces need nothing else.

The node makes events of the records that it has written, so there is one place where they come from, and an event is told
only when it has lasted. A node without subscribers does not make events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import ref

from quiesce.core.tree import logger
from quiesce.mesh.protocol.facts import Begun, Closed, EdgeClosed, Over, Sent, Taken
from quiesce.mesh.protocol.receipt import edge_mark, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.knowledge import Knowledge
    from quiesce.mesh.protocol.receipt import Receipt
    from quiesce.mesh.runtime.node import Node

__all__ = [
    "CascadeBegun",
    "CascadeEnded",
    "EdgeEnded",
    "EdgeSent",
    "EdgeTaken",
    "HopBegun",
    "HopEnded",
    "NodeEvent",
    "ReplicaGone",
    "ReplicaJoined",
]


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something that has happened in the mesh, as one node knows it."""

    node: str
    """The name of the node that tells it."""
    at: float
    """When the node has told it, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class _OfCascade(NodeEvent):
    cascade: str
    """The id of the cascade."""
    mark: str
    """The public name of the message; for a cascade, of its first hop."""


@dataclass(frozen=True, slots=True)
class CascadeBegun(_OfCascade):
    """A cascade has begun at this node."""

    name: str


@dataclass(frozen=True, slots=True)
class CascadeEnded(_OfCascade):
    """A cascade that has begun at this node has its verdict."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class HopBegun(_OfCascade):
    """This node has accepted a message."""

    parent: str
    """The mark of the message whose work has sent this one."""


@dataclass(frozen=True, slots=True)
class HopEnded(_OfCascade):
    """The work on a message has ended, and all work that was handed on from it."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class EdgeSent(_OfCascade):
    """This node is about to send a message."""

    parent: str
    to: str
    """The agent's address."""


@dataclass(frozen=True, slots=True)
class EdgeTaken(_OfCascade):
    """The agent has said that it has the message."""

    to: str


@dataclass(frozen=True, slots=True)
class EdgeEnded(_OfCascade):
    """A message that this node has sent is closed; `receipt.status` says how, like `done`, `lost` or `unknown`."""

    to: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ReplicaJoined(NodeEvent):
    """Another replica of this agent was seen for the first time."""

    replica: str


@dataclass(frozen=True, slots=True)
class ReplicaGone(NodeEvent):
    """Another replica of this agent has closed, or was declared dead."""

    replica: str
    is_dead: bool
    why: str


class Subscribers:
    """The functions that watch a node."""

    def __init__(self, node: Node) -> None:
        """Begin without functions."""
        self._node = ref(node)  # so that a node that is dropped is freed at once
        self._name = node.name
        self.functions: list[Callable[[NodeEvent], object]] = []

    def add(self, fn: Callable[[NodeEvent], object]) -> Callable[[], None]:
        """Call a function with all events from now on; return a function that ends this."""
        self.functions.append(fn)

        def remove() -> None:
            if fn in self.functions:
                self.functions.remove(fn)
                node = self._node()
                if node is not None and node.was_opened:
                    node.opened.watch_events()

        return remove

    def tell(self, event: NodeEvent) -> None:
        """Pass an event to all functions. The failure of one is logged, and changes nothing for the others."""
        for fn in tuple(self.functions):
            try:
                fn(event)
            except Exception:  # noqa: BLE001 - whatever it raises, the node goes on
                logger.exception("a subscriber of node %r failed: %r", self._name, fn)

    def now(self) -> tuple[str, float]:
        """Return the first fields of an event that is told now."""
        node = self._node()
        assert node is not None  # noqa: S101 - it tells the event
        return self._name, node.wall()


class RecordEvents:
    """Makes events of the records of one opening of a node."""

    def __init__(self, known: Knowledge, subscribers: Subscribers) -> None:
        """Begin with the edges that are open now."""
        self._subscribers = subscribers
        self._hops: dict[bytes, tuple[str, bool]] = {
            edge: (hop.cascade.hex(), hop.is_root) for edge, hop in known.hop_records.items()
        }
        self._sent: dict[bytes, tuple[str, str]] = {
            edge: (sent.hop.cascade.hex(), sent.to) for edge, sent in known.edge_records.items()
        }

    def tell(self, records: Iterable[Record]) -> None:
        """Pass the events of records that have lasted to the subscribers."""
        for record in records:
            for event in self._events_of(record):
                self._subscribers.tell(event)

    def _events_of(self, record: Record) -> Iterator[NodeEvent]:
        first = self._subscribers.now()
        if isinstance(record, Begun):
            cascade, mark = record.cascade.hex(), edge_mark(record.edge)
            self._hops[record.edge] = cascade, record.is_root
            if record.is_root:
                yield CascadeBegun(*first, cascade, mark, record.name)
            else:
                yield HopBegun(*first, cascade, mark, record.parent)
        elif isinstance(record, Sent):
            cascade = self._hops.get(record.hop, ("", False))[0]
            self._sent[record.edge] = cascade, record.to
            mark, parent = edge_mark(record.edge), edge_mark(record.hop)
            yield EdgeSent(*first, cascade, mark, parent, record.to)
        elif isinstance(record, Taken | EdgeClosed):
            yield from self._of_sent(record, first)
        elif isinstance(record, Closed | Over):
            yield from self._of_ended(record, first)

    def _of_sent(self, record: Taken | EdgeClosed, first: tuple[str, float]) -> Iterator[NodeEvent]:
        cascade, to = self._sent.get(record.edge, ("", ""))
        mark = edge_mark(record.edge)
        if isinstance(record, Taken):
            yield EdgeTaken(*first, cascade, mark, to)
        else:
            self._sent.pop(record.edge, None)
            yield EdgeEnded(*first, cascade, mark, to, record.receipt)

    def _of_ended(self, record: Closed | Over, first: tuple[str, float]) -> Iterator[NodeEvent]:
        found = self._hops.pop(record.edge, None)
        if found is None or not record.packed:  # it was told before, or was never run
            return
        kind = CascadeEnded if found[1] else HopEnded
        yield kind(*first, found[0], edge_mark(record.edge), unpack(record.packed))
