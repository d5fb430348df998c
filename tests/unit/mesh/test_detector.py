"""The detector's rules, one at a time; the simulation has them all together."""

from __future__ import annotations

import pytest

from quiesce.errors import UsageError
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import (
    NEVER,
    NOT_NOW,
    RUN,
    UNKNOWN,
    WORKING,
    Answer,
    Begun,
    Cancelled,
    Closed,
    EdgeClosed,
    Effect,
    Over,
    Post,
    Sent,
    Settle,
    Stop,
    Taken,
    Unwatch,
    Watch,
    Write,
)
from quiesce.mesh.protocol.receipt import NOTES_MAX, Note, Receipt, edge_mark, unpack
from quiesce.mesh.protocol.states import HopState

CASCADE, ROOT, ONE, TWO = bytes(16), b"r" * 12, b"1" * 12, b"2" * 12
DONE = Receipt("done")


def new(*, lasting: bool = True) -> Detector:
    """Return a detector that knows nothing."""
    return Detector("here", lasting=lasting)


def kinds(effects: list[Effect]) -> list[object]:
    """Name effects, and records by their kind."""
    return [type(one.record) if isinstance(one, Write) else type(one) for one in effects]


def test_what_is_written_comes_before_what_it_allows() -> None:
    """A hop begins, sends, and gives its receipt: each after its record, and after all others."""
    detector = new()
    assert detector.arrive(ONE, CASCADE, "", "http://parent") is RUN
    hop = detector.known.hop(ONE)
    assert detector.ride(ONE) is WORKING
    assert kinds(detector.take()) == [Begun]
    detector.send(hop, TWO, "there")
    detector.sent(TWO, "is taken")
    assert kinds(detector.take()) == [Sent, Taken, Watch]
    detector.receive(TWO, DONE)
    detector.end(hop, "done")
    effects = detector.take()
    assert kinds(effects) == [EdgeClosed, Closed, Unwatch, Post]
    assert isinstance(effects[-1], Post)
    assert (effects[-1].to, effects[-1].receipt.hops) == ("http://parent", 2)


def test_an_edge_is_run_once_ever() -> None:
    """A copy is told how the first stands: at work, closed, taken."""
    detector = new()
    detector.arrive(ONE, CASCADE, "", "a")
    assert detector.arrive(ONE, CASCADE, "", "a") is WORKING
    detector.ride(ONE)
    detector.end(detector.known.hop(ONE), "failed", why="so")
    answer = detector.arrive(ONE, CASCADE, "", "a")
    assert answer.receipt is not None
    assert (answer.receipt.status, answer.receipt.failed) == ("failed", 1)
    detector.taken(ONE)
    assert detector.arrive(ONE, CASCADE, "", "a") is UNKNOWN


@pytest.mark.parametrize("is_compacted", [True, False])
def test_an_edge_whose_receipt_was_taken_is_not_denied(*, is_compacted: bool) -> None:
    """Whoever has taken it does not ask: one who does would believe that it never ran, now and after a restart."""
    detector = new()
    detector.arrive(ONE, CASCADE, "", "a")
    detector.ride(ONE)
    detector.end(detector.known.hop(ONE), "failed")
    detector.taken(ONE)
    written = [effect.record for effect in detector.take() if isinstance(effect, Write)]
    again = new()
    again.restore(list(detector.known.snapshot()) if is_compacted else written)
    for one in (detector, again):
        assert one.ask(ONE) is UNKNOWN
        assert one.refuse(ONE) is UNKNOWN
        assert one.ride(ONE) is UNKNOWN


def test_a_receipt_rides_on_the_answer_or_is_posted_and_not_both() -> None:
    """One that is on the answer is there for whoever asks, in case the answer is lost."""
    detector = new()
    detector.arrive(ONE, CASCADE, "", "a")
    detector.end(detector.known.hop(ONE), "done")
    answer = detector.ride(ONE)
    assert answer.receipt is not None
    assert Post not in kinds(detector.take())
    assert detector.ask(ONE) == answer
    detector.arrive(TWO, CASCADE, "", "a")
    detector.ride(TWO)
    detector.end(detector.known.hop(TWO), "done")
    assert Post in kinds(detector.take())


