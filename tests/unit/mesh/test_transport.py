"""Nodes of one process that call each other directly."""

from __future__ import annotations

import pytest

from quiesce import UsageError
from quiesce.errors import PeerLost
from quiesce.mesh import Memory
from quiesce.mesh.transport.node_transport import NoMesh, not_ok


async def echo(path: str, body: bytes) -> bytes:
    """Answer with what came."""
    return path.encode() + body


async def other(path: str, body: bytes) -> bytes:
    """Answer something else."""
    return body + path.encode()


async def test_a_node_is_found_while_it_is_there() -> None:
    """Before and after that it is lost."""
    memory = Memory()
    with pytest.raises(PeerLost, match="no node is open at http://a"):
        await memory.call("http://a", "/p", b"b")
    memory.join("http://a", echo)
    assert await memory.call("http://a", "/p", b"b") == b"/pb"
    memory.leave("http://a", echo)
    with pytest.raises(PeerLost):
        await memory.call("http://a", "/p", b"b")
    await memory.aclose()


@pytest.mark.parametrize("status", [301, 302, 307, 308, 404, 405, 410, 501])
def test_what_is_no_node_says_so_by_its_status(status: int) -> None:
    """A plain server, or a proxy that has lost a prefix; who reads it knows what to look for."""
    error = not_ok("http://b", status)
    assert isinstance(error, NoMesh)
    text = f"no mesh at http://b: it answered {status}. Is it served by Quiesce(app, node=…), quiesce_app(agent, node=…) or node.asgi(app)"
    assert str(error).startswith(text)
    assert "name it in opaque= instead of peers=" in str(error)  # an agent that takes no part


@pytest.mark.parametrize("status", [400, 401, 403, 408, 413, 429, 500, 502, 503, 504])
def test_an_agent_that_is_unavailable_now_may_be_a_node(status: int) -> None:
    """It is down, or starting, or has too much to do."""
    error = not_ok("http://b", status)
    assert not isinstance(error, NoMesh)
    assert str(error) == f"http://b answered {status}"


def test_an_address_is_one_nodes() -> None:
    """Another one is refused, and cannot take it away."""
    memory = Memory()
    memory.join("http://a", echo)
    memory.join("http://a", echo)
    with pytest.raises(UsageError, match="an address of its own"):
        memory.join("http://a", other)
    memory.leave("http://a", other)
    with pytest.raises(UsageError, match="an address of its own"):
        memory.join("http://a", other)
    memory.leave("http://a", echo)
    memory.leave("http://a", echo)
    memory.join("http://a", other)


@pytest.mark.parametrize("status", [202, 204, 404])
def test_what_answers_and_is_no_node_is_said_to_be_none(status: int) -> None:
    """It was reached: a peer that is served without `node.asgi` answers everything in its own way."""
    error = not_ok("http://b", status)
    assert isinstance(error, NoMesh)
    assert (
        f"no mesh at http://b: it answered {status}. Is it served by Quiesce(app, node=…)"
        in str(error)
    )
    assert not isinstance(not_ok("http://b", 503), NoMesh)
