"""What is known of a cascade in the end: it has settled, with losses perhaps, or it is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quiesce.core import arguments
from quiesce.core.harmless_text import harmless
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import ASSUMES, ENDS
from quiesce.mesh.runtime.hop_tree import tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh.protocol.receipt import Note, Receipt

__all__ = ["Settled", "SettledWithLosses", "Settlement", "Unknown"]

Require = Literal["full", "participants"]
_LINE_MAX = 1000


@dataclass(frozen=True)
class Settlement:
    """The end of a cascade, as far as it is known. One of `Settled`, `SettledWithLosses`, `Unknown`."""

    name: str
    """The cascade's, for people."""
    cascade: str
    """Its id."""
    receipt: Receipt
    """The counts, and notes on its hops: all of them if they are few, else those that matter."""
    seconds: float
    """From its beginning to the verdict."""

    @property
    def ok(self) -> bool:
        """Whether every hop is known to be done: none has failed, was cut short, or was lost."""
        receipt = self.receipt
        return isinstance(self, Settled) and not (receipt.failed or receipt.cancelled)

    def __bool__(self) -> bool:
        """Return `ok`: `if await cascade.settled():` asks whether all is well, not whether there is a verdict."""
        return self.ok

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the verdict takes to be so and does not know: an agent's name, and what its hop assumes."""
        notes = self.receipt.notes
        found = (
            f"{one.name} {one.why}"
            for one in notes
            if one.status == "done" and one.why.startswith(ASSUMES)
        )
        return tuple(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "verdict": _VERDICTS[type(self)],
            "name": self.name,
            "cascade": self.cascade,
            "seconds": round(self.seconds, 6),
            "receipt": codec.receipt_json(self.receipt),
        }

    def __str__(self) -> str:
        """Return the verdict for people: the counts, and the tree of hops."""
        verdict = _VERDICTS[type(self)]
        head = f"cascade {self.name!r}: {verdict} after {self.seconds:.2f} s, {self._counts()}"
        return "\n".join([head, *self._missing(), *_tree(self.receipt)])

    def _counts(self) -> str:
        receipt = self.receipt
        hops = f"{receipt.hops} hop{'s' * (receipt.hops != 1)}"
        words = ("failed", "cancelled", "lost", "undelivered", "opaque", "unknown", "untracked")
        told = [f"{count} {word}" for word in words if (count := getattr(receipt, word))]
        if receipt.volatile:
            told.append(f"{receipt.volatile} without a journal")
        return ", ".join([hops, *told])

    def _missing(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True)
class Settled(Settlement):
    """Everything has ended: nothing of the cascade is in flight, nor ever will be.

    Messages that did not reach their agent are in `receipt.undelivered`, and in the notes: their senders were told,
    and may have sent others in their place.
    """


@dataclass(frozen=True)
class SettledWithLosses(Settlement):
    """Everything has ended, and some of it before it was done: see `receipt.lost` and the notes."""


@dataclass(frozen=True)
class Unknown(Settlement):
    """It is not known whether everything has ended: so far, or for good (`is_final`)."""

    missing: tuple[str, ...] = ()
    """What would have to be known."""

    @property
    def is_final(self) -> bool:
        """Whether it never will be known; else it is not known yet, and `settled()` may be called again."""
        return self.receipt.status in ENDS

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return super().to_json() | {"missing": list(self.missing), "final": self.is_final}

    def _missing(self) -> Iterator[str]:
        how = "never known" if self.is_final else "not known yet"
        return (f"  {how}: {harmless(what, _LINE_MAX)}" for what in self.missing)


_WHYS_MAX = 3
_VERDICTS = {Settled: "settled", SettledWithLosses: "settled with losses", Unknown: "unknown"}


def settlement_of(
    receipt: Receipt, *, name: str, cascade: bytes, seconds: float, require: Require = "full"
) -> Settlement:
    """Make of a root's receipt what may be claimed.

    Args:
        receipt: the root's.
        name: the cascade's, for people.
        cascade: its id.
        seconds: how long it took.
        require: `"full"`: of every edge, by an agent that takes part and keeps a journal.
            `"participants"`: of the agents that take part; a copy of a message that comes after
            one without a journal was restarted is not thought of.
    """
    arguments.one_of("require", require, ("full", "participants"))
    missing = tuple(_gaps(receipt, require))
    about = (name, cascade.hex(), receipt, seconds)
    if missing:
        return Unknown(*about, missing=missing)
    return SettledWithLosses(*about) if receipt.lost else Settled(*about)


def _gaps(receipt: Receipt, require: Require) -> Iterator[str]:
    if receipt.unknown:
        are = "is" if receipt.unknown == 1 else "are"
        whys = dict.fromkeys(
            one.why for one in receipt.notes if one.status == "unknown" and one.why
        )
        why = f": {'; '.join([*whys][:_WHYS_MAX])}" if whys else ""
        yield f"whether {receipt.unknown} of its messages {are} still worked on{why}"
    if receipt.untracked:
        yield from _left(receipt)
    if require == "full" and receipt.opaque:
        told = [f"{one.name}, {one.why}" for one in receipt.notes if _is_handed_over(one)]
        names = f": {'; '.join(told)}" if told else ""
        yield f"when agents that take no part have ended ({_messages(receipt.opaque)}){names}"
    if require == "full" and receipt.volatile:
        yield (
            f"whether a late copy of {_messages(receipt.volatile)} to agents without a journal would"
            " run after a restart. Give those agents a journal"
        )


def _left(receipt: Receipt) -> Iterator[str]:
    """Name the work that left its hop untracked, and the agent whose hop it was."""
    agents = {note.mark: note.name for note in receipt.notes}
    named = [note for note in receipt.notes if note.status == "untracked"]
    for note in named:
        agent = agents.get(note.parent)
        of_agent = "" if agent is None else f" of {agent}"
        yield f"when work that left a hop{of_agent} has ended: {note.name}, {note.why}"
    more = receipt.untracked - len(named)
    if more > 0:
        yield f"when {more} {'more ' * bool(named)}pieces of work that left their hops have ended"


def _is_handed_over(note: Note) -> bool:
    return note.status == "opaque" and note.why.startswith("handed ")  # see `Hop.opaque`


def _messages(count: int) -> str:
    return f"{count} message{'s' * (count != 1)}"


def _tree(receipt: Receipt) -> Iterator[str]:
    """Draw the hops that there are notes on."""
    yield from tree(receipt.notes, _described)
    more = receipt.hops - sum(note.status in ENDS for note in receipt.notes)
    if more > 0:
        yield f"… and {more} more that went well"


def _described(note: Note) -> str:
    took = "" if note.seconds is None else f"  {note.seconds:.2f} s"
    return f"{note.name}  {note.status}{took}" + (f"  ({note.why})" if note.why else "")
