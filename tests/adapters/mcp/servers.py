"""The servers that the tests of MCP talk to, and how to reach them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import mcp
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

PLAIN = Path(__file__).with_name("plain_server.py")
WITH_THE_SDK = Path(__file__).with_name("sdk_server.py")


def plain_server(*options: str) -> Any:
    """Return what starts the server without the SDK."""
    args = ["-I", "-S", str(PLAIN), *options]
    # All of the environment: it has the marks by which tests know what was started by whom.
    return mcp.StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))


def real(*options: str) -> Any:
    """Return what starts the server that is written with the SDK."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return mcp.StdioServerParameters(
        command=sys.executable, args=[str(WITH_THE_SDK), *options], env=env
    )


@contextmanager
def listening(*options: str, program: Path = PLAIN) -> Iterator[str]:
    """Run a server over HTTP, and give its URL."""
    flags = ["-I", "-S"] if program == PLAIN else []
    argv = [sys.executable, *flags, str(program), "--http", *options]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for something in this process that tells nobody; False if it does not come."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.lowlevel.checkpoint()
        return True
    return False


class Notes:
    """What a server has written down, to a pipe with a name."""

    def __init__(self, path: str) -> None:
        """Read from there."""
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._read = b""
        self.options = ("--notes", path)

    def lines(self) -> list[str]:
        """Return what there is."""
        with suppress(BlockingIOError):
            while True:
                self._read += os.read(self._fd, 1 << 16)
        return self._read.decode().splitlines()

    async def wait_for(self, text: str, seconds: float = 5.0) -> bool:
        """Wait for a line with this text; False if it does not come."""
        with anyio.move_on_after(seconds):
            while not any(text in line for line in self.lines()):
                await anyio.wait_readable(self._fd)
            return True
        return False

    def close(self) -> None:
        """Read no more."""
        os.close(self._fd)


@contextmanager
def notes() -> Iterator[Notes]:
    """Return a file in which a server may write what it does."""
    with tempfile.TemporaryDirectory() as folder, closing(Notes(f"{folder}/notes")) as found:
        yield found


@asynccontextmanager
async def bare_stdio(params: Any, errlog: IO[str], **options: Any) -> AsyncIterator[Any]:
    """Connect with the SDK alone, as its documentation does."""
    async with (
        stdio_client(params, errlog=errlog) as (read, write),
        mcp.ClientSession(read, write, **options) as session,
    ):
        await session.initialize()
        yield session


@asynccontextmanager
async def bare_http(url: str, **options: Any) -> AsyncIterator[Any]:
    """Connect with the SDK alone, over HTTP."""
    async with (
        streamable_http_client(url) as streams,
        mcp.ClientSession(*streams[:2], **options) as session,
    ):
        await session.initialize()
        yield session
