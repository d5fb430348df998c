"""A small ASGI app that notes what becomes of its work, bare or wrapped; served by the tests of each server.

What it does is in the environment: `ASGI_NOTES` is the pipe that its notes go to, `ASGI_STAGE` the socket where
its work asks whether it may go on, `ASGI_QUIESCE` has the options of `Quiesce` as JSON (absent: the app alone).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import anyio

import quiesce
from quiesce.integrations.asgi import Quiesce

_EVENTS = [(b"content-type", b"text/event-stream")]
if "ASGI_NO_LOGS" not in os.environ:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")


def note(text: str) -> None:
    """Report to the test that something has happened."""
    with open(os.environ["ASGI_NOTES"], "ab", buffering=0) as pipe:  # noqa: PTH123 - no buffer
        pipe.write(f"{text}\n".encode())


async def stage(name: str) -> None:
    """Report to the test that some work has begun, and wait for its word."""
    async with await anyio.connect_unix(os.environ["ASGI_STAGE"]) as stream:
        await stream.send(name.encode())
        await stream.receive()


class Noted:
    """Notes how a piece of work ended."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        note(f"{self._name} began")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        note(f"{self._name} {'done' if kind is None else 'cut'}")


async def _tell_of_the_drain(scope: quiesce.Scope) -> None:
    await scope.closing()
    note("drain begins")


async def _background() -> None:
    with Noted("background"):
        await stage("background")


async def _deaf() -> None:
    """Go on, whatever the cancellation."""
    while True:
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()


@cache
def _pool() -> ProcessPoolExecutor:
    """Start the worker that lives as long as the app."""
    return ProcessPoolExecutor(1)


async def _answer(send: Any, body: bytes, status: int = 200) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": length})
    await send({"type": "http.response.body", "body": body})


async def _event(send: Any, text: str) -> None:
    body = f"data: {text}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _http(scope: Any, receive: Any, send: Any) -> None:
    path = scope["path"]
    if path == "/pid":
        await _answer(send, str(os.getpid()).encode())
    elif path == "/background":
        own = quiesce.current_scope()
        if own is not None:
            own.spawn(_tell_of_the_drain, own, service=True)
        asyncio.create_task(_background())  # noqa: RUF006 - that is what goes wrong
        await _answer(send, b"accepted", 202)
    elif path == "/deaf":
        asyncio.create_task(_deaf())  # noqa: RUF006 - likewise
        await _answer(send, b"accepted", 202)
    elif path == "/pool":
        loop = asyncio.get_running_loop()
        pid = await loop.run_in_executor(_pool(), os.getpid)
        await _answer(send, str(pid).encode())
    elif path == "/slow":
        with Noted("slow"):
            await stage("slow")
            await _answer(send, b"slow")
    elif path == "/after":
        await _answer(send, b"accepted", 202)
        with Noted("after"):
            await stage("after")
    elif path == "/stream":
        with Noted("stream"):
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
            await _event(send, "begun")
            await stage("stream")
            await send({"type": "http.response.body", "body": b"data: end\n\n"})
    elif path in {"/endless", "/polite", "/download"}:
        headers = [] if path == "/download" else _EVENTS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        with Noted(path[1:]):
            await _event(send, "begun")
            if path == "/polite":
                scope_of_request = quiesce.current_scope()
                assert scope_of_request is not None
                await scope_of_request.closing()
            else:
                await anyio.sleep_forever()
        await send({"type": "http.response.body", "body": b"data: bye\n\n"})
    else:
        await _answer(send, b"no such thing", 404)


async def _websocket(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    with Noted("websocket"):
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                note(f"websocket told {message.get('code')}")
                return
            await stage(message["text"])
            await send({"type": "websocket.send", "text": "echo"})


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    note("startup")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    note("shutdown")
    await send({"type": "lifespan.shutdown.complete"})


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Serve the lifespan, the websockets and the requests."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await _websocket(scope, receive, send)
    else:
        await _http(scope, receive, send)


note("imported")
_OPTIONS = os.environ.get("ASGI_QUIESCE")
app: Any = bare if _OPTIONS is None else Quiesce(bare, **json.loads(_OPTIONS))
