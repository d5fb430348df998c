"""What is known of a request of httpcore that has no answer, by a pool that is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.mesh import Settled, Unknown
from quiesce.mesh.clients import httpx_client
from tests.unit.mesh.clients.peering import sender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PEER = "http://peer.example"
CONNECT = "connection.connect_tcp.started"
SEND = "http11.send_request_headers.started"


class ConnectError(Exception):
    """What httpcore raises if there is no connection."""


ConnectError.__module__ = "httpcore"


def pool(*steps: str, error: Exception | None = None) -> Any:
    """Return a pool that goes so far, and then fails or hangs."""

    class AsyncConnectionPool:
        async def handle_async_request(self, request: Any) -> Any:
            """Take the steps."""
            for step in steps:
                await request.extensions["trace"](step, {"request": request})
            if error is not None:
                raise error
            await anyio.sleep_forever()

    class ConnectionPool:
        def handle_request(self, request: Any) -> Any:
            """Take the steps."""
            for step in steps:
                request.extensions["trace"](step, {"request": request})
            assert error is not None
            raise error

    module: Any = SimpleNamespace(
        AsyncConnectionPool=AsyncConnectionPool, ConnectionPool=ConnectionPool
    )
    list(httpx_client.wrap_httpcore(module))
    return module


def request() -> Any:
    """Return a request as httpcore has it."""
    url = SimpleNamespace(scheme=b"http", host=b"peer.example", port=None, target=b"/run")
    return SimpleNamespace(method=b"POST", url=url, headers=[(b"Host", b"x")], extensions={})


async def told(send: Callable[[Any], Awaitable[object]]) -> Any:
    """Send a request in a cascade; gives the verdict, and checks that it is as it was."""
    made = request()
    async with sender(peers=[PEER]) as node:
        with node.instrument():
            async with node.cascade("c") as cascade:
                await send(made)
        found = await cascade.settled(1, require="participants")
    assert made.headers == [(b"Host", b"x")]
    assert made.extensions == {}
    return found


@pytest.mark.parametrize("steps", [(CONNECT,), (CONNECT, SEND), (SEND,), ()])
async def test_a_request_that_is_cancelled(steps: tuple[str, ...]) -> None:
    """It was not sent if it was only being connected; if nothing is known of it, it is in doubt."""

    async def send(made: Any) -> None:
        with anyio.move_on_after(0.01):
            await pool(*steps).AsyncConnectionPool().handle_async_request(made)

    found = await told(send)
    assert isinstance(found, Settled if steps == (CONNECT,) else Unknown), str(found)


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("steps", [(), (CONNECT,), (CONNECT, SEND)])
async def test_a_request_that_found_no_connection(steps: tuple[str, ...], is_sync: bool) -> None:  # noqa: FBT001 - a parameter
    """It was not sent, unless an attempt before has left."""

    async def send(made: Any) -> None:
        module = pool(*steps, error=ConnectError())
        if is_sync:
            with pytest.raises(ConnectError):
                module.ConnectionPool().handle_request(made)
            return
        with pytest.raises(ConnectError):
            await module.AsyncConnectionPool().handle_async_request(made)

    found = await told(send)
    assert isinstance(found, Unknown if SEND in steps else Settled), str(found)
