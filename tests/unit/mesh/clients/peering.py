"""A peer behind a real socket, in a thread of its own, and programs that send to it."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from quiesce.mesh import Node
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import Alone
from tests.unit.mesh.meshing import HASTE, Lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

_ALONE = Alone("peer")


@dataclass(frozen=True)
class Request:
    """What a peer was sent."""

    method: str
    path: str
    edge: str | None
    headers: dict[str, str]


@dataclass
class Peer:
    """A peer that has done each message when it answers.

    What it does is up to the path: `/drop` is not answered, `/silent` without a receipt, `/redirect/URL` leads
    elsewhere.
    """

    url: str
    requests: list[Request] = field(default_factory=list)

    @property
    def edges(self) -> list[str | None]:
        """What it was handed, request by request."""
        return [request.edge for request in self.requests]

    @property
    def address(self) -> tuple[str, int]:
        """Where its socket is."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


@contextmanager
def peer(bodies: Mapping[str, bytes] | None = None) -> Iterator[Peer]:
    """Serve a peer until the end of the block; `bodies` are what it answers, by path."""
    host = "127.0.0.1"

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            headers = dict(self.headers.items())
            edge = self.headers.get("Cascade")
            served.requests.append(Request(self.command, self.path, edge, headers))
            if self.path == "/drop":
                self.close_connection = True
                return
            if self.path.startswith("/redirect/"):
                self.send_response(307)
                self.send_header("Location", self.path.removeprefix("/redirect/"))
            else:
                self.send_response(200)
            if edge is not None and self.path != "/silent":
                handed = codec.parse_request_header(edge)
                packed = _ALONE.packed(handed.edge, handed.parent, 1)
                self.send_header("Cascade-Receipt", codec.closed_header(handed.edge, packed))
            body = (bodies or {}).get(self.path, b"")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_HEAD = _answer  # noqa: N815 - the library's names

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # each is waited for

    with Server((host, 0), Handler) as server:
        served = Peer(f"http://{host}:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="peer")
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def sender(*peers: Peer, **options: Any) -> AsyncIterator[Node]:
    """Open a node that knows some peers."""
    given: dict[str, Any] = {
        "peers": [one.url for one in peers],
        "patience": HASTE,
        "transport": Lines(),
    }
    async with Node("sender", **(given | options)) as node:
        yield node
