"""One run of a scenario: what was done to it, what came of it, and what is wrong with that."""

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
    "leak",  # it ended, and something it started is still there
    "late",  # it ended, and something it started ended only after it
    "hang",  # it did not end
    "swallowed",  # it was cancelled, and returned as if it had not been
    "wrong exception",  # it was cancelled, and raised something else
    "failed",  # it raised, though nobody had cancelled it
    "check",  # the caller's own check failed
]


@dataclass(frozen=True, slots=True)
class Hit:
    """One cancellation: where the task stood that was suspended there."""

    point: int
    place: str
    """The file and line of the await."""
    stack: tuple[Frame, ...]
    """The awaits that lead there, outermost first."""
    task: str | None
    """The task that stood there; None for the scenario's own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a run."""

    kind: FaultKind
    name: str
    """What it is about, without anything that changes from run to run."""
    text: str
    finding: Finding | None = None

    @property
    def label(self) -> str:
        """Kind and name: what a pattern in `allow` knows it by."""
        return f"{self.kind}:{self.name}"


@dataclass
class Run:
    """What happened in one run."""

    cut: SweepCut
    points: int = 0
    others: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    ended: Literal["returned", "cancelled", "raised", "hung"] = "hung"
    error: BaseException | None = None
    broke: bool = False
    """Whether the event loop itself broke; `error` is what it said."""
    asked: bool = False
    """Whether the scenario itself was cancelled, not only a task that it had started."""
    delivered: bool = False
    """Whether the cancellation has reached the scenario: not if it was shielded to its end."""
    findings: list[Finding] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    """Where each task stood when the run was given up."""
    check: BaseException | None = None
    span: tuple[float, float] = (0, 0)
    """What was started in this run has been given a number between these two."""

    def faults(self, raises: tuple[type[BaseException], ...], allow: Sequence[str]) -> list[Fault]:
        """List what is wrong."""
        found = [*self._about_its_end(raises), *map(_about, self.findings)]
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

    def _about_its_end(self, raises: tuple[type[BaseException], ...]) -> list[Fault]:
        error = self.error
        if self.ended == "hung":
            stuck = "".join(f"\n    {line}" for line in self.stuck)
            return [Fault("hang", "", f"it did not end; in flight then:{stuck or ' nothing'}")]
        if self.ended == "returned" and self.asked and self.delivered:
            return [Fault("swallowed", "", "it was cancelled, and returned all the same")]
        if self.ended == "cancelled" and not self.hits:
            return [Fault("failed", "cancelled", "it was cancelled, by itself")]
        if self.ended != "raised" or error is None:
            return []
        return self._about_an_error(error, raises)

    def _about_an_error(
        self, error: BaseException, raises: tuple[type[BaseException], ...]
    ) -> list[Fault]:
        kind: FaultKind = "wrong exception" if self.hits else "failed"
        if self.broke:
            return [Fault(kind, _name(error), f"it broke the event loop: {_told(error)}")]
        # To lose a task that it had started is a reason to raise; which error is its own affair.
        if isinstance(error, raises) or (self.hits and not self.asked):
            return []
        told = _told(error)
        cancelled = f"it was cancelled, and raised {told}"
        text = cancelled if self.hits else f"it raised {told}, without being cancelled"
        return [Fault(kind, _name(error), text)]


def _about(finding: Finding) -> Fault:
    if finding.late:
        return Fault("late", finding.label, f"it ended before it was done: {finding}", finding)
    return Fault("leak", finding.label, f"it left: {finding}", finding)


def _name(error: BaseException) -> str:
    return type(error).__name__


def _told(error: BaseException) -> str:
    """Return what was raised, and its cause."""
    cause = error.__cause__
    return repr(error) if cause is None else f"{error!r} from {cause!r}"


def interruption(error: BaseException) -> BaseException | None:
    """Return the KeyboardInterrupt or SystemExit that this error is or contains, else None."""
    if isinstance(error, BaseExceptionGroup):
        found = map(interruption, error.exceptions)
        return next((each for each in found if each is not None), None)
    return error if isinstance(error, (KeyboardInterrupt, SystemExit)) else None