def test_the_short_way_to_the_answer_is_the_long_one() -> None:
    """It says the same to anybody who asks, then and after a restart, and is posted to nobody."""
    short, long = new(), new()
    for detector in (short, long):
        detector.arrive(ONE, CASCADE, "0123456789ab", "a")
    packed = short.finish(short.known.hop(ONE), 250_000)
    long.end(long.known.hop(ONE), "done", seconds=0.25)
    answer = long.ride(ONE)
    assert packed is not None
    assert unpack(packed) == answer.receipt
    written, as_ever = (one.take() for one in (short, long))
    assert kinds(written) == [Begun, Over]
    assert kinds(as_ever) == [Begun, Closed]
    for detector, effects in ((short, written), (long, as_ever)):
        later = new()
        later.restore([one.record for one in effects if isinstance(one, Write)])
        assert (later.take() == []) == (detector is short)
        assert [one.ask(ONE) for one in (detector, later)] == [answer] * 2
        assert [one.arrive(ONE, CASCADE, "", "a") for one in (detector, later)] == [answer] * 2


def test_a_hop_that_ended_the_short_way_sends_nothing() -> None:
    """It is over, as any other is then."""
    detector = new()
    detector.arrive(ONE, CASCADE, "", "a")
    hop = detector.known.hop(ONE)
    assert detector.finish(hop, 0)
    with pytest.raises(UsageError, match="no verdict would wait for"):
        detector.send(hop, TWO, "b")
    assert detector.finish(hop, 0) is None


@pytest.mark.parametrize(
    "what",
    ["is a root", "is answered", "is cancelled", "has sent", "has counted", "is not lasting"],
)
def test_any_other_hop_takes_the_long_way(what: str) -> None:
    """Nothing is known after the short one that was not before, and its receipt reaches whoever waits."""
    detector = new(lasting=what != "is not lasting")
    if what == "is a root":
        hop = detector.begin(ONE, CASCADE)
    else:
        detector.arrive(ONE, CASCADE, "", "a")
        hop = detector.known.hop(ONE)
    match what:
        case "is answered":  # a copy was told that it is worked on: who has sent that waits
            assert detector.arrive(ONE, CASCADE, "", "a") is WORKING
        case "is cancelled":
            detector.cancel(hop)
        case "has sent" | "has counted":
            detector.send(hop, TWO, "b")
            if what == "has counted":
                detector.receive(TWO, Receipt("failed", failed=1))
    detector.take()
    assert detector.finish(hop, 0) is None
    assert detector.take() == []
    assert hop.state is HopState.RUNNING
    detector.end(hop, "done")
    assert (Post in kinds(detector.take())) == (what == "is answered")


def test_an_edge_that_never_came_is_refused_for_good() -> None:
    """Asked for, it is written that it is over, before it is said."""
    detector = new()
    assert detector.ask(ONE) is NEVER
    assert detector.take() == [Write(Over(ONE))]
    assert detector.arrive(ONE, CASCADE, "", "a") is NEVER


def test_a_node_without_a_journal_cannot_say_never() -> None:
    """And its receipts say so: a copy would run after a restart."""
    detector = new(lasting=False)
    assert detector.ask(ONE) is UNKNOWN
    assert detector.refuse(TWO) is NOT_NOW
    detector.arrive(ONE, CASCADE, "", "a")
    detector.end(detector.known.hop(ONE), "done")
    answer = detector.ride(ONE)
    assert answer.receipt is not None
    assert (answer.receipt.volatile, answer.receipt.is_whole) == (1, False)


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        ("is refused", (0, 0, 0)),
        ("is not sent", (0, 0, 0)),
        ("is refused, for now", (0, 0, 1)),
        ("is opaque", (1, 0, 0)),
    ],
)
def test_what_was_not_taken_is_closed_at_once(how: str, counts: tuple[int, int, int]) -> None:
    """As what it is: only what may run all the same counts."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.sent(ONE, how)  # type: ignore[arg-type]  # one of those
    detector.end(hop, "done")
    settle = detector.take()[-1]
    assert isinstance(settle, Settle)
    receipt = settle.receipt
    assert (receipt.opaque, receipt.lost, receipt.volatile) == counts
    assert receipt.hops == 1


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (NEVER, (0, 0, 0)),
        (NOT_NOW, (0, 1, 0)),
        (UNKNOWN, (0, 1, 0)),
        (Answer("closed", Receipt("lost", lost=1)), (1, 0, 0)),
    ],
)
def test_what_a_receiver_says_closes_an_edge(answer: Answer, counts: tuple[int, int, int]) -> None:
    """The first thing that it says counts, and nothing that comes later."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.sent(ONE, "is in doubt")
    detector.end(hop, "done")
    if answer is not NEVER:  # who works on it does not say that
        detector.told(ONE, WORKING)
    assert Settle not in kinds(detector.take())
    detector.told(ONE, answer)
    settle = detector.take()[-1]
    assert isinstance(settle, Settle)
    assert (settle.receipt.lost, settle.receipt.unknown, settle.receipt.volatile) == counts
    assert settle.receipt.undelivered == (answer is NEVER)  # no work is lost by it
    detector.told(ONE, NEVER)
    detector.receive(ONE, DONE)
    detector.give_up(ONE, "late")
    detector.sent(ONE, "is opaque")
    assert detector.take() == []


