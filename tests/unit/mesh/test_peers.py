"""Which servers a node knows to take part."""

from __future__ import annotations

import pytest

from quiesce.mesh import Node
from quiesce.mesh.runtime import peers as mesh_peers
from quiesce.mesh.runtime.peers import is_private_host, may_start_work, peers_of

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


@pytest.mark.parametrize("peer", ["localhost", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_the_names_of_this_machine_are_one_host(peer: str, host: str) -> None:
    """A program writes one in `peers`, and another where it sends."""
    node = Node("b", peers=[f"http://{peer}:81/agent"])
    assert peers_of(node).find_url(f"http://{host}:81/agent/run") == f"http://{peer}:81/agent"
    assert peers_of(node).find_url(f"http://{host}:82/agent/run") is None
    assert peers_of(node).find_url(f"http://{host}:81/other") is None


def test_of_two_names_of_this_machine_the_one_that_is_written_counts() -> None:
    """Two nodes may be known at one port, by different names."""
    both = ["http://127.0.0.1:81", "http://localhost:81"]
    peers = peers_of(Node("b", peers=both))
    assert [peers.find_url(one) for one in both] == both


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "::1", "[::1]", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.0.1", "fe80::1%eth0",
     "fd00::1", "::ffff:10.0.0.1", "hotel", "Hotel", "hotel.local", "a.localhost", "db.internal", "hotel.default.svc",
     "hotel.default.svc.cluster.local", "nas.lan", "nas.home.arpa", "hotel.local."],
)  # fmt: skip
def test_a_host_on_this_machine_or_in_a_private_network_is_near(host: str) -> None:
    """A forgotten peer is most likely there."""
    assert is_private_host(host)


@pytest.mark.parametrize(
    "host",
    ["api.model.example", "8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "notlocal.example", "x.mylan", ""],
)  # fmt: skip
def test_a_public_host_is_not_near(host: str) -> None:
    """A model's, say."""
    assert not is_private_host(host)


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
