"""Finds the agents that are still busy with a cascade: each agent asks the agents below it.

The result is for people who want to know what a verdict waits for. It decides nothing, and it may be
outdated when it arrives. Agents that do not answer are listed as not reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import libraries
from quiesce.core.harmless_text import harmless
from quiesce.errors import PeerLost, QuiesceError, RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import NAME_MAX, WHY_MAX, edge_mark
from quiesce.mesh.runtime.hop_tree import tree
from quiesce.mesh.transport.node_transport import PROBE

if TYPE_CHECKING:
    from quiesce.core.frontier import FrontierEntry
    from quiesce.mesh.protocol.states import HopRecord
    from quiesce.mesh.runtime.open_node import OpenNode
    from quiesce.mesh.transport.node_transport import Transport

__all__ = ["Busy", "MeshFrontier"]

_ENTRIES_MAX = 256
_SHARE = 0.8  # the share of the remaining time that agents below get, so that their answers arrive
_SECONDS_MIN, _SECONDS_MAX = 0.05, 10.0
_NAMES_MAX = 3
_LASTING_SECONDS = 5.0  # work that runs longer than this may be a service
_SIZES = (12, 12, NAME_MAX, 20, None, WHY_MAX)  # the longest texts in an entry


@dataclass(frozen=True, slots=True)
class Busy:
    """One hop that has not ended, as its agent describes it; or a message whose agent was not reached."""

    mark: str
    parent: str
    name: str
    state: str
    """`at work`; `waits` (for agents below it); or `not reached`."""
    seconds: float | None = None
    what: str = ""

    def __str__(self) -> str:
        """Return one line."""
        since = "" if self.seconds is None else f"  {self.seconds:.1f} s"
        return f"{self.name}  {self.state}{since}" + (f"  ({self.what})" if self.what else "")


@dataclass(frozen=True)
class MeshFrontier:
    """A snapshot of the hops of a cascade that have not ended."""

    name: str
    entries: tuple[Busy, ...]

    @property
    def busy(self) -> tuple[Busy, ...]:
        """The entries of agents that are at work or were not reached."""
        return tuple(entry for entry in self.entries if entry.state != "waits")

    def __str__(self) -> str:
        """Return the tree as text."""
        lost = sum(entry.state == "not reached" for entry in self.entries)
        told = f"{len(self.busy) - lost or 'nobody'} at work{f', {lost} not reached' * bool(lost)}"
        head = f"cascade {self.name!r}: {told}"
        return "\n".join([head, *tree(self.entries, str)])

    def to_json(self) -> dict[str, Any]:
        """Return the frontier as JSON values."""
        return {"name": self.name, "entries": [_plain(entry) for entry in self.entries]}


async def ask_frontier(
    name: str, node: OpenNode, transport: Transport, hop: HopRecord, within: float
) -> MeshFrontier:
    """Return the frontier of a cascade: ask all agents below its first hop."""
    if hop.receipt is not None:
        return MeshFrontier(name, ())
    return MeshFrontier(name, tuple(await _gather(node, transport, hop, within)))


async def _gather(
    node: OpenNode, transport: Transport, hop: HopRecord, within: float
) -> list[Busy]:
    found = [own_work(node, hop)]
    by_node: dict[str, list[bytes]] = {}
    for edge, sent in hop.edges.items():
        by_node.setdefault(sent.to, []).append(edge)
    own = edge_mark(hop.edge)

    async def ask(to: str, edges: list[bytes]) -> None:
        try:
            ids = list(map(node.id_of, edges))
            found.extend(await _ask(transport, to, ids, within * _SHARE))
        except Exception as error:  # noqa: BLE001 - one failed question must not hide the other answers
            why = "no answer" if isinstance(error, TimeoutError) else type(error).__name__
            why = str(error) if isinstance(error, QuiesceError) else why
            why = why.removeprefix(f"{to} was not reached: ")
            for edge in edges:
                told = why + (_passed(node, edge) if hop.is_cancelled else "")
                found.append(Busy(edge_mark(edge), own, to, "not reached", None, told))

    if within >= _SECONDS_MIN:
        async with anyio.create_task_group() as group:
            for to, edges in by_node.items():
                group.start_soon(ask, to, edges[:_ENTRIES_MAX])
    return found[:_ENTRIES_MAX]


def _passed(node: OpenNode, edge: bytes) -> str:
    """Return in words which agents below an unreachable node got the request to end, and which did not."""
    told, others = node.engine.passed(edge)
    text = f"; told to end below it: {_few(told)}" if told else ""
    return text + (f"; not told to end below it: {_few(others)}" if others else "")


def _few(addresses: set[str]) -> str:
    more = len(addresses) - _NAMES_MAX
    return ", ".join(sorted(addresses)[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def own_work(node: OpenNode, hop: HopRecord) -> Busy:
    """Return an entry for this node's own work on a hop."""
    scope = node.running_hops.get(hop.edge)
    if scope is None:
        return Busy(edge_mark(hop.edge), hop.parent, node.name, "waits")
    age = node.clock() - scope.since
    what = _described(scope.frontier().in_flight)
    return Busy(edge_mark(hop.edge), hop.parent, node.name, "at work", age, what)


