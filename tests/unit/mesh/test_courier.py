"""The courier: what is sent when, again, together, and no more."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quiesce.errors import ArgumentError
from quiesce.mesh.protocol.facts import WORKING, Post, Watch
from quiesce.mesh.protocol.receipt import Receipt
from quiesce.mesh.protocol.scheduler import Courier, NodeCall, NodeReply, Patience

ONE, TWO, THREE = (bytes([number]) * 12 for number in range(3))
DONE = Receipt("done")
PATIENCE = Patience(
    retry_first=1.0, retry_most=4.0, ask_in_doubt=2.0, ask_every=30.0, give_up=100.0, batch_max=2
)


def new(patience: Patience = PATIENCE) -> tuple[Courier, list[tuple[bytes, str]]]:
    """Return a courier without jitter, and what it has given up."""
    given_up: list[tuple[bytes, str]] = []
    return Courier(patience, lambda: 1.0, lambda *what: given_up.append(what)), given_up


@pytest.mark.parametrize(
    "given",
    [
        {"retry_first": "1"},
        {"retry_most": None},
        {"retry_first": 0},
        {"retry_most": 0.0},
        {"ask_in_doubt": 0},
        {"ask_every": 0},
        {"ask_in_doubt": -1},
        {"ask_every": float("nan")},
        {"give_up": "600"},
        {"batch_max": 0},
    ],
)
def test_a_patience_that_is_none_is_refused(given: dict[str, Any]) -> None:
    """When it is made, and not when somebody has to wait."""
    (name,) = given
    with pytest.raises(ArgumentError, match=name):
        Patience(**given)


def test_a_receipt_is_sent_at_once_and_until_it_is_taken() -> None:
    """After a failure it is sent again, later each time up to a limit, and never twice at a time."""
    courier, _ = new()
    assert courier.next_at() == math.inf
    courier.post(Post(ONE, "a", DONE), 0.0)
    now, waits = 0.0, []
    for _ in range(5):
        assert courier.next_at() == now
        (call,) = courier.due(now)
        assert call == NodeCall("a", ((ONE, DONE),), ())
        assert courier.due(now + 50) == []
        courier.failed(call, now)
        waits.append(courier.next_at() - now)
        now = courier.next_at()
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]
    (call,) = courier.due(now)
    courier.replied(call, NodeReply((ONE,), ()), now)
    assert courier.next_at() == math.inf


def test_a_receipt_that_was_not_taken_is_sent_again() -> None:
    """An answer alone is not enough."""
    courier, _ = new()
    courier.post(Post(ONE, "a", DONE), 0.0)
    (call,) = courier.due(0.0)
    courier.replied(call, NodeReply((), ()), 0.0)
    assert courier.next_at() == 1.0


def test_what_is_due_to_one_node_goes_together() -> None:
    """In calls of a limited size, one for each node."""
    courier, _ = new()
    for edge in (ONE, TWO, THREE):
        courier.post(Post(edge, "a", DONE), 0.0)
    courier.watch(Watch(bytes(12), "b", cancel=True), 0.0)
    calls = courier.due(0.0)
    assert [(call.to, len(call.receipts), call.asks) for call in calls] == [
        ("a", 2, ()),
        ("a", 1, ()),
        ("b", 0, ((bytes(12), True),)),
    ]


def test_an_edge_in_doubt_is_asked_for_soon_and_then_seldom() -> None:
    """One that is known to have arrived is asked for seldom from the start."""
    courier, _ = new()
    courier.watch(Watch(ONE, "a", in_doubt=True), 0.0)
    courier.watch(Watch(TWO, "b"), 0.0)
    (call,) = courier.due(2.0)
    assert call == NodeCall("a", (), ((ONE, False),))
    courier.replied(call, NodeReply((), ((ONE, WORKING),)), 2.0)
    assert [one.to for one in courier.due(30.0)] == ["b"]
    assert [one.to for one in courier.due(32.0)] == ["a"]


def test_a_cancel_follows_a_question_under_way_at_once() -> None:
    """The question that is under way does not say it: another does, right after."""
    courier, _ = new()
    courier.watch(Watch(ONE, "a"), 0.0)
    (call,) = courier.due(30.0)
    courier.watch(Watch(ONE, "a", cancel=True), 30.0)
    assert courier.due(30.0) == []
    courier.replied(call, NodeReply((), ((ONE, WORKING),)), 31.0)
    (call,) = courier.due(31.0)
    assert call.asks == ((ONE, True),)
    courier.replied(call, NodeReply((), ((ONE, WORKING),)), 32.0)
    assert courier.next_at() == 62.0


def test_what_is_closed_is_asked_for_no_more() -> None:
    """Also while a question is under way."""
    courier, _ = new()
    courier.watch(Watch(ONE, "a"), 0.0)
    (call,) = courier.due(30.0)
    courier.unwatch(ONE)
    courier.replied(call, NodeReply((), ((ONE, WORKING),)), 31.0)
    assert courier.next_at() == math.inf


def test_only_a_silent_node_is_given_up_after_a_while() -> None:
    """What counts is when it was last heard of."""
    courier, given_up = new()
    courier.watch(Watch(ONE, "a", in_doubt=True), 0.0)
    now = 0.0
    while now < 1000.0 and not given_up:
        now = courier.next_at()
        for call in courier.due(now):
            if now < 500.0:
                courier.replied(call, NodeReply((), ((ONE, WORKING),)), now)
            else:
                courier.failed(call, now)
    assert given_up == [(ONE, f"a has not answered for {PATIENCE.give_up:g} s")]
    assert 560.0 < now < 620.0
    assert courier.next_at() == math.inf


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("why", ["", "no mesh at a"])
def test_a_silent_node_is_given_up_in_time_however_seldom_it_is_asked(
    why: str, *, in_doubt: bool
) -> None:
    """It is asked before, and what failed is not put off beyond that time."""
    patience = Patience(retry_most=3600.0, ask_in_doubt=3600.0, ask_every=3600.0, give_up=4.1)
    courier, given_up = new(patience)
    courier.watch(Watch(ONE, "a", in_doubt=in_doubt), 0.1)
    now, calls = 0.1, 0
    while not given_up:
        now = courier.next_at()
        for call in courier.due(now):
            calls += 1
            courier.failed(call, now, why)
    assert now == 0.1 + 4.1
    assert calls >= 1


def test_the_last_error_of_an_address_is_the_reason_to_give_up() -> None:
    """A proxy's 503 is not silence."""
    courier, given_up = new()
    courier.watch(Watch(ONE, "http://a", in_doubt=True), 0.0)
    while (now := courier.next_at()) < math.inf:
        for call in courier.due(now):
            courier.failed(call, now, "", "answered 503")
    ((_, why),) = given_up
    assert why == "http://a has not said for 100 s how the message stands: answered 503"


