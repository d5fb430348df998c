"""Calls of an SDK that are declared: their requests in a hop are neither noticed nor messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quiesce.mesh import Settled, Unknown
from quiesce.mesh.clients.declaring import declared
from tests.unit.mesh.clients.peering import peer, sender
from tests.unit.mesh.clients.test_stdlib import in_thread, post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real_time


@declared
async def call(url: str) -> int:
    """Ask something."""
    await in_thread(post, url)
    return 7


@declared
async def follow(url: str) -> AsyncIterator[int]:
    """Follow something."""
    post(url)
    yield 1
    post(url)
    yield 2


@declared
def plain() -> str:
    """Send nothing."""
    return "plain"


@pytest.mark.parametrize("is_instrumented", [False, True])
async def test_what_they_send_is_accounted_for(is_instrumented: bool) -> None:  # noqa: FBT001 - a parameter
    """Each step of a generator as well; what is sent between its steps is not."""
    with peer() as b:
        async with sender(b) as node:
            undo = node.instrument() if is_instrumented else None
            async with node.cascade("c") as cascade:
                assert await call(f"{b.url}/run") == 7
                assert [event async for event in follow(f"{b.url}/run")] == [1, 2]
                assert plain() == "plain"
            found = await cascade.settled(5, require="participants")
            async with node.cascade("between") as between:
                events = follow(f"{b.url}/run")
                await anext(events)
                post(f"{b.url}/run")
                await events.aclose()
            then = await between.settled(5, require="participants")
            if undo is not None:
                undo.undo()
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 1
    assert isinstance(then, Settled if is_instrumented else Unknown)
    assert then.receipt.hops + then.receipt.untracked == 2
