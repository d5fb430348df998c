"""ACP in the mesh, if the nodes share their stores with other replicas: nothing leaves before its record has lasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.acp import test_mesh, test_mesh_agent
from tests.adapters.shared_stores import share_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

CASES = (
    test_mesh.test_a_prompt_is_a_hop_of_its_cascade,
    test_mesh.test_work_that_outlives_its_prompt_is_waited_for,
    test_mesh.test_a_failure_is_told_and_raised,
    test_mesh.test_a_prompt_that_its_caller_gives_up_is_known_to_have_ended,
    test_mesh.test_a_cascade_that_is_cancelled_ends_at_the_agent,
    test_mesh.test_receipts_are_posted_where_both_have_an_address,
    test_mesh_agent.test_a_copy_is_not_run,
    test_mesh_agent.test_every_answer_says_how_its_edge_stands,
    test_mesh_agent.test_a_draining_agent_refuses_and_answers_questions,
    test_mesh_agent.test_a_node_that_is_drained_answers_questions,
    test_mesh_agent.test_an_agent_whose_node_is_closed_runs_nothing,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_with_a_shared_store(
    case: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds for a store of one process holds for a shared one."""
    share_stores(monkeypatch)
    await case(tmp_path)
