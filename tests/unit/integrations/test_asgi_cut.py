"""What a client and the report are told of a request that a drain has cut: apart from one that it has refused."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce.core.graveyard import graveyards
from tests.stress import turns
from tests.unit.integrations.asgi_driver import SHORT, Call, ask, forever, living, lost, wrapped
from tests.unit.mesh.meshing import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.integrations.asgi import Quiesce


async def cut(app: Quiesce, go_on: threading.Event | None = None, **options: Any) -> Call:
    """Make a call, drain the app, and wait for what the client gets; then let a thread go on."""
    call = Call(app, "/pay", **options)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
        await app.drain()
        await call.over.wait()
        if go_on is not None:
            assert lost(app)
            go_on.set()
            await until(lambda: not graveyards)  # the thread has ended, and that is seen
    return call


async def test_a_request_that_was_cut_is_not_to_be_sent_again() -> None:
    """It may have had effects: 500, which nothing repeats by itself, and no Retry-After."""
    call = await cut(wrapped(forever))
    assert call.status == 500
    assert b"retry-after" not in call.headers
    assert call.headers[b"quiesce-outcome"] == b"cut"
    assert b"may have had effects" in call.body


async def test_a_request_that_was_refused_may_be_sent_again() -> None:
    """It was never begun: 503, with Retry-After."""
    app = wrapped(forever)
    async with living(app):
        await app.drain()
        call = await ask(app, "/pay")
    assert call.status == 503
    assert call.headers[b"retry-after"] == b"1"
    assert call.headers[b"quiesce-outcome"] == b"refused"
    assert lost(app) == {}


async def test_a_handshake_that_was_cut_is_told_so_where_the_server_can() -> None:
    """As a request is."""
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    call = await cut(wrapped(forever), kind="websocket", extensions=extensions)
    assert (call.status, call.headers[b"quiesce-outcome"]) == (500, b"cut")


def pay(done: threading.Event, go_on: threading.Event) -> None:
    """Work in a thread, which nothing can stop."""
    go_on.wait()
    done.set()


async def by_anyio(function: Callable[[], None]) -> None:
    """Wait for a thread as Starlette and FastAPI do."""
    await anyio.to_thread.run_sync(function)


async def by_asyncio(function: Callable[[], None]) -> None:
    """Wait for a thread as asyncio does."""
    await asyncio.to_thread(function)


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("way", [by_anyio, by_asyncio])
async def test_a_thread_that_cannot_be_stopped_is_stuck(way: Any) -> None:
    """It goes on, and may still have effects."""
    done, go_on = threading.Event(), threading.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await way(partial(pay, done, go_on))

    app = wrapped(handler, grace=SHORT, cleanup=SHORT)
    try:
        call = await cut(app, go_on, method="POST")
        assert (call.status, call.headers[b"quiesce-outcome"]) == (500, b"cut")
        assert lost(app) == {"stuck": ["POST /pay"]}
    finally:
        go_on.set()
        await anyio.to_thread.run_sync(done.wait)
