"""The tests that are over: whose is what is noticed only later.

Plain lists, and nothing made for a test: what a run of thousands of tests keeps is looked at by
each run of the garbage collector, and the tests would become slower and slower.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from quiesce.testing.leaks.births import Event
    from quiesce.testing.leaks.census import Census

__all__: list[str] = []

R = TypeVar("R")


class Past(Generic[R]):
    """The tests that have run, with the rules that held for each."""

    def __init__(self) -> None:
        self._begun: list[int] = []
        self._ended: list[float] = []
        self._tests: list[Any] = []
        self._rules: list[R] = []
        self._forgiven: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        """Count them."""
        return len(self._tests)

    def add(self, test: Any, rules: R, census: Census) -> None:
        """Remember a test whose census is closed."""
        if census.forgiven:
            self._forgiven[len(self)] = census.forgiven
        self._begun.append(census.number)
        self._ended.append(census.ended)
        self._tests.append(test)
        self._rules.append(rules)

    def whose(self, event: Event) -> tuple[Any, R] | None:
        """Find the test to be told of something; None if it was judged by this, or is not to blame.

        Of something whose start was not noted, only the last test that has run can be told.
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
