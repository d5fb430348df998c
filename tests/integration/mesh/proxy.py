"""A network between agents that can be made to fail: a proxy in front of each, on a port that stays.

Who is calling is in the request (`X-From`), and so is which message it is (`X-Hop`); that is all it knows
of HTTP, apart from where a request begins and how long it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

_FROM = re.compile(rb"\r\nx-from: *(\S+)", re.IGNORECASE)
_HOP = re.compile(rb"\r\nx-hop: *(\S+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_READ = 1 << 16
_SLOW_SECONDS = 0.15


@dataclass(eq=False)
class Rule:
    """What is done to the traffic of two."""

    way: Literal["cut", "hang", "slow"]
    pair: frozenset[str]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    late: bool = True
    """Whether what was held up goes on when it is over; else it is cut off then."""


@dataclass(eq=False)
class _Line:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sender: str = ""
    up: asyncio.StreamWriter | None = None
    loses: bool = False
    """Whether its answer is to be lost."""

    def abort(self) -> None:
        """End both sides at once."""
        self.writer.transport.abort()
        if self.up is not None:
            self.up.transport.abort()


class Network:
    """All proxies, and what is wrong with them."""

    def __init__(self, wrote_copy: Callable[[str, int], None]) -> None:
        """Start without a rule: everything is passed on.

        Args:
            wrote_copy: is told of every message that was sent again, and the status of the answer.
        """
        self.rules: list[Rule] = []
        self.lost: dict[str, str] = {}
        """By message: whether to lose its answer as soon as the request was passed on, or when it is there; or
        to answer in its place, as a gateway does that waits no longer.
        """
        self.copies: dict[str, float] = {}
        """By message: after how many seconds it comes again."""
        self.repeats: dict[str, str] = {}
        """By message: when the proxy sends it again, of its own. `request`, as soon as it was passed on; `answer`, when
        the answer is there, which is lost; `503`: when the agent has answered that.
        """
        self.proxies: dict[str, Proxy] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.wrote_copy = wrote_copy

    def rule(self, one: str, other: str) -> Rule | None:
        """Return what is done to the traffic of two."""
        return next((rule for rule in self.rules if rule.pair == {one, other}), None)

    def begin(self, rule: Rule) -> None:
        """Begin to apply a rule; connections that exist are cut off, if it says so."""
        self.rules.append(rule)
        if rule.way == "cut":
            self._abort(rule.pair)

    def end(self, rule: Rule) -> None:
        """Stop applying a rule."""
        self.rules.remove(rule)
        if rule.way == "hang" and not rule.late:
            self._abort(rule.pair)
        rule.over.set()

    def _abort(self, pair: frozenset[str]) -> None:
        for proxy in self.proxies.values():
            for line in list(proxy.lines):
                if {proxy.name, line.sender} == pair:
                    line.abort()

    def start(self, work: asyncio.Task[None]) -> None:
        """Keep a task."""
        self.tasks.add(work)
        work.add_done_callback(self.tasks.discard)

    async def aclose(self) -> None:
        """End all of it."""
        for proxy in self.proxies.values():
            proxy.refuse()
            proxy.reserved.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class Proxy:
    """In front of one agent."""

    def __init__(self, network: Network, name: str) -> None:
        """Choose a port, and keep it: nobody listens there yet."""
        self.network = network
        self.name = name
        self.lines: set[_Line] = set()
        self.target = 0
        """The agent's own port; 0: it has none, and nothing is passed on."""
        self._server: asyncio.Server | None = None
        self.reserved = _bound(0)
        self.port: int = self.reserved.getsockname()[1]
        network.proxies[name] = self

    @property
    def url(self) -> str:
        """Where others reach the agent."""
        return f"http://127.0.0.1:{self.port}"

    async def accept(self) -> None:
        """Listen."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, sock=_bound(self.port), backlog=512
            )

    def refuse(self) -> None:
        """Listen no more, and cut off all lines: whoever wants to connect is refused."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for line in list(self.lines):
            line.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(reader, writer)
        self.lines.add(line)
        task = asyncio.current_task()
        assert task is not None
        self.network.start(task)
        try:
            await self._carry(line)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            line.abort()
            self.lines.discard(line)

    async def _carry(self, line: _Line) -> None:
        answers: asyncio.Task[None] | None = None
        try:
            while data := await line.reader.read(_READ):
                if line.up is None:
                    line.sender = _found(_FROM, data)
                hop = _found(_HOP, data) if data.startswith(b"POST ") else ""
                if not await self._let_pass(line) or not self.target:
                    return
                if hop in self.network.repeats:
                    data = await _whole(line.reader, data)
                    carrying = await self._repeat(line, data, self.network.repeats.pop(hop))
                    if carrying is not None:
                        if answers is not None:
                            answers.cancel()
                        answers = carrying
                        continue
                if line.up is None:
                    back, line.up = await asyncio.open_connection("127.0.0.1", self.target)
                    answers = asyncio.create_task(self._carry_back(line, back))
                if hop in self.network.lost or hop in self.network.copies:
                    data = await _whole(line.reader, data)
                    self._treat(line, hop, data)
                line.up.write(data)
                if line.loses:
                    self._lose(line, self.network.lost.pop(hop, ""))
                await line.up.drain()
            if line.loses and answers is not None:
                await answers  # the agent goes on; nobody listens
        finally:
            if answers is not None:
                answers.cancel()

    async def _repeat(self, line: _Line, data: bytes, when: str) -> asyncio.Task[None] | None:
        """Send a request that is to be sent again; returns what carries back its answer, if it is not."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
        writer.write(data)
        first = b"" if when == "request" else await reader.read(_READ)
        if when == "503" and not first.startswith((b"HTTP/1.1 502", b"HTTP/1.1 503")):
            if line.up is not None:
                line.up.transport.abort()
            line.up = writer
            line.writer.write(first)
            return asyncio.create_task(self._carry_back(line, reader))
        self.network.start(asyncio.create_task(_listen(reader, writer)))
        return None

    def _lose(self, line: _Line, when: str) -> None:
        """Lose the answer to what was passed on, now or when it is there; or answer in its place."""
        if when == "request":
            line.writer.transport.abort()
        elif when == "gateway":
            line.writer.write(_BAD_GATEWAY)
            line.writer.close()

    def _treat(self, line: _Line, hop: str, data: bytes) -> None:
        network = self.network
        line.loses = hop in network.lost
        if hop in network.copies:
            copying = self._copy(hop, data, network.copies.pop(hop))
            network.start(asyncio.create_task(copying))

    async def _carry_back(self, line: _Line, back: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await back.read(_READ):
                if line.loses:
                    line.writer.transport.abort()
                elif not await self._let_pass(line):
                    break
                else:
                    line.writer.write(data)
                    await line.writer.drain()
        if not line.loses:
            line.abort()

    async def _let_pass(self, line: _Line) -> bool:
        """Do what is wrong with this line; gives whether what is on it goes on."""
        while (rule := self.network.rule(self.name, line.sender)) is not None:
            if rule.way == "cut":
                line.abort()
                return False
            if rule.way == "slow":
                await asyncio.sleep(_SLOW_SECONDS)
                return True
            await rule.over.wait()
        return not line.writer.transport.is_closing() or line.loses

    async def _copy(self, hop: str, data: bytes, seconds: float) -> None:
        """Bring a message again, as a network may that has kept it."""
        await asyncio.sleep(seconds)
        if not self.target:
            return
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                writer.write(data)
                status = (await reader.readline()).split()
                self.network.wrote_copy(hop, int(status[1]) if len(status) > 1 else 0)
            finally:
                writer.transport.abort()


async def _listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read an answer that nobody gets."""
    try:
        with contextlib.suppress(OSError):
            while await reader.read(_READ):
                pass
    finally:
        writer.transport.abort()


def _found(pattern: re.Pattern[bytes], data: bytes) -> str:
    found = pattern.search(data)
    return "" if found is None else found[1].decode()


async def _whole(reader: asyncio.StreamReader, data: bytes) -> bytes:
    """Read the rest of a request."""
    head, _, body = data.partition(_HEAD_END)
    length = _LENGTH.search(head)
    missing = int(length[1]) - len(body) if length is not None else 0
    return data + await reader.readexactly(missing) if missing > 0 else data


def _bound(port: int) -> socket.socket:
    """Bind a port that others of this process may bind as well."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made
