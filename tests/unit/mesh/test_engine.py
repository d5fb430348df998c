"""The engine: a node without its sockets."""

from __future__ import annotations

import pytest

from quiesce.mesh.protocol.codec import Handed
from quiesce.mesh.protocol.engine import Engine
from quiesce.mesh.protocol.facts import NEVER, WORKING, Settle
from quiesce.mesh.protocol.receipt import Receipt
from quiesce.mesh.protocol.scheduler import NodeReply, Patience

CASCADE, ROOT, ONE, TWO = bytes(16), b"r" * 12, b"1" * 12, b"2" * 12


def new() -> Engine:
    """Return an engine without jitter."""
    return Engine("here", lasting=True, patience=Patience(), jitter=lambda: 1.0, wall=lambda: 0.0)


def test_a_node_answers_only_for_what_it_was_asked() -> None:
    """What it says about another edge is not heard."""
    engine = new()
    hop = engine.begin(ROOT, CASCADE, 0.0)
    for edge in (ONE, TWO):
        engine.send(hop, edge, edge.decode(), 0.0)
        engine.sent(edge, "is in doubt", 0.0)
    engine.end(hop, "done", 0.0)
    first, second = engine.due(10.0)
    engine.replied(first, NodeReply((), ((ONE, NEVER), (TWO, NEVER))), 10.0)
    assert engine.take_news() == []
    engine.replied(second, NodeReply((), ((TWO, NEVER),)), 10.0)
    (settle,) = engine.take_news()
    assert isinstance(settle, Settle)
    assert settle.receipt.undelivered == 2


def test_a_receipt_goes_from_node_to_node() -> None:
    """What one posts the other takes; then neither has anything to do."""
    one, other = new(), new()
    hop = one.begin(ROOT, CASCADE, 0.0)
    one.send(hop, ONE, "other", 0.0)
    assert other.arrive(Handed(CASCADE, ONE, "", 3600), "one").kind == "run"
    one.sent(ONE, "is taken", 0.0)
    other.ride(ONE, 0.0)
    one.end(hop, "done", 0.0)
    other.end(other.detector.known.hop(ONE), "done", 1.0)
    (call,) = other.due(1.0)
    assert call.to == "one"
    other.replied(call, one.called(call, 1.0), 1.0)
    (settle,) = one.take_news()
    assert isinstance(settle, Settle)
    assert settle.receipt == Receipt("done", 2, notes=settle.receipt.notes)
    assert one.next_at() == other.next_at() == float("inf")


@pytest.mark.parametrize(
    ("other", "age", "undelivered"),
    [("y.1.0", 500.0, 0), ("y.1.0", 5.0, 1), ("x.2.0", 500.0, 1)],
    ids=["a replica", "a journal in the place of one that was lost", "the same"],
)
def test_of_several_nodes_at_one_address_none_can_say_never(
    other: str, age: float, undelivered: int
) -> None:
    """The one that answers now was there when another one did: it does not know what that one has taken."""
    engine = new()
    hop = engine.begin(ROOT, CASCADE, 0.0)
    engine.send(hop, ONE, "one", 0.0)
    engine.sent(ONE, "is taken", 0.0)
    (call,) = engine.due(30.0)
    engine.replied(call, NodeReply((), ((ONE, WORKING),), 400.0, "x.1.0"), 30.0)
    engine.horizon.wall = lambda: 100.0  # the next message is sent when both are there
    engine.send(hop, TWO, "one", 130.0)
    engine.sent(TWO, "is in doubt", 130.0)
    engine.horizon.wall = lambda: 103.0
    calls = [call for call in engine.due(133.0) if (TWO, False) in call.asks]
    engine.replied(calls[0], NodeReply((), ((TWO, NEVER),), age, other), 133.0)
    receipt = hop.tally.sum()
    assert (receipt.undelivered, receipt.unknown) == (undelivered, 1 - undelivered)
