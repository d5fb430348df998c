"""The lives of scopes, processes, hops and edges are tables: what is not in them is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope
from quiesce.core.tree import SCOPE_LIFE, ScopeState
from quiesce.mesh.protocol.states import EDGE_LIFE, HOP_LIFE, WORK_LIFE, WorkState
from quiesce.processes.process_owner import PROCESS_LIFE, ProcessState

if TYPE_CHECKING:
    from quiesce.core.life import Life, State

LIVES: tuple[Life[Any], ...] = (SCOPE_LIFE, PROCESS_LIFE, HOP_LIFE, WORK_LIFE, EDGE_LIFE)
of_each_life = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.what.replace(" ", "-"))


@of_each_life
def test_every_state_is_in_its_table_can_be_reached_and_leads_to_the_last(life: Life[Any]) -> None:
    """No state is forgotten; the first leads to all others, and none but the last is an end."""
    states = list(life.steps)
    kind: Any = type(states[0])
    assert states == list(kind)
    assert _reached(life, states[0]) | {states[0]} == set(states)
    for state in states[:-1]:
        assert states[-1] in _reached(life, state)
    assert life.steps[states[-1]] == ()


def _reached(life: Life[Any], state: State) -> set[State]:
    found: set[State] = set()
    left = [state]
    while left:
        following = set(life.steps[left.pop()]) - found
        found |= following
        left += following
    return found


def test_a_scope_leads_to_closed_in_one_step_once_it_is_open() -> None:
    """What has nothing to wait for is closed at once."""
    for state, following in SCOPE_LIFE.steps.items():
        assert (ScopeState.CLOSED in following) == (
            state not in {ScopeState.NEW, ScopeState.CLOSED}
        )


def test_the_end_of_a_process_is_never_refused() -> None:
    """Its exit may be seen in any state, and it may be gone after any: its hold would not be released otherwise."""
    ends = {ProcessState.EXITED, ProcessState.GONE}
    for state, following in PROCESS_LIFE.steps.items():
        assert (ProcessState.GONE in following) == (state is not ProcessState.GONE)
        assert (ProcessState.EXITED in following) == (state not in ends)


def test_the_end_of_the_work_of_a_hop_is_never_refused() -> None:
    """Nobody would be told of it otherwise."""
    for state, following in WORK_LIFE.steps.items():
        assert (WorkState.ENDED in following) == (state is not WorkState.ENDED)


@of_each_life
def test_a_step_that_is_not_in_the_table_is_refused(life: Life[Any]) -> None:
    """Each step of the table is taken; of any other the error says what was asked for."""
    for before in life.steps:
        for after in life.steps:
            if after in life.steps[before]:
                assert life.step(before, after) is after
                continue
            said = f"^{life.what} cannot go from {before.value} to {after.value}: this is a defect"
            with pytest.raises(RuntimeError, match=said):
                life.step(before, after)


def test_a_scope_stays_as_it_is_if_a_step_is_refused() -> None:
    """A new scope cannot be closed by such a step."""
    scope = Scope("s")
    with pytest.raises(RuntimeError, match="cannot go from new to closed"):
        scope.enter_state(ScopeState.CLOSED)
    assert scope.state == "new"


@pytest.mark.parametrize("name", ["draw_diagrams.py", "draw_lives.py", "draw_pages.py"])
def test_the_pictures_in_the_docs_are_drawn_from_the_tables(name: str) -> None:
    """A change of a table asks for a new picture: of a life, and of what a page has measured."""
    tool = Path(__file__).parents[3] / "tools" / name
    ran = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
