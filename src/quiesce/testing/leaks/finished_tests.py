"""Attribute late findings to the finished test that caused them.

It uses plain lists and keeps no object for each test: every run of the garbage collector visits the
objects that are kept, so thousands of tests would become slower and slower.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from quiesce.testing.leaks.births import Event
    from quiesce.testing.leaks.census import Census

__all__: list[str] = []

R = TypeVar("R")


class FinishedTests(Generic[R]):
    """The tests that have run, with the rules that applied to each."""

    def __init__(self) -> None:
        self._begun: list[int] = []
        self._ended: list[float] = []
        self._tests: list[Any] = []
        self._rules: list[R] = []
        self._forgiven: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._tests)

    def add(self, test: Any, rules: R, census: Census) -> None:
        """Remember a test whose census is closed."""
        if census.forgiven:
            self._forgiven[len(self)] = census.forgiven
        self._begun.append(census.number)
        self._ended.append(census.ended)
        self._tests.append(test)
        self._rules.append(rules)

    def culprit_of(self, event: Event) -> tuple[Any, R] | None:
        """Find the test that caused an event; None if the test's own check saw it, or it is forgiven.

        An event whose start was not recorded is attributed to the last test that has run.
        """
        place = bisect.bisect_left(self._begun, event.born) - 1
        if place < 0 or event.seen < self._ended[place]:
            return None
        forgiven = self._forgiven.get(place, ())
        owned = event.born < self._ended[place] and not any(
            a <= event.born <= b for a, b in forgiven
        )
        if not owned and event.born != event.seen:
            return None
        return self._tests[place], self._rules[place]
