"""The verdict on a cascade: settled, settled with losses, or unknown."""

from __future__ import annotations

from collections import Counter
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
    """The verdict on a cascade: a `Settled`, a `SettledWithLosses` or an `Unknown`."""

    name: str
    """The cascade's name, for people."""
    cascade: str
    """The cascade's id."""
    receipt: Receipt
    """The counts, and notes on the hops: on all hops if they are few, otherwise on those with problems."""
    seconds: float | None
    """Seconds from the beginning of the cascade to the verdict. For a recovered cascade, measured by the time of day,
    including the time in which its node was closed; None if the journal does not have the beginning."""

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
        """Assumptions that the verdict depends on: each an agent's name and the assumption of its hop."""
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
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "receipt": codec.receipt_json(self.receipt),
        }

    def __str__(self) -> str:
        """Return the verdict as text: the counts, and the tree of hops."""
        verdict = _VERDICTS[type(self)]
        took = "a time that is not recorded" if self.seconds is None else f"{self.seconds:.2f} s"
        head = f"cascade {self.name!r}: {verdict} after {took}, {self._counts()}"
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
    """All work of the cascade has ended successfully, and no more will start.

    Messages that did not reach their agent are in `receipt.undelivered` and in the notes. Their senders got an
    error, and may have sent other messages instead.
    """


@dataclass(frozen=True)
class SettledWithLosses(Settlement):
    """All work of the cascade has ended, but some of it was not completed: see `receipt.lost` and the notes."""


@dataclass(frozen=True)
class Unknown(Settlement):
    """It is not known whether all work has ended, yet or for good (`is_final`)."""

    missing: tuple[str, ...] = ()
    """The missing facts, as sentences."""

    @property
    def is_final(self) -> bool:
        """Whether the verdict is final. If not, call `settled()` again later."""
        return self.receipt.status in ENDS

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return super().to_json() | {"missing": list(self.missing), "final": self.is_final}

    def _missing(self) -> Iterator[str]:
        how = "never known" if self.is_final else "not known yet"
        return (f"  {how}: {harmless(what, _LINE_MAX)}" for what in self.missing)


_WHYS_MAX = 3
_OR_REFUSED = ", or to nodes that were not open or refused it by `accept=`,"
_IF_REFUSED = "; for refused messages, see that the nodes are open, and send the credentials that their `accept=` wants"
_VERDICTS = {Settled: "settled", SettledWithLosses: "settled with losses", Unknown: "unknown"}


def settlement_of(
    receipt: Receipt, *, name: str, cascade: bytes, seconds: float | None, require: Require = "full"
) -> Settlement:
    """Return the verdict that a root's receipt proves.

    Args:
        receipt: the receipt of the root.
        name: the name of the cascade, for people.
        cascade: the id of the cascade.
        seconds: how long the cascade took; None if unknown.
        require: `"full"`: every edge must be closed by an agent that takes part and keeps a journal.
            `"participants"`: only the agents that take part count. Copies of messages that arrive after
            the restart of an agent without a journal are ignored.
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
        is_refused = any(note.status == "refused" for note in receipt.notes)
        yield (
            f"whether a late copy of {_messages(receipt.volatile)} to agents without a journal"
            f"{_OR_REFUSED * is_refused} would run after a restart. Give those agents a journal"
            f"{_IF_REFUSED * is_refused}"
        )


def _left(receipt: Receipt) -> Iterator[str]:
    """Yield sentences about untracked work, with the agent whose hop it left."""
    agents = {note.mark: note.name for note in receipt.notes}
    named = [note for note in receipt.notes if note.status == "untracked"]
    same = Counter((agents.get(note.parent), note.name, note.why) for note in named)
    for (agent, name, why), count in same.items():
        of_agent = "" if agent is None else f" of {agent}"
        one, some = f"work that left a hop{of_agent} has", f"of work that left hops{of_agent} have"
        yield f"when {one if count == 1 else f'{count} pieces {some}'} ended: {name}, {why}"
    more = receipt.untracked - len(named)
    if more > 0:
        yield f"when {more} {'more ' * bool(named)}pieces of work that left their hops have ended"


def _is_handed_over(note: Note) -> bool:
    return note.status == "opaque" and note.why.startswith("handed ")  # see `Hop.opaque`


def _messages(count: int) -> str:
    return f"{count} message{'s' * (count != 1)}"


def _tree(receipt: Receipt) -> Iterator[str]:
    """Yield the lines of the tree of noted hops."""
    yield from tree(receipt.notes, _described)
    counted = ENDS if receipt.status in ENDS else (*ENDS, "unknown")  # all open hops are shown
    more = receipt.hops - sum(note.status in counted for note in receipt.notes)
    if more > 0:
        yield f"… and {more} more that went well"


def _described(note: Note) -> str:
    if note.status == "untracked":
        return f"{note.name}  {note.status}"  # the lines above have the reason
    took = "" if note.seconds is None else f"  {note.seconds:.2f} s"
    return f"{note.name}  {note.status}{took}" + (f"  ({note.why})" if note.why else "")
