"""Measure the ASGI middleware: `python -m benchmarks.asgi`.

Four uvicorns with the same small app answer in turn: the bare app, the app in `Quiesce`, the app in a task of its
own, and the app in a `BaseHTTPMiddleware` of Starlette that does nothing. The figures use the servers' processor time,
because the time by the clock includes the client.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._command import Suite, run
from benchmarks._harness import BARE, OURS, Result, compare, interleave
from tests.adapters.catalogue import ADAPTERS, ROOT
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PEERS = ("a task", "BaseHTTPMiddleware")
_WAYS = (BARE, OURS, *PEERS)
_EVENTS = 100  # of one response, as in _asgi_worker
_SECONDS_MAX = 20.0
_END = {"/": b"hello", "/cpu": b" s", "/events": b"\r\n0\r\n\r\n"}
_LEAST = 0.7  # of the bare app's speed


@dataclass(frozen=True)
class AsgiSizes:
    """How much is measured of the middleware."""

    rounds: int
    requests: int

    def with_rounds(self, rounds: int) -> AsgiSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds)


class Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection(("127.0.0.1", port), _SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path: str) -> bytes:
        """Get a path, and return the whole answer."""
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        found = b""
        while b"\r\n\r\n" not in found or not found.endswith(_END[path]):
            more = self.socket.recv(65536)
            if not more:
                message = f"the server has ended in the middle of {path}"
                raise ConnectionError(message)
            found += more
        return found

    def cpu_seconds(self) -> float:
        """Return the server's processor time so far."""
        return float(self.get("/cpu").rpartition(b"\r\n\r\n")[2][:-2])


@contextmanager
def serving(way: str, backend: str) -> Iterator[Client]:
    """Run a server inside the block, and yield a connection to it."""
    command = [sys.executable, "-m", "benchmarks._asgi_worker", way, backend]
    subject = ADAPTERS["asgi_uvicorn"].subject(ADAPTERS["asgi_uvicorn"].versions[-1])
    with subprocess.Popen(  # noqa: S603 - our own
        command, cwd=ROOT, env=subjects.environment(subject), stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            client = Client(int(process.stdout.readline()))
            with client.socket:
                yield client
        finally:
            process.terminate()


def _piece(client: Client, path: str, count: int, unit: int, *, cpu: bool) -> float:
    """Make `count` requests; return microseconds a request, or an event."""
    begin = client.cpu_seconds() if cpu else time.perf_counter()
    for _ in range(count):
        client.get(path)
    end = client.cpu_seconds() if cpu else time.perf_counter()
    return (end - begin) / (count * unit) * 1e6


def _measure(path: str, backend: str, sizes: AsgiSizes) -> list[Result]:
    unit, count = (1, sizes.requests) if path == "/" else (_EVENTS, max(1, sizes.requests // 50))
    what = "request" if unit == 1 else "event"
    results = []
    with ExitStack() as stack:
        clients = {way: stack.enter_context(serving(way, backend)) for way in _WAYS}
        for clock in ("cpu", "wall"):
            pieces = {
                way: partial(_piece, client, path, count, unit, cpu=clock == "cpu")
                for way, client in clients.items()
            }
            label = f"{backend}: asgi {what}s, {clock}"
            interleave(label, pieces, 1)  # to warm up
            about = "of the server's processor time" if clock == "cpu" else "as a client sees it"
            results.append(
                compare(
                    f"asgi_{what}s" if clock == "cpu" else f"asgi_{what}s_{clock}",
                    f"{what}s a second, {about}",
                    interleave(label, pieces, sizes.rounds),
                    unit=f"us a {what}",
                    limit=_LEAST if clock == "cpu" else None,
                    against=PEERS,
                    at_least=True,
                )
            )
    return results


def warm_up(_: str) -> None:
    """Do nothing: every server is a process of its own, and is warmed up there."""


SUITE = Suite(
    name="asgi",
    description=(
        "Measure what requests through the ASGI middleware cost, beside the app alone. "
        "The full run takes about two minutes."
    ),
    rounds_note="",
    warm_up=warm_up,
    measures={"asgi_requests": partial(_measure, "/"), "asgi_events": partial(_measure, "/events")},
    peers=(),
    full=AsgiSizes(rounds=9, requests=2_000),
    quick=AsgiSizes(rounds=1, requests=100),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
