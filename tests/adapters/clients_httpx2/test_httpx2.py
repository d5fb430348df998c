"""A node where httpx2 is installed, and httpx is not.

Not collected by itself: tests/integration/test_clients.py runs it.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from quiesce.errors import SdkMissing
from quiesce.mesh import Node, Settled
from quiesce.mesh.transport.http_transport import HttpTransport
from tests.unit.mesh.clients.peering import peer, sender

pytestmark = pytest.mark.real_time


def test_httpx_is_not_needed() -> None:
    """The node's client is one of httpx2; who asks for the other is told what to install."""
    assert importlib.util.find_spec("httpx") is None
    client = Node("a").client()
    assert isinstance(client, sys.modules["httpx2"].AsyncClient)
    with pytest.raises(SdkMissing, match=r"quiesce\[httpx\]"):
        Node("a").client(library="httpx")


async def test_messages_and_calls_work() -> None:
    """What is sent in a hop is a message, and the node calls others."""
    with peer() as b:
        async with sender(b) as node, node.client(trust_env=False) as client:
            async with node.cascade("c") as cascade:
                await client.post(f"{b.url}/run")
            found = await cascade.settled(5, require="participants")
        http: Any = HttpTransport()
        assert await http.call(b.url, "/quiesce/receipts", b"{}") == b""
        await http.aclose()
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2
