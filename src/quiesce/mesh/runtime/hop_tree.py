"""Hops as a tree, for people: each below the one from whose work it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from quiesce.core.harmless_text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__: list[str] = []

_LINE_MAX = 1000


class Placed(Protocol):
    """What has a place in the tree."""

    @property
    def mark(self) -> str: ...
    @property
    def parent(self) -> str: ...


P = TypeVar("P", bound=Placed)


def tree(entries: Sequence[P], described: Callable[[P], str]) -> Iterator[str]:
    """Draw them, a line each; one whose parent is not among them is at the top."""
    below: dict[str, list[P]] = {}
    known = {entry.mark for entry in entries}
    for entry in entries:
        below.setdefault(entry.parent if entry.parent in known else "", []).append(entry)
    yield from _branches(below, described, "", "")


def _branches(
    below: dict[str, list[P]], described: Callable[[P], str], parent: str, indent: str
) -> Iterator[str]:
    entries = below.pop(parent, [])  # popped: what a forger has put in a circle ends
    for entry in entries:
        last = entry is entries[-1]
        line = harmless(described(entry), _LINE_MAX)
        yield f"{indent}{'└─' if last else '├─'} {line}"
        deeper = indent + ("   " if last else "│  ")
        yield from _branches(below, described, entry.mark, deeper)
