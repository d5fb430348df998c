"""The record of one run of a scenario: its cancellations, its end, and its faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiesce.core.callsites import Frame
    from quiesce.testing.leaks.findings import Finding
    from quiesce.testing.sweeps.plan import SweepCut

__all__ = ["Fault", "FaultKind", "Hit"]

FaultKind = Literal[
    "leak",  # the scenario ended, and something that it started still exists
    "late",  # the scenario ended, and something that it started ended later
    "hang",  # the scenario did not end
    "swallowed",  # the scenario was cancelled, and returned as if it had not been
    "wrong exception",  # the scenario was cancelled, and raised another exception
    "failed",  # the scenario raised without being cancelled
    "check",  # the caller's own check failed
]


@dataclass(frozen=True, slots=True)
class Hit:
    """One cancellation, and the await in which the task was suspended."""

    point: int
    place: str
    """The file and line of the await."""
    stack: tuple[Frame, ...]
    """The awaits that lead to it, outermost first."""
    task: str | None
    """The name of the suspended task; None for the scenario's own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a run."""

    kind: FaultKind
    name: str
    """The subject of the fault, without parts that change from run to run."""
    text: str
    finding: Finding | None = None

    @property
    def label(self) -> str:
        """Kind and name, the text that patterns in `allow` are compared with."""
        return f"{self.kind}:{self.name}"


@dataclass
class Run:
    """The record of one run."""

    cut: SweepCut
    points: int = 0
    others: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    ended: Literal["returned", "cancelled", "raised", "hung"] = "hung"
    error: BaseException | None = None
    broke: bool = False
    """Whether the event loop itself failed; `error` is its exception."""
    asked: bool = False
    """Whether the scenario itself was cancelled, not only a task that it started."""
    delivered: bool = False
    """Whether the cancellation has reached the scenario; a shield may hide it to the end."""
    findings: list[Finding] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    """The place of each task when the run was given up."""
    check: BaseException | None = None
    span: tuple[float, float] = (0, 0)
    """Everything started in this run has a number between these two."""

    def faults(self, raises: tuple[type[BaseException], ...], allow: Sequence[str]) -> list[Fault]:
        """List the faults, except those that `allow` tolerates."""
        found = [*self._end_faults(raises), *map(_finding_fault, self.findings)]
        if self.check is not None:
            found.append(Fault("check", _name(self.check), f"check() raised {self.check!r}"))
        return [
            fault
            for fault in found
            if not any(
                fnmatchcase(label, pattern)
                for pattern in allow
                for label in (fault.label, fault.kind, fault.finding.label if fault.finding else "")
            )
        ]

    def _end_faults(self, raises: tuple[type[BaseException], ...]) -> list[Fault]:
        error = self.error
        if self.ended == "hung":
            stuck = "".join(f"\n    {line}" for line in self.stuck)
            return [
                Fault("hang", "", f"the scenario did not end; in flight then:{stuck or ' nothing'}")
            ]
        if self.ended == "returned" and self.asked and self.delivered:
            return [
                Fault(
                    "swallowed",
                    "",
                    "the scenario was cancelled, but returned as if it had not been",
                )
            ]
        if self.ended == "cancelled" and not self.hits:
            return [Fault("failed", "cancelled", "the scenario cancelled itself")]
        if self.ended != "raised" or error is None:
            return []
        return self._error_faults(error, raises)

    def _error_faults(
        self, error: BaseException, raises: tuple[type[BaseException], ...]
    ) -> list[Fault]:
        kind: FaultKind = "wrong exception" if self.hits else "failed"
        if self.broke:
            text = f"the scenario broke the event loop: {_error_text(error)}"
            return [Fault(kind, _name(error), text)]
        # Losing a task that it started is a reason for the scenario to raise, whatever the error.
        if isinstance(error, raises) or (self.hits and not self.asked):
            return []
        raised = _error_text(error)
        cancelled = f"the scenario was cancelled, but raised {raised}"
        text = cancelled if self.hits else f"the scenario raised {raised} without being cancelled"
        return [Fault(kind, _name(error), text)]


def _finding_fault(finding: Finding) -> Fault:
    if finding.late:
        return Fault(
            "late", finding.label, f"the scenario ended before this did: {finding}", finding
        )
    return Fault("leak", finding.label, f"the scenario left behind: {finding}", finding)


def _name(error: BaseException) -> str:
    return type(error).__name__


def _error_text(error: BaseException) -> str:
    """Return an exception and its cause as text."""
    cause = error.__cause__
    return repr(error) if cause is None else f"{error!r} from {cause!r}"


def interruption(error: BaseException) -> BaseException | None:
    """Return the KeyboardInterrupt or SystemExit that this error is or contains, else None."""
    if isinstance(error, BaseExceptionGroup):
        found = map(interruption, error.exceptions)
        return next((each for each in found if each is not None), None)
    return error if isinstance(error, (KeyboardInterrupt, SystemExit)) else None
