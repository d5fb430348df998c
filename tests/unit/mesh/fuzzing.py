"""Inputs for the parsers of the mesh: right ones, changed in their structure, in their bytes, or both.

The seeds are the published vectors, so that the inputs follow the wire when it changes. Everything
follows from a seed: inputs come in blocks, and each block can be had again without those before it.
`test_wire_fuzz.py` tries some in CI, `tools/fuzz.py` as many as one likes.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.errors import JournalBroken, QuiesceError, RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import (
    RAN,
    Begun,
    Cancelled,
    Closed,
    EdgeClosed,
    Ended,
    Keep,
    Over,
    Sent,
    Taken,
    Tallied,
)
from quiesce.mesh.protocol.receipt import Alone, pack
from quiesce.mesh.runtime import progress
from quiesce.mesh.store import journal, record_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.facts import Record

BLOCK = 1000
SECONDS_MAX = 1.0  # of the processor, for one input; none takes a tenth of it

FILE = Path(__file__).parents[3] / "docs" / "reference" / "protocol-vectors.json"
VECTORS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
EDGE = bytes.fromhex(VECTORS["response_headers"]["edge"])

PIECES = [
    b"", b"\x00", b"\xff", b"-", b";", b"=", b"00", b"{", b"}", b"[", b"]", b'"', b",", b":", b"1e999",
    b"-1", b"null", b"true", b"NaN", b"\\ud800", b"9" * 30, b"[" * 2000, b"\xc3\xa9", b"lost", b"s=closed",
    b"\n", b"\r\n", b"\t", b" ", b"%00", b'\\"', b"9" * 5000, b"[" * 100_000, b'{"v":' * 2000,
]  # fmt: skip
FIELDS = [
    b"", b"0", b"01", b"ff", b"0" * 12, b"f" * 24, b"F" * 24, b"0" * 32, b"g" * 24, b"x=1", b"h=http://a/b",
    b"h=https://", b"h=ftp://a", b"b=1", b"b=-1", b"b=" + b"9" * 400, b"s=working", b"s=never", b"r=7b7d", b"=",
    b"s=closed", b"wait=1",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1000, 1001, 2**53 - 1, 2**53, -(2**63), 10**30, 10**400, 0.0, -0.5, 1.5, 1e308,
    "", "0" * 12, "f" * 12, "0" * 24, "F" * 24, "0" * 32, "0" * 25, "done", "failed", "cancelled", "lost",
    "refused", "unsent", "opaque", "unknown", "working", "never", "not now", "closed", "run", "x" * 200,
    "x" * 201, "y" * 501, "\ud800", "\x00", "é",
]  # fmt: skip
STRUCTURES = ["[]", "{}", "[[]]", '{"v":0}', '{"s":"done","n":1}', '{"s":"lost","n":1,"l":1}']
SIZES = [2, 7, 8, 9, 63, 64, 65]
SIZES_RARE = [999, 1000, 1001, 20_000]


# Changes.


def bytes_changed(seed: bytes, chance: random.Random) -> bytes:
    """Change something: a part is left out, doubled, or another piece."""
    for _ in range(chance.randint(1, 4)):
        first, last = sorted(int(chance.random() * (len(seed) + 1)) for _ in range(2))
        last = min(last, first + chance.choice((0, 1, 4, 40)))
        kind = chance.random()
        if kind < 0.8:
            new = chance.choice(PIECES)
        else:
            new = seed[first:last] * 2 if kind < 0.9 else chance.randbytes(3)
        seed = seed[:first] + new + seed[last:]
    return seed


def value_changed(value: Any, chance: random.Random, sizes: list[int] = SIZES) -> Any:
    """Change a JSON value somewhere within."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        key = (
            chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        )
        act = chance.random()
        if act < 0.1:
            del value[key]
        elif act < 0.2 and isinstance(value, list):
            value[key:key] = [value[key]] * chance.choice(sizes)
        elif act < 0.2 and isinstance(value, dict):
            value[str(chance.choice(VALUES))] = value[key]
        else:
            value[key] = value_changed(value[key], chance, sizes)
        return value
    if isinstance(value, str) and chance.random() < 0.5:
        place = chance.randint(0, len(value))
        return (
            value[:place] + chance.choice(("", "0", "g", "A", "\ud800", "é")) + value[place + 1 :]
        )
    if type(value) is int and chance.random() < 0.5:
        return value + chance.choice((-1, 1))
    if chance.random() < 0.1:
        return json.loads(chance.choice(STRUCTURES))  # a new one: it may be changed, too
    return chance.choice(VALUES)


