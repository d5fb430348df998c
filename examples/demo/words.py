"""Print in words what was lost and what was saved."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .cases import Case
from .judge import Fact, Half, Row, sources

_RED, _GREEN, _BOLD, _DIM = "31", "32", "1", "2"
_WIDTH = 88


@dataclass(frozen=True)
class Page:
    """Prints the pairs, in colour or without."""

    color: bool

    def introduce(self, number: int, case: Case) -> None:
        """Print what a pair is about."""
        print()
        print(self._paint(_BOLD, f"{number}. {case.title}"))
        print(f"   reported in {case.report}")
        print(f"   {case.url}")
        print(textwrap.indent(textwrap.fill(case.story, _WIDTH), "   "))

    def source(self, case: Case, programs: Path) -> None:
        """Print both programs of a pair."""
        for path in sources(case, programs):
            print(self._paint(_DIM, f"   --- {path.parent.name}/{path.name}"))
            print(textwrap.indent(path.read_text(), "   "))

    def row(self, row: Row) -> None:
        """Print what happened to both programs of a pair."""
        self._half("today", row.today, row.case)
        self._half("with quiesce", row.with_quiesce, row.case)
        print("   the change, besides imports and indentation:")
        for line in row.change:
            print("     " + self._paint(_GREEN if line[0] == "+" else _RED, line))
        for failure in failures(row):
            print(self._paint(_RED, f"   NOT AS IT SHOULD BE: {failure}"))
        if not row.with_quiesce.saved:
            print(textwrap.indent(row.with_quiesce.observation.stderr, "     > "))

    def summary(self, rows: Sequence[Row]) -> None:
        """Print a line for every pair, and the count."""
        width = max(len(row.case.title) for row in rows)
        print()
        print(self._paint(_BOLD, f"{'program':{width}}  today     with quiesce"))
        for row in rows:
            today = self._verdict("lost    ", "not lost", expected=row.today.lost)
            saved = self._verdict("saved", "not saved", expected=row.with_quiesce.saved)
            print(f"{row.case.title:{width}}  {today}  {saved}")
        print()
        print(count(rows))

    def _half(self, title: str, half: Half, case: Case) -> None:
        print(f"   {title}:")
        for fact in half.facts:
            print(f"     {self._word(fact)}  {fact.words}")
        for line in quotes(half, case):
            print(self._paint(_DIM, f"           > {textwrap.shorten(line, _WIDTH)}"))
        for line in endings(half):
            print(f"           {line}")

    def _word(self, fact: Fact) -> str:
        word = {True: "kept", False: "lost", None: "????"}[fact.kept]
        return self._paint(_GREEN if fact.kept else _RED, word)

    def _verdict(self, yes: str, no: str, *, expected: bool) -> str:
        return self._paint(_GREEN, yes) if expected else self._paint(_RED, no)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


def quotes(half: Half, case: Case) -> list[str]:
    """Return the first line of the program for every key."""
    output = half.observation.output
    found = [[line for line in output if key in line] for key in case.quotes]
    return [lines[0] for lines in found if lines]


def endings(half: Half) -> list[str]:
    """Return how a program ended, and what the demo had to do about it."""
    seen = half.observation
    words = f"the process ended with exit code {seen.exit_code} after {seen.seconds:.1f} s"
    if seen.out_of_time:
        words = f"the time limit ended the process, after {seen.seconds:.1f} s"
    elif half.lost and seen.exit_code == 0:
        words += ", as if all were well"
    if not seen.left_processes:
        return [words]
    names = ", ".join(f"process {pid}" for pid in seen.orphans) or "a process"
    return [words, f"the demo found {names} alive, and ended it"]


def failures(row: Row) -> list[str]:
    """Return why a pair does not show what it is meant to show."""
    words = []
    if not row.today.lost:
        words.append("the program of today did not lose what it should lose")
    if not row.with_quiesce.saved:
        words.append("the program with quiesce lost something, or complained")
    return words


def count(rows: Sequence[Row]) -> str:
    """Count the pairs, in words."""
    lost = sum(row.today.lost for row in rows)
    saved = sum(row.with_quiesce.saved for row in rows)
    return (
        f"As written today, {lost} of {len(rows)} lost work. "
        f"With quiesce, {saved} of {len(rows)} lost nothing."
    )
