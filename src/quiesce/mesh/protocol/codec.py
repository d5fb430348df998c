"""The wire: two headers and two JSON bodies, version 00. docs/reference/protocol.md describes them for others.

A parser accepts any input, and returns a value or raises `RemoteProtocolError`, whose text never contains an
edge's id. All sizes are limited. Additions of a later version are ignored, changes are refused. Names and reasons
from other agents are shown to people, so this module removes their control characters.
"""

from __future__ import annotations

import json
import re
from binascii import unhexlify
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

from quiesce.core.harmless_text import harmless
from quiesce.errors import LocalProtocolError, RemoteProtocolError
from quiesce.mesh.protocol.facts import Answer
from quiesce.mesh.protocol.receipt import (
    COUNT_MAX,
    ENDS,
    NAME_MAX,
    WHY_MAX,
    Note,
    Receipt,
    Status,
    edge_mark,
    foremost,
    pack,
    unpack,
)
from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

T = TypeVar("T")

REQUEST_HEADER, RESPONSE_HEADER = "Cascade", "Cascade-Receipt"
VERSION = 0
HEADER_BYTES_MAX = 4096
BODY_BYTES_MAX = 4 * 1024 * 1024
ITEMS_MAX = 1000
WAIT_MAX = 60.0
NOTES_ON_HEADER = 8
_PACKED_ON_HEADER = (
    HEADER_BYTES_MAX - len("00-0123456789ab;s=closed;r=")
) // 2  # it is in hexadecimal
HOME_MAX = 512
SEEN_MAX = 100

_STATUSES = frozenset(get_args(Status))
_KINDS = frozenset(("working", "never", "not now", "unknown"))
_FIRST = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<cascade>[0-9a-f]{32})-(?P<edge>[0-9a-f]{24})"
    r"-(?P<parent>[0-9a-f]{12})-(?P<flags>[0-9a-f]{2})(?P<more>-[0-9a-f-]*)?"
)
_ANSWER = re.compile(r"(?P<version>[0-9a-f]{2})-(?P<mark>[0-9a-f]{12})(?P<more>-[0-9a-f-]*)?")
_NO_STATUS = "its status is not one of those of the protocol"
_MARK = re.compile(r"[0-9a-f]{12}|")
_SECONDS = re.compile(r"[0-9]{1,12}")
_SEEN = re.compile(rf"[0-9A-Za-z.]{{0,{SEEN_MAX}}}")
_HOME = re.compile(r"https?://[!-+\--:<-~]+")  # visible ASCII, without comma and semicolon
_PLAIN = re.compile(
    r"00-([0-9a-f]{32})-([0-9a-f]{24})-([0-9a-f]{12})-[0-9a-f]{2}"
    r";b=([0-9]{1,12})(?:;h=(https?://[!-+\--:<-~]+))?"
)
_COUNTS = {
    "n": "hops", "f": "failed", "c": "cancelled", "l": "lost", "o": "opaque", "u": "unknown",
    "v": "volatile", "x": "untracked", "d": "undelivered",
}  # fmt: skip


@dataclass(slots=True, unsafe_hash=True)  # not frozen, for the reason in facts.py
class Handed:
    """The edge of a message, as its header describes it."""

    cascade: bytes
    edge: bytes = field(repr=False)  # a secret
    parent: str
    begin_by: int
    """The time until which the message may begin, in seconds since 1970; a later copy is refused."""
    home: str | None = None
    """The address to post the receipt to; None if the sender asks for the receipt."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The content of the header in the answer to a message."""

    answer: Answer
    must_ask: bool = False
    """Whether the receiver does not post the receipt, so that the sender has to ask for it."""


def _refuse(what: str, why: str) -> NoReturn:
    message = f"{what}: {why}"
    raise RemoteProtocolError(message)


# Headers.


def request_header(handed: Handed) -> str:
    """Return the header of a message.

    Raises:
        LocalProtocolError: the address cannot be expressed in a header.
    """
    text = f"00-{handed.cascade.hex()}-{handed.edge.hex()}-{handed.parent}-00;b={handed.begin_by:d}"
    return text if handed.home is None else f"{text};h={home(handed.home)}"


