"""A result of a tool counts when it arrives, whatever the SDK does before it returns the result to the caller."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import quiesce
from quiesce.mesh import Settled
from tests.adapters.mcp.mesh_kit import ASK, client

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


async def test_a_result_counts_if_the_server_does_not_list_its_tools_after_it(
    tmp_path: Path,
) -> None:
    """The SDK lists the tools before it returns the first result of a tool: a server that drains may refuse that."""
    async with client(tmp_path, "--list-fails") as there:
        async with there.node.cascade("work") as cascade:
            result = await there.session.call_tool("closed")
        assert result.content[0].text == "closed"
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert there.count("tools/list") == 1
        assert there.count(ASK) == 0


async def test_a_result_counts_if_its_call_is_cancelled_while_the_tools_are_listed(
    tmp_path: Path,
) -> None:
    """The result has the receipt: nobody is asked."""
    async with client(tmp_path, "--list-hangs") as there:
        async with there.node.cascade("work") as cascade:
            call = there.scope.spawn(there.session.call_tool, "closed")
            await there.heard("tools/list")
            call.cancel()
            with suppress(quiesce.JobCancelled):
                await call
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert there.count(ASK) == 0
