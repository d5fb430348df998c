"""What SIGTERM does to an ASGI app, by server: bare, and with the middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from tests.adapters.asgi import kit as asgi_kit
from tests.adapters.asgi.kit import serve
from tests.adapters.known_faults import KnownFaults

if TYPE_CHECKING:
    from tests.adapters.known_faults import Way

_SHORT_ARGUMENTS = {  # the server's own time for open requests, made short
    "uvicorn": ("--timeout-graceful-shutdown", "1"),
    "hypercorn": ("--graceful-timeout", "1"),
}
_STILL_RUNS_SECONDS = 3.0
_LONGER_SECONDS = 1.6  # than those of the servers above


def _server(kind: str) -> str:
    return kind.partition("-")[0]


async def _exit_code(server: asgi_kit.Server) -> int | None:
    with anyio.move_on_after(_STILL_RUNS_SECONDS):
        return await server.exit_code()
    return None


async def _terminated(server: asgi_kit.Server, way: Way) -> None:
    """Send SIGTERM, and wait until the server has heard of it."""
    if way == "quiesce":
        await server.draining()
        return
    server.terminate()
    with anyio.move_on_after(_STILL_RUNS_SECONDS):
        await server.deaf()


async def background(kind: str, way: Way) -> str | None:
    """A task that a request has started runs on."""
    async with serve(kind, way, grace=5) as server:
        assert (await server.get("/background")).status == 202
        work = await server.begun("background")
        await _terminated(server, way)
        if way == "bare":
            await _exit_code(server)  # unless it waits for the work
        await work.go_on()
        code = await _exit_code(server)
        wrong = [] if "background done" in server.notes else ["work lost"]
        wrong += [] if code == 0 else [f"exit code {code}"]
        return ", ".join(wrong) or None


async def websocket(kind: str, way: Way) -> str | None:
    """A WebSocket's app is in the middle of an answer."""
    async with serve(kind, way, grace=8, hang_up=0.8) as server, server.connect() as client:
        assert await client.upgrade("/ws") == 101
        await client.say("answer")
        work = await server.begun("answer")
        await _terminated(server, way)
        await work.go_on()
        first = await client.frame()
        if first != ("text", "echo"):
            return "answer lost, " + ("cut" if first[0] == "cut" else f"close code {first[1]}")
        with anyio.move_on_after(_STILL_RUNS_SECONDS + 1):
            ended = await client.frame()
            return None if ended == ("close", 1001) else f"{ended[0]} {ended[1]}"
        return "runs on for ever"


async def events(kind: str, way: Way) -> str | None:
    """A stream of events never ends by itself."""
    arguments = _SHORT_ARGUMENTS["hypercorn"] if _server(kind) == "hypercorn" else ()
    async with serve(kind, way, *arguments, grace=0.4) as server, server.connect() as client:
        await client.ask("/endless")
        _, headers = await client.head()
        await server.noted("endless began")
        server.terminate()
        wrong = []
        with anyio.move_on_after(_STILL_RUNS_SECONDS) as waited:
            _, complete = await client.rest(headers)
            wrong += [] if complete else ["cut"]
        if waited.cancelled_caught:
            return "runs on for ever"
        code = await _exit_code(server)
        # Granian's main process exits with 0 whatever its workers say.
        told = code == 1 or (code == 0 and _server(kind) == "granian" and way == "quiesce")
        return ", ".join(wrong + ([] if told else [f"exit code {code}"])) or None


async def refused(kind: str, way: Way) -> str | None:
    """A client goes on using its connection while a slow request is served."""
    async with (
        serve(kind, way, grace=8) as server,
        server.connect() as kept,
        server.connect() as slow,
    ):
        assert (await kept.get("/pid")).status == 200
        await slow.ask("/slow")
        await server.begun("slow")
        await _terminated(server, way)
        try:
            answer = await kept.get("/pid")
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return "closed without a word"
        if answer.status == 503 and "retry-after" in answer.headers:
            return None
        return f"answered with {answer.status}"


async def grace(kind: str, way: Way) -> str | None:
    """The load balancer has not found out yet, and sends a new request."""
    async with serve(kind, way, grace=8, notice=5) as server, server.connect() as slow:
        await slow.ask("/slow")
        await server.begun("slow")
        await _terminated(server, way)
        try:
            answer = await server.get("/pid")
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return "connection refused"
        return None if answer.status == 200 else f"answered with {answer.status}"


async def longer(kind: str, way: Way) -> str | None:
    """A request takes longer than the server itself would wait."""
    arguments = _SHORT_ARGUMENTS[_server(kind)]
    async with serve(kind, way, *arguments, grace=5) as server, server.connect() as client:
        await client.ask("/slow")
        work = await server.begun("slow")
        server.terminate()
        try:
            with anyio.move_on_after(_LONGER_SECONDS):
                return f"status {(await client.head())[0]}"
            await work.go_on()
            status, headers = await client.head()
            body, complete = await client.rest(headers)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return "cut"
        return None if (status, body, complete) == (200, b"slow", True) else f"status {status}"


_ROWS: dict[str, Any] = {
    "SIGTERM while a background task runs": background,
    "SIGTERM while a WebSocket is being answered": websocket,
    "SIGTERM while a stream of events is open": events,
    "a request on a kept connection after SIGTERM": refused,
    "a new connection while load balancers find out": grace,
    "SIGTERM while a request runs for longer than the server waits": longer,
}
_OFTEN = ("background", "websocket", "events")  # on every event loop


def build(server: str) -> KnownFaults:
    """Make the known faults of one server."""
    known_fault = KnownFaults()
    for kind in asgi_kit.kinds(server):
        for name, scenario in _ROWS.items():
            loop = kind.partition("-")[2]
            absent = (
                loop == "worker"  # its app hears nothing before the lifespan ends: a case tells
                or (loop == "trio" and scenario is background)  # a nursery waits for it there
                or (server == "granian" and scenario is longer)  # it waits for ever, or kills
            )
            if absent or (loop and scenario.__name__ not in _OFTEN):
                continue

            async def run(way: Way, kind: str = kind, scenario: Any = scenario) -> str | None:
                found: str | None = await scenario(kind, way)
                return found

            known_fault(f"{name} ({loop})" if loop else name, seconds=12)(run)
    return known_fault
