"""The names of edges: a store has keys, and only who has the id of an edge may report its receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quiesce.mesh.protocol.codec import parse_request_header
from quiesce.mesh.protocol.facts import UNKNOWN, WORKING
from quiesce.mesh.protocol.receipt import Receipt, edge_key
from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply
from quiesce.mesh.runtime.edge_names import EdgeNames, answer_as_asked, answer_keys
from tests.unit.mesh.meshing import World
from tests.unit.mesh.replicas import nothing, town

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop, Node

ID = b"an edge's id"
KEY = edge_key(ID)
RECEIPT = Receipt("done", hops=1)


def content(folder: Path) -> bytes:
    """Return what the files of a folder have."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.mark.real_time
async def test_no_id_is_in_the_store(tmp_path: Path) -> None:
    """Who reads the file learns no secret that ends or closes an edge."""
    headers: list[str] = []
    async with town(tmp_path) as here:
        root, middle, end = await here.add("a"), await here.add("b"), await here.add("c")

        async def pass_on(_: Hop) -> None:
            headers.append(await here.hand(end, nothing))

        async with root.cascade("trip"):
            headers.append(await here.hand(middle, pass_on))
        store = content(tmp_path)
    ids = [parse_request_header(header).edge for header in headers]
    assert len(ids) == 2
    for edge in ids:
        assert edge_key(edge) in store
        assert edge not in store
        assert edge.hex().encode() not in store


def test_a_receipt_needs_the_id() -> None:
    """A key comes from a store, where many can read it: with it one may ask, and not close."""
    call = NodeCall("", ((KEY, RECEIPT), (ID, RECEIPT)), ((KEY, False), (ID, True)))
    found = EdgeNames().incoming(call)
    assert found.receipts == ((KEY, RECEIPT),)
    assert found.asks == ((KEY, False), (KEY, True))
    assert EdgeNames().incoming(NodeCall("", ((KEY, RECEIPT),), ())).receipts == ()


def test_a_call_leaves_with_ids() -> None:
    """The receiver may have no shared store; a receipt whose id is not known stays here."""
    names, other = EdgeNames(), b"k" * 16
    assert names.keep(ID) == KEY
    call = NodeCall("", ((KEY, RECEIPT), (other, RECEIPT)), ((KEY, False), (other, True)))
    found = names.outgoing(call)
    assert found.receipts == ((ID, RECEIPT),)
    assert found.asks == ((ID, False), (other, True))
    names.drop(KEY)
    assert names.outgoing(call).receipts == ()


def test_an_answer_names_edges_as_the_caller_does() -> None:
    """A caller that asks with an id gets it back, and one that asks with a key gets the key."""
    other = b"k" * 16
    call = NodeCall("", ((ID, RECEIPT),), ((other, False),))
    reply = NodeReply((KEY,), ((other, WORKING),), below=((other, KEY, "http://c"),))
    found = answer_as_asked(call, reply)
    assert (found.taken, found.answers) == ((ID,), ((other, WORKING),))
    assert EdgeNames.named(NodeReply((ID,), ((ID, UNKNOWN),))) == NodeReply(
        (KEY,), ((KEY, UNKNOWN),)
    )


async def test_a_node_without_a_shared_store_is_asked_by_key(tmp_path: Path) -> None:
    """An heir knows the key alone: the node finds the edge, closes none by key, and does not refuse what it never saw."""
    seen, edges = list[NodeCall](), list[bytes]()

    async def see(hop: Hop) -> None:
        edges.append(hop.record.edge)

    def answer(node: Node, call: NodeCall) -> NodeReply:
        def at(asked: NodeCall) -> NodeReply:
            seen.append(asked)
            return NodeReply((), tuple((edge, WORKING) for edge, _ in asked.asks))

        return answer_keys(call, node.opened.engine.known, at)

    async with World(tmp_path) as world:
        root, agent = await world.add("a"), await world.add("b")
        async with root.cascade("trip") as cascade:
            await world.hand("b", see)
        assert await cascade.settled(1)
        (edge,), other = edges, b"k" * 16
        asks = ((edge_key(edge), True), (other, True), (ID, False))
        reply = answer(agent, NodeCall("", ((edge_key(edge), RECEIPT), (ID, RECEIPT)), asks))
        assert seen[0].asks == ((edge, True), (ID, False))
        assert seen[0].receipts == ((ID, RECEIPT),)
        assert dict(reply.answers) == {edge_key(edge): WORKING, other: UNKNOWN, ID: WORKING}
        answer(agent, NodeCall("", ((other, RECEIPT),), ()))
        assert seen[1].receipts == ()
