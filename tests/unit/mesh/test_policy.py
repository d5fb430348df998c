"""Which addresses a node uses, and how much it takes from whom."""

from __future__ import annotations

import pytest

from quiesce import ArgumentError
from quiesce.errors import LocalProtocolError
from quiesce.mesh.transport.address_policy import (
    AddressPolicy,
    Allowance,
    address,
    origin,
)

PEERS = ["https://peer.example", "http://other.example:8080/agents/x/", "https://peer.example/a"]


@pytest.mark.parametrize(
    ("home", "allowed"),
    [
        ("https://peer.example", True),
        ("https://peer.example/", True),
        ("http://other.example:8080/agents/x", True),
        ("https://own.example/below", True),
        ("https://own.example:443", True),
        ("HTTPS://OWN.example", True),
        ("http://own.example", False),
        ("https://own.example:8443", False),
        ("https://own.example.evil.example", False),
        ("https://evil.example/own.example", False),
        ("https://own.example@evil.example", False),
        ("https://evil.example#own.example", False),
        ("https://peer.example/b", False),
        ("https://peer.example.evil", False),
        ("http://other.example:8080", False),
        ("http://other.example:8080/agents/y", False),
        ("http://127.0.0.1", False),
        ("http://169.254.169.254/latest", False),
        ("http://[::1]", False),
        ("file:///etc/passwd", False),
        ("https://own.example:port", False),
        ("", False),
    ],
)
def test_a_receipt_is_posted_to_peers_and_to_its_own_origin(home: str, allowed: bool) -> None:  # noqa: FBT001 - a case
    """And nowhere else, whoever asks for it."""
    assert AddressPolicy("https://own.example", PEERS).allows(home) == allowed


def test_a_node_without_an_address_posts_to_peers_only() -> None:
    """It has no origin."""
    policy = AddressPolicy(None, PEERS)
    assert policy.allows("https://peer.example")
    assert not policy.allows("https://own.example")


@pytest.mark.parametrize(
    ("url", "node"),
    [
        ("https://peer.example/tasks?x=1", "https://peer.example"),
        ("https://peer.example", "https://peer.example"),
        ("https://peer.example/a/tasks", "https://peer.example/a"),
        ("https://peer.example/ab", "https://peer.example"),
        ("https://peer.example?x", "https://peer.example"),
        ("http://other.example:8080/agents/x/tasks", "http://other.example:8080/agents/x"),
        ("http://other.example:8080/agents/xy", "http://other.example:8080"),
        ("https://stranger.example/a/b", "https://stranger.example"),
        ("https://user:secret@stranger.example:1/a", "https://stranger.example:1"),
        ("http://[::1]:80/a", "http://[::1]:80"),
    ],
)
def test_a_request_goes_to_the_node_below_whose_address_it_is(url: str, node: str) -> None:
    """A peer, the longest one; else the root of its server, without what is secret in the address."""
    assert AddressPolicy("https://own.example", PEERS).node_of(url) == node


@pytest.mark.parametrize(
    "value",
    [None, 7, "", "a", "http://", "http://a b", "http://a/?", "http://a#b", "http://u@a", "ws://a"],
)
def test_what_is_no_address_is_refused(value: object) -> None:
    """With what it is for, so that it is found."""
    with pytest.raises((ArgumentError, LocalProtocolError), match="address"):
        address("peers", value)


def test_what_is_wrong_with_an_address_is_said() -> None:
    """It may be the password in it."""
    with pytest.raises(ArgumentError, match="without a query or a password"):
        address("url", "http://user:secret@a")


def test_an_origin_is_scheme_host_and_port() -> None:
    """The port is the scheme's, if there is none."""
    assert origin("http://A.example/x") == ("http", "a.example", 80)
    assert origin("https://a:8443") == ("https", "a", 8443)
    assert origin("http://a:99999") is None


def test_an_allowance_is_for_so_many_and_grows_again() -> None:
    """Not beyond what it was."""
    now = 0.0
    allowance = Allowance(3, 2.0, lambda: now)
    assert [allowance.take() for _ in range(5)] == [True, True, True, False, False]
    now = 0.4
    assert not allowance.take()
    now = 0.5
    assert [allowance.take() for _ in range(2)] == [True, False]
    now = 1000.0
    assert [allowance.take() for _ in range(5)] == [True, True, True, False, False]
