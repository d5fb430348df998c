"""An ACP client beside the bare SDK: how many of its requests are answered a second, with 64 in flight.

The agent is in the same process and costs almost nothing: it answers each request in the step that
sends it. Programs call `prompt`, for which the SDK makes, dumps and checks models. `ext_method`
is the smallest request, without models.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import acp

from benchmarks._subjects import now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from acp.core import ClientSideConnection

    Connect = Callable[..., ClientSideConnection]
    Ask = Callable[[ClientSideConnection], Awaitable[object]]

IN_FLIGHT = 64
_TEXT = "a few words to be answered"
_ANSWER = {"jsonrpc": "2.0", "result": {"stopReason": "end_turn"}}


class Client:
    """A client that gets no requests from the agent."""

    async def session_update(self, **_: object) -> None:
        """Ignore an update."""


async def prompt(connection: ClientSideConnection) -> object:
    """Send a prompt."""
    return await connection.prompt(session_id="s", prompt=[acp.text_block(_TEXT)])


async def extension(connection: ClientSideConnection) -> object:
    """Send a request without a model."""
    return await connection.ext_method("echo", {"text": _TEXT})


class AnsweringStream(asyncio.Transport):
    """The client's output stream, which answers each written request in the same step."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        """Send the answers to this reader."""
        super().__init__()
        self._reader = reader
        self.protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Answer each line."""
        for line in bytes(data).splitlines():
            answer = {**_ANSWER, "id": json.loads(line)["id"]}
            self._reader.feed_data(json.dumps(answer).encode() + b"\n")

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing is buffered."""
        return 0

    def is_closing(self) -> bool:
        """Return False: the stream is open."""
        return False

    def close(self) -> None:
        """End."""
        self.protocol.connection_lost(None)

    abort = close


class AnsweringTransport:
    """A transport of the SDK (0.12 and newer) with the agent at its other end."""

    def __init__(self) -> None:
        """Start with nothing to receive."""
        self._inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def send(self, message: dict[str, Any]) -> None:
        """Answer a request."""
        self._inbox.put_nowait({**_ANSWER, "id": message["id"]})

    async def receive(self) -> dict[str, Any] | None:
        """Return the next answer."""
        return await self._inbox.get()

    async def close(self) -> None:
        """End."""
        self._inbox.put_nowait(None)


async def over_streams(ask: Ask, connect: Connect, count: int) -> float:
    """Send requests over two streams; return microseconds a request."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    stream = AnsweringStream(reader)
    writer = asyncio.StreamWriter(stream, stream.protocol, None, loop)
    taken = await _timed(ask, connect(Client(), writer, reader), count)
    reader.feed_eof()
    return taken


async def over_transport(ask: Ask, connect: Connect, count: int) -> float:
    """Send requests over a transport of decoded messages; return microseconds a request."""
    return await _timed(ask, connect(Client(), AnsweringTransport()), count)


async def _timed(ask: Ask, connection: ClientSideConnection, count: int) -> float:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await ask(connection)

    begin = now()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    seconds = now() - begin
    await connection.close()
    return seconds / count * 1e6
