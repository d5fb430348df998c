"""JSON-RPC messages in requests that a server which drains has refused."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.integrations.asgi import answers
from quiesce.mesh import CascadeFront, Node
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport.links import REQUEST_KEY, RESPONSE_KEY

if TYPE_CHECKING:
    from pathlib import Path

JSON = (b"content-type", b"application/json")
SESSION = (b"mcp-session-id", b"1")
VERSION = (b"mcp-protocol-version", b"2026-07-28")
QUESTION = {"jsonrpc": "2.0", "id": 1, "method": "quiesce/receipts", "params": {"v": 0}}
NOTICE = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {}}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
CALL = {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "book"}}


class Server:
    """A server that drains: it refuses all, and what is inside notes what it is given."""

    def __init__(self, node: Node, *, is_draining: bool = True) -> None:
        """Begin with nothing given."""
        self._is_draining = is_draining
        self.inside: list[Any] = []
        self.sent: list[Any] = []
        self.app = CascadeFront(node, self._refuse, inside=self._note)

    async def _refuse(self, scope: Any, receive: Any, send: Any) -> None:
        if self._is_draining:
            await answers.refuse_request(scope, send, 1)
        else:
            await answers.send_plain(scope, send, 503, b"busy")

    async def _note(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/mcp"
        message = await receive()
        assert not message["more_body"]
        self.inside.append(json.loads(message["body"]))
        assert (await receive())["type"] == "http.disconnect"  # what comes after the body
        await answers.send_plain(scope, send, 200, b"done")

    async def post(
        self, body: bytes, *headers: tuple[bytes, bytes], method: str = "POST", late: bool = False
    ) -> int:
        """Send a request, in two parts, and return the status."""
        parts: list[Any] = [
            {"type": "http.request", "body": body[:5], "more_body": True},
            {"type": "http.request", "body": body[5:], "more_body": False},
        ]

        async def receive() -> Any:
            if late and len(parts) == 1:
                await anyio.Event().wait()
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope = {"type": "http", "method": method, "path": "/mcp", "headers": list(headers)}
        self.sent.clear()
        await self.app(scope, receive, send)
        start, end = self.sent
        assert dict(start["headers"])[b"content-length"] == str(len(end["body"])).encode()
        found: int = start["status"]
        return found


@pytest.mark.parametrize(
    ("message", "headers", "passes"),
    [
        (QUESTION, [JSON], True),
        (QUESTION, [(b"content-type", b"application/json; charset=utf-8")], True),
        (QUESTION, [], False),
        (QUESTION | {"method": "quiesce/else"}, [JSON, SESSION], False),
        (NOTICE, [JSON, SESSION], True),
        (NOTICE, [JSON], False),  # perhaps it is not of MCP, and begins something
        (NOTICE | {"id": 1}, [JSON, SESSION], False),
        (NOTICE | {"method": "begin"}, [JSON, SESSION], False),
        (ANSWER, [JSON, SESSION], True),
        (ANSWER, [JSON], False),
        (LIST, [JSON, SESSION], True),  # what the SDK asks for before it returns a result
        (LIST, [JSON, VERSION], True),  # of a server without sessions
        (LIST, [JSON], False),
        (LIST | {"method": "ping"}, [JSON, SESSION], True),
        (LIST | {"method": "resources/read"}, [JSON, SESSION], False),
        (LIST | {"method": "initialize"}, [JSON, SESSION], False),
        (CALL, [JSON, SESSION], False),
        ([QUESTION], [JSON, SESSION], False),
        (None, [JSON, SESSION], False),
    ],
)
async def test_only_what_begins_nothing_gets_to_the_app(
    message: Any, headers: Any, *, passes: bool
) -> None:
    """All else is refused as it was, by the server that drains."""
    async with Node("b", url="http://b") as node:
        server = Server(node)
        status = await server.post(json.dumps(message).encode(), *headers)
        assert (status, server.inside) == ((200, [message]) if passes else (503, []))


@pytest.mark.parametrize(
    "body", [b"{nonsense", b"", b"[" * 100_000, b" " * codec.BODY_BYTES_MAX + b"1"]
)
async def test_what_cannot_be_read_is_refused_as_it_was(body: bytes) -> None:
    """Nothing is made of it, and it is read up to a bound only."""
    async with Node("b", url="http://b") as node:
        server = Server(node)
        assert await server.post(body, JSON, SESSION) == 503
        assert server.inside == []


@pytest.mark.backends("asyncio", "trio")  # in virtual time
async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """The server could not stop."""
    async with Node("b", url="http://b") as node:
        server = Server(node)
        assert await server.post(json.dumps(QUESTION).encode(), JSON, late=True) == 503


async def test_a_message_that_hands_over_an_edge_is_refused_in_its_answer(tmp_path: Path) -> None:
    """Its sender is told that it never will run: with status 200, as a client may end its connection at any other."""
    edge = os.urandom(12)
    handed = codec.Handed(os.urandom(16), edge, "0" * 12, int(time.time()) + 600)
    meta = {"_meta": {REQUEST_KEY: codec.request_header(handed)}}
    message = CALL | {"params": meta}
    async with Node("b", url="http://b", store=tmp_path / "b") as node:
        server = Server(node)
        assert await server.post(json.dumps(message).encode(), JSON, SESSION) == 200
        assert (b"quiesce-outcome", b"refused") in server.sent[0]["headers"]
        answer = json.loads(server.sent[1]["body"])
        assert (answer["id"], answer["error"]["code"]) == ("x", -32001)
        told = codec.parse_response_header(answer["error"]["data"]["_meta"][RESPONSE_KEY], edge)
        assert told.answer is not None
        assert told.answer.kind == "never"
        del message["id"]  # nobody waits for an answer
        assert await server.post(json.dumps(message).encode(), JSON, SESSION) == 503


async def test_only_the_refusal_of_a_drain_is_looked_into() -> None:
    """Another 503 is the app's own: it may have begun what is asked for."""
    async with Node("b", url="http://b") as node:
        server = Server(node, is_draining=False)
        assert await server.post(json.dumps(QUESTION).encode(), JSON) == 503
        assert server.inside == []


async def test_the_server_of_a_closed_node_still_lists_tools() -> None:
    """The node is closed when the last tool has ended, the server runs for a moment longer, and the mesh gets no answer."""
    node = Node("b", url="http://b")
    server = Server(node)
    for _ in range(2):  # before it was opened, and after it was closed
        assert await server.post(json.dumps(QUESTION).encode(), JSON, SESSION) == 503
        assert await server.post(json.dumps(LIST).encode(), JSON, SESSION) == 200
        assert server.inside.pop() == LIST
        async with node:
            pass
