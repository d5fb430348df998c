"""Turn observations into facts, and facts into a verdict."""

import difflib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cases import Case, Check
from .process import Observation, observe


@dataclass(frozen=True)
class Fact:
    """One check of one program, in words; `kept` is `None` if that cannot be known."""

    words: str
    kept: bool | None


@dataclass(frozen=True)
class Half:
    """One program of a pair: what was seen, and what it means."""

    observation: Observation
    facts: tuple[Fact, ...]

    @property
    def lost(self) -> bool:
        """Whether the program ended by itself and lost all that was at stake."""
        return not self.observation.out_of_time and all(fact.kept is False for fact in self.facts)

    @property
    def saved(self) -> bool:
        """Whether the program lost nothing, and ended without a warning."""
        seen = self.observation
        quiet = seen.ended_well and not seen.stderr and not seen.left_processes
        return quiet and all(fact.kept for fact in self.facts)


@dataclass(frozen=True)
class Row:
    """One pair, run and judged."""

    case: Case
    today: Half
    with_quiesce: Half
    change: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the pair shows what it is meant to show."""
        return self.today.lost and self.with_quiesce.saved

    def to_dict(self) -> dict[str, Any]:
        """Return the row in the types of JSON."""
        return {
            "name": self.case.name,
            "title": self.case.title,
            "report": self.case.report,
            "url": self.case.url,
            "today": asdict(self.today),
            "with_quiesce": asdict(self.with_quiesce),
            "change": self.change,
            "lost": self.today.lost,
            "saved": self.with_quiesce.saved,
            "ok": self.ok,
        }


def judge(case: Case, observation: Observation) -> Half:
    """Put what was seen into words, in the same way for both halves of a pair."""
    return Half(observation, tuple(_fact(check, observation) for check in case.checks))


def _fact(check: Check, observation: Observation) -> Fact:
    match check.is_kept(observation):
        case True:
            return Fact(check.kept, kept=True)
        case False:
            return Fact(check.lost, kept=False)
        case _:
            return Fact(f"nobody can tell whether {check.kept}", kept=None)


def run(case: Case, programs: Path, limit_seconds: float) -> Row:
    """Run both programs of a pair, one after the other."""
    losing, saved = sources(case, programs)
    return Row(
        case=case,
        today=judge(case, observe(losing, limit_seconds)),
        with_quiesce=judge(case, observe(saved, limit_seconds)),
        change=changed_lines(losing.read_text(), saved.read_text()),
    )


def sources(case: Case, programs: Path) -> tuple[Path, Path]:
    """Return the two files of a pair."""
    return programs / "losing" / case.file, programs / "saved" / case.file


def changed_lines(before: str, after: str) -> tuple[str, ...]:
    """Return the lines that differ, but for indentation, blank lines and imports."""
    old, new = _lines(before), _lines(after)
    changes: list[str] = []
    matcher = difflib.SequenceMatcher(None, _bare(old), _bare(new), autojunk=False)
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if kind != "equal":
            changes += [f"-{line}" for line in old[old_from:old_to]]
            changes += [f"+{line}" for line in new[new_from:new_to]]
    return tuple(changes)


def _lines(source: str) -> list[str]:
    skipped = ("import ", "from ")
    return [line for line in source.splitlines() if line and not line.startswith(skipped)]


def _bare(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines]
