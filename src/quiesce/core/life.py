"""The life of one kind of object, as a table: its states, and the steps from one to the next.

A step that is not in the table raises. `tools/draw_lives.py` draws the diagrams of the docs from these tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []

S = TypeVar("S")


class Life(Generic[S]):
    """The states of one kind of object, and which states may follow each of them."""

    __slots__ = ("steps", "what")

    def __init__(self, what: str, steps: Mapping[S, tuple[S, ...]]) -> None:
        """Describe a life.

        Args:
            what: The kind of object, in one word.
            steps: For each state, the states that may follow. The first state is the initial one.
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
