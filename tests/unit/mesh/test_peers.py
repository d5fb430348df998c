"""Which servers a node knows to take part."""

from __future__ import annotations

import pytest

from quiesce.mesh import Node
from quiesce.mesh.runtime import peers as mesh_peers
from quiesce.mesh.runtime.peers import may_start_work, peers_of

NODE = Node(
    "a",
    url="http://me.example:81",
    peers=["https://hotel.example", "http://big.example/agents/one", "http://big.example/agents"],
)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://hotel.example/run?x=1", "https://hotel.example"),
        ("https://HOTEL.example:443", "https://hotel.example"),
        ("wss://hotel.example/socket", "https://hotel.example"),
        ("http://hotel.example/run", None),
        ("https://hotel.example:444/run", None),
        ("https://hotel.example.evil/run", None),
        ("https://hotel.example@evil.example/run", None),
        ("http://big.example/agents/one/run", "http://big.example/agents/one"),
        ("http://big.example/agents/two", "http://big.example/agents"),
        ("http://big.example/agentsmith", None),
        ("http://big.example/", None),
        ("http://me.example:81/self", "http://me.example:81"),
        ("http://me.example/self", None),
        ("http://[", None),
        ("", None),
    ],
)
def test_a_server_is_found_by_its_origin_and_its_path(url: str, found: str | None) -> None:
    """However its address is written."""
    assert peers_of(NODE).find_url(url) == found


def test_a_server_that_answers_with_a_receipt_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten if there are ever new ones; peers are not."""
    monkeypatch.setattr(mesh_peers, "_LEARNED_MAX", 2)
    node = Node("b", peers=["http://peer.example"])
    peers = peers_of(node)
    for name in ("peer", "one", "two", "two", "three"):
        peers.learn(f"http://{name}.example")
    peers.learn("mcp:of-another-kind")
    assert peers.find_url("http://one.example/") is None
    for name in ("peer", "two", "three"):
        assert peers.find_url(f"http://{name}.example/run") == f"http://{name}.example"
    assert peers.hosts() == {"peer.example", "two.example", "three.example"}


def test_descriptions_are_not_work() -> None:
    """But what changes something is, wherever it goes."""
    assert not may_start_work("GET", "/.well-known/agent-card.json")
    assert not may_start_work("GET", "/quiesce/ready")
    assert may_start_work("GET", "/run")
    assert may_start_work("POST", "/.well-known/agent-card.json")