def test_a_receipt_that_is_faster_than_the_answer_is_enough() -> None:
    """The answer then says nothing new."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.receive(ONE, DONE)
    detector.take()
    detector.sent(ONE, "is taken")
    assert detector.take() == []
    detector.end(hop, "done")
    assert Settle in kinds(detector.take())


@pytest.mark.parametrize("is_restored", [False, True])
def test_work_that_left_a_hop_is_counted_in_its_receipt(*, is_restored: bool) -> None:
    """Also after a restart between the end of the hop and its receipt."""
    detector = new()
    detector.arrive(ROOT, CASCADE, "", "http://up")
    hop = detector.known.hop(ROOT)
    detector.send(hop, ONE, "thread")
    detector.sent(ONE, "is untracked", "started at app.py:12")
    detector.send(hop, TWO, "http://b")
    detector.sent(TWO, "is taken")
    detector.end(hop, "done")
    if is_restored:
        records, detector = detector.known.writes, new()
        detector.restore(records)
        hop = detector.known.hop(ROOT)
    detector.receive(TWO, Receipt("done"))
    assert hop.receipt is not None
    assert hop.receipt.untracked == 1
    assert [note.why for note in hop.receipt.notes if note.status == "untracked"] == [
        "started at app.py:12"
    ]


def test_forged_receipts_change_nothing() -> None:
    """For an edge that was not opened here, or is closed."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.sent(ONE, "is taken")
    detector.end(hop, "done")
    detector.take()
    for number in range(1000):
        detector.receive(number.to_bytes(12, "big"), DONE)
        detector.told(number.to_bytes(12, "big"), NEVER)
    assert detector.take() == []


def test_a_hop_that_has_ended_sends_nothing() -> None:
    """It would belong to nobody; and a hop ends in one of four ways."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    with pytest.raises(UsageError, match="done, failed, cancelled, lost"):
        detector.end(hop, "opaque")
    detector.end(hop, "done")
    with pytest.raises(UsageError, match="has ended"):
        detector.send(hop, ONE, "there")


def test_a_cancellation_goes_down_the_tree() -> None:
    """To what runs here, to what was taken there, and to what is taken later."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.sent(ONE, "is taken")
    detector.send(hop, TWO, "there")
    detector.take()
    detector.cancel(hop)
    written = Write(Cancelled(ROOT))
    assert detector.take() == [written, Stop(ROOT), Watch(ONE, "there", cancel=True)]
    detector.sent(TWO, "is in doubt")
    assert detector.take() == [Watch(TWO, "there", in_doubt=True, cancel=True)]
    detector.cancel(hop)
    assert detector.take() == []
    detector.told(TWO, NEVER)  # overtaken by the wish to end it
    detector.end(hop, "cancelled")
    detector.receive(ONE, Receipt("cancelled", cancelled=1))
    settle = detector.take()[-1]
    assert isinstance(settle, Settle)
    assert (settle.receipt.lost, settle.receipt.cancelled) == (0, 3)