def _described(work: tuple[FrontierEntry, ...]) -> str:
    """Return a hop's work in words. After the handler has returned, add how to declare work that may be a service."""
    if not work:
        return "not begun"
    told = "; ".join(map(_told, work[:_NAMES_MAX]))
    more = f" and {len(work) - _NAMES_MAX} more" if len(work) > _NAMES_MAX else ""
    line = ""
    if all(entry.kind != "handler" for entry in work):
        names = dict.fromkeys(filter(None, map(_declared_as, work)))
        lines = libraries.declaration([*names][:_NAMES_MAX])
        line = f". If it lives as long as the process, declare it: {lines}" if names else ""
    return told[: WHY_MAX - len(more) - len(line)] + more + line


def _declared_as(entry: FrontierEntry) -> str | None:
    """Return the name that declares the work as a service; None if it cannot be one."""
    return None if entry.age < _LASTING_SECONDS else entry.declared_as


def _told(entry: FrontierEntry) -> str:
    where = "" if entry.where is None else f", started at {entry.where}"
    return f"{entry.kind} {entry.name} since {entry.age:.1f} s{where}"


async def _ask(transport: Transport, to: str, edges: list[bytes], within: float) -> list[Busy]:
    with anyio.fail_after(max(within, _SECONDS_MIN)):
        return parse_answer(await transport.call(to, PROBE, probe_body(edges, within)))


async def serve_frontier(node: OpenNode, transport: Transport, body: bytes) -> bytes:
    """Answer a question about busy agents, for a caller that knows the ids of the edges."""
    edges, within = parse_probe(body)
    try:
        node.check_accepts()
    except QuiesceError as error:
        raise PeerLost(str(error)) from error
    busy: list[Busy] = []
    edges = list(map(node.name_of, edges))
    hops = [hop for edge in edges if (hop := node.engine.known.find(edge)) is not None]
    for edge in edges:
        if why := node.engine.trouble(edge):  # the hop has ended, but its receipt was not delivered
            ended = node.engine.known.hop_records.get(edge)  # or its receipt was on an answer, too
            parent = "" if ended is None else ended.parent
            why = f"to have its receipt taken: {why}"
            busy.append(Busy(edge_mark(edge), parent, node.name, "waits", None, why))

    async def gather(hop: HopRecord) -> None:
        busy.extend(await _gather(node, transport, hop, within))

    async with anyio.create_task_group() as group:
        for hop in hops:
            group.start_soon(gather, hop)
    return answer_body(busy)


def probe_body(edges: list[bytes], within: float) -> bytes:
    """Return the body of a question."""
    asked = {"v": codec.VERSION, "edges": [edge.hex() for edge in edges], "within": within}
    return codec.dumps(asked)


def parse_probe(body: bytes) -> tuple[list[bytes], float]:
    """Parse a question; return its edges and its time limit in seconds.

    Raises:
        RemoteProtocolError: the body is not a valid question.
    """
    found = codec.versioned("probe", body)
    edges = list(dict.fromkeys(map(codec.edge_of, codec.items(found, "edges"))))[:_ENTRIES_MAX]
    within = found.get("within", 1.0)
    if not codec.is_time(within):
        message = "probe: within is not a number of seconds"
        raise RemoteProtocolError(message)
    return edges, min(within, _SECONDS_MAX)


def answer_body(busy: list[Busy]) -> bytes:
    """Return the body of an answer."""
    plain = [_plain(entry) for entry in busy[:_ENTRIES_MAX]]
    return codec.dumps({"v": codec.VERSION, "busy": plain})


def parse_answer(body: bytes) -> list[Busy]:
    """Parse an answer.

    Raises:
        RemoteProtocolError: the body is not a valid answer.
    """
    found = codec.versioned("frontier", body)
    return [_busy(one) for one in codec.items(found, "busy")[:_ENTRIES_MAX]]


def _plain(entry: Busy) -> list[Any]:
    name, what = entry.name[:NAME_MAX], entry.what[:WHY_MAX]
    return [entry.mark, entry.parent, name, entry.state, entry.seconds, what]


def _busy(found: Any) -> Busy:
    if (
        not isinstance(found, list)
        or len(found) != len(_SIZES)
        or (found[4] is not None and not codec.is_time(found[4]))
        or any(
            not isinstance(one, str) or len(one) > most
            for one, most in zip(found, _SIZES, strict=True)
            if most is not None
        )
    ):
        message = "frontier: an entry is not [mark, parent, name, state, seconds, what]"
        raise RemoteProtocolError(message)
    texts: list[Any] = [
        one if most is None else harmless(one, most)
        for one, most in zip(found, _SIZES, strict=True)
    ]
    return Busy(*texts)