def test_a_node_that_answers_is_asked_seldom_also_if_it_is_never_waited_for() -> None:
    """A `give_up` of nothing does not make it ask without a pause."""
    courier, given_up = new(Patience(give_up=0.0))
    courier.watch(Watch(ONE, "a"), 0.0)
    for _ in range(3):
        now = courier.next_at()
        (call,) = courier.due(now)
        courier.replied(call, NodeReply((), ((ONE, WORKING),)), now)
    assert now >= 3 * Patience().retry_first * 0.9
    assert given_up == []


def test_a_receipt_that_is_never_taken_is_not_sent_for_ever() -> None:
    """It is kept for whoever asks: nothing is given up by that."""
    courier, given_up = new()
    courier.post(Post(ONE, "a", DONE), 0.0)
    calls = 0
    while (now := courier.next_at()) < math.inf:
        for call in courier.due(now):
            calls += 1
            courier.failed(call, now)
    assert now >= 100.0 or now == math.inf
    assert 20 < calls < 40
    assert given_up == []


def test_what_failed_is_tried_soon_if_the_node_is_heard_of() -> None:
    """Not at once, and only what was for that node; it has not more time to answer than before."""
    courier, given_up = new()
    courier.post(Post(ONE, "a", DONE), 0.0)
    courier.watch(Watch(TWO, "a", cancel=True), 0.0)
    courier.watch(Watch(THREE, "b", cancel=True), 0.0)
    now = 0.0
    while now < 40.0:
        for call in courier.due(now):
            courier.failed(call, now)
        now = courier.next_at()
    assert now == 43.0
    assert not courier.contact("c", 40.0)
    assert courier.contact("a", 40.5)
    assert not courier.contact("a", 40.6)
    assert courier.next_at() == 41.5
    (call,) = courier.due(41.5)
    assert call == NodeCall("a", ((ONE, DONE),), ((TWO, True),))
    courier.failed(call, 42.0)
    assert [one.to for one in courier.due(43.0)] == ["b"]
    assert courier.next_at() == 44.0  # as after a first failure
    while not given_up and now < 200.0:
        courier.contact("a", now)
        now = courier.next_at()
        for call in courier.due(now):
            courier.failed(call, now)
    assert 100.0 <= now < 105.0
    assert not courier.contact("a", now)  # nothing of it fails any more


def test_what_failed_is_tried_at_once_if_the_node_has_answered() -> None:
    """A call that is answered says that others will be."""
    courier, _ = new()
    courier.watch(Watch(ONE, "a", in_doubt=True), 0.0)
    (call,) = courier.due(2.0)
    courier.failed(call, 2.0)
    courier.post(Post(TWO, "a", DONE), 2.5)
    (call,) = courier.due(2.5)
    courier.replied(call, NodeReply((TWO,), ()), 2.6)
    assert courier.due(2.6) == [NodeCall("a", (), ((ONE, False),))]
    assert not courier.contact("a", 2.6)


