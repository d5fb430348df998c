"""A mock has every attribute, also that of a partial: what looks into a function must come to an end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from quiesce.core.handler_naming import handler_place
from quiesce.mesh import Settled
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "uvloop")
async def test_a_hop_may_leave_a_call_of_a_mock_in_a_thread(tmp_path: Path) -> None:
    """Tests of users replace a slow function by one."""
    called = Mock()
    called.args = ()

    async def handler(_: Hop) -> None:
        asyncio.get_running_loop().run_in_executor(None, called)

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        assert isinstance(await cascade.settled(60), Settled)
    called.assert_called_once_with()


def test_a_mock_may_be_an_endpoint() -> None:
    """Its place is that of the function that it is called by."""
    assert handler_place(None, {"endpoint": Mock(), "method": "GET"}) is not None
