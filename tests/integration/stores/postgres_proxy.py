"""A proxy before a server, which counts questions, loses answers, holds them back, or speaks TLS."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

_SSL_REQUEST = 8  # bytes


class PostgresProxy:
    """What the proxy does with the next bytes."""

    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self.server_port = port
        self.tls = tls
        self.port = 0
        self.is_asked: Callable[[bytes], bool] = lambda _: False
        """Says for which question the answer is to be lost, with the connection."""
        self.holds = False
        """Whether answers are held back for good."""
        self.questions = 0
        self.lost = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.tls is not None:
                await reader.readexactly(_SSL_REQUEST)
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self.tls)
            upstream, server = await asyncio.open_connection("127.0.0.1", self.server_port)
            loses = False

            async def ask() -> None:
                nonlocal loses
                while said := await reader.read(65536):
                    self.questions += 1
                    loses = loses or self.is_asked(said)
                    server.write(said)
                    await server.drain()

            async def answer() -> None:
                while said := await upstream.read(65536):
                    if loses:
                        self.lost += 1
                        return
                    if not self.holds:
                        writer.write(said)
                        await writer.drain()

            parts = [asyncio.ensure_future(ask()), asyncio.ensure_future(answer())]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
                server.close()
        except (OSError, EOFError, asyncio.CancelledError):  # by `close`, which waits for the end
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def close(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def proxy(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[PostgresProxy]:
    """Run a proxy before the server on this port."""
    made = PostgresProxy(port, tls)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listener.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listener.close()
        await made.close()
