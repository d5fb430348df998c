"""The frontier: a snapshot of everything a scope has in flight, as a printed tree and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiesce.core import callsites
from quiesce.core import report as reports
from quiesce.core.harmless_text import harmless
from quiesce.core.tree import TreeNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from quiesce.core.hold import Held

__all__ = ["Frontier", "FrontierEntry"]


@dataclass(frozen=True, slots=True)
class FrontierEntry:
    """One piece of work in flight, or a child scope with its own entries."""

    kind: str
    name: str
    age: float
    where: str | None
    """The file and line that started the work."""
    waiting_on: str | None
    """The innermost await of the task's stack; None if the entry has no stack."""
    service: bool
    """Whether the entry is a service: the scope can be idle while a service runs."""
    details: Mapping[str, object]
    children: tuple[FrontierEntry, ...] = ()
    is_scope: bool = False
    """Whether the entry is a child scope, with `children`, rather than work."""
    declared_as: str | None = None
    """The name to put in `services=[...]` if the task is housekeeping; None if it cannot be declared."""

    def __str__(self) -> str:
        title = reports.with_kind(self.kind, self.name)
        title = f"{self.kind} (service) {self.name}" if self.service else title
        parts = [title, f"{self.age:.1f} s", reports.started(self.where)]
        if self.waiting_on is not None:
            parts.append(f"waiting at {self.waiting_on}")
        parts += [f"{key}={reports.text_of_value(value)}" for key, value in self.details.items()]
        return harmless(" · ".join(parts))

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "kind": self.kind,
            "name": self.name,
            "age": self.age,
            "where": self.where,
            "waiting_on": self.waiting_on,
            "service": self.service,
            "details": {key: reports.plain_json(value) for key, value in self.details.items()},
            "children": [child.to_json() for child in self.children],
        }


@dataclass(frozen=True, slots=True)
class Frontier:
    """A snapshot of what a scope had in flight when `Scope.frontier()` was called.

    A frontier is true if work keeps the scope from being idle. Iterating yields the scope's own
    entries and its child scopes; `in_flight` is a flat list of all work, child scopes included.
    """

    scope: str
    state: str
    entries: tuple[FrontierEntry, ...]

    @property
    def in_flight(self) -> tuple[FrontierEntry, ...]:
        """All work of the scope and its child scopes, without services."""
        return tuple(_work(self.entries))

    def __iter__(self) -> Iterator[FrontierEntry]:
        """Iterate over the scope's own entries."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return the number of `in_flight` entries."""
        return sum(1 for _ in _work(self.entries))

    def __str__(self) -> str:
        """Return the tree as text."""
        count = len(self)
        head = f"scope {self.scope!r} ({self.state}): {count or 'nothing'} in flight"
        return "\n".join([head, *_draw(self.entries)])

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the frontier as JSON."""
        entries = [entry.to_json() for entry in self.entries]
        data = {"scope": self.scope, "state": self.state, "in_flight": len(self)}
        return reports.json_text({**data, "entries": entries}, indent)


def _work(entries: tuple[FrontierEntry, ...]) -> Iterator[FrontierEntry]:
    for entry in entries:
        if entry.service:
            continue
        if entry.is_scope:
            yield from _work(entry.children)
        else:
            yield entry


def _draw(entries: tuple[FrontierEntry, ...], margin: str = "") -> Iterator[str]:
    for entry in entries:
        last = entry is entries[-1]
        yield f"{margin}{'└─' if last else '├─'} {entry}"
        yield from _draw(entry.children, margin + ("   " if last else "│  "))


def take_frontier(node: TreeNode) -> Frontier:
    """Return a frontier of this node as it is now."""
    return Frontier(node.name, node.phase.value, _entries(node, node.backend.clock()))


def _entries(node: TreeNode, now: float) -> tuple[FrontierEntry, ...]:
    is_ours = node.is_ours
    services = {} if is_ours else node.services
    found = [
        _entry(held, now, service=service)
        for table, service in ((node.holds, False), (services, True), (node.closers, True))
        for held in list(table.values())
        if not (isinstance(held, TreeNode) or (is_ours and held.fate == "nothing"))
    ]
    below = dict.fromkeys(
        (*node.children, *node.quiet_children, *(context.node for context in node.contexts))
    )
    shown = (child for child in below if child.counts_as_work or not is_ours)
    return (*found, *(_scope_entry(child, now) for child in shown))


def _scope_entry(node: TreeNode, now: float) -> FrontierEntry:
    return FrontierEntry(
        node.kind, node.name, now - node.since, node.where, None,
        service=not node.counts_as_work, details=node.details, children=_entries(node, now), is_scope=True,
    )  # fmt: skip


def _entry(held: Held, now: float, *, service: bool) -> FrontierEntry:
    return FrontierEntry(
        held.kind, held.name, now - held.since, held.where,
        callsites.waiting_on(held.list_frames()), service, held.details,
        declared_as=getattr(held, "_declared_as", None),
    )  # fmt: skip
