"""The wire: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.errors import LocalProtocolError, RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.codec import Answered, Handed
from quiesce.mesh.protocol.facts import (
    NEVER,
    NOT_NOW,
    UNKNOWN,
    WORKING,
    Answer,
    Post,
    Watch,
)
from quiesce.mesh.protocol.receipt import (
    NAME_MAX,
    NOTES_MAX,
    WHY_MAX,
    Note,
    Receipt,
    edge_mark,
)
from quiesce.mesh.protocol.scheduler import Courier, NodeCall, NodeReply, Patience

if TYPE_CHECKING:
    from collections.abc import Callable

CASCADE, EDGE = bytes(range(16)), bytes(range(100, 112))
HEAD = "00-000102030405060708090a0b0c0d0e0f-6465666768696a6b6c6d6e6f-0123456789ab-00"
HEADER = f"{HEAD};b=1763290000"
HANDED = Handed(CASCADE, EDGE, "0123456789ab", 1_763_290_000)

edges = st.binary(min_size=12, max_size=12)
counts = st.integers(0, 2**53 - 1)
marks = edges.map(edge_mark)


def seen(most: int) -> st.SearchStrategy[str]:
    """Return texts of which all is seen; others are spelled out when they are read."""
    return st.text(st.characters(exclude_categories=["C", "Z"]), max_size=most)


notes = st.builds(
    Note,
    marks,
    marks | st.just(""),
    seen(NAME_MAX),
    st.sampled_from(["done", "failed", "cancelled", "lost", "refused", "opaque", "unknown"]),
    st.none() | st.floats(0, 1e9),
    seen(WHY_MAX),
)
receipts = st.builds(
    Receipt,
    st.just("done"),
    hops=st.integers(1, 2**53 - 1),
    failed=counts,
    lost=counts,
    opaque=counts,
    unknown=counts,
    volatile=counts,
    notes=st.lists(notes, max_size=4).map(tuple),
)
answers = st.sampled_from([WORKING, NEVER, NOT_NOW, UNKNOWN]) | receipts.map(
    lambda receipt: Answer("closed", receipt)
)


def test_the_header_of_a_message_is_short_and_read_again() -> None:
    """It has the cascade, the edge and a mark of the parent, in under 100 bytes."""
    assert codec.request_header(HANDED) == HEADER
    assert len(HEADER) < 100
    assert codec.parse_request_header(HEADER) == HANDED
    assert codec.parse_request_header(HEADER.encode()) == HANDED
    home = Handed(CASCADE, EDGE, "0123456789ab", 1, "https://[::1]:8080/quiesce?a=b")
    assert codec.parse_request_header(codec.request_header(home)) == home


def test_a_later_version_may_add_and_not_change() -> None:
    """More fields and parameters are ignored, of a later version; ours has none."""
    assert codec.parse_request_header("01" + HEAD[2:] + "-abcd;h=http://a;x=1;b=7") == Handed(
        CASCADE, EDGE, "0123456789ab", 7, "http://a"
    )
    for wrong in ("ff" + HEADER[2:], HEAD + "-abcd;b=7"):
        with pytest.raises(RemoteProtocolError, match="has no such form"):
            codec.parse_request_header(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "", "00", HEADER[2:], HEAD + "0;b=7", HEAD.upper() + ";b=7", HEADER.replace("-", "_"),
        HEAD, HEAD + ";b=", HEAD + ";b=-1", HEAD + ";b=1.5", HEAD + ";b=1234567890123",
        HEADER + ";", HEADER + ";h", HEADER + ";h=ftp://a", HEADER + ";h=http://a b",
        HEADER + ";h=http://a;h=http://a", HEADER + ";h=http://" + "a" * 600, "a" * 5000,
        HEADER.replace("6465", "zz65"), HEADER + "\n", "\xff" * 80,
    ],
)  # fmt: skip
def test_what_is_no_header_is_refused(wrong: str) -> None:
    """The error says what is wrong, and does not quote the secret."""
    with pytest.raises(RemoteProtocolError) as caught:
        codec.parse_request_header(wrong)
    assert EDGE.hex()[:8] not in str(caught.value)


def test_an_address_that_does_not_fit_is_not_sent() -> None:
    """It would be cut, or would become another parameter."""
    with pytest.raises(LocalProtocolError, match="visible ASCII"):
        codec.request_header(Handed(CASCADE, EDGE, "0123456789ab", 1, "http://a;b"))


@given(edges, answers, st.booleans())
def test_the_header_of_an_answer_is_read_again(
    edge: bytes,
    answer: Answer,
    must_ask: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    """Whatever it says; of many notes only some are kept, the counts are all."""
    text = codec.response_header(edge, answer, must_ask=must_ask)
    assert len(text) <= codec.HEADER_BYTES_MAX
    assert text.isascii()
    assert text.isprintable()
    read = codec.parse_response_header(text, edge)
    if answer.receipt is None:
        assert read == Answered(answer, must_ask)
    else:
        assert read.answer.receipt is not None
        assert read.answer.receipt.hops == answer.receipt.hops
        assert read.answer.receipt.lost == answer.receipt.lost


def test_the_answer_to_another_message_is_refused() -> None:
    """A header that a proxy has kept from another answer says nothing of this one."""
    text = codec.response_header(EDGE, WORKING)
    with pytest.raises(RemoteProtocolError, match="another message"):
        codec.parse_response_header(text, bytes(12))


@given(
    st.lists(st.tuples(edges, receipts), max_size=5),
    st.lists(st.tuples(edges, st.booleans())),
    st.floats(0, codec.WAIT_MAX),
)
def test_a_call_is_read_again(posted: Any, asked: Any, wait: float) -> None:
    """Receipts and questions come out as they went in."""
    call = NodeCall("there", tuple(posted), tuple(asked), wait)
    assert codec.parse_call(codec.call_body(call), "there") == call


@given(st.lists(edges, max_size=5), st.lists(st.tuples(edges, answers), max_size=5))
def test_a_reply_is_read_again(taken: Any, answered: Any) -> None:
    """What was taken and what is answered come out as they went in."""
    reply = NodeReply(tuple(taken), tuple(answered))
    assert codec.parse_reply(codec.reply_body(reply)) == reply


def test_the_wait_of_a_call_is_limited() -> None:
    """However long a caller would wait."""
    assert codec.parse_call(b'{"v":0,"wait":1e9}').wait == codec.WAIT_MAX


def test_long_texts_are_cut_when_they_are_written() -> None:
    """What a node writes is always what a node reads."""
    note = Note(edge_mark(EDGE), "", "n" * 1000, "failed", 0.5, "w" * 1000)
    call = NodeCall("", ((EDGE, Receipt("failed", failed=1, notes=(note,) * NOTES_MAX)),), ())
    ((_, read),) = codec.parse_call(codec.call_body(call)).receipts
    assert len(read.notes) == NOTES_MAX
    assert (len(read.notes[0].name), len(read.notes[0].why)) == (NAME_MAX, WHY_MAX)


GOOD_NOTE: list[object] = [edge_mark(EDGE), "", "n", "done", None, ""]
WRONG: tuple[object, ...] = (-1, [], "x" * 501)
WRONG_NOTES = [
    {"s": "done", "n": 1, "notes": [[*GOOD_NOTE[:place], wrong, *GOOD_NOTE[place + 1 :]]]}
    for place in range(6)
    for wrong in WRONG
]


@pytest.mark.parametrize(
    "receipt",
    [
        None, [], {}, {"s": "done"}, {"s": "opaque", "n": 1}, {"s": "lost", "n": 1},
        {"s": "opaque", "n": 1, "o": 1}, {"s": "refused", "n": 1},
        {"s": "failed", "n": 1}, {"s": "cancelled", "n": 1, "c": 0}, {"s": "done", "n": True},
        {"s": "done", "n": -1}, {"s": "done", "n": 1.5}, {"s": "done", "n": 2**53},
        {"s": "done", "n": 1, "notes": {}}, {"s": "done", "n": 1, "notes": [GOOD_NOTE[:5]]},
        *WRONG_NOTES,
        {"s": "done", "n": 1, "notes": [GOOD_NOTE] * 1001},
    ],
)  # fmt: skip
def test_what_is_no_receipt_is_refused(receipt: object) -> None:
    """Above all one that does not count itself: it would be taken for more than it is."""
    body = json.dumps({"v": 0, "receipts": [[EDGE.hex(), receipt]]}).encode()
    with pytest.raises(RemoteProtocolError):
        codec.parse_call(body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"[]", b"{}", b'{"v":1}', b'{"v":false}', b'{"v":0,"asks":{}}',
        b'{"v":0,"asks":[1]}', b'{"v":0,"asks":[["%s",1]]}' % EDGE.hex().encode(),
        b'{"v":0,"asks":[["AB",true]]}', b'{"v":NaN}', b"[" * 100_000, b"1" * 10_000,
        b'{"v":0,"wait":1%s,"answers":1}' % (b"0" * 400), b'{"v":0,"keep":1%s,"answers":1}' % (b"0" * 400),
        b'{"v":0,"wait":Infinity,"answers":1}', b'{"v":0,"wait":-1,"answers":1}', b'{"v":0,"wait":"1","answers":1}',
        b'{"v":0,"asks":[%s]}' % b",".join([b"[]"] * 1001), b" " * (codec.BODY_BYTES_MAX + 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("parse", [codec.parse_call, codec.parse_reply])
def test_what_is_no_body_is_refused(parse: Callable[[bytes], object], body: bytes) -> None:
    """Whatever somebody posts."""
    if parse is codec.parse_reply:
        body = body.replace(b"asks", b"answers")
    with pytest.raises(RemoteProtocolError):
        parse(body)


LONG = Note("ab" * 6, "cd" * 6, "\u00e9" * NAME_MAX, "failed", 1 / 3, "\u00e9" * WHY_MAX)
LONGEST = Receipt("done", hops=2**53 - 1, failed=2**53 - 1, notes=(LONG,) * NOTES_MAX)
"""A receipt that takes as much room as one can."""


def test_a_reply_that_would_be_too_long_leaves_out_answers() -> None:
    """They are asked for again; who is told more than he takes would never be told anything."""
    edges = [number.to_bytes(12, "big") for number in range(1000)]
    answers = tuple((edge, Answer("closed", LONGEST)) for edge in edges)
    body = codec.reply_body(NodeReply((), answers))
    assert 0.9 * codec.BODY_BYTES_MAX < len(body) <= codec.BODY_BYTES_MAX
    read = codec.parse_reply(body).answers
    assert read == answers[: len(read)]
    short = tuple((edge, WORKING) for edge in edges)
    assert codec.parse_reply(codec.reply_body(NodeReply(tuple(edges), short))).answers == short


def test_receipts_that_would_be_too_long_go_in_more_calls() -> None:
    """However much is in them, and however much is asked: nothing is left out."""
    courier = Courier(Patience(), lambda: 1.0, lambda *_: None)
    edges = [number.to_bytes(12, "big") for number in range(600)]
    for edge in edges:
        courier.post(Post(edge, "a", LONGEST if edge < edges[100] else Receipt("done")), 0.0)
        courier.watch(Watch(edge, "a", cancel=True), 0.0)
    calls = courier.due(0.0)
    assert max(len(codec.call_body(call)) for call in calls) <= codec.BODY_BYTES_MAX
    assert [edge for call in calls for edge, _ in call.receipts] == edges
    assert [edge for call in calls for edge, _ in call.asks] == edges
    assert len(calls) < 12
