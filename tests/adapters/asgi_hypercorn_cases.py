"""The middleware under hypercorn."""

from __future__ import annotations

import sys

import pytest

from tests.adapters.asgi_kit import serve
from tests.adapters.asgi_shared import *  # noqa: F403 - the tests are the same for every server


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_in_a_worker_process_background_work_is_drained() -> None:
    """With `-w 1` only the parent hears of SIGTERM; the app drains when its lifespan ends."""
    async with serve("hypercorn-worker", "quiesce", drain=5) as server:
        await server.get("/background?0.6")
        await server.noted("background began")
        server.terminate()
        await server.exit_code()
        assert server.notes[-2:] == ["background done", "shutdown"]


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="from there on asyncio's Server.wait_closed() waits for clients, so hypercorn cuts none",
)
@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_in_a_worker_process_the_loss_is_reported() -> None:
    """What hypercorn cuts, before it tells its app of the shutdown, is in the report."""
    arguments = ("--graceful-timeout", "1")
    async with (
        serve("hypercorn-worker", "quiesce", *arguments, drain=5) as server,
        server.connect() as client,
    ):
        await client.ask("/endless")
        _, headers = await client.head()
        await server.noted("endless began")
        server.terminate()
        assert not (await client.rest(headers))[1]
        await server.exit_code()
        assert "undelivered: response GET /endless" in server.errors()
