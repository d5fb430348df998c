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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import quiesce
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.adapters.known_faults import Way

ROOT = Path(__file__).parents[3]
_SOURCE = Path(quiesce.__file__).parents[1]  # as it is tested here
APP = "tests.adapters.asgi.app:app"

_START_SECONDS = 8.0
_LOOK_SECONDS = 0.01  # between two looks at whether all that was killed is gone
_READ_BYTES = 4096
_NO_LIFESPAN = ("off", "asginl")
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


class Work:
    """A piece of the app's work that has begun, and waits for our word."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.name = ""
        self.seen = False

    async def go_on(self) -> None:
        """Let it go on; it may be gone."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.stream.send(b"go on")


@dataclass
class Server:
    """A server process, and what its app tells us."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    mailbox: int
    stage: Any
    _text: str = ""
    _works: list[Work] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What the app has noted so far, its import apart."""
        return [note for note in self._read() if note != "imported"]

    def _read(self) -> list[str]:
        with suppress(BlockingIOError):
            while True:
                self._text += os.read(self.mailbox, _READ_BYTES).decode()
        return self._text.split("\n")[:-1]

    async def noted(self, text: str, times: int = 1) -> None:
        """Wait until the app has noted something, so many times."""
        while self._read().count(text) < times:
            await anyio.wait_readable(self.mailbox)

    async def begun(self, name: str) -> Work:
        """Wait until some work of the app has begun; it goes on when it is told to."""
        while True:
            for work in self._works:
                if work.name == name and not work.seen:
                    work.seen = True
                    return work
            stream = await self.stage.accept()
            self._works.append(Work(stream))
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):  # cancelled just then
                self._works[-1].name = (await stream.receive()).decode()

    async def let_all_go_on(self) -> None:
        """Let all work go on as soon as it has begun, for ever."""
        while True:
            async with await self.stage.accept() as stream:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    await stream.receive()
                    await stream.send(b"go on")

    async def close(self) -> None:
        """Close our side."""
        os.close(self.mailbox)
        for work in self._works:
            await work.stream.aclose()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    async def draining(self) -> None:
        """Send SIGTERM, and wait until the app knows."""
        self.terminate()
        while (await self.get("/quiesce/ready")).status != 503:
            await anyio.lowlevel.checkpoint()

    async def deaf(self) -> None:
        """Wait until the server does not listen any more: it has heard of the signal."""
        while True:
            try:
                async with self.connect():
                    await anyio.lowlevel.checkpoint()
            except OSError:
                return

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
        self.stream = stream
        self._data = b""

    async def ask(self, path: str, **headers: str) -> None:
        """Send a request."""
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\n{extra}\r\n"
        await self.stream.send(head.encode())

    async def half(self, path: str) -> None:
        """Send half of a request."""
        await self.stream.send(f"GET {path} HTT".encode())

    async def until(self, mark: bytes) -> bytes:
        """Read up to a mark, and past it."""
        while mark not in self._data:
            self._data += await self.stream.receive()
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
                    self._data += await self.stream.receive()
                length = int(headers["content-length"])
                body, self._data = self._data[:length], self._data[length:]
                return body, True
            while size := int(await self.until(b"\r\n"), 16):
                while len(self._data) < size + 2:
                    self._data += await self.stream.receive()
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
        await self.stream.send(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data)

    async def frame(self) -> tuple[str, object]:
        """Read a frame: a text, a close with its code, or the cut of the connection."""
        try:
            while len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
                self._data += await self.stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return "cut", None
        code, length = self._data[0] & 15, self._data[1]
        payload, self._data = self._data[2 : 2 + length], self._data[2 + length :]
        if code == 8:
            number = int.from_bytes(payload[:2], "big")
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self.stream.send(bytes([0x88, 0x82, 0, 0, 0, 0]) + payload[:2])
            return "close", number
        return "text", payload.decode()


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    kind: str, way: Way, arguments: tuple[str, ...], options: Any, folder: str
) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    app, subject = options.pop("app", APP), options.pop("subject", None)
    command = [part.format(port=port).replace(APP, app) for part in _COMMANDS[kind]]
    env = os.environ | {
        "ASGI_NOTES": str(Path(folder, "notes")),
        "ASGI_STAGE": str(Path(folder, "stage")),
        "PYTHONUNBUFFERED": "1",
    }
    if not options.pop("logs", True):
        env["ASGI_NO_LOGS"] = "1"
    if way == "quiesce":
        env["ASGI_QUIESCE"] = json.dumps(options)
    shared = [] if subject is None else subjects.folders(subject)
    path = [str(ROOT), str(_SOURCE), *shared, *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    with Path(folder, "errors").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, *arguments], env=env, cwd=folder,
            stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
        )  # fmt: skip
    return process, port


@asynccontextmanager
async def serve(kind: str, way: Way, *arguments: str, **options: Any) -> AsyncIterator[Server]:
    """Run a server; it is killed in the end if it still runs, with all that it has started.

    The options are those of `Quiesce`; `app` names another app than the usual, and `subject` the one that
    has its packages; without `logs` nothing configures logging, but the server its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(Path(folder, "notes"))
        mailbox = os.open(Path(folder, "notes"), os.O_RDWR | os.O_NONBLOCK)
        async with await anyio.create_unix_listener(Path(folder, "stage")) as stage:
            process, port = _start(kind, way, arguments, options, folder)
            server = Server(process, port, Path(folder, "errors"), mailbox, stage)
            try:
                has_lifespan = not set(_NO_LIFESPAN) & set(arguments)
                await _listening(server, "startup" if has_lifespan else "imported")
                yield server
            finally:
                _kill(process)
                with anyio.CancelScope(shield=True):
                    await server.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and all in its group, and see them gone."""
    until = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            threading.Event().wait(_LOOK_SECONDS)
    process.wait()


async def _listening(server: Server, sign: str) -> None:
    """Wait until the server listens; that is soon after its app has given a sign of life."""
    with anyio.move_on_after(_START_SECONDS):
        await server.noted(sign)
        while server.process.poll() is None:
            try:
                async with server.connect():
                    return
            except OSError:
                await anyio.lowlevel.checkpoint()
    message = f"the server did not start:\n{server.errors()}"
    raise AssertionError(message)
