"""Servers of a mesh, as processes over loopback: the cost of taking part for a request, and the time to the verdict."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._harness import BARE, OURS, Result, Samples, compare, interleave, progress, row
from quiesce.mesh.protocol import codec
from tests.adapters.catalogue import ROOT
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._mesh_sizes import MeshSizes

_CHAIN = 3
SUBJECT = "a2a-sdk-1.3.0"  # which brings uvicorn, Starlette and httpx
LEAST = (
    "least",
    "least in Python",
)  # the work that every participant has to do: see _mesh_least.py
WAYS = ("bare", "mesh", "mesh without a journal", *LEAST)
WAYS_A2A = ("a2a", "a2a mesh")
_PLAIN = ("bare", "a2a")  # these ways take no part in a cascade
_SECONDS_MAX = 30.0
_CLOCKS = (  # the end of the name, what it is, the clock, and how many clients there are at once
    ("", "of the server's processor time, one after the other", "cpu", 1),
    ("_busy", "of the server's processor time, 32 at once", "cpu", 32),
    ("_wall", "as one client sees it", "wall", 1),
)
_BODY = b'{"text":"a message to an agent"}'
_SEND = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "complete"}]}},
}


@dataclass
class Server:
    """One process, and a connection to it."""

    url: str
    socket: socket.socket
    way: str

    @property
    def takes_part(self) -> bool:
        """Whether the server takes part in cascades, as its answers show."""
        return self.way not in _PLAIN

    def request(self, method: str, path: str, header: str = "", body: bytes = b"") -> bytes:
        """Make a request, and return the body of the answer."""
        self.send(method, path, header, body)
        return self.receive(path, is_message=bool(header))

    def send(self, method: str, path: str, header: str, body: bytes) -> None:
        """Send a request, without reading the answer."""
        extra = f"{codec.REQUEST_HEADER}: {header}\r\n" if header else ""
        extra += "a2a-version: 1.0\r\n"
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{extra}content-length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    def receive(self, path: str, *, is_message: bool) -> bytes:
        """Read the answer to the request that was sent last, and return its body."""
        found = b""
        while b"\r\n\r\n" not in found:
            found += self._more()
        top, _, rest = found.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
        while len(rest) < int(lines[b"content-length"]):
            rest += self._more()
        status = int(top.split()[1])
        if not 200 <= status < 300:
            message = f"{path} answered {status}: {rest!r}"
            raise ConnectionError(message)
        if is_message and (codec.RESPONSE_HEADER.lower().encode() in lines) != self.takes_part:
            message = f"{path} took no part, or took part"
            raise ConnectionError(message)
        return rest

    def _more(self) -> bytes:
        more = self.socket.recv(65536)
        if not more:
            message = "the server has ended"
            raise ConnectionError(message)
        return more

    def another(self) -> Server:
        """Open another connection to the server."""
        return Server(self.url, _connected(self.socket.getpeername()), self.way)

    def json(self, path: str) -> Any:  # noqa: ANN401 - whatever it says
        """Get a path, and return its JSON."""
        return json.loads(self.request("GET", path))


@contextmanager
def serving(ways: dict[str, str], after: dict[str, str]) -> Iterator[dict[str, Server]]:
    """Run named agents, and yield a connection to each.

    Args:
        ways: the way of each agent.
        after: for agents that hand on, the next agent.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        listeners = {name: stack.enter_context(_listener()) for name in ways}
        urls = {name: f"http://127.0.0.1:{one.getsockname()[1]}" for name, one in listeners.items()}
        made = {}
        for name, way in ways.items():
            options = {
                "way": way,
                "takes_part": way not in (*_PLAIN, *LEAST),
                "name": name,
                "url": urls[name],
                "peers": list(urls.values()),
                "journal": None if "without" in way else str(Path(folder, f"{name}.journal")),
                "after": urls.get(after.get(name, ""), ""),
                "listener": listeners[name].fileno(),
            }
            stack.enter_context(_process(options))
            connection = stack.enter_context(_connected(listeners[name].getsockname()))
            made[name] = Server(urls[name], connection, way)
        yield made


def _listener() -> socket.socket:
    # With the protocol named: only then asyncio sets TCP_NODELAY on accepted sockets.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@contextmanager
