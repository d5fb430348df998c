"""The format of a journal's records: one line for each, with a checksum and JSON. `Journal` writes and reads them."""

from __future__ import annotations

import json
import re
from binascii import unhexlify
from json.encoder import encode_basestring_ascii as quoted
from types import NoneType
from typing import TYPE_CHECKING, Any
from zlib import crc32 as _checksum

from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import (
    RAN,
    Aged,
    Begun,
    Born,
    Cancelled,
    Closed,
    Counted,
    EdgeClosed,
    Ended,
    Gone,
    Keep,
    Over,
    Sent,
    Stay,
    Taken,
    Tallied,
)
from quiesce.mesh.protocol.receipt import ENDS, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.protocol.facts import Record

__all__: list[str] = []

_SPACE = 9  # a checksum of eight digits, and a space


def _one_of(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) not in kinds:
            message = "a value has the wrong type"
            raise TypeError(message)
        return value

    return check


def _status(value: Any) -> Any:
    if value not in ENDS:
        message = "unknown status"
        raise ValueError(message)
    return value


def _time(value: Any) -> Any:
    return None if value is None else _seconds(value)


def _packed(value: Any) -> bytes:
    return pack(codec.receipt_of(value))


def _packed_or_none(value: Any) -> bytes | None:
    if value == "":
        return RAN
    return None if value is None else _packed(value)


def _seconds(value: Any) -> Any:
    if not codec.is_time(value):
        message = "invalid time"
        raise ValueError(message)
    return value


def _key(value: Any) -> Any:
    bytes.fromhex(value)
    return value


def _root(edge: bytes, cascade: bytes, name: str, at: float | None = None) -> Begun:
    return Begun(edge, cascade, "", None, is_root=True, name=name, at=at)


def _old(edge: bytes, packed: bytes | None) -> Over:
    return Over(edge, packed, is_long=True)


_FORMS: dict[str, tuple[Callable[..., Record], tuple[Callable[[Any], Any], ...]]] = {
    "begun": (
        Begun,
        (bytes.fromhex, bytes.fromhex, _one_of(str), _one_of(str, NoneType), _one_of(bool)),
    ),
    "root": (_root, (bytes.fromhex, bytes.fromhex, _one_of(str))),
    "root at": (_root, (bytes.fromhex, bytes.fromhex, _one_of(str), _seconds)),
    "sent": (Sent, (bytes.fromhex, bytes.fromhex, _one_of(str), _one_of(int))),
    "taken": (Taken, (bytes.fromhex,)),
    "gone": (Gone, (bytes.fromhex,)),
    "keep": (Keep, (_seconds,)),
    "born": (Born, (_one_of(str), _seconds, _key, _one_of(str))),
    "counted": (Counted, (_one_of(int),)),
    "aged": (Aged, (_seconds, _one_of(bool))),
    "stay": (Stay, (bytes.fromhex, _one_of(int))),
    "edge closed": (EdgeClosed, (bytes.fromhex, codec.receipt_of)),
    "tallied": (Tallied, (bytes.fromhex, codec.receipt_of)),
    "ended": (Ended, (bytes.fromhex, _status, _time, _one_of(str))),
    "cancelled": (Cancelled, (bytes.fromhex,)),
    "closed": (Closed, (bytes.fromhex, _packed)),
    "over": (Over, (bytes.fromhex, _packed_or_none)),
    "old": (_old, (bytes.fromhex, _packed_or_none)),
}


def lines_of(records: Iterable[Record]) -> bytes:
    """Return the lines of records."""
    return b"".join(map(record_line, records))


def record_line(record: Record) -> bytes:
    """Return the line of a record: its checksum and JSON."""
    text = _TEXTS[type(record)](record)
    return b"%08x %s" % (_checksum(text), text)


def record_of(line: bytes) -> Record:
    """Return the record of a line.

    Raises:
        LookupError, RecursionError, TypeError, ValueError, QuiesceError: the line is damaged.
    """
    text = line[_SPACE:]
    if line[:_SPACE] != b"%08x " % _checksum(text):
        message = "its checksum does not match"
        raise ValueError(message)
    return _parse_common(text) or _decode(json.loads(text))


# Writing. The JSON is made by hand: every request waits for two lines, and this takes a fifth of the time.


