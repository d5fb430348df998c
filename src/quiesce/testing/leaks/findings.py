"""A finding: one leftover thing, and the label by which patterns and baselines know it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__: list[str] = []

Kind = Literal[
    "task",  # still running, or collected while it ran
    "task failure",  # an exception that was never retrieved
    "coroutine",  # never awaited
    "generator",  # an async generator that is neither exhausted nor closed
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
    """One thing that was left behind."""

    kind: Kind
    """The kind of thing."""
    name: str
    """Its name, without parts that change from run to run."""
    where: str | None = None
    """The file and line that started it, if known."""
    details: str = ""
    """More facts that help to find it."""
    late: bool = False
    """Whether it was gone moments later. It still existed when the code that started it returned."""
    thread: int | None = field(default=None, repr=False, compare=False)
    """The thread that made it, if known."""

    @property
    def label(self) -> str:
        """Kind and name, the text that patterns and baselines are compared with.

        A part of the name that changes in every run (a UUID, an address, a long number) becomes `*`.
        """
        return f"{self.kind}:{_FLEETING.sub('*', self.name)}"

    def __str__(self) -> str:
        """Return one line: what was left, where it was started, and whether it still exists."""
        where = "" if self.where is None else f", started at {self.where}"
        details = f" ({self.details})" if self.details else ""
        late = "; gone moments later" if self.late else ""
        return f"{self.kind} {self.name!r}{where}{details}{late}"


def without_allowed(findings: Iterable[Finding], allow: Sequence[str]) -> list[Finding]:
    """Leave out the findings that one of the patterns allows: `thread:*`, `task:acp.*`."""
    return [
        finding
        for finding in findings
        if not any(fnmatchcase(finding.label, pattern) for pattern in allow)
    ]
