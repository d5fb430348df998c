"""Whatever bytes come in, a parser gives a value or the one error that it may raise."""

from __future__ import annotations

import os
import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from quiesce.errors import RemoteProtocolError
from quiesce.mesh import wire
from quiesce.mesh.courier import Call, Reply
from quiesce.mesh.facts import NOT_NOW, WORKING, Answer
from quiesce.mesh.receipt import Note, Receipt, mark

if TYPE_CHECKING:
    from collections.abc import Callable

# CI tries this many; 10,000,000 is for the night.
INPUTS = int(os.environ.get("QUIESCE_FUZZ_INPUTS", "100000"))

EDGE = bytes(range(12))
NOTE = Note(mark(EDGE), "", "a name", "lost", 1.5, "why")
RECEIPT = Receipt("failed", 3, failed=1, lost=2, notes=(NOTE, NOTE))
CALL = Call("", ((EDGE, RECEIPT),), ((EDGE, True), (bytes(12), False)))
REPLY = Reply((EDGE,), ((EDGE, NOT_NOW), (bytes(12), Answer("closed", RECEIPT))))
SEEDS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "request header": (
        wire.parse_request_header,
        [wire.request_header(wire.Handed(bytes(16), EDGE, mark(EDGE), "http://a/b")).encode()],
    ),
    "response header": (
        lambda data: wire.parse_response_header(data, EDGE),
        [
            wire.response_header(EDGE, answer).encode()
            for answer in (WORKING, Answer("closed", RECEIPT))
        ],
    ),
    "call": (wire.parse_call, [wire.call_body(CALL)]),
    "reply": (wire.parse_reply, [wire.reply_body(REPLY)]),
}
PIECES = [
    b"", b"\x00", b"\xff", b"-", b";", b"=", b"00", b"{", b"}", b"[", b"]", b'"', b",", b":", b"1e999",
    b"-1", b"null", b"true", b"NaN", b"\\ud800", b"9" * 30, b"[" * 2000, b"\xc3\xa9", b"lost", b"s=closed",
]  # fmt: skip


def changed(seed: bytes, chance: random.Random) -> bytes:
    """Change something: a part is left out, doubled, or another piece."""
    for _ in range(chance.randint(1, 4)):
        first, last = sorted(chance.randrange(len(seed) + 1) for _ in range(2))
        last = min(last, first + chance.choice((0, 1, 4, 40)))
        new = chance.choice((*PIECES, seed[first:last] * 2, chance.randbytes(3)))
        seed = seed[:first] + new + seed[last:]
    return seed


def outcome(parse: Callable[[bytes], object], data: bytes) -> str | None:
    """Tell what a parser does with it; None if it takes it."""
    try:
        parse(data)
    except RemoteProtocolError as error:
        return f"refused: {error}"
    except Exception as error:
        return repr(error)
    return None


@pytest.mark.usual
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", SEEDS)
def test_a_parser_takes_anything(what: str) -> None:
    """It does not crash, does not hang, and keeps nothing; some of the inputs are even right."""
    parse, seeds = SEEDS[what]
    seed = int(os.environ.get("QUIESCE_FUZZ_SEED", "20261116"))
    chance = random.Random(seed)  # noqa: S311 - to be the same again
    right = kept = 0
    tracemalloc.start()
    try:
        for number in range(INPUTS // len(SEEDS)):
            if number == 1000:
                kept = tracemalloc.get_traced_memory()[0]
            data = changed(chance.choice(seeds), chance)
            said = outcome(parse, data)
            assert said is None or said.startswith("refused"), (seed, number, data, said)
            assert said is None or EDGE.hex() not in said, (seed, number, data)
            right += said is None
        grown = tracemalloc.get_traced_memory()[0] - kept
    finally:
        tracemalloc.stop()
    assert right > 0
    assert grown < 200_000
