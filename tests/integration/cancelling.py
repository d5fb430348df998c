"""Agents in processes of their own, one of which is killed while its cascade is cancelled; see test_cancelling.py.

`agent NAME PORT FOLDER [NEXT]` serves; `root FOLDER all|direct` begins the cascade, and prints what it was told.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from quiesce.mesh import Node, Patience

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS_MAX = 60.0  # for any one step: a guard
_OFTEN = Patience(retry_first=0.05, retry_most=0.2, ask_in_doubt=0.1, ask_every=0.2)


async def serve(name: str, port: int, folder: Path, after: str | None) -> None:
    """Serve one agent: it hands each message on, or works on it until it is told to end."""
    door = socket.create_server(("127.0.0.1", port))
    url = f"http://127.0.0.1:{door.getsockname()[1]}"
    peers = [] if after is None else [after]
    node = Node(name, url=url, store=folder / f"{name}.journal", peers=peers, patience=_OFTEN)
    tasks: list[asyncio.Task[None]] = []

    async def work() -> None:
        note(folder, name, "working")
        try:
            await asyncio.Event().wait()
        finally:
            note(folder, name, "told to end")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive
        assert scope["type"] == "http"
        if after is None:
            tasks.append(asyncio.create_task(work()))
        else:
            async with node.client() as client:
                await client.post(after)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(uvicorn.Config(node.asgi(app), log_level="error", lifespan="on"))

    async def tell() -> None:
        await until(lambda: server.started)
        print(url, flush=True)  # noqa: T201 - for whoever has started it

    async with asyncio.TaskGroup() as group:
        group.create_task(tell())
        await server.serve(sockets=[door])


def note(folder: Path, name: str, what: str) -> None:
    """Write down what an agent does."""
    with (folder / f"{name}.log").open("a", encoding="utf-8") as log:
        log.write(f"{what}\n")


def notes(folder: Path, name: str) -> list[str]:
    """Read what an agent has written down."""
    path = folder / f"{name}.log"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start an agent, and wait until it serves; gives its process and address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.cancelling", "agent", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


async def until(fact: Callable[[], object]) -> None:
    """Wait for something of which nobody tells."""
    async with asyncio.timeout(_SECONDS_MAX):
        while not fact():  # noqa: ASYNC110 - of other processes, which tell nobody
            await asyncio.sleep(0.02)


async def begin(folder: Path, known: str) -> dict[str, Any]:
    """Begin a cascade by way of two agents, kill the first of them, cancel, and start it again."""
    last, last_url = start("last", "0", str(folder))
    middle, url = start("middle", "0", str(folder), last_url)
    peers = [url, last_url] if known == "all" else [url]
    try:
        node = Node("root", store=folder / "root.journal", peers=peers, patience=_OFTEN)
        async with node, node.client() as client:
            async with node.cascade("c") as cascade:
                await client.post(url)
            assert cascade._record is not None
            root, detector = cascade._record.edge, node.opened.engine.detector
            await until(lambda: last_url in [to for _, to in detector.known.follows(root)])
            middle.send_signal(signal.SIGKILL)
            middle.wait()
            await cascade.cancel()
            if known == "all":
                await until(lambda: "told to end" in notes(folder, "last"))
            early = await cascade.settled(3.0)
            async with asyncio.timeout(_SECONDS_MAX):
                while "told to end below it" not in str(
                    early
                ):  # a busy machine may not have looked
                    early = await cascade.settled(3.0)
            before = notes(folder, "last")
            middle, _ = start("middle", url.rpartition(":")[2], str(folder), last_url)
            found = await cascade.settled(_SECONDS_MAX)
            return {
                "early": str(early),
                "before": before,
                "verdict": type(found).__name__,
                "cancelled": found.receipt.cancelled,
                "after": notes(folder, "last"),
                "last": last_url,
                "middle": url,
            }
    finally:
        for process in (middle, last):
            process.kill()
            process.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["agent", name, port, folder, *after]:
            asyncio.run(serve(name, int(port), Path(folder), after[0] if after else None))
        case ["root", folder, known]:
            print(json.dumps(asyncio.run(begin(Path(folder), known))))  # noqa: T201 - for the test
