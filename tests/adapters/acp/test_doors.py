"""The WebSocket bridge: who may come in, and what is told to whoever uses it wrongly. Real sockets."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from quiesce.errors import ArgumentError, SdkMissing, UsageError
from quiesce.integrations.acp.websocket_server import open_websocket_server
from tests.adapters.acp.bridge import Agent, serving, status_of

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("Bearer right", 101),
        ("bearer  right ", 101),
        ("Bearer other", 101),
        ("Bearer wrong", 401),
        ("Bearer right2", 401),
        ("Bearer", 401),
        ("Basic right", 401),
        ("Bearer rïght", 401),
        ("", 401),
    ],
)
async def test_a_token_is_asked_for(given: str, status: int) -> None:
    """Only who has one of the tokens is let in; the others get 401, and no agent is made."""
    made: list[Agent] = []

    def make() -> Agent:
        made.append(Agent())
        return made[-1]

    async with serving(make, token=["right", "other"]) as server:
        headers = {"Authorization": given} if given else {}
        assert await status_of(server.port, **headers) == status
        assert server.stats.refused == (status == 401)
        if status == 401:
            assert not made


async def test_two_tokens_at_once_are_one_too_many() -> None:
    """A request with two authorizations is refused, whichever of them is right."""
    async with serving(token="right") as server:  # noqa: S106 - not one
        headers = [("Authorization", "Bearer right"), ("Authorization", "Bearer wrong")]
        with pytest.raises(InvalidStatus, match="401"):
            await connect(f"ws://127.0.0.1:{server.port}", additional_headers=headers)


@pytest.mark.parametrize(
    ("origins", "given", "status"),
    [
        ((), None, 101),
        ((), "https://evil.example", 403),
        (["https://good.example"], "https://good.example", 101),
        (["https://good.example"], "https://good.example.evil.example", 403),
        (["https://good.example"], "null", 403),
        (["https://good.example"], None, 101),
        (None, "https://any.example", 101),
    ],
)
async def test_pages_of_other_origins_are_kept_out(
    origins: Any, given: str | None, status: int
) -> None:
    """A browser says where a page is from; by default no page is let in."""
    async with serving(origins=origins) as server:
        headers = {} if given is None else {"Origin": given}
        assert await status_of(server.port, **headers) == status


@pytest.mark.parametrize(("path", "status"), [("/acp", 101), ("/acp?x=1", 101), ("/", 404)])
async def test_only_the_path_is_served(path: str, status: int) -> None:
    """Elsewhere there is nothing."""
    async with serving(path="/acp") as server:
        assert await status_of(server.port, path) == status


# Wrong use.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": "x"}, "unknown option tokens"),
        ({"token": ""}, "token must be"),
        ({"token": []}, "token must be"),
        ({"token": ["x", "ü"]}, "token must be a non-empty ASCII string"),
        ({"origins": "https://good.example"}, r"origins must be a list, such as \['https"),
        ({"connections_max": 0}, "connections_max"),
        ({"message_bytes_max": "1"}, "message_bytes_max"),
        ({"idle_seconds": -1}, "idle_seconds"),
    ],
)
async def test_wrong_options_are_refused(options: Any, words: str) -> None:
    """The error says what to do."""
    with pytest.raises(ArgumentError, match=words):
        await open_websocket_server(Agent, **options)


async def test_an_agent_is_not_a_factory() -> None:
    """One agent for all connections is refused."""
    with pytest.raises(ArgumentError, match="an agent for each connection"):
        await open_websocket_server(Agent())  # type: ignore[arg-type]  # on purpose


async def test_a_port_that_is_taken_is_told() -> None:
    """The operating system's error is raised, and nothing is left."""
    async with serving() as server:
        with pytest.raises(OSError, match="in use"):
            await open_websocket_server(Agent, port=server.port)


@pytest.mark.backends("trio")
async def test_trio_is_refused() -> None:
    """The SDK is made for asyncio, and the error says so."""
    with pytest.raises(UsageError, match="needs asyncio"):
        await open_websocket_server(Agent)


async def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bridge alone needs `websockets`."""
    from importlib import metadata  # noqa: PLC0415 - to be patched

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    package = sys.modules["quiesce.integrations.acp"]
    monkeypatch.delitem(sys.modules, "quiesce.integrations.acp.websocket", raising=False)
    monkeypatch.delattr(package, "websocket", raising=False)
    with pytest.raises(SdkMissing, match=r"websockets 13.0 or newer.*pip install '\.\[acp\]'"):
        await open_websocket_server(Agent)