def home(address: str) -> str:
    """Check the address of a node, which headers contain, and return it.

    Raises:
        LocalProtocolError: the address cannot be expressed in a header.
    """
    if not is_home(address):
        message = f"an address must be visible ASCII without comma and semicolon, not {address!r}"
        raise LocalProtocolError(message)
    return address


def is_home(address: Any) -> bool:
    """Return whether a value has the form of a node's address."""
    is_short = isinstance(address, str) and len(address) <= HOME_MAX
    return is_short and _HOME.fullmatch(address) is not None


def parse_request_header(text: str | bytes) -> Handed:
    """Parse the header of a message.

    Raises:
        RemoteProtocolError: the header is not valid.
    """
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    plain = _PLAIN.fullmatch(text) if len(text) <= HOME_MAX else None
    if plain is not None:  # the fast path for nearly all headers
        cascade, edge, parent, latest, node = plain.groups()
        return Handed(unhexlify(cascade), unhexlify(edge), parent, int(latest), node)
    found, options = _header(REQUEST_HEADER, text, _FIRST)
    address, begin_by = options.get("h"), options.get("b", "")
    if address is not None and not is_home(address):
        _refuse(REQUEST_HEADER, "h is not an http address")
    if not _SECONDS.fullmatch(begin_by):
        _refuse(REQUEST_HEADER, "b is not a number of seconds")
    return Handed(
        bytes.fromhex(found["cascade"]),
        bytes.fromhex(found["edge"]),
        found["parent"],
        int(begin_by),
        address,
    )


def _header(
    what: str, text: str | bytes, pattern: re.Pattern[str]
) -> tuple[re.Match[str], dict[str, str]]:
    if len(text) > HEADER_BYTES_MAX:
        _refuse(what, f"over {HEADER_BYTES_MAX} bytes")
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    head, *rest = text.strip(" \t").split(";")
    found = pattern.fullmatch(head.strip(" \t"))
    if found is None:
        _refuse(what, "its form is not that of version 00")
    if found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        _refuse(what, f"version {found['version']} has no such form")
    options: dict[str, str] = {}
    for part in rest:
        name, equals, value = part.strip(" \t").partition("=")
        if not equals or not name or name in options:
            _refuse(what, "a parameter has no value, or is there twice")
        options[name] = value
    return found, options


def response_header(edge: bytes, answer: Answer, *, must_ask: bool = False) -> str:
    """Return the header of the answer to a message: the state of its edge."""
    receipt = answer.receipt
    if receipt is None:
        return f"00-{edge_mark(edge)};s={answer.kind.replace(' ', '-')}{';d=ask' * must_ask}"
    if len(receipt.notes) > NOTES_ON_HEADER:
        receipt = replace(receipt, notes=foremost(receipt.notes, NOTES_ON_HEADER))
    while len(body := pack(receipt)) > _PACKED_ON_HEADER:
        receipt = replace(receipt, notes=receipt.notes[:-1])
    return f"00-{edge_mark(edge)};s=closed;r={body.hex()}"


def closed_header(edge: bytes, packed: bytes) -> str:
    """Return the header of the answer for a closed edge, with its packed receipt, which has one note."""
    if len(packed) > _PACKED_ON_HEADER:
        return response_header(edge, Answer("closed", unpack(packed)))
    return f"00-{edge_mark(edge)};s=closed;r={packed.hex()}"


def parse_response_header(text: str | bytes, edge: bytes) -> Answered:
    """Parse the header of the answer to a message.

    Raises:
        RemoteProtocolError: the header is not valid, or is about another edge.
    """
    found, options = _header(RESPONSE_HEADER, text, _ANSWER)
    if found["mark"] != edge_mark(edge):
        _refuse(RESPONSE_HEADER, "it is about another message")
    kind = options.get("s", "").replace("-", " ")
    if kind != "closed":
        return Answered(_answer(kind), must_ask=options.get("d") == "ask")
    try:
        body = bytes.fromhex(options.get("r", ""))
    except ValueError:
        _refuse(RESPONSE_HEADER, "r is not in hexadecimal")
    return Answered(Answer("closed", _parse_receipt(_loads(RESPONSE_HEADER, body))))


# Bodies.


