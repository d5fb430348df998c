"""Calls from node to node over HTTP, some to nodes that do not answer.

It needs httpx, which the SDK brings along.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from quiesce.mesh import Handing, Memory, Node, Patience, Settled, Unknown
from quiesce.mesh.transport.http_transport import _AT_ONCE, HttpTransport
from quiesce.testing import sweep
from tests.adapters.http_receiver import receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATH = "/quiesce/receipts"
MANY = 120  # more than a client of httpx has connections, by default

pytestmark = [
    pytest.mark.backends("asyncio"),
    pytest.mark.real_time,
]


class Nodes:
    """Something that listens at many addresses, and answers at the last of them."""

    def __init__(self) -> None:
        """Hear nobody yet."""
        self.urls: list[str] = []
        self.connected = 0
        self._here = asyncio.Event()
        self._wanted = 0
        self.tasks: set[asyncio.Task[None] | None] = set()

    async def until(self, count: int) -> None:
        """Wait for so many connections."""
        self._wanted = count
        if self.connected < count:
            await asyncio.wait_for(self._here.wait(), 5)

    async def hang(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take what comes, and say nothing."""
        self.tasks.add(asyncio.current_task())
        self.connected += 1
        if self.connected == self._wanted:
            self._here.set()
        await reader.read()
        writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer."""
        self.tasks.add(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(count: int) -> AsyncIterator[Nodes]:
    """Start so many nodes that hang, and one that does not."""
    nodes = Nodes()
    kinds = [*[nodes.hang] * count, nodes.answer]
    servers = [await asyncio.start_server(kind, "127.0.0.1", 0) for kind in kinds]
    nodes.urls = [f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in servers]
    try:
        yield nodes
    finally:
        for server in servers:
            server.close()
        await asyncio.gather(*filter(None, nodes.tasks))


async def test_nodes_that_take_long_do_not_keep_others_from_being_called() -> None:
    """A question waits for as long as an agent works: and there may be many of those."""
    async with listening(MANY) as nodes:
        http = HttpTransport()
        calls = [asyncio.create_task(http.call(url, PATH, b"{}")) for url in nodes.urls[:-1]]
        await nodes.until(100)
        try:
            assert await asyncio.wait_for(http.call(nodes.urls[-1], PATH, b"{}"), 2) == b"{}"
        finally:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            await http.aclose()
        assert not http._lines


async def test_a_node_that_hangs_does_not_have_ever_more_connections() -> None:
    """Each receipt for it is a call: those that are too many wait, for as long as their callers do."""
    async with listening(1) as nodes:
        http = HttpTransport()
        calls = [asyncio.create_task(http.call(nodes.urls[0], PATH, b"{}")) for _ in range(30)]
        await nodes.until(_AT_ONCE)
        assert await asyncio.wait_for(http.call(nodes.urls[-1], PATH, b"{}"), 2) == b"{}"
        assert nodes.connected == _AT_ONCE
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await http.aclose()
        assert not http._lines


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_a_call_may_be_cancelled_anywhere(loop: Any) -> None:
    """At every await, of the first one, of one with a connection that is kept, and of the close."""
    with receiving() as url:

        async def scenario() -> None:
            http = HttpTransport()
            try:
                for _ in range(2):
                    assert await http.call(url, PATH, b"{}") == b"{}"
            finally:
                await http.aclose()

        found = sweep(scenario, backend=loop, allow=["thread:asyncio_*"])
    assert found.ok, str(found)
    assert found.points > 8


class Body(httpx.AsyncByteStream):  # type: ignore[misc]  # no types of it are installed
    """The body of an answer, whose connection is let go when it is closed."""

    def __init__(self) -> None:
        """Start open."""
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield one part."""
        yield b"fine"

    async def aclose(self) -> None:
        """Let go."""
        self.is_closed = True


async def test_an_answer_that_cannot_be_noted_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is given it, so nobody else would let go of its connection."""
    body = Body()

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=body)

    monkeypatch.setattr(Handing, "answered", fail)
    async with Node("a", store=tmp_path / "a.journal") as node:
        async with node.client(transport=httpx.MockTransport(answer)) as client:
            with pytest.raises(ZeroDivisionError):
                async with node.cascade("c"):
                    await client.post("http://takes-no-part/")
        assert body.is_closed


async def test_an_answer_is_given_though_the_journal_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message was worked on: what is known of it is written when there is room."""

    def full(_: bytes) -> None:
        raise OSError

    def answer(_: httpx.Request) -> httpx.Response:
        monkeypatch.setattr(node.journal, "_append", full)
        return httpx.Response(200, text="done")

    async with Node("a", store=tmp_path / "a.journal") as node:
        async with node.client(transport=httpx.MockTransport(answer)) as client:
            async with node.cascade("c"):
                assert (await client.post("http://takes-no-part/")).text == "done"
            assert node.health.state == "refusing"
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Unknown),
        (202, Unknown),
        (302, Settled),
        (404, Settled),
        (502, Settled),
    ],
)
async def test_a_peer_that_answers_without_a_word_has_the_message(
    tmp_path: Path, status: int, verdict: type
) -> None:
    """Its node does not know of it: what came along was dropped, unless something else has answered."""
    memory = Memory()

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"location": "/there"} if status == 302 else {})

    def member(name: str) -> Node:
        url, others = f"http://{name}", ["http://a", "http://b"]
        journal = tmp_path / f"{name}.journal"
        soon = Patience(ask_in_doubt=0.01)
        return Node(name, url=url, store=journal, peers=others, transport=memory, patience=soon)

    async with (
        member("a") as node,
        member("b"),
        node.client(transport=httpx.MockTransport(answer)) as client,
    ):
        async with node.cascade("c") as cascade:
            await client.post("http://b/")
        assert type(await cascade.settled(5)) is verdict
