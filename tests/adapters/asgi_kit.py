"""Real servers in processes of their own, and a client that sees how a connection ends."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import quiesce
from tests.adapters.asgi_time import pause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.adapters.rows import Way

ROOT = Path(__file__).parents[2]
_SOURCE = Path(quiesce.__file__).parents[1]  # as it is tested here
APP = "tests.adapters.asgi_app:app"
# In the background of a shell script SIGINT is ignored, also by what is started here; the servers have
# to begin as they do elsewhere.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_START_SECONDS = 8.0
_LOOK_SECONDS = 0.01
_END_SECONDS = 3.0
_COMMANDS = {
    "uvicorn": ["uvicorn", APP, "--port", "{port}"],
    "uvicorn-uvloop": ["uvicorn", APP, "--port", "{port}", "--loop", "uvloop"],
    "hypercorn": ["hypercorn", APP, "-b", "127.0.0.1:{port}", "-w", "0"],
    "hypercorn-uvloop": ["hypercorn", APP, "-b", "127.0.0.1:{port}", "-w", "0", "-k", "uvloop"],
    "hypercorn-trio": ["hypercorn", APP, "-b", "127.0.0.1:{port}", "-w", "0", "-k", "trio"],
    "hypercorn-worker": ["hypercorn", APP, "-b", "127.0.0.1:{port}", "-w", "1"],
    "granian": ["granian", "--interface", "asgi", APP, "--port", "{port}", "--loop", "asyncio"],
    "granian-uvloop": ["granian", "--interface", "asgi", APP, "--port", "{port}", "--loop", "uvloop"],
}  # fmt: skip


def installed() -> str:
    """Name the server that is on the path: a subject has one."""
    return next(
        name for name in ("hypercorn", "granian", "uvicorn") if importlib.util.find_spec(name)
    )


def kinds(server: str) -> list[str]:
    """Name the ways in which a server is run."""
    return [kind for kind in _COMMANDS if kind.partition("-")[0] == server]


@dataclass
class Server:
    """A server process."""

    process: subprocess.Popen[bytes]
    port: int
    record: Path
    log: Path

    @property
    def notes(self) -> list[str]:
        """What the app has noted so far."""
        return self.record.read_text("utf-8").splitlines() if self.record.exists() else []

    async def noted(self, text: str) -> None:
        """Wait until the app has noted something."""
        while text not in self.notes:
            await pause(_LOOK_SECONDS)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    async def exit_code(self) -> int:
        """Wait for the end; gives the exit code, negative for a signal."""
        return await anyio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    async def get(self, path: str, *, client: Client | None = None) -> Response:
        """Get a path, in full, over a connection of its own or over one that is kept."""
        if client is not None:
            return await client.get(path)
        async with self.connect() as own:
            return await own.get(path)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """Open a connection."""
        stream = await anyio.connect_tcp("127.0.0.1", self.port)
        try:
            yield Client(stream)
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    def errors(self) -> str:
        """What the server has written to its log."""
        return self.log.read_text("utf-8")


@dataclass
class Response:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool


class Client:
    """One connection, of HTTP/1.1."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._data = b""

    async def ask(self, path: str, **headers: str) -> None:
        """Send a request."""
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\n{extra}\r\n"
        await self._stream.send(head.encode())

    async def half(self, path: str) -> None:
        """Send half of a request."""
        await self._stream.send(f"GET {path} HTT".encode())

    async def until(self, mark: bytes) -> bytes:
        """Read up to a mark, and past it."""
        while mark not in self._data:
            self._data += await self._stream.receive()
        found, _, self._data = self._data.partition(mark)
        return found

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of a response."""
        first, *lines = (await self.until(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            key.lower(): value.strip() for key, _, value in (x.partition(":") for x in lines)
        }
        return int(first.split()[1]), headers

    async def rest(self, headers: dict[str, str]) -> tuple[bytes, bool]:
        """Read the body, to its end or where it was cut; tells which."""
        body = b""
        try:
            if "content-length" in headers:
                while len(self._data) < int(headers["content-length"]):
                    self._data += await self._stream.receive()
                length = int(headers["content-length"])
                body, self._data = self._data[:length], self._data[length:]
                return body, True
            while size := int(await self.until(b"\r\n"), 16):
                while len(self._data) < size + 2:
                    self._data += await self._stream.receive()
                body, self._data = body + self._data[:size], self._data[size + 2 :]
            await self.until(b"\r\n")
        except (anyio.EndOfStream, anyio.BrokenResourceError, ValueError):
            return body, False
        return body, True

    async def get(self, path: str) -> Response:
        """Get a path, in full."""
        await self.ask(path)
        status, headers = await self.head()
        return Response(status, headers, *await self.rest(headers))

    # WebSockets, as little as is needed.

    async def upgrade(self, path: str) -> int:
        """Ask for a WebSocket; gives the status."""
        await self.ask(
            path,
            upgrade="websocket",
            connection="Upgrade",
            sec_websocket_key="AAAAAAAAAAAAAAAAAAAAAA==",
            sec_websocket_version="13",
        )
        status, _ = await self.head()
        return status

    async def say(self, text: str) -> None:
        """Send a text, masked by zeros."""
        data = text.encode()
        await self._stream.send(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data)

    async def frame(self) -> tuple[str, object]:
        """Read a frame: a text, a close with its code, or the cut of the connection."""
        try:
            while len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
                self._data += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return "cut", None
        code, length = self._data[0] & 15, self._data[1]
        payload, self._data = self._data[2 : 2 + length], self._data[2 + length :]
        if code == 8:
            number = int.from_bytes(payload[:2], "big")
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._stream.send(bytes([0x88, 0x82, 0, 0, 0, 0]) + payload[:2])
            return "close", number
        return "text", payload.decode()


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(kind: str, way: Way, arguments: tuple[str, ...], options: Any, folder: str) -> Server:
    port, record, errors = free_port(), Path(folder, "record"), Path(folder, "errors")
    command = [sys.executable, "-m", *(part.format(port=port) for part in _COMMANDS[kind])]
    env = os.environ | {"ASGI_RECORD": str(record), "PYTHONUNBUFFERED": "1"}
    if way == "quiesce":
        env["ASGI_QUIESCE"] = json.dumps(options)
    path = [str(ROOT), str(_SOURCE), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    with errors.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, *arguments], env=env, cwd=folder,
            stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
        )  # fmt: skip
    return Server(process, port, record, errors)


@asynccontextmanager
async def serve(kind: str, way: Way, *arguments: str, **options: Any) -> AsyncIterator[Server]:
    """Run a server; it is killed in the end if it still runs, with all that it has started."""
    with tempfile.TemporaryDirectory() as folder:
        server = _start(kind, way, arguments, options, folder)
        try:
            await _listening(server)
            yield server
        finally:
            _kill(server.process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and all in its group, and see them gone."""
    until = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            threading.Event().wait(_LOOK_SECONDS)
    process.wait()


async def _listening(server: Server) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            async with server.connect():
                return
        except OSError:
            if server.process.poll() is not None or time.monotonic() > until:
                message = f"the server did not start:\n{server.errors()}"
                raise AssertionError(message) from None
            await pause(0.02)
