"""A uvicorn with a small app, bare or in a middleware, for `benchmarks.asgi`; prints its port.

`GET /cpu` returns the processor time of the process so far. A client that asks before and after some
requests gets the time of the requests, without the load of other processes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import TYPE_CHECKING

import uvicorn
from starlette.middleware.base import BaseHTTPMiddleware

from quiesce.integrations.asgi import Quiesce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.core.asgi_types import App, AsgiScope, Receive, Send

EVENTS = 100
_EVENT = {"type": "http.response.body", "body": b"data: something\n\n", "more_body": True}
_TEXT = (b"content-type", b"text/plain")
_STREAM = (b"content-type", b"text/event-stream")


async def app(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Answer with a greeting, a stream of events, or the processor time."""
    if scope["type"] == "lifespan":
        for stage in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{stage}.complete"})
        return
    if scope["path"] == "/events":
        await send({"type": "http.response.start", "status": 200, "headers": [_STREAM]})
        for _ in range(EVENTS):
            await send(_EVENT)
        await send({"type": "http.response.body", "body": b""})
        return
    body = f"{time.process_time()} s".encode() if scope["path"] == "/cpu" else b"hello"
    headers = [_TEXT, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _pass_on(request: object, call_next: Callable[[object], Awaitable[object]]) -> object:
    return await call_next(request)


async def _in_a_task(scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Run the app in a task of its own, as a server that must survive the app's failure does."""
    await asyncio.create_task(app(scope, receive, send))


WAYS: dict[str, Callable[[], App]] = {
    "bare": lambda: app,
    "quiesce": lambda: Quiesce(app),
    "a task": lambda: _in_a_task,
    "BaseHTTPMiddleware": lambda: BaseHTTPMiddleware(app, dispatch=_pass_on),
}


def main() -> None:
    """Serve as the command line says, until a signal comes."""
    way, backend = sys.argv[1:]
    # With the protocol named: only then asyncio sets TCP_NODELAY on accepted sockets.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            WAYS[way](),
            loop=backend,
            log_level="error",
            access_log=False,
            timeout_keep_alive=600,  # the connection is idle while other servers are measured
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