def body_changed(seed: bytes, chance: random.Random) -> bytes:
    """Change a JSON text in its structure."""
    value = json.loads(seed)
    if chance.random() < 0.002:  # alone: such lists within each other would take all memory
        value = value_changed(value, chance, SIZES_RARE)
    else:
        for _ in range(chance.randint(1, 3)):
            value = value_changed(value, chance)
    return json.dumps(value, separators=(",", ":")).encode()


def header_changed(seed: bytes, chance: random.Random) -> bytes:
    """Change the fields and parameters of a header, or the receipt in it."""
    head, *parameters = seed.split(b";")
    if parameters and parameters[-1].startswith(b"r=") and chance.random() < 0.7:
        receipt = bytes.fromhex(parameters[-1][2:].decode())
        parameters[-1] = b"r=" + body_changed(receipt, chance).hex().encode()
        return b";".join([head, *parameters])
    fields = head.split(b"-")
    for _ in range(chance.randint(1, 2)):
        parts = fields if chance.random() < 0.4 or not parameters else parameters
        place = chance.randrange(len(parts))
        act = chance.random()
        if act < 0.3:
            parts[place] = chance.choice(FIELDS)
        elif act < 0.4 and len(parts) > 1:
            del parts[place]
        elif act < 0.5:
            parts.insert(place, parts[place])
        elif act < 0.6:
            parts[place] = b" " + parts[place] + b"\t"
        elif act < 0.7:
            parameters.append(chance.choice(FIELDS))
        elif act < 0.8:
            chance.shuffle(parameters)
        else:
            parts[place] = bytes_changed(parts[place], chance)
    return b";".join([b"-".join(fields), *parameters])


def line_changed(seed: bytes, chance: random.Random) -> bytes:
    """Change a record in its structure, and give the line the checksum that it should have."""
    return _line(body_changed(seed[9:], chance))


def _line(body: bytes) -> bytes:
    return b"%08x %s" % (zlib.crc32(body + b"\n"), body)


# What is tried.


@dataclass(frozen=True)
class Target:
    """A parser, what it may raise, and what it has to do with what it takes."""

    parse: Callable[[bytes], Any]
    refusal: type[QuiesceError]
    is_same_again: Callable[[Any], bool]
    """Whether what was read is written, and read again, as the same."""
    seeds: tuple[bytes, ...]
    change: Callable[[bytes, random.Random], bytes]
    seal: Callable[[bytes], bytes] = bytes
    """Makes of changed bytes what is not refused at the first glance."""

    def input(self, chance: random.Random) -> bytes:
        """Make one."""
        data, kind = chance.choice(self.seeds), chance.random()
        if kind < 0.7:
            data = self.change(data, chance)
        if kind > 0.55:
            data = bytes_changed(data, chance)
            if kind > 0.85:
                data = self.seal(data)
        return data


def _headers(name: str) -> tuple[bytes, ...]:
    return tuple(vector["text"].encode() for vector in VECTORS[name]["right"])


def _bodies(name: str) -> tuple[bytes, ...]:
    found = [*VECTORS[name]["right"], *VECTORS[name]["wrong"]]
    return tuple(json.dumps(body, separators=(",", ":")).encode() for body in found)


def _answer_again(found: codec.Answered) -> bool:
    """Return whether it is the same but for the notes, for which a header has little room."""
    text = codec.response_header(EDGE, found.answer, must_ask=found.must_ask)
    again = codec.parse_response_header(text, EDGE)
    one, other = found.answer.receipt, again.answer.receipt
    if one is None or other is None:
        return again == found
    return bool(codec.receipt_json(one) | {"notes": 0} == codec.receipt_json(other) | {"notes": 0})


def _records() -> list[Record]:
    (receipt,) = {
        codec.receipt_of(vector["receipt"])
        for vector in VECTORS["response_headers"]["right"]
        if vector["receipt"] is not None and "notes" in vector["receipt"]
    }
    return [
        Begun(EDGE, bytes(16), "0123456789ab", "http://a"),
        Begun(EDGE, bytes(16), "", None, is_root=True),
        Sent(EDGE, bytes(12), "somebody", 1_800_000_000),
        Taken(EDGE),
        Keep(3600.0),
        EdgeClosed(EDGE, receipt),
        Tallied(EDGE, receipt),
        Ended(EDGE, "failed", 1.5, "why"),
        Closed(EDGE, pack(receipt)),
        Cancelled(EDGE),
        Over(EDGE),
        Over(EDGE, RAN),
        Over(EDGE, pack(receipt)),
        Over(EDGE, Alone("here").packed(EDGE, "0123456789ab", 1234)),
    ]


