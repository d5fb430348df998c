"""An agent under uvicorn, plain or as part of a mesh, for `benchmarks.mesh`.

- `GET /cpu` returns the processor time of the process so far.
- `POST /work` answers at once.
- `POST /chain` answers, then works for a moment, then hands on to the next agent, if there is one.
- `GET /ended` returns when the last work of `/chain` ended.
- `GET /go` begins a cascade with a `/chain`, and returns when its verdict came.
- `GET /trip` returns how long an empty call to the named agent takes.

The ways "least" and "least in Python" do only what every participant has to do for a message. The ways that
begin with "a2a" serve an A2A agent at `/`, which completes each message at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from benchmarks._mesh_least import Least, Small
from quiesce.mesh import Node
from quiesce.mesh.protocol.codec import call_body
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.transport.http_transport import HttpTransport
from quiesce.mesh.transport.node_transport import RECEIPTS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

TRIPS = 20
_LEAST: dict[str, Any] = {"least": Least, "least in Python": Small}


class Agent:
    """The HTTP handlers of one process."""

    def __init__(self, node: Node | None, after: str) -> None:
        """Record the agent to hand on to, if there is one."""
        self._node = node
        self._after = after
        self._client: Any = None if node is None else node.client(trust_env=False)
        self._http = HttpTransport()
        self._ended = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def cpu(self, _: Request) -> Response:
        """Return the processor time."""
        return PlainTextResponse(str(time.process_time()))

    async def work(self, request: Request) -> Response:
        """Answer at once."""
        found = await request.json()
        return JSONResponse({"got": found["text"]})

    async def chain(self, _: Request) -> Response:
        """Answer, and go on working."""
        task = asyncio.create_task(self._go_on())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return PlainTextResponse("working", 202)

    async def _go_on(self) -> None:
        await asyncio.sleep(0.02)
        if self._after:
            await self._client.post(f"{self._after}/chain")
        self._ended = time.monotonic()

    async def ended(self, _: Request) -> Response:
        """Return when the last work ended."""
        return JSONResponse(self._ended)

    async def go(self, request: Request) -> Response:
        """Begin a cascade, and return when its verdict came."""
        assert self._node is not None
        async with self._node.cascade("bench") as cascade:
            await self._client.post(f"{request.query_params['to']}/chain")
        settlement = await cascade.settled(within=20)
        assert settlement.ok, str(settlement)
        return JSONResponse([time.monotonic(), settlement.receipt.hops])

    async def trip(self, request: Request) -> Response:
        """Return how many seconds a call to an agent takes."""
        found = []
        for _ in range(TRIPS):
            began = time.perf_counter()
            to = request.query_params["to"]
            await self._http.call(to, RECEIPTS, call_body(NodeCall(to, (), ())))
            found.append(time.perf_counter() - began)
        return JSONResponse(statistics.median(found))


def plain(node: Node | None, after: str) -> Any:  # noqa: ANN401 - an ASGI app
    """Return an HTTP server that takes part if there is a node."""
    agent = Agent(node, after)
    paths = ("cpu", "work", "chain", "ended", "go", "trip")
    app = Starlette(
        routes=[Route(f"/{path}", getattr(agent, path), methods=["GET", "POST"]) for path in paths]
    )
    return app if node is None else node.asgi(app)


def a2a(node: Node | None) -> Any:  # noqa: ANN401 - an ASGI app
    """Return an A2A server that takes part if there is a node."""
    from quiesce.integrations.a2a import MemoryOutbox, quiesce_app  # noqa: PLC0415 - of this way alone
    from tests.adapters.a2a import kit as a2a_kit  # noqa: PLC0415 - the same

    logging.disable(logging.CRITICAL)
    cpu = Route("/cpu", Agent(None, "").cpu, methods=["GET"])
    return quiesce_app(
        a2a_kit.Agent(), card=a2a_kit.card(), outbox=MemoryOutbox(), node=node, routes=[cpu]
    )


def main() -> None:
    """Serve as the command line says, until a signal comes."""
    options = json.loads(sys.argv[1])
    with socket.socket(fileno=options["listener"]) as listener:
        node = None
        if options["takes_part"]:
            node = Node(
                options["name"],
                url=options["url"],
                store=options["journal"],
                peers=options["peers"],
            )
        is_a2a = options["way"].startswith("a2a")
        app = a2a(node) if is_a2a else plain(node, options["after"])
        config = uvicorn.Config(
            _LEAST[options["way"]](app, options["journal"]) if options["way"] in _LEAST else app,
            loop="asyncio",
            log_level="error",
            access_log=False,
            timeout_keep_alive=600,  # the connection is idle while other servers are measured
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
