"""The receipt of an edge: the final result, which counts all work that was handed on from the edge.

An *edge* is one message from one agent to another. Its id is a secret of the two, because the id is enough
to cancel the edge. People, logs and other agents see only its *mark*, from which the id cannot be computed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal

__all__ = ["Note", "Receipt"]

NAME_MAX, WHY_MAX = 200, 500
COUNT_MAX = 2**53 - 1  # every JSON parser keeps this exactly; a larger count becomes this
NOTES_MAX = 64
"""How many notes a receipt carries; the counts are exact beyond it."""

Status = Literal[
    "done", "failed", "cancelled", "lost", "refused", "unsent", "undelivered", "opaque", "unknown",
    "untracked",
]  # fmt: skip
ENDS: tuple[Status, ...] = ("done", "failed", "cancelled", "lost")
"""How a hop ends, in the words of the agent that ran it."""


KEY_BYTES = 16
_MARK_BYTES = 6
_new_digest = blake2b(
    digest_size=KEY_BYTES, person=b"quiesce edge"
).copy  # takes half as long as a new one


ASSUMES = "assumes "
"""The beginning of the reason of a *done* hop, if the reason is an assumption."""


def edge_key(edge: bytes) -> bytes:
    """Return the key of an edge: a hash of its id. The key names the edge in a store, and gives no power over it.

    A replica that takes over an edge has only its key, and uses it in place of the id. So a key is its own key.
    """
    if len(edge) == KEY_BYTES:
        return edge
    digest = _new_digest()
    digest.update(edge)
    return digest.digest()


@lru_cache(maxsize=1024)  # an edge is named several times in a row
def edge_mark(edge: bytes) -> str:
    """Return the public name of an edge, for people: the beginning of its key."""
    return edge_key(edge)[:_MARK_BYTES].hex()


@dataclass(frozen=True, slots=True)
class Note:
    """One edge of a cascade, described for people."""

    mark: str
    parent: str
    """The mark of the edge whose hop has sent this one; empty for edges of the root."""
    name: str
    """The agent that ran the edge, or that it was sent to if it is not known to have run."""
    status: Status
    seconds: float | None = None
    """How long the agent's own work on the edge took."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The final result of an edge. The edge has ended, and so has all work that was handed on from it.

    The verdict depends on `lost`, `opaque` and `unknown`. Edges that were refused or could not be sent do
    not count there, because their sender got an error.
    """

    status: Status
    hops: int = 1
    """The edges that were run, including this one. In a verdict that is not final, open edges count, too."""
    failed: int = 0
    cancelled: int = 0
    lost: int = 0
    """Edges whose agent stopped before it was done."""
    opaque: int = 0
    """Edges to agents that take no part, so their end is not known."""
    unknown: int = 0
    """Edges whose agent has not answered or does not know."""
    volatile: int = 0
    """Edges to agents without a journal, where a late copy of the message would run after a restart."""
    untracked: int = 0
    """Work that left its hop by a way that is not tracked, like a thread; it may still run."""
    undelivered: int = 0
    """Edges that never reached their agent. Their sender's call failed, so no work was lost."""
    notes: tuple[Note, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether no edge is lost, opaque, unknown or volatile, and no work is untracked."""
        return not (self.lost or self.opaque or self.unknown or self.volatile or self.untracked)


# Setting the attributes of a frozen object takes five times as long, and every message has two such objects. So an
# object is made of a class with the same slots that is not frozen, and then gets its frozen class.


class _Note:
    __slots__ = Note.__slots__


class _Receipt:
    __slots__ = Receipt.__slots__


def edge_note(
    edge: bytes, parent: str, name: str, status: Status, seconds: float | None, why: str
) -> Note:
    """Return the note of an edge."""
    made: Any = _Note()
    made.mark = edge_mark(edge)
    made.parent = parent
    made.name = name
    made.status = status
    made.seconds = seconds
    made.why = why
    made.__class__ = Note
    return made  # type: ignore[no-any-return]  # its class is set above


def not_run(status: Status, note: Note, *, volatile: bool) -> Receipt:
    """Return a receipt for an edge whose agent does not make one."""
    return Receipt(
        status,
        hops=0,
        cancelled=int(status == "cancelled"),
        lost=int(status == "lost"),
        opaque=int(status == "opaque"),
        unknown=int(status == "unknown"),
        volatile=int(volatile),
        untracked=int(status == "untracked"),
        undelivered=int(status == "undelivered"),
        notes=() if status == "unsent" else (note,),
    )


class Tally:
    """The receipts of a hop's children, added up as they come in."""

    __slots__ = (
        "cancelled", "failed", "hops", "lost", "notes", "opaque", "undelivered", "unknown", "untracked",
        "volatile",
    )  # fmt: skip

    def __init__(self) -> None:
        self.hops: int = 0
        self.failed: int = 0
        self.cancelled: int = 0
        self.lost: int = 0
        self.opaque: int = 0
        self.unknown: int = 0
        self.volatile: int = 0
        self.untracked: int = 0
        self.undelivered: int = 0
        self.notes: tuple[Note, ...] = ()

    def add(self, receipt: Receipt) -> None:
        self.hops += receipt.hops
        self.failed += receipt.failed
        self.cancelled += receipt.cancelled
        self.lost += receipt.lost
        self.opaque += receipt.opaque
        self.unknown += receipt.unknown
        self.volatile += receipt.volatile
        self.untracked += receipt.untracked
        self.undelivered += receipt.undelivered
        troubles = self.failed | self.cancelled | self.lost | self.opaque | self.unknown
        troubles |= self.untracked | self.undelivered
        # No count is larger than their bitwise or.
        if (self.hops | self.volatile | troubles) > COUNT_MAX // 2:
            self._bound()
        notes = receipt.notes
        has_room = len(self.notes) < NOTES_MAX
        if notes and (has_room or any(one.status != "done" or one.why for one in notes)):
            self.notes = foremost((*self.notes, *notes))

    def _bound(self) -> None:
        """Limit all counts to `COUNT_MAX`: another agent may have reported a number close to it."""
        for name in self.__slots__:
            if name != "notes":
                setattr(self, name, min(getattr(self, name), COUNT_MAX - 1))

    def sum(self) -> Receipt:
        """Return the sums as one receipt, without a hop's own status."""
        return Receipt(
            "done", self.hops, self.failed, self.cancelled, self.lost, self.opaque, self.unknown,
            self.volatile, self.untracked, self.undelivered, self.notes,
        )  # fmt: skip

    def close(self, status: Status, own: Note, *, volatile: bool) -> Receipt:
        """Return the receipt of the hop itself."""
        made: Any = _Receipt()
        made.status = status
        made.hops = self.hops + 1
        made.failed = self.failed + (status == "failed")
        made.cancelled = self.cancelled + (status == "cancelled")
        made.lost = self.lost + (status == "lost")
        made.opaque = self.opaque
        made.unknown = self.unknown
        made.volatile = self.volatile + volatile
        made.untracked = self.untracked
        made.undelivered = self.undelivered
        made.notes = foremost((own, *self.notes)) if self.notes else (own,)
        made.__class__ = Receipt
        return made  # type: ignore[no-any-return]  # its class is set above


def foremost(notes: tuple[Note, ...], most: int = NOTES_MAX) -> tuple[Note, ...]:
    """Return at most `most` notes: drop successful ones first, then successful ones with an assumption."""
    if len(notes) <= most:
        return notes
    kept = list(notes)
    for is_assumed in (False, True):
        for place in range(len(kept) - 1, -1, -1):
            if kept[place].status == "done" and bool(kept[place].why) is is_assumed:
                del kept[place]
                if len(kept) == most:
                    return tuple(kept)
    return tuple(kept[:most])


# The packed form: a short text, for receipts that a sender may still ask for.


_last: tuple[Receipt | None, bytes] = (None, b"")


def pack(receipt: Receipt) -> bytes:
    """Return a receipt as compact JSON, equal to `codec.receipt_json`.

    The text is made by hand for speed, because every request has one or two receipts. It is compact, because
    a table may have a million of them.
    """
    global _last  # noqa: PLW0603 - the journal, the answer and the table need the same text
    known, written = _last
    if known is not receipt:
        written = _text(receipt).encode()
        _last = receipt, written
    return written


def _text(receipt: Receipt) -> str:
    counts = f',"n":{receipt.hops}' if receipt.hops else ""
    if receipt.failed:
        counts += f',"f":{receipt.failed}'
    if receipt.cancelled:
        counts += f',"c":{receipt.cancelled}'
    if receipt.lost:
        counts += f',"l":{receipt.lost}'
    if receipt.opaque:
        counts += f',"o":{receipt.opaque}'
    if receipt.unknown:
        counts += f',"u":{receipt.unknown}'
    if receipt.volatile:
        counts += f',"v":{receipt.volatile}'
    if receipt.untracked:
        counts += f',"x":{receipt.untracked}'
    if receipt.undelivered:
        counts += f',"d":{receipt.undelivered}'
    notes = f',"notes":[{",".join(map(_note_text, receipt.notes))}]' if receipt.notes else ""
    return f'{{"s":"{receipt.status}"{counts}{notes}}}'


def _note_text(note: Note) -> str:
    name, why = quoted(note.name[:NAME_MAX]), quoted(note.why[:WHY_MAX])
    seconds = "null" if note.seconds is None else repr(note.seconds)
    marks = f"{quoted(note.mark)},{quoted(note.parent)}"
    return f'[{marks},{name},"{note.status}",{seconds},{why}]'


class Alone:
    """Makes packed receipts of done hops that have sent no messages, equal to those of `pack`.

    Most hops are of this kind, and the node does not need the receipt object then.
    """

    def __init__(self, name: str) -> None:
        self._rest = f',{quoted(name[:NAME_MAX])},"done",'

    def packed(self, edge: bytes, parent: str, microseconds: int, why: str = "") -> bytes:
        """Return the packed receipt of an edge. Times are whole numbers, which take a fifth of the time to write."""
        notes = f'["{edge_mark(edge)}",{quoted(parent)}{self._rest}{microseconds}e-6,{quoted(why[:WHY_MAX])}]'
        return f'{{"s":"done","n":1,"notes":[{notes}]}}'.encode()


def unpack(packed: bytes) -> Receipt:
    """Return the receipt of a packed text."""
    found = json.loads(packed)
    hops, failed, cancelled, lost, opaque, unknown = map(found.get, "nfclou", [0] * 6)
    volatile, untracked, undelivered = map(found.get, "vxd", [0] * 3)
    notes = tuple(Note(*one) for one in found.get("notes", ()))
    return Receipt(
        found["s"], hops, failed, cancelled, lost, opaque, unknown, volatile, untracked, undelivered,
        notes,
    )  # fmt: skip