def call_body(call: NodeCall) -> bytes:
    """Return the body of a call."""
    receipts = [[edge.hex(), receipt_json(receipt)] for edge, receipt in call.receipts]
    asks = [[edge.hex(), cancel] for edge, cancel in call.asks]
    made: dict[str, Any] = {"v": VERSION, "receipts": receipts, "asks": asks}
    if call.wait:
        made["wait"] = call.wait
    if call.keep is not None:
        made["keep"] = call.keep
    if call.now is not None:
        made["now"] = call.now
    if call.seen:
        made["seen"] = call.seen
    return dumps(made)


def parse_call(body: bytes, to: str = "") -> NodeCall:
    """Parse the body of a call.

    Raises:
        RemoteProtocolError: the body is not valid.
    """
    found = versioned("call", body)
    receipts = _pairs(found, "receipts", _parse_receipt)
    wait, keep, now = found.get("wait", 0), found.get("keep"), found.get("now")
    if not is_time(wait) or not all(one is None or is_time(one) for one in (keep, now)):
        _refuse("call", "wait, keep or now is not a number of seconds")
    asks = _pairs(found, "asks", _parse_ask)
    return NodeCall(to, receipts, asks, min(float(wait), WAIT_MAX), keep, now, _seen(found))


def _seen(found: dict[str, Any]) -> str:
    seen = found.get("seen", "")
    if not isinstance(seen, str) or not _SEEN.fullmatch(seen):
        _refuse("seen", f"not at most {SEEN_MAX} letters, digits and dots")
    return seen


def reply_body(reply: NodeReply) -> bytes:
    """Return the body of the answer to a call. Answers beyond the size limit are left out; the caller asks again."""
    made: dict[str, Any] = {"v": VERSION, "taken": [edge.hex() for edge in reply.taken]}
    if reply.age is not None:
        made["age"] = reply.age
    if reply.seen:
        made["seen"] = reply.seen
    if below := [[edge.hex(), one.hex(), to] for edge, one, to in reply.below if is_home(to)]:
        made["below"] = below
    head = dumps(made)[:-1]
    left, answers = BODY_BYTES_MAX - len(head) - 20, []
    for edge, answer in reply.answers:
        answers.append(dumps([edge.hex(), _answered(answer)]))
        left -= len(answers[-1]) + 1
        if left < 0:
            del answers[-1]
            break
    return head + b',"answers":[' + b",".join(answers) + b"]}"


def parse_reply(body: bytes) -> NodeReply:
    """Parse the answer to a call.

    Raises:
        RemoteProtocolError: the body is not valid.
    """
    found = versioned("reply", body)
    taken = tuple(edge_of(one) for one in items(found, "taken"))
    age = found.get("age")
    if age is not None and not is_time(age):
        _refuse("reply", "age is not a number of seconds")
    answers = _pairs(found, "answers", _parse_answer)
    below = tuple(map(_parse_below, items(found, "below")))
    return NodeReply(taken, answers, age, _seen(found), below)


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def dumps(value: object) -> bytes:
    """Return compact JSON."""
    return _encode(value).encode()


def _loads(what: str, body: bytes) -> Any:
    if len(body) > BODY_BYTES_MAX:
        _refuse(what, f"over {BODY_BYTES_MAX} bytes")
    try:
        return json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        _refuse(what, "not JSON")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def versioned(what: str, body: bytes) -> dict[str, Any]:
    """Parse a body, and check its version."""
    found = _loads(what, body)
    if not isinstance(found, dict):
        _refuse(what, "not a JSON object")
    if found.get("v") != VERSION or isinstance(found["v"], bool):
        _refuse(what, f"not of version {VERSION}")
    return found


def items(found: dict[str, Any], name: str) -> list[Any]:
    """Return a list of a body, and check its length."""
    value = found.get(name, [])
    if not isinstance(value, list) or len(value) > ITEMS_MAX:
        _refuse(name, f"not a list of at most {ITEMS_MAX}")
    return value


def _pairs(
    found: dict[str, Any], name: str, parse: Callable[[Any], T]
) -> tuple[tuple[bytes, T], ...]:
    pairs = []
    for one in items(found, name):
        if not isinstance(one, list) or len(one) != 2:  # noqa: PLR2004 - a pair
            _refuse(name, "not a pair")
        pairs.append((edge_of(one[0]), parse(one[1])))
    return tuple(pairs)