def test_an_address_without_a_node_is_tried_seldom_and_not_given_up_sooner() -> None:
    """A message that is answered there says nothing of the node; a call that is answered does."""
    courier, given_up = new()
    courier.post(Post(ONE, "a", DONE), 0.0)
    courier.watch(Watch(TWO, "a", cancel=True), 0.0)
    assert courier.trouble(ONE) == ""
    (call,) = courier.due(0.0)
    courier.failed(call, 0.0, "no mesh")
    assert courier.trouble(ONE) == "no mesh"
    assert courier.trouble(TWO) == ""
    assert not courier.contact("a", 1.0)
    assert courier.next_at() == 4.0  # the longest that there is
    assert courier.contact("a", 1.0, is_node=True)
    assert courier.next_at() == 2.0
    now, times = 2.0, 0
    while not given_up:
        for call in courier.due(now):
            times += 1
            courier.failed(call, now, "no mesh")
        now = courier.next_at()
    assert given_up == [(TWO, "no mesh")]
    assert times == 25
    assert courier.unposted == 0


def edges(count: int) -> list[bytes]:
    """Return so many edges."""
    return [number.to_bytes(12, "big") for number in range(count)]


def test_edges_are_asked_for_together_a_little_early_and_never_late() -> None:
    """Each within a part of the time that it would have to itself, whatever else there is."""
    courier, _ = new()
    due = {edge: 30.0 + number * 0.1 for number, edge in enumerate(edges(100))}
    for edge, at in due.items():
        courier.watch(Watch(edge, "a"), at - 30.0)
    times: set[float] = set()
    while (now := courier.next_at()) < math.inf:
        times.add(now)
        for call in courier.due(now):
            for edge, _ in call.asks:
                assert due[edge] - 30.0 / 32 <= now <= due[edge]
                courier.unwatch(edge)
    assert len(times) <= 12


def test_an_empty_round_is_not_joined() -> None:
    """It is not looked at any more: who joined it would never be asked for."""
    courier, _ = new()
    courier.watch(Watch(ONE, "a"), 0.0)
    courier.unwatch(ONE)
    assert courier.next_at() == math.inf
    courier.watch(Watch(TWO, "a"), 0.5)
    assert courier.next_at() == 30.5
    assert [call.asks for call in courier.due(30.5)] == [((TWO, False),)]


def test_receipts_and_questions_to_a_node_share_its_calls() -> None:
    """Each call has as many of both as it may, and nothing is left out."""
    courier, _ = new()
    for edge in edges(3):
        courier.post(Post(edge, "a", DONE), 0.0)
        courier.watch(Watch(edge, "a", cancel=True), 0.0)
    calls = courier.due(0.0)
    assert [(len(call.receipts), len(call.asks)) for call in calls] == [(2, 0), (1, 1), (0, 2)]
    assert [edge for call in calls for edge, _ in call.asks] == edges(3)


def test_what_failed_together_is_tried_again_together() -> None:
    """A dead node is called once a turn, however many edges wait for it; one that lives is not late."""
    courier, _ = new()
    courier.watch(Watch(ONE, "a", in_doubt=True), 0.0)
    courier.watch(Watch(TWO, "a", in_doubt=True), 1.0)
    courier.watch(Watch(THREE, "b", in_doubt=True), 1.0)
    one, other = courier.due(3.0)
    courier.failed(one, 3.0)
    courier.replied(other, NodeReply((), ((THREE, WORKING),)), 3.0)
    assert courier.next_at() == 4.0
    (again,) = courier.due(4.0)
    assert again == one
    courier.failed(again, 4.0)
    assert courier.next_at() == 6.0


def test_what_failed_one_after_the_other_is_tried_again_together() -> None:
    """However many edges wait for a dead node, it is called once in a while; each has its own time."""
    courier, given_up = new()
    for number, edge in enumerate(edges(40)):
        courier.watch(Watch(edge, "a"), number * 1.7)
    times: list[float] = []
    while (now := courier.next_at()) < math.inf:
        times.append(now)
        for call in courier.due(now):
            courier.failed(call, now)
        while given_up:
            edge, _ = given_up.pop(0)
            sent = int.from_bytes(edge, "big") * 1.7
            assert sent + 99.0 <= now <= sent + 105.0
    assert courier.unposted == 0
    assert len([one for one in times if 100 <= one < 128]) < 20


def test_a_wish_to_end_gives_a_silent_node_no_more_time() -> None:
    """It is told at once; when the node was last heard of is as it was."""
    courier, given_up = new()
    courier.watch(Watch(ONE, "a", in_doubt=True), 0.0)
    while (now := courier.next_at()) < 90.0:
        for call in courier.due(now):
            courier.failed(call, now)
    courier.watch(Watch(ONE, "a", cancel=True), 90.0)
    (call,) = courier.due(90.0)
    assert call.asks == ((ONE, True),)
    courier.failed(call, 94.0)
    assert courier.next_at() == 98.0  # as long as after the failures before
    (call,) = courier.due(98.0)
    courier.failed(call, 98.0)
    assert courier.next_at() == 100.0
    assert courier.due(100.0) == []
    assert given_up == [(ONE, f"a has not answered for {PATIENCE.give_up:g} s")]
