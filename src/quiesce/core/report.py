"""The report of a closed scope: how everything that it owned has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from quiesce.core.harmless_text import harmless
from quiesce.errors import DrainTimeout, WorkLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quiesce.core.hold import Held

__all__ = ["Report", "ReportEntry"]

_LINES_MAX = 20  # entries of each sort in `str(report)`; to_json() has all


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """One entry of a report."""

    kind: str
    name: str
    scope: str
    where: str | None
    age: float
    details: Mapping[str, object]
    error: BaseException | None = None
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line, and the stack below it if there is one."""
        line = f"{with_kind(self.kind, self.name)} · {self.age:.2f} s · {started(self.where)}"
        shown = {key: text_of_value(plain_json(value)) for key, value in self.details.items()}
        line += "".join(f" · {key}={text}" for key, text in shown.items() if text not in self.name)
        if self.error is not None:
            line += f" · {type(self.error).__name__}: {text_of_value(self.error)}"
        return "\n".join([harmless(line), *(f"    {harmless(frame)}" for frame in self.stack)])

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "kind": self.kind,
            "name": self.name,
            "scope": self.scope,
            "where": self.where,
            "age": self.age,
            "details": {key: plain_json(value) for key, value in self.details.items()},
            "error": None if self.error is None else plain_json(self.error),
            "stack": list(self.stack),
        }


def with_kind(kind: str, name: str) -> str:
    """Return the kind and the name; leave the kind out if the name begins with it."""
    return name if name.startswith(f"{kind} ") else f"{kind} {name}"


def started(where: str | None) -> str:
    """Return the words `started file:line`."""
    return f"started {where or 'at an unknown place'}"


def json_text(data: object, indent: int | None) -> str:
    """Return plain data as JSON."""
    import json  # noqa: PLC0415 - slow to import, and most programs print no JSON

    return json.dumps(data, indent=indent)


def plain_json(value: object) -> object:
    """Return a detail as a JSON value; an object that JSON cannot express becomes its repr."""
    if isinstance(value, str | int | float | bool | None):
        return value
    return text_of_value(value, repr)


def text_of_value(value: object, make: Callable[[object], str] = str) -> str:
    """Return the text of a user's value; if `make` raises, return a text that names the exception."""
    try:
        return make(value)
    except Exception as error:  # noqa: BLE001 - the user's __str__ or __repr__ may raise anything
        return f"<{type(value).__name__}, whose {make.__name__} raised {type(error).__name__}>"


def report_entry(
    held: Held, scope: str, now: float, error: BaseException | None = None, *, stack: bool = False
) -> ReportEntry:
    """Return an entry that describes a hold now, or at the time of its failure if it has failed."""
    ended: float = getattr(held, "failed_at", now)
    frames = tuple(str(frame) for frame in held.list_frames()) if stack else ()
    return ReportEntry(
        held.kind, held.name, scope, held.where, ended - held.since, held.details, error, frames
    )


class Items(Sequence[ReportEntry]):
    """A sequence that equals any other sequence with the same items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Cut(Items):
    """The entries of the jobs that a close cancelled; each entry is made when a reader asks for it.

    Making all entries at once would double the time of a close with ten thousand jobs.
    """

    __slots__ = ("_held", "_now", "_scope")

    def __init__(self, held: Sequence[Held], scope: str, now: float) -> None:
        self._held = held
        self._scope = scope
        self._now = now

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> ReportEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReportEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> ReportEntry | tuple[ReportEntry, ...]:
        if isinstance(index, slice):
            return tuple(report_entry(held, self._scope, self._now) for held in self._held[index])
        return report_entry(self._held[index], self._scope, self._now)


class Chained(Items):
    """Several sequences of entries, joined when a reader first asks for an entry."""

    __slots__ = ("_parts", "_whole")

    def __init__(self, parts: Sequence[Sequence[ReportEntry]]) -> None:
        self._parts = parts
        self._whole: tuple[ReportEntry, ...] | None = None

    def _all(self) -> tuple[ReportEntry, ...]:
        if self._whole is None:
            self._whole = tuple(item for part in self._parts for item in part)
        return self._whole

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    @overload
    def __getitem__(self, index: int) -> ReportEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReportEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> ReportEntry | tuple[ReportEntry, ...]:
        return self._all()[index]


def chain_items(
    own: Sequence[ReportEntry], others: Sequence[Sequence[ReportEntry]]
) -> Sequence[ReportEntry]:
    """Join a scope's own items with those of its children, without reading them."""
    filled = [part for part in others if part]
    if filled:
        return Chained([own, *filled])
    return own if isinstance(own, Cut) else tuple(own)