def edge_of(value: Any) -> bytes:
    """Parse the id of an edge, or its key."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{24}(?:[0-9a-f]{8})?", value):
        _refuse("edge", "not 24 hexadecimal digits, or 32 for a key")
    return bytes.fromhex(value)


def _parse_below(value: Any) -> tuple[bytes, bytes, str]:
    if not isinstance(value, list) or len(value) != 3 or not is_home(value[2]):  # noqa: PLR2004 - a triple
        _refuse("below", "not two edges and an http address")
    return edge_of(value[0]), edge_of(value[1]), value[2]


def _parse_ask(value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse("asks", "neither true nor false")
    return value


def _answered(answer: Answer) -> object:
    return answer.kind if answer.receipt is None else receipt_json(answer.receipt)


def _parse_answer(value: Any) -> Answer:
    if isinstance(value, dict):
        return Answer("closed", _parse_receipt(value))
    return _answer(value)


def _answer(kind: Any) -> Answer:
    if not isinstance(kind, str) or kind not in _KINDS:
        _refuse("answer", "not one of " + ", ".join(sorted(_KINDS)))
    return Answer(kind)  # type: ignore[arg-type]  # checked above


# Receipts.


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON values, for a body or a file."""
    made: dict[str, Any] = {"s": receipt.status}
    for letter, name in _COUNTS.items():
        if count := getattr(receipt, name):
            made[letter] = count
    if receipt.notes:
        made["notes"] = [_note(note) for note in receipt.notes]
    return made


def _note(note: Note) -> list[Any]:
    name, why = note.name[:NAME_MAX], note.why[:WHY_MAX]
    return [note.mark, note.parent, name, note.status, note.seconds, why]


def _parse_receipt(found: Any) -> Receipt:
    """Parse an agent's receipt for a hop that the agent has run."""
    receipt = receipt_of(found)
    if receipt.status not in ENDS or not receipt.hops or not getattr(receipt, receipt.status, 1):
        _refuse("receipt", "not of a hop that was run, or it does not count itself")
    if all(note.name.isprintable() and note.why.isprintable() for note in receipt.notes):
        return receipt
    return replace(receipt, notes=tuple(map(_harmless, receipt.notes)))


def _harmless(note: Note) -> Note:
    return replace(note, name=harmless(note.name, NAME_MAX), why=harmless(note.why, WHY_MAX))


def receipt_of(found: Any) -> Receipt:
    """Parse a receipt of any status.

    Raises:
        RemoteProtocolError: the receipt is not valid.
    """
    if not isinstance(found, dict):
        _refuse("receipt", "not a JSON object")
    status = found.get("s")
    if not isinstance(status, str) or status not in _STATUSES:
        _refuse("receipt", _NO_STATUS)
    counts = {name: _count(found.get(letter, 0)) for letter, name in _COUNTS.items()}
    notes = found.get("notes", [])
    if not isinstance(notes, list) or len(notes) > ITEMS_MAX:
        _refuse("notes", f"not a list of at most {ITEMS_MAX}")
    kept = foremost(tuple(_parse_note(note) for note in notes))
    return Receipt(status, notes=kept, **counts)  # type: ignore[arg-type]  # a status


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        _refuse("receipt", f"a count is not a whole number from 0 to {COUNT_MAX}")
    return value


def _parse_note(found: Any) -> Note:
    if not isinstance(found, list) or len(found) != 6:  # noqa: PLR2004 - as `_note` makes it
        _refuse("note", "not a list of six")
    own, parent, name, status, seconds, why = found
    for one in (own, parent):
        if not isinstance(one, str) or not _MARK.fullmatch(one):
            _refuse("note", "its mark is not 12 hexadecimal digits")
    if not isinstance(name, str) or len(name) > NAME_MAX:
        _refuse("note", f"its name is not a text of at most {NAME_MAX} characters")
    if not isinstance(why, str) or len(why) > WHY_MAX:
        _refuse("note", f"its reason is not a text of at most {WHY_MAX} characters")
    if not isinstance(status, str) or status not in _STATUSES:
        _refuse("note", _NO_STATUS)
    if seconds is not None and not is_time(seconds):
        _refuse("note", "its time is not a number of seconds")
    return Note(own, parent, name, status, seconds, why)  # type: ignore[arg-type]  # a status


def is_time(value: Any) -> bool:
    """Return whether a value is a finite number of seconds that is not negative."""
    return type(value) in {int, float} and 0 <= value <= COUNT_MAX
