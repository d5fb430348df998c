"""MCP in the mesh, if the nodes share their stores with other replicas: nothing leaves before its record has lasted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.mcp import test_mesh
from tests.adapters.mcp.mesh_server import low_server, server
from tests.adapters.shared_stores import share_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CASES = (
    test_mesh.test_a_receipt_on_the_answer_is_all_there_is,
    test_mesh.test_a_refusal_is_known_to_have_run_nothing,
    test_mesh.test_what_is_not_sent_is_known_not_to_have_been,
    partial(test_mesh.test_what_is_not_told_is_asked_for, how="silent"),
    partial(test_mesh.test_a_call_is_a_hop_of_its_cascade, make=server),
    partial(test_mesh.test_work_that_outlives_its_call_is_told_when_it_ends, make=low_server),
    partial(test_mesh.test_a_failure_is_told, make=server, tool="fail", code=None),
    partial(test_mesh.test_a_copy_is_not_run, make=server),
    partial(test_mesh.test_a_call_that_its_client_gives_up_has_ended, make=low_server),
    partial(test_mesh.test_a_cascade_that_is_told_to_end_is_answered_as_cancelled, make=server),
    partial(test_mesh.test_a_server_whose_node_is_closed_runs_nothing, make=low_server),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: getattr(case, "func", case).__name__)
async def test_with_a_shared_store(
    case: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds for a store of one process holds for a shared one."""
    share_stores(monkeypatch)
    await case(tmp_path)
