"""Draws hops as a tree, for people: each hop below the hop that has sent its message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from quiesce.core.harmless_text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__: list[str] = []

_LINE_MAX = 1000


class Placed(Protocol):
    """An entry of the tree, with its mark and its parent's mark."""

    @property
    def mark(self) -> str: ...
    @property
    def parent(self) -> str: ...
    @property
    def seconds(self) -> float | None: ...


P = TypeVar("P", bound=Placed)


def tree(entries: Sequence[P], described: Callable[[P], str]) -> Iterator[str]:
    """Yield the lines of the drawing, one for each entry. An entry whose parent is missing is at the top.

    Entries with the same text below the same parent share a line if they have no time and no children.
    """
    below: dict[str, list[P]] = {}
    known = {entry.mark for entry in entries}
    for entry in entries:
        below.setdefault(entry.parent if entry.parent in known else "", []).append(entry)
    yield from _branches(below, described, "", "")


def _branches(
    below: dict[str, list[P]], described: Callable[[P], str], parent: str, indent: str
) -> Iterator[str]:
    entries = below.pop(parent, [])  # removed, so that a forged circle of parents ends
    lines: dict[object, list[P]] = {}
    for entry in entries:
        is_alone = entry.seconds is not None or entry.mark in below
        lines.setdefault(id(entry) if is_alone else described(entry), []).append(entry)
    for number, (entry, *same) in enumerate(lines.values(), 1):
        last = number == len(lines)
        line = harmless(described(entry), _LINE_MAX)
        times = f"  ({len(same) + 1} times)" if same else ""
        yield f"{indent}{'└─' if last else '├─'} {line}{times}"
        deeper = indent + ("   " if last else "│  ")
        yield from _branches(below, described, entry.mark, deeper)