def _record_again(record: Record) -> bool:
    line = record_format.record_line(record)
    return record_format.record_line(_JOURNAL.read_line(2, line)) == line


_BUSY = [
    progress.Busy("0123456789ab", "", "planner", "at work", 1.5, "a task"),
    progress.Busy("ba9876543210", "0123456789ab", "hotel", "not reached", None, ""),
]
_JOURNAL = journal.Journal("a journal")  # never opened
TARGETS: dict[str, Target] = {
    "request header": Target(
        codec.parse_request_header,
        RemoteProtocolError,
        lambda handed: bool(codec.parse_request_header(codec.request_header(handed)) == handed),
        _headers("request_headers"),
        header_changed,
    ),
    "response header": Target(
        lambda data: codec.parse_response_header(data, EDGE),
        RemoteProtocolError,
        _answer_again,
        _headers("response_headers"),
        header_changed,
    ),
    "call": Target(
        codec.parse_call,
        RemoteProtocolError,
        lambda call: codec.parse_call(codec.call_body(call)) == call,
        _bodies("calls"),
        body_changed,
    ),
    "reply": Target(
        codec.parse_reply,
        RemoteProtocolError,
        lambda reply: codec.parse_reply(codec.reply_body(reply)) == reply,
        _bodies("replies"),
        body_changed,
    ),
    "probe": Target(
        progress.parse_probe,
        RemoteProtocolError,
        lambda found: progress.parse_probe(progress.probe_body(*found)) == found,
        (
            progress.probe_body([EDGE, bytes(12)], 1.5),
            b'{"v":0,"edges":["%s"]}' % EDGE.hex().encode(),
        ),
        body_changed,
    ),
    "frontier": Target(
        progress.parse_answer,
        RemoteProtocolError,
        lambda busy: progress.parse_answer(progress.answer_body(busy)) == busy,
        (progress.answer_body(_BUSY), progress.answer_body([])),
        body_changed,
    ),
    "journal line": Target(
        lambda data: _JOURNAL.read_line(2, data + b"\n"),
        JournalBroken,
        _record_again,
        tuple(record_format.record_line(record)[:-1] for record in _records()),
        line_changed,
        lambda data: _line(data[9:]),
    ),
}  # fmt: skip


def fault(target: Target, data: bytes) -> str | None:
    """Return what is wrong with what a parser does; None if nothing is; empty if it takes the data."""
    try:
        value = target.parse(data)
    except target.refusal as error:
        is_told = target.refusal is RemoteProtocolError and EDGE.hex() in str(error)
        return f"it tells the edge's id: {error}" if is_told else None
    except Exception as error:
        return f"it raises {error!r}"
    try:
        return "" if target.is_same_again(value) else "it is another when it is written and read"
    except Exception as error:
        return f"it is taken, and cannot be written and read again: {error!r}"


class Found(Exception):  # noqa: N818 - it is an error of what is tried
    """An input that a parser does not stand."""

    def __init__(self, name: str, seed: int, number: int, data: bytes, what: str) -> None:
        shown = repr(data) if len(data) < 2000 else f"{data[:1000]!r}... ({len(data)} bytes)"
        super().__init__(f"{name}, seed {seed}, input {number}: {what}: {shown}")
        self.name = name
        self.number = number


@dataclass
class Fuzzer:
    """Tries inputs of one kind, and keeps the figures."""

    name: str
    seed: int
    inputs: int = 0
    right: int = 0
    slowest_seconds: float = 0.0
    slowest_number: int = 0
    target: Target = field(init=False)

    def __post_init__(self) -> None:
        """Find the parser."""
        self.target = TARGETS[self.name]

    def run(self, first: int, count: int) -> None:
        """Try `count` inputs from the number `first` on, which begins a block.

        Raises:
            Found: one of them is not stood.
        """
        clock, target = time.thread_time, self.target
        chance = random.Random()  # noqa: S311 - to be the same again
        for number in range(first, first + count):
            if number % BLOCK == 0:
                chance.seed(f"{self.seed}/{self.name}/{number}")
            data = target.input(chance)
            before = clock()
            what = fault(target, data)
            seconds = clock() - before
            if seconds > self.slowest_seconds:
                self.slowest_seconds, self.slowest_number = seconds, number
                if seconds > SECONDS_MAX:
                    what = what or f"it takes {seconds:.1f} s"
            if what:
                raise Found(self.name, self.seed, number, data, what)
            self.right += what == ""
        self.inputs += count
