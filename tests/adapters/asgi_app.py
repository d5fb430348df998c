"""A small ASGI app that notes what becomes of its work, bare or wrapped; served by the rows and cases.

What it does is in the environment: `ASGI_RECORD` is the file for its notes, `ASGI_QUIESCE` has the options of
`Quiesce` as JSON (absent: the app alone).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import anyio

import quiesce
from quiesce.integrations.asgi import Quiesce
from tests.adapters.asgi_time import pause

_RECORD = Path(os.environ["ASGI_RECORD"])
_EVENTS = [(b"content-type", b"text/event-stream")]
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")


def note(text: str) -> None:
    """Write down that something happened."""
    with _RECORD.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class Noted:
    """Notes how a piece of work ended."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        note(f"{self._name} began")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        note(f"{self._name} {'done' if kind is None else 'cut'}")


async def _background(seconds: float) -> None:
    with Noted("background"):
        await pause(seconds)


async def _answer(send: Any, body: bytes, status: int = 200) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": length})
    await send({"type": "http.response.body", "body": body})


async def _event(send: Any, text: str) -> None:
    body = f"data: {text}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _http(scope: Any, receive: Any, send: Any) -> None:
    path, seconds = scope["path"], float(scope["query_string"] or 0)
    if path == "/pid":
        await _answer(send, str(os.getpid()).encode())
    elif path == "/background":
        asyncio.create_task(_background(seconds))  # noqa: RUF006 - that is what goes wrong
        await _answer(send, b"accepted", 202)
    elif path == "/slow":
        with Noted("slow"):
            await pause(seconds)
            await _answer(send, b"slow")
    elif path == "/stream":
        with Noted("stream"):
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
            for number in range(5):
                await _event(send, str(number))
                await pause(seconds / 5)
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
            await pause(float(message["text"]))
            await send({"type": "websocket.send", "text": "echo"})


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    note("startup")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    note("shutdown")
    await send({"type": "lifespan.shutdown.complete"})


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Be the app."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await _websocket(scope, receive, send)
    else:
        await _http(scope, receive, send)


_OPTIONS = os.environ.get("ASGI_QUIESCE")
app: Any = bare if _OPTIONS is None else Quiesce(bare, **json.loads(_OPTIONS))