@pytest.mark.parametrize("how", ["answer", "question"])
def test_never_is_not_believed_of_a_taken_edge(how: str) -> None:
    """It is another who says so, or one who has forgotten: what was taken may run, and have sent more."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.sent(ONE, "is taken" if how == "answer" else "is in doubt")
    if how == "question":
        detector.told(ONE, WORKING)
    detector.told(ONE, NEVER)
    detector.end(hop, "done")
    settle = detector.take()[-1]
    assert isinstance(settle, Settle)
    assert (settle.receipt.lost, settle.receipt.unknown) == (0, 1)


def test_asked_to_cancel_a_hop_stops() -> None:
    """And one that never came never will."""
    detector = new()
    detector.arrive(ONE, CASCADE, "", "a")
    detector.take()
    assert detector.ask(ONE, cancel=True) is WORKING
    assert detector.take() == [Write(Cancelled(ONE)), Stop(ONE)]
    assert detector.ask(TWO, cancel=True) is NEVER


@pytest.mark.parametrize("is_compacted", [True, False])
def test_after_a_restart_a_cancellation_goes_on(*, is_compacted: bool) -> None:
    """Those who were not told before are told then."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.sent(ONE, "is taken")
    detector.cancel(hop)
    detector.end(hop, "cancelled")
    written = [effect.record for effect in detector.take() if isinstance(effect, Write)]
    again = new()
    again.restore(list(detector.known.snapshot()) if is_compacted else written)
    assert again.known.hop(ROOT).is_cancelled
    assert again.take() == [Watch(ONE, "there", in_doubt=True, cancel=True)]


def test_a_receipt_has_so_many_notes_and_those_of_losses_first() -> None:
    """The counts are exact, whatever is left out."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    for number in range(3 * NOTES_MAX):
        edge = number.to_bytes(12, "big")
        detector.send(hop, edge, "there")
        lost = number >= 3 * NOTES_MAX - 2
        note = Note(edge_mark(edge), "", "there", "lost" if lost else "done")
        detector.receive(edge, Receipt(note.status, lost=int(lost), notes=(note,)))
    detector.end(hop, "done")
    settle = detector.take()[-1]
    assert isinstance(settle, Settle)
    notes = settle.receipt.notes
    assert (settle.receipt.hops, settle.receipt.lost) == (3 * NOTES_MAX + 1, 2)
    assert len(notes) == NOTES_MAX
    assert [note.status for note in notes].count("lost") == 2
    assert notes[0].name == "here"


def test_a_mark_does_not_give_the_edge_away() -> None:
    """It is short, and the same for the same edge."""
    assert edge_mark(ONE) == edge_mark(ONE) != edge_mark(TWO)
    assert (len(edge_mark(ONE)), ONE.hex() in edge_mark(ONE)) == (12, False)


def test_an_undelivered_verdict_is_delivered_after_a_restart() -> None:
    """Also from a snapshot, with all that its edges came to; once it was told, it is over."""
    detector = new()
    hop = detector.begin(ROOT, CASCADE)
    detector.send(hop, ONE, "there")
    detector.receive(ONE, Receipt("failed", 3, failed=2))
    restarted = new()
    restarted.restore(detector.known.snapshot())  # its process died at its work
    first = restarted.take()[-1]
    assert isinstance(first, Settle)
    assert (first.receipt.hops, first.receipt.failed, first.receipt.lost) == (4, 2, 1)
    again = new()
    again.restore(restarted.known.snapshot())
    assert again.take() == [first]
    again.taken(ROOT)
    last = new()
    last.restore(again.known.snapshot())
    assert last.take() == []


@pytest.mark.parametrize("how", ["copy", "ask"])
def test_a_receipt_is_posted_if_an_answer_said_that_the_message_is_worked_on(how: str) -> None:
    """Its answer may go to one that has left, and who was told does not ask again soon."""
    detector = Detector("b", lasting=True)
    detector.arrive(ONE, CASCADE, "", "http://a")
    answer = detector.arrive(ONE, CASCADE, "", "http://a") if how == "copy" else detector.ask(ONE)
    assert answer.kind == "working"
    detector.take()
    detector.end(detector.known.hop(ONE), "done")
    detector.ride(ONE)
    assert any(isinstance(effect, Post) for effect in detector.take())
