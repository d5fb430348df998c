"""The life of something, as a table: its states, and the steps that lead from one to the next.

A step that is not in the table is refused. `tools/draw_lives.py` draws the diagrams of the docs from these tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []

S = TypeVar("S")


class Life(Generic[S]):
    """The states of one kind of thing, with the states that may follow each."""

    __slots__ = ("steps", "what")

    def __init__(self, what: str, steps: Mapping[S, tuple[S, ...]]) -> None:
        """Describe a life.

        Args:
            what: What lives it, in one word.
            steps: Which states may follow which; the first of them is where a life begins.
        """
        self.what: str = what
        self.steps: Mapping[S, tuple[S, ...]] = steps

    def step(self, before: S, after: S) -> S:
        """Return the state `after`.

        *Raises*: `RuntimeError` if the table does not have this step.
        """
        if after not in self.steps[before]:
            message = (
                f"a {self.what} cannot become {_name(after)} when it is {_name(before)}: "
                "this is a defect of quiesce, please report it"
            )
            raise RuntimeError(message)
        return after


def _name(state: object) -> object:
    return getattr(state, "value", state)
