"""The published test vectors hold for our own wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.errors import RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.codec import Answered, Handed
from quiesce.mesh.protocol.facts import Answer
from quiesce.mesh.protocol.receipt import edge_mark

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).parents[3] / "docs" / "reference" / "protocol-vectors.json"
VECTORS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
EDGE = bytes.fromhex(VECTORS["response_headers"]["edge"])


def test_marks() -> None:
    """An edge has the mark that is published."""
    assert [edge_mark(bytes.fromhex(edge)) for edge, _ in VECTORS["marks"]] == [
        shown for _, shown in VECTORS["marks"]
    ]


@pytest.mark.parametrize("vector", VECTORS["request_headers"]["right"])
def test_request_headers(vector: dict[str, Any]) -> None:
    """A header is read as published, and one of our version is written so."""
    handed = Handed(
        bytes.fromhex(vector["cascade"]),
        bytes.fromhex(vector["edge"]),
        vector["parent"],
        vector["begin_by"],
        vector["home"],
    )
    assert codec.parse_request_header(vector["text"]) == handed
    if vector["text"].startswith("00"):  # of a later version more is read than we write
        assert codec.request_header(handed) == vector["text"]


@pytest.mark.parametrize("vector", VECTORS["response_headers"]["right"])
def test_response_headers(vector: dict[str, Any]) -> None:
    """An answer is read as published, and written so."""
    receipt = None if vector["receipt"] is None else codec.receipt_of(vector["receipt"])
    answer = Answer(vector["kind"], receipt)
    must_ask = vector.get("must_ask", False)
    assert codec.parse_response_header(vector["text"], EDGE) == Answered(answer, must_ask)
    assert codec.response_header(EDGE, answer, must_ask=must_ask) == vector["text"]


@pytest.mark.parametrize("body", VECTORS["calls"]["right"])
def test_calls(body: dict[str, Any]) -> None:
    """A call that is published is one, and comes out the same."""
    call = codec.parse_call(json.dumps(body).encode())
    written = json.loads(codec.call_body(call))
    known = {key: value for key, value in body.items() if key != "later"}
    assert {"receipts": [], "asks": []} | known == written


@pytest.mark.parametrize("body", VECTORS["replies"]["right"])
def test_replies(body: dict[str, Any]) -> None:
    """A reply that is published is one, and comes out the same."""
    assert json.loads(codec.reply_body(codec.parse_reply(json.dumps(body).encode()))) == body


WRONG: list[tuple[Callable[[Any], object], object]] = [
    *((codec.parse_request_header, text) for text in VECTORS["request_headers"]["wrong"]),
    *(
        (lambda text: codec.parse_response_header(text, EDGE), text)
        for text in VECTORS["response_headers"]["wrong"]
    ),
    *((codec.parse_call, json.dumps(body).encode()) for body in VECTORS["calls"]["wrong"]),
    *((codec.parse_reply, json.dumps(body).encode()) for body in VECTORS["replies"]["wrong"]),
]


@pytest.mark.parametrize(("parse", "text"), WRONG)
def test_what_is_wrong_is_refused(parse: Callable[[Any], object], text: object) -> None:
    """What is published as wrong is refused."""
    with pytest.raises(RemoteProtocolError):
        parse(text)