def _begun(record: Begun) -> bytes:
    ids = f'"{record.edge.hex()}","{record.cascade.hex()}"'
    if record.at is not None:
        return f'["root at",{ids},{quoted(record.name)},{record.at!r}]\n'.encode()
    if record.name:
        return f'["root",{ids},{quoted(record.name)}]\n'.encode()
    reply = "null" if record.reply is None else quoted(record.reply)
    return (
        f'["begun",{ids},{quoted(record.parent)},{reply},{"true" if record.is_root else "false"}]\n'
    ).encode()


def _sent(record: Sent) -> bytes:
    ids = f'"{record.hop.hex()}","{record.edge.hex()}"'
    return f'["sent",{ids},{quoted(record.to)},{record.by:d}]\n'.encode()


def _edge_only(name: str) -> Callable[[Any], bytes]:
    form = b'["%s","%%s"]\n' % name.encode()
    return lambda record: form % record.edge.hex().encode()


def _keep(record: Keep) -> bytes:
    return f'["keep",{record.seconds!r}]\n'.encode()


def _born(record: Born) -> bytes:
    boot = quoted(record.boot)
    return f'["born",{quoted(record.node)},{record.at!r},"{record.key}",{boot}]\n'.encode()


def _counted(record: Counted) -> bytes:
    return f'["counted",{record.records:d}]\n'.encode()


def _aged(record: Aged) -> bytes:
    return f'["aged",{record.at!r},{"true" if record.rotates else "false"}]\n'.encode()


def _stay(record: Stay) -> bytes:
    return f'["stay","{record.edge.hex()}",{record.by:d}]\n'.encode()


def _ended(record: Ended) -> bytes:
    seconds = "null" if record.seconds is None else repr(record.seconds)
    what = f'"{record.status}",{seconds},{quoted(record.why)}'
    return f'["ended","{record.edge.hex()}",{what}]\n'.encode()


def _with_receipt(name: str) -> Callable[[Any], bytes]:
    form = b'["%s","%%s",%%s]\n' % name.encode()
    return lambda record: form % (record.edge.hex().encode(), pack(record.receipt))


def _closed(record: Closed) -> bytes:
    return b'["closed","%s",%s]\n' % (record.edge.hex().encode(), record.packed)


def _over(record: Over) -> bytes:
    packed = b"null" if record.packed is None else record.packed or b'""'
    form = b'["old","%s",%s]\n' if record.is_long else b'["over","%s",%s]\n'
    return form % (record.edge.hex().encode(), packed)


_TEXTS: dict[type, Callable[[Any], bytes]] = {
    Begun: _begun,
    Sent: _sent,
    Taken: _edge_only("taken"),
    Gone: _edge_only("gone"),
    Keep: _keep,
    Born: _born,
    Counted: _counted,
    Aged: _aged,
    Stay: _stay,
    EdgeClosed: _with_receipt("edge closed"),
    Tallied: _with_receipt("tallied"),
    Ended: _ended,
    Cancelled: _edge_only("cancelled"),
    Closed: _closed,
    Over: _over,
}


# Reading. A journal may have a million messages, and the JSON parser takes six times as long as these expressions.

_USUAL_OVER = re.compile(
    rb'\["(over|old)","([0-9a-f]{24})",'
    rb'(null|""|\{"s":"done","n":1,"notes":\[\["[0-9a-f]{12}","[0-9a-f]{12}","[ !#-\[\]-~]{0,200}","done",[0-9]{1,15}e-6,""\]\]\})'
    rb"\]\n"
)
_USUAL_BEGUN = re.compile(
    rb'\["begun","([0-9a-f]{24})","([0-9a-f]{32})","([0-9a-f]{12})","(https?://[ !#-\[\]-~]+)",false\]\n'
)


_NO_RECEIPTS: dict[bytes, bytes | None] = {b"null": None, b'""': RAN}


def _parse_common(text: bytes) -> Record | None:
    """Return the record of a line in one of the most common forms, as `_decode` would; None for other forms."""
    over = _USUAL_OVER.fullmatch(text)
    if over is not None:
        kind, edge, packed = over.groups()
        return Over(unhexlify(edge), _NO_RECEIPTS.get(packed, packed), kind == b"old")
    begun = _USUAL_BEGUN.fullmatch(text)
    if begun is not None:
        edge, cascade, parent, reply = begun.groups()
        return Begun(unhexlify(edge), unhexlify(cascade), parent.decode(), reply.decode())
    return None


def _decode(found: list[Any]) -> Record:
    name, *values = found
    kind, parsers = _FORMS[name]
    return kind(*(parse(value) for parse, value in zip(parsers, values, strict=True)))
