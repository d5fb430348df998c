"""The life of a scope is a table: what is not in it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quiesce import Scope
from quiesce.core.life import Life
from quiesce.core.tree import SCOPE_LIFE, ScopeState


def test_every_state_of_a_scope_is_in_the_table_and_leads_to_closed() -> None:
    """No state is forgotten, and none is an end but the last."""
    assert set(SCOPE_LIFE.steps) == set(ScopeState)
    for state, following in SCOPE_LIFE.steps.items():
        assert (ScopeState.CLOSED in following) == (
            state not in {ScopeState.NEW, ScopeState.CLOSED}
        )


@pytest.mark.parametrize("before", ScopeState)
@pytest.mark.parametrize("after", ScopeState)
def test_a_scope_refuses_a_step_that_is_not_in_the_table(
    before: ScopeState, after: ScopeState
) -> None:
    """It takes each step of the table; of any other it says what was asked for."""
    if after in SCOPE_LIFE.steps[before]:
        assert SCOPE_LIFE.step(before, after) is after
        return
    said = f"a scope cannot become {after.value} when it is {before.value}"
    with pytest.raises(RuntimeError, match=said):
        SCOPE_LIFE.step(before, after)


def test_a_scope_stays_as_it_is_if_a_step_is_refused() -> None:
    """A new scope cannot be closed by such a step."""
    scope = Scope("s")
    with pytest.raises(RuntimeError, match="cannot become closed when it is new"):
        scope.enter_state(ScopeState.CLOSED)
    assert scope.state == "new"


def test_states_may_be_plain_texts() -> None:
    """The message names them as they are."""
    life = Life("process", {"ready": ("gone",), "gone": ()})
    assert life.step("ready", "gone") == "gone"
    with pytest.raises(RuntimeError, match="a process cannot become ready when it is gone"):
        life.step("gone", "ready")


def test_the_pictures_in_the_docs_are_drawn_from_the_tables() -> None:
    """A change of a table asks for a new picture."""
    tool = Path(__file__).parents[3] / "tools" / "draw_lives.py"
    ran = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
