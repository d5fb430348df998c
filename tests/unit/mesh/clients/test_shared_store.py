"""Plain clients in hops of a node that shares its store: a request leaves with its edge when the edge's record has lasted."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import pytest

from quiesce.mesh import Settled, Unknown
from quiesce.mesh.clients import httpx_client, sending
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import Alone
from tests.unit.mesh.clients.peering import peer, sender
from tests.unit.mesh.clients.test_stdlib import in_thread, post, verdict
from tests.unit.mesh.test_replicas_telling import Gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real_time


def shared(folder: Path) -> dict[str, Any]:
    """Return the options of a node that shares its store."""
    return {"store": f"sqlite://{folder / 'mesh.db'}", "store_seconds": 30.0}


async def by_thread(url: str) -> None:
    """Send with a blocking client, in a thread."""
    await in_thread(post, url)


class AsyncPool:
    """A pool of httpcore that passes the header of a message on to a blocking client."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request."""
        url, lines = request.url, {name.decode(): value.decode() for name, value in request.headers}
        address = f"http://{url.host.decode()}:{url.port}{url.target.decode()}"
        await in_thread(partial(post, address, **lines))
        handed = codec.parse_request_header(lines["cascade"])
        told = codec.closed_header(handed.edge, Alone("peer").packed(handed.edge, handed.parent, 1))
        return SimpleNamespace(status=200, headers=[(b"Cascade-Receipt", told.encode())])


async def by_httpcore(url: str) -> None:
    """Send with an async client."""
    module: Any = SimpleNamespace(AsyncConnectionPool=AsyncPool, ConnectionPool=SyncPool)
    patches = list(httpx_client.wrap_httpcore(module))
    try:
        parts = urlsplit(url)
        host, target = (parts.hostname or "").encode(), parts.path.encode()
        to = SimpleNamespace(scheme=b"http", host=host, port=parts.port, target=target)
        given = SimpleNamespace(method=b"POST", url=to, headers=[], extensions={})
        await AsyncPool().handle_async_request(given)
    finally:
        for patch in patches:
            patch.remove()


class SyncPool:
    """A pool that is not used."""

    def handle_request(self, request: Any) -> Any:
        """Send a request."""
        raise NotImplementedError(request)


@pytest.mark.parametrize("send", [by_thread, by_httpcore])
async def test_a_request_leaves_when_its_record_has_lasted(
    send: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an async client, and of a blocking one in a thread."""
    monkeypatch.setattr(sending, "_WAIT_SECONDS", 30.0)
    with peer() as b:
        async with sender(b, **shared(tmp_path)) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await node.opened.written()
                    gate = Gate(node, monkeypatch)
                    async with anyio.create_task_group() as group:
                        group.start_soon(send, f"{b.url}/run")
                        await gate.reached.wait()
                        await anyio.wait_all_tasks_blocked()
                        assert not b.requests
                        gate.open.set()
            found = await verdict(cascade)
    assert None not in b.edges
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2


async def test_a_blocking_request_in_the_loops_own_thread_is_untracked(tmp_path: Path) -> None:
    """The loop writes to the store, and cannot while the request blocks it: the verdict says so, and what to do."""
    with peer() as b:
        async with sender(b, **shared(tmp_path)) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    assert post(f"{b.url}/run") == 200
            found = await verdict(cascade)
    assert b.edges == [None]
    assert isinstance(found, Unknown)
    (missing,) = found.missing
    assert missing.endswith("Send it with an async client, or in a thread")


async def test_a_request_that_its_thread_gives_up_was_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is too slow: the request leaves without an edge, and nobody is asked about the edge."""
    monkeypatch.setattr(sending, "_WAIT_SECONDS", 0.0)
    with peer() as b:
        async with sender(b, **shared(tmp_path)) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await node.opened.written()
                    gate = Gate(node, monkeypatch)
                    await by_thread(f"{b.url}/run")
                    gate.open.set()
            found = await verdict(cascade)
    assert b.edges == [None]
    assert isinstance(found, Unknown)
    assert found.receipt.unknown == 0
    assert found.receipt.untracked == 1
