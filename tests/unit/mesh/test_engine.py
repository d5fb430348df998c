"""The engine: a node without its sockets."""

from __future__ import annotations

from quiesce.mesh.courier import Patience, Reply
from quiesce.mesh.engine import Engine
from quiesce.mesh.facts import NEVER, Settle
from quiesce.mesh.receipt import Receipt
from quiesce.mesh.wire import Handed

CASCADE, ROOT, ONE, TWO = bytes(16), b"r" * 12, b"1" * 12, b"2" * 12


def new() -> Engine:
    """Give an engine without jitter."""
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
    engine.replied(first, Reply((), ((ONE, NEVER), (TWO, NEVER))), 10.0)
    assert engine.take_news() == []
    engine.replied(second, Reply((), ((TWO, NEVER),)), 10.0)
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
    other.end(other.detector.hop(ONE), "done", 1.0)
    (call,) = other.due(1.0)
    assert call.to == "one"
    other.replied(call, one.called(call, 1.0), 1.0)
    (settle,) = one.take_news()
    assert isinstance(settle, Settle)
    assert settle.receipt == Receipt("done", 2, notes=settle.receipt.notes)
    assert one.next_at() == other.next_at() == float("inf")
