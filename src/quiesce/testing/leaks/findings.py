"""What was left behind: one word for it, whoever looks and whatever it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__: list[str] = []

Kind = Literal[
    "task",  # that runs, or was collected while it ran
    "task failure",  # an exception that nobody has asked for
    "coroutine",  # never awaited
    "generator",  # an async one, neither exhausted nor closed
    "thread",
    "process",
    "file",  # a file descriptor
    "socket",  # a unix socket's file
    "scope",
    "handler",  # of a signal, or of an event loop's exceptions
]
_FLEETING = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|0x[0-9a-f]+|[0-9a-f]{16,}|[0-9]{4,}",
    re.IGNORECASE,
)
KINDS: frozenset[Kind] = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was left."""

    kind: Kind
    """What sort of thing it is."""
    name: str
    """What it is called, without anything that changes from run to run."""
    where: str | None = None
    """The file and line that started it, if that is known."""
    details: str = ""
    """What else helps to find it."""
    late: bool = False
    """Whether it was gone moments later: left all the same, when whoever started it returned."""
    thread: int | None = field(default=None, repr=False, compare=False)
    """The thread that made it, if that is known."""

    @property
    def label(self) -> str:
        """Kind and name: what a pattern or a baseline knows it by.

        What is another in every run (a UUID, an address, a long number) is a `*` in it.
        """
        return f"{self.kind}:{_FLEETING.sub('*', self.name)}"

    def __str__(self) -> str:
        """Return in one line what was left, where it comes from, and whether it is still there."""
        where = "" if self.where is None else f", started at {self.where}"
        details = f" ({self.details})" if self.details else ""
        late = "; gone moments later" if self.late else ""
        return f"{self.kind} {self.name!r}{where}{details}{late}"


def without_allowed(findings: Iterable[Finding], allow: Sequence[str]) -> list[Finding]:
    """Leave out what one of the patterns allows: `thread:*`, `task:acp.*`."""
    return [
        finding
        for finding in findings
        if not any(fnmatchcase(finding.label, pattern) for pattern in allow)
    ]
