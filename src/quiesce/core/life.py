"""State machines as tables: the states of one kind of object, and the allowed steps between them.

Scopes, processes and hops each have such a table. A step that is not in the table raises an error.
`tools/draw_lives.py` draws the diagrams of the docs from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []


class State(Enum):
    """A state. Its hash is its identity, because `Enum` hashes the name, which takes much longer."""

    if not TYPE_CHECKING:
        __hash__ = object.__hash__


S = TypeVar("S", bound=State)


class Life(Generic[S]):
    """The states of one kind of object, and which states may follow each of them."""

    __slots__ = ("steps", "what")

    def __init__(self, what: str, steps: Mapping[S, tuple[S, ...]]) -> None:
        """Make a table.

        Args:
            what: The kind of object, with its article, for the error message.
            steps: For each state, the states that may follow. The first state is the initial one.
        """
        self.what: str = what
        self.steps: Mapping[S, tuple[S, ...]] = steps

    def step(self, before: S, after: S) -> S:
        """Return the state `after`.

        *Raises*: `RuntimeError` if the table does not have this step.
        """
        if after in self.steps[before]:
            return after
        message = (
            f"{self.what} cannot go from {before.value} to {after.value}: "
            "this is a defect of quiesce, please report it"
        )
        raise RuntimeError(message)
