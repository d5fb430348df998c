"""An ACP agent, and a client, beside the bare SDK: how many requests a second, with 64 in flight.

The agent's peer is in the same process and costs almost nothing: it counts answers, and sends a request
for each answer. The benchmark measures streams with every version of the SDK, and the SDK's transports of
decoded messages from 0.12 on. The client's part is in `_acp_client`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import acp
from acp.connection import Connection

from benchmarks import _acp_client
from benchmarks._harness import BARE, OURS, Result, compare, interleave, run_fresh
from benchmarks._subjects import now
from quiesce.integrations.acp import connect_to_agent, run_agent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    Run = Callable[..., Awaitable[object]]
    Piece = Callable[..., Coroutine[None, None, float]]

IN_FLIGHT = _acp_client.IN_FLIGHT
LEAST = 0.9  # of the bare SDK's speed
AGENTS: dict[str, Run] = {BARE: acp.run_agent, OURS: run_agent}
CLIENTS = {BARE: acp.connect_to_agent, OURS: connect_to_agent}
HAS_TRANSPORTS = inspect.signature(Connection.__init__).parameters["reader"].default is None
_REQUEST = {"jsonrpc": "2.0", "method": "_echo", "params": {"text": "a few words to be echoed"}}


class Agent:
    """An agent that answers at its next turn."""

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters."""
        del method
        await asyncio.sleep(0)
        return params


class Peer:
    """The peer, which keeps some requests in flight until all are answered."""

    def __init__(self, count: int, send: Callable[[int], None]) -> None:
        """Send by calling `send` with a number."""
        self._count = count
        self._send = send
        self._sent = 0
        self._answered = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def more(self, answers: int) -> None:
        """Count some answers, and send as many requests."""
        self._answered += answers
        if self._answered == self._count:
            self.done.set_result(None)
        while self._sent < self._count and self._sent - self._answered < IN_FLIGHT:
            self._sent += 1
            self._send(self._sent)


class MemoryStream(asyncio.Transport):
    """The agent's output stream, which passes what is written to the peer in the same step."""

    def __init__(self, protocol: asyncio.StreamReaderProtocol) -> None:
        """Write for this protocol."""
        super().__init__()
        self._protocol = protocol
        self.peer: Peer | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand answers to the peer."""
        assert self.peer is not None
        self.peer.more(bytes(data).count(b"\n"))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def is_closing(self) -> bool:
        """Return False: the stream is open."""
        return False

    def close(self) -> None:
        """End."""
        self._protocol.connection_lost(None)

    abort = close


async def over_streams(run: Run, count: int) -> float:
    """Serve an agent over streams; return microseconds a request."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    stream = MemoryStream(protocol)
    writer = asyncio.StreamWriter(stream, protocol, reader, loop)

    def send(number: int) -> None:
        reader.feed_data(json.dumps({**_REQUEST, "id": number}).encode() + b"\n")

    stream.peer = Peer(count, send)
    task = asyncio.ensure_future(run(Agent(), writer, reader))
    begin = now()
    stream.peer.more(0)
    await stream.peer.done
    seconds = now() - begin
    reader.feed_eof()
    await task
    return seconds / count * 1e6


class MemoryTransport:
    """A transport of the SDK (0.12 and newer) with the peer at its other end."""

    def __init__(self, count: int) -> None:
        """Start with nothing to receive."""
        self._inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.peer = Peer(count, self._request)

    def _request(self, number: int) -> None:
        self._inbox.put_nowait({**_REQUEST, "id": number})

    async def send(self, message: dict[str, Any]) -> None:
        """Hand an answer to the peer."""
        self.peer.more("result" in message)

    async def receive(self) -> dict[str, Any] | None:
        """Return the next request."""
        return await self._inbox.get()

    async def close(self) -> None:
        """End."""
        self._inbox.put_nowait(None)


async def over_transport(run: Run, count: int) -> float:
    """Serve an agent over a transport of decoded messages; return microseconds a request."""
    transport = MemoryTransport(count)
    task = asyncio.ensure_future(run(Agent(), transport))
    begin = now()
    transport.peer.more(0)
    await transport.peer.done
    seconds = now() - begin
    await transport.close()
    await task
    return seconds / count * 1e6


def _measures() -> Iterator[tuple[str, str, dict[str, Piece]]]:
    """Yield the name, the description and the pieces of each measure."""
    for what, agent, client in (
        ("streams", over_streams, _acp_client.over_streams),
        ("transport", over_transport, _acp_client.over_transport),
    ):
        if agent is over_transport and not HAS_TRANSPORTS:
            continue
        about = f"over {what}, {IN_FLIGHT} in flight"
        agents: dict[str, Piece] = {label: partial(agent, run) for label, run in AGENTS.items()}
        yield f"acp_{what}", f"requests a second through run_agent, {about}", agents
        for end, method, ask in (
            ("", "prompt", _acp_client.prompt),
            ("_ext", "ext_method", _acp_client.extension),
        ):
            clients: dict[str, Piece] = {
                label: partial(client, ask, connect) for label, connect in CLIENTS.items()
            }
            name = f"acp_client_{what}{end}"
            yield name, f"calls of {method} a second through connect_to_agent, {about}", clients


def measure(rounds: int = 9, count: int = 4000, backend: str = "asyncio") -> list[Result]:
    """Compare the adapter with the SDK that is installed, turn by turn.

    The SDK's version is not in the result, because the caller has set the path.
    """
    results = []
    for name, about, ways in _measures():
        pieces = {
            label: partial(run_fresh, backend, partial(piece, count))
            for label, piece in ways.items()
        }
        interleave(name, pieces, 1)  # to warm up
        found = interleave(name, pieces, rounds)
        results.append(compare(name, about, found, unit="us a request", limit=LEAST, at_least=True))
    return results