def _counted(count: int, noun: str, verb: str) -> str:
    return f"{noun}{'s' * (count != 1)} {verb}"


@dataclass(frozen=True, slots=True)
class Report:
    """How everything that a scope owned has ended; `drain()`, `aclose()` and `Scope.report` return it.

    Everything that the scope owned has ended, except the work listed under `stuck`.
    """

    scope: str
    completed: int
    """Jobs that ran to their end."""
    withdrawn: int
    """Jobs that were cancelled on request, not by the closing; they are not a loss."""
    cancelled: Sequence[ReportEntry]
    """Jobs that the closing cancelled, including jobs that caught their cancellation and returned.

    On asyncio, a job that completed its work despite the cancellation calls `asyncio.current_task().uncancel()`
    and then counts as completed.
    """
    failed: Sequence[ReportEntry]
    """Jobs that raised, each with its `error`."""
    undelivered: Sequence[ReportEntry]
    """Holds that were never released, channel items that were never read, and items whose reader did not finish.

    A reader that is a service may fail or be cancelled while it handles an item; `details["taken_by"]` names it.
    """
    stuck: Sequence[ReportEntry]
    """Work that did not end by the deadline, each with its `stack`."""
    handed_over: int = 0
    """Number of tasks, holds and child scopes that were handed to another scope, still running.

    With `leftovers="parent"` the other scope is the parent. A shared task goes to a scope that awaits its result.
    """
    services: int = 0
    """Number of services that were stopped, without those of quiesce itself; they are not a loss."""
    seconds: float = 0.0
    """How long the closing took."""
    handled: int = 0
    """Number of failures that were passed to an `on_error` function; they are not under `failed`.

    Some integrations have such a function, which only logs the failures.
    """

    @property
    def ok(self) -> bool:
        """Whether nothing that the scope owned was lost."""
        return not (self.cancelled or self.failed or self.undelivered or self.stuck)

    def raise_if_lost(self) -> None:
        """Raise unless `ok`.

        *Raises*: `WorkLost`, caused by an exception group of the failed jobs' errors;
        `DrainTimeout` if something was cancelled, undelivered or stuck.
        """
        if self.ok:
            return
        errors = [item.error for item in self.failed if item.error is not None]
        cause = BaseExceptionGroup(f"jobs of {self.scope!r} failed", errors) if errors else None
        cut = self.cancelled or self.undelivered or self.stuck
        raise (DrainTimeout if cut else WorkLost)(self) from cause

    def __str__(self) -> str:
        """Return the report for people to read: a summary, then a line for each loss."""
        counts = {
            _counted(self.completed, "job", "completed"): self.completed,
            "withdrawn": self.withdrawn,
            "handed over": self.handed_over,
            _counted(self.services, "service", "stopped"): self.services,
            _counted(self.handled, "failure", "passed to on_error or logged"): self.handled,
            "failed": len(self.failed),
            "cancelled": len(self.cancelled),
            "undelivered": len(self.undelivered),
            "stuck": len(self.stuck),
        }
        said = ", ".join(f"{n} {word}" for word, n in counts.items() if n or "completed" in word)
        verdict = "nothing it owned was lost" if self.ok else "WORK LOST"
        lines = [f"scope {self.scope!r} closed in {self.seconds:.2f} s, {verdict}: {said}"]
        for word in ("failed", "cancelled", "undelivered", "stuck"):
            items: Sequence[ReportEntry] = getattr(self, word)
            for item in items[:_LINES_MAX]:
                lines += [f"  {word}: {item}".replace("\n", "\n  ")]
            if len(items) > _LINES_MAX:
                lines.append(f"  {word}: … and {len(items) - _LINES_MAX} more")
        return "\n".join(lines)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the whole report as JSON."""
        data: dict[str, object] = {
            "scope": self.scope,
            "ok": self.ok,
            "seconds": self.seconds,
            "completed": self.completed,
            "withdrawn": self.withdrawn,
            "handed_over": self.handed_over,
            "services": self.services,
            "handled": self.handled,
        }
        for word in ("failed", "cancelled", "undelivered", "stuck"):
            data[word] = [item.to_json() for item in getattr(self, word)]
        return json_text(data, indent)
