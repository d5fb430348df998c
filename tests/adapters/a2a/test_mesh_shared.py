"""A2A in the mesh, if the nodes share their stores with other replicas: nothing leaves before its record has lasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.a2a import (
    mesh_kit,
    test_mesh,
    test_mesh_client,
    test_mesh_push,
    test_mesh_sending,
)
from tests.adapters.shared_stores import share_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = mesh_kit.MARKS

CASES = (
    test_mesh.test_a_client_that_leaves_does_not_end_the_hop,
    test_mesh.test_a_message_behind_another_is_in_flight_until_it_was_executed,
    test_mesh.test_ids_in_the_message_do_where_headers_get_lost,
    test_mesh.test_a_copy_of_a_message_is_refused,
    test_mesh.test_a_message_that_the_sdk_refuses_is_a_hop_that_has_ended,
    test_mesh.test_receipts_are_taken_while_the_server_drains,
    test_mesh_client.test_a_message_has_one_edge_also_through_a_client_of_the_node,
    test_mesh_push.test_what_a_push_leads_to_is_part_of_the_cascade,
    test_mesh_push.test_a_push_that_is_tried_again_has_the_same_edge,
    test_mesh_push.test_a_push_whose_answer_was_lost_is_not_worked_on_twice,
    test_mesh_push.test_what_a_sender_of_ones_own_sends_is_opaque,
    test_mesh_push.test_the_next_process_sends_a_push_with_the_edge_that_it_had,
    test_mesh_push.test_the_end_of_a_cancelled_task_is_pushed_as_part_of_its_cascade,
    test_mesh_sending.test_a_request_that_is_redirected_is_handed_to_another,
    test_mesh_sending.test_a_message_that_is_redirected_is_part_of_its_cascade,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_with_a_shared_store(
    case: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds for a store of one process holds for a shared one."""
    share_stores(monkeypatch)
    await case(tmp_path)
