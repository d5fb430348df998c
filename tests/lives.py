"""A recorder of the steps in lives of scopes, processes and hops, for tests of their tables."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quiesce.core.life import Life

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.core.life import State

    Steps = set[tuple[State, State]]


@contextmanager
def steps_taken(*lives: Life[Any]) -> Iterator[Steps]:
    """Yield the recorded steps of some lives; fail at the end if a step was refused, also if its error was caught."""
    taken: Steps = set()
    refused: list[str] = []
    step = Life.step

    def noting(life: Life[Any], before: State, after: State) -> Any:
        try:
            found = step(life, before, after)
        except RuntimeError as error:
            refused.append(str(error))
            raise
        if life in lives:
            taken.add((before, after))
        return found

    Life.step = noting  # type: ignore[assignment,method-assign]  # for all lives
    try:
        yield taken
    finally:
        Life.step = step  # type: ignore[method-assign]  # restores it
    assert not refused, refused
