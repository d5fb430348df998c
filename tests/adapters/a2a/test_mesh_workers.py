"""Several workers of uvicorn behind one port, which share a store: each message runs in one, and any worker knows of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx

from quiesce.integrations.a2a import quiesce_client
from quiesce.mesh import Node, Settled
from quiesce.mesh.protocol import codec
from tests.adapters.a2a import kit
from tests.adapters.a2a import mesh_kit as mesh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = mesh.MARKS
_WORKERS, _TIMES, _SECONDS = "2", 12, 60


@dataclass
class Workers:
    """The workers, and what they write down."""

    url: str
    notes: Path

    def runs(self) -> int:
        """Return how many messages have run, in all workers."""
        return len(self.notes.read_text().splitlines()) if self.notes.exists() else 0


@contextmanager
def workers(folder: Path) -> Iterator[Workers]:
    """Serve an agent by several workers, which share a store."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Workers(f"http://127.0.0.1:{listener.getsockname()[1]}", folder / "notes")
        env = {
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "AGENT_URL": made.url,
            "AGENT_STORE": f"sqlite://{folder / 'shop.db'}", "AGENT_NOTES": str(made.notes),
        }  # fmt: skip
        app = ["--factory", "tests.adapters.a2a.worker_app:make"]
        options = ["--workers", _WORKERS, "--fd", str(listener.fileno()), "--log-level", "warning"]
        command = [sys.executable, "-m", "uvicorn", *app, *options]
        with subprocess.Popen(
            command, env=env, stderr=subprocess.PIPE, pass_fds=[listener.fileno()]
        ) as process:
            try:
                yield made
            finally:
                process.terminate()
                assert process.stderr is not None
                # Until all processes have ended, also the one with which Python tracks shared memory.
                sys.stderr.write(process.stderr.read().decode())


@asynccontextmanager
async def calling(node: Node, there: Workers) -> AsyncIterator[Any]:
    """Open a client of the SDK. It keeps no connections, so any worker may take a message, and waits for slow starts."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(headers=mesh.VERSION, limits=limits, timeout=_SECONDS) as http:
        config = mesh.blocking(httpx_client=http)
        async with await quiesce_client(node, there.url, config=config) as client:
            yield client


async def post(url: str, body: object, header: str | None = None) -> httpx.Response:
    """Post to whichever worker takes a new connection first."""
    lines = mesh.VERSION | ({} if header is None else {codec.REQUEST_HEADER: header})
    async with httpx.AsyncClient(headers=lines, timeout=_SECONDS) as http:
        return await http.post(url, json=body)


def message(text: str) -> dict[str, object]:
    """Return a call that sends a message."""
    method = "SendMessage" if kit.FIRST else "message/send"
    return {"jsonrpc": "2.0", "id": "1", "method": method, "params": kit.sending(text)}


async def test_each_message_runs_in_one_of_the_workers(tmp_path: Path) -> None:
    """Messages by the SDK's client all count, and copies that reach any of the workers are not run."""
    with workers(tmp_path) as there:
        async with mesh.script() as node, calling(node, there) as client:
            async with node.cascade("work") as cascade, anyio.create_task_group() as group:
                for _ in range(_TIMES):
                    group.start_soon(mesh.send, client, "note complete")
            settled = await cascade.settled(within=_SECONDS)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 1 + _TIMES
        assert there.runs() == _TIMES

        header = mesh.edge(Node("stranger", url="http://stranger"))
        told = [
            (await post(f"{there.url}/", message("note complete"), header)) for _ in range(_TIMES)
        ]
        assert there.runs() == _TIMES + 1
        assert [one.status_code for one in told] == [200, *[409] * (_TIMES - 1)]


async def test_any_worker_knows_of_a_message(tmp_path: Path) -> None:
    """The others answer questions and copies while the worker that has the message is stopped."""
    with workers(tmp_path) as there, socket.create_server(("127.0.0.1", 0)) as gate:
        text = f"note later {gate.getsockname()[1]} complete"
        handed = codec.parse_request_header(mesh.edge(Node("stranger", url="http://stranger")))
        header = codec.request_header(handed)
        question = {"v": 0, "asks": [[handed.edge.hex(), False]]}

        async def ask(**more: object) -> str:
            answer = (await post(f"{there.url}/quiesce/receipts", question | more)).json()
            ((_, told),) = answer["answers"]
            return told if isinstance(told, str) else str(told["s"])

        assert (await post(f"{there.url}/", message(text), header)).status_code == 200
        at_work = (await anyio.to_thread.run_sync(gate.accept))[0]
        pid = int(there.notes.read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            assert await ask() == "working"
            copy = await post(f"{there.url}/", message(text), header)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert copy.status_code == 409
        assert codec.RESPONSE_HEADER in copy.headers
        at_work.close()
        assert {await ask(wait=25) for _ in range(_TIMES)} == {"done"}
        assert there.runs() == 1


async def test_work_that_a_worker_leaves_is_waited_for(tmp_path: Path) -> None:
    """A program without an address asks for its end, and any worker may be the one that is asked."""
    with workers(tmp_path) as there, socket.create_server(("127.0.0.1", 0)) as gate:
        async with mesh.script() as node, calling(node, there) as client:
            async with node.cascade("work") as cascade:
                await mesh.send(client, f"later {gate.getsockname()[1]} complete")
            at_work = (await anyio.to_thread.run_sync(gate.accept))[0]
            assert not isinstance(await cascade.settled(within=mesh.SOON), Settled)
            at_work.close()
            settled = await cascade.settled(within=_SECONDS)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2
