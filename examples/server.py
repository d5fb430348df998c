"""A TCP server that drains on SIGTERM: it takes no more visitors, and answers those it has.

`python examples/server.py` plays it through: two visitors come, then SIGTERM, then a third one.
`python examples/server.py 8000` serves on that port until it gets a signal.
"""

import asyncio
import os
import signal
import sys

import quiesce


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one visitor, slowly."""
    name = (await reader.readline()).decode().strip()
    writer.write(b"one moment, please\n")
    await asyncio.sleep(0.3)
    writer.write(f"hello, {name}\n".encode())
    await writer.drain()
    writer.close()


async def serve(port: int, visitors: int) -> None:
    """Serve until a drain begins; with `visitors`, play that many visitors and then a signal."""
    async with quiesce.Scope("server") as scope:

        def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                scope.spawn(answer, reader, writer)
            except quiesce.ScopeClosed:
                writer.close()  # it came in the moment in which the drain began

        server = await asyncio.start_server(welcome, "127.0.0.1", port)
        port = server.sockets[0].getsockname()[1]
        if visitors:
            scope.spawn(play, port, visitors)
        await scope.closing()
        server.close()
        print("server: no more visitors, please", flush=True)


async def visit(port: int, name: str, arrived: asyncio.Event) -> None:
    """Visit the server, and print the answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{name}\n".encode())
        await reader.readuntil()
        arrived.set()
        print(f"{name}: {(await reader.readuntil()).decode().strip()}", flush=True)
        writer.close()
    except (OSError, asyncio.IncompleteReadError):
        print(f"{name}: the server takes no more visitors", flush=True)


async def play(port: int, visitors: int) -> None:
    """Play the visitors, then send SIGTERM, then play one visitor more."""
    async with quiesce.Scope("visitors") as scope:
        for number in range(1, visitors + 1):
            arrived = asyncio.Event()
            scope.spawn(visit, port, f"visitor {number}", arrived)
            await arrived.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await scope.closing()
        await visit(port, "latecomer", asyncio.Event())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        quiesce.run(serve, int(sys.argv[1]), 0, grace=10)
    else:
        quiesce.run(serve, 0, 2, grace=10)
