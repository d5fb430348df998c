"""Nodes of one process that call each other directly."""

from __future__ import annotations

import pytest

from quiesce import UsageError
from quiesce.errors import PeerLost
from quiesce.mesh import Memory


async def echo(path: str, body: bytes) -> bytes:
    """Answer with what came."""
    return path.encode() + body


async def other(path: str, body: bytes) -> bytes:
    """Answer something else."""
    return body + path.encode()


async def test_a_node_is_found_while_it_is_there() -> None:
    """Before and after that it is lost."""
    memory = Memory()
    with pytest.raises(PeerLost, match="no node is at http://a"):
        await memory.call("http://a", "/p", b"b")
    memory.join("http://a", echo)
    assert await memory.call("http://a", "/p", b"b") == b"/pb"
    memory.leave("http://a", echo)
    with pytest.raises(PeerLost):
        await memory.call("http://a", "/p", b"b")
    await memory.aclose()


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
