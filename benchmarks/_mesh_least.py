"""The least work that every participant of a mesh has to do, as middleware: a bound for what can still be saved.

`Least` does only what every implementation has to do, in any language. `Small` is the smallest implementation in
Python: it reads the header, looks the id up, writes the journal's lines, sets a context variable for the handler,
keeps the response until the handler has returned, and adds the receipt. `Small` does nothing else: it waits for no
task that the handler starts, cancels nothing, answers no queries, compacts no journal, and handles no special case.
"""

from __future__ import annotations

import os
import re
import time
from asyncio import current_task
from binascii import unhexlify
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from quiesce.mesh.protocol.codec import RESPONSE_HEADER, closed_header
from quiesce.mesh.protocol.facts import Begun, Closed
from quiesce.mesh.protocol.receipt import Alone, edge_mark
from quiesce.mesh.store.record_format import record_line

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ANSWER = RESPONSE_HEADER.lower().encode()
_KEEP, _DRIFT = 3600, 300
_header = re.compile(
    rb"00-([0-9a-f]{32})-([0-9a-f]{24})-([0-9a-f]{12})-[0-9a-f]{2};b=([0-9]{1,12})(?:;h=([!-:<-~]+))?"
).fullmatch
_current: ContextVar[Any] = ContextVar("current")


def _journal(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class Least:
    """A middleware that writes as many bytes as a record before the handler and before the answer, and adds a header."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        """Wrap an app."""
        self._app = app
        self._file = _journal(path)
        edge, packed = bytes(12), Alone("planner").packed(bytes(12), "0" * 12, 1000)
        self._begun = record_line(Begun(edge, bytes(16), "0" * 12, "http://127.0.0.1:12345"))
        self._closed = record_line(Closed(edge, packed))
        self._line = (_ANSWER, closed_header(edge, packed).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; only those that come with a message are others than without."""
        if scope["type"] != "http" or all(name != b"cascade" for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        os.write(self._file, self._begun)

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                os.write(self._file, self._closed)
                message["headers"].append(self._line)
            await send(message)

        await self._app(scope, receive, tell)


class _Hop:
    __slots__ = ("cascade", "edge", "holds", "kept", "parent", "reply", "since", "token")

    cascade: bytes
    edge: bytes
    holds: dict[object, _Hop]
    kept: list[Message]
    parent: str
    reply: str | None
    since: float
    token: Token[Any]

    async def keep(self, message: Message) -> None:
        self.kept.append(message)


class Small:
    """The smallest middleware that takes part in cascades."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        """Wrap an app."""
        self._app = app
        self._file = _journal(path)
        self._alone = Alone("planner")
        self._hops: dict[bytes, _Hop] = {}
        self._over: dict[bytes, bytes] = {}
        self._long_over: dict[bytes, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; only those that come with a message are others than without."""
        found = None
        if scope["type"] == "http":
            for line in scope["headers"]:
                if line[0] == b"cascade":
                    found = line
        if found is None:
            await self._app(scope, receive, send)
            return
        hop = self._take(found[1])
        passed = scope.copy()
        passed["headers"] = headers = scope["headers"].copy()
        headers.remove(found)
        await self._app(passed, receive, hop.keep)
        answer = self._end(hop)
        for message in hop.kept:
            if message["type"] == "http.response.start":
                lines = [line for line in message["headers"] if line[0] != _ANSWER]
                lines.append((_ANSWER, answer))
                message["headers"] = lines
            await send(message)

    def _take(self, header: bytes) -> _Hop:
        found = _header(header)
        assert found is not None
        cascade, text, parent, latest, reply = found.groups()
        edge, now = unhexlify(text), time.time()
        assert now - _DRIFT <= int(latest) <= now + _KEEP + _DRIFT
        for known in (self._hops, self._over, self._long_over):
            assert edge not in known
        hop = _Hop()
        hop.edge, hop.cascade, hop.parent = edge, unhexlify(cascade), parent.decode()
        hop.reply = None if reply is None else reply.decode()
        os.write(self._file, record_line(Begun(edge, hop.cascade, hop.parent, hop.reply)))
        hop.since, hop.kept, hop.holds = time.monotonic(), [], {current_task(): hop}
        hop.token = _current.set(hop)
        self._hops[edge] = hop
        return hop

    def _end(self, hop: _Hop) -> bytes:
        _current.reset(hop.token)
        edge = hop.edge
        took = int((time.monotonic() - hop.since) * 1e6)
        packed = self._over[edge] = self._alone.packed(edge, hop.parent, took)
        del self._hops[edge]
        os.write(self._file, record_line(Closed(edge, packed)))
        return f"00-{edge_mark(edge)};s=closed;r={packed.hex()}".encode()