def _process(options: dict[str, Any]) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks._mesh_agent", json.dumps(options)]
    with subprocess.Popen(  # noqa: S603 - our own
        command, cwd=ROOT, env=subjects.environment(SUBJECT), pass_fds=[options["listener"]]
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _connected(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, _SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


@dataclass(frozen=True)
class Cost:
    """The time of some requests."""

    seconds: float
    cpu_seconds: float


def measure_requests(server: Server, requests: int, at_once: int = 1) -> Cost:
    """Make requests, some at once, each a new message."""
    begin_by = int(time.time()) + 3000
    headers = [  # a plain server gets the headers too, and ignores them
        codec.request_header(
            codec.Handed(os.urandom(16), os.urandom(12), "0" * 12, begin_by, server.url)
        )
        for _ in range(requests)
    ]
    path, body = ("/", json.dumps(_SEND).encode()) if "a2a" in server.way else ("/work", _BODY)
    with ExitStack() as stack:
        lines = [server.another() for _ in range(at_once)]
        for line in lines:
            stack.enter_context(line.socket)
        cpu = float(server.request("GET", "/cpu"))
        began = time.perf_counter()
        for number, header in enumerate(headers):
            line = lines[number % at_once]
            if number >= at_once:
                answer = line.receive(path, is_message=True)
            line.send("POST", path, header, body)
        for line in lines[:requests]:
            answer = line.receive(path, is_message=True)
        seconds = time.perf_counter() - began
        if b'"error"' in answer:
            message = f"the last answer is {answer!r}"
            raise ConnectionError(message)
        return Cost(seconds, float(server.request("GET", "/cpu")) - cpu)


@dataclass(frozen=True)
class Latency:
    """The time from the end of the last work to the verdict, and the time that its receipts travel."""

    seconds: float
    round_trips: float


def measure_latency(agents: list[Server]) -> Latency:
    """Run one cascade down the chain."""
    root, *others = agents
    known, hops = root.json(f"/go?to={others[0].url}")
    assert hops == len(agents), f"{hops} hops of {len(agents)}"
    ended = max(agent.json("/ended") for agent in others)
    path = agents[::-1]
    trips = sum(
        sender.json(f"/trip?to={receiver.url}") for sender, receiver in itertools.pairwise(path)
    )
    return Latency(known - ended, trips)


def chain(length: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the ways and the successors of a chain of agents, from the root to the last."""
    names = [f"n{number}" for number in range(length)]
    return dict.fromkeys(names, "mesh"), dict(itertools.pairwise(names))


def served(_: str, sizes: MeshSizes) -> list[Result]:
    """Measure what taking part costs a server for each request."""
    note = (
        "Starlette under uvicorn, a small JSON body; every request is a new message. Least: two writes as long"
        " as those to a journal, and a header as long as that of a receipt; whoever takes part does as much. In"
        " Python: the smallest middleware that takes part, and does nothing else"
    )
    return _overhead("request_overhead_ratio", WAYS, note, sizes)


def served_a2a(_: str, sizes: MeshSizes) -> list[Result]:
    """Measure what taking part costs an A2A agent for each message."""
    note = "quiesce_app with and without a node, JSON-RPC: each message is a task that completes at once"
    return _overhead("a2a_overhead_ratio", WAYS_A2A, note, sizes)


def _overhead(name: str, ways: tuple[str, ...], note: str, sizes: MeshSizes) -> list[Result]:
    """Compare servers: the first takes no part, the second takes part with a journal."""
    named = dict(zip(ways, (BARE, OURS), strict=False))
    with serving({way: way for way in ways}, {}) as servers:
        results = []
        for ending, about, clock, at_once in _CLOCKS:
            pieces = {
                named.get(way, way): partial(_piece, server, sizes.requests, clock, at_once)
                for way, server in servers.items()
            }
            interleave(f"requests, {about}", pieces, 1)  # to warm up
            results.append(
                compare(
                    f"{name}{ending}",
                    f"requests a second, {about}: with a journal, over a server that takes no part",
                    interleave(f"requests, {about}", pieces, sizes.rounds),
                    unit="us a request",
                    limit=None if ending else 0.9,
                    at_least=True,
                    notes=(note,),
                )
            )
    return results


def _piece(server: Server, requests: int, clock: str, at_once: int) -> float:
    cost = measure_requests(server, requests, at_once)
    return (cost.cpu_seconds if clock == "cpu" else cost.seconds) / requests * 1e6


def latency(_: str, sizes: MeshSizes) -> list[Result]:
    """Measure the time from the last work to the verdict."""
    ways, after = chain(_CHAIN)
    with serving(ways, after) as servers:
        agents = list(servers.values())
        measure_latency(agents)  # to warm up: connections are made
        found = []
        for turn in range(sizes.rounds * 3):
            progress(f"latency: {turn + 1} of {sizes.rounds * 3}")
            found.append(measure_latency(agents))
    took = Samples(tuple(one.seconds * 1e3 for one in found))
    trips = Samples(tuple(one.round_trips * 1e3 for one in found))
    ratios = Samples(tuple(one.seconds / one.round_trips for one in found))
    return [
        Result(
            name="latency_over_bound",
            about=(
                "from the end of the last work to the verdict, over the round trips of the path of"
                f" its receipts; {_CHAIN} agents in a row"
            ),
            rows=(
                row("to the verdict", took, "ms"),
                row("round trips", trips, "ms"),
                row("ratio", ratios, "of the round trips"),
            ),
            value=ratios.best,
            low=ratios.best,
            median=ratios.median,
            high=ratios.worst,
            limit=1.5,
            notes=("each agent is a process; a round trip is a call with nothing in it",),
        )
    ]
