"""An ASGI app that answers at once and works on: what SIGTERM does to it, alone and with quiesce.

    python examples/asgi_server.py

Runs uvicorn (`pip install uvicorn`) on a port of this machine, twice: asks for something that takes a
second, sends SIGTERM meanwhile, and tells what became of it.
"""

import asyncio
import http.client
import importlib.util
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from quiesce.integrations.asgi import Quiesce

Send = Callable[[dict[str, object]], Awaitable[None]]

START_SECONDS = 10


async def report_of_the_day() -> None:
    """Work that the client does not wait for."""
    await asyncio.sleep(1)
    print("  the report is written", flush=True)


async def bare(scope: dict[str, object], _receive: object, send: Send) -> None:
    """Answer "accepted", and start the work. Nothing refers to the task."""
    if scope["type"] != "http":
        raise NotImplementedError
    asyncio.create_task(report_of_the_day())  # noqa: RUF006 - the mistake that is shown
    await send({"type": "http.response.start", "status": 202, "headers": []})
    await send({"type": "http.response.body", "body": b"accepted"})


app = Quiesce(bare, grace=10)


def get(port: int, path: str) -> tuple[int, str]:
    """Send a request to the server; return the status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    finally:
        connection.close()


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until the server listens."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.exit("the server did not start")


def serve(name: str) -> None:
    """Run a server, and stop it in the middle of its work."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"{Path(__file__).stem}:{name}"]
    options = ["--app-dir", str(Path(__file__).parent), "--port", str(port), "--log-level", "error"]
    with subprocess.Popen([*command, *options]) as server:
        wait_for(port)
        print(f"  asked: {get(port, '/')[1]}", flush=True)
        server.send_signal(signal.SIGTERM)
        if name == "app":
            while get(port, "/quiesce/ready")[0] == 200:  # noqa: PLR2004 - HTTP's own number
                time.sleep(0.01)
            print("  ready: {}, {}".format(*get(port, "/quiesce/ready")))
            print("  a new request: {}, {}".format(*get(port, "/")), flush=True)
        code = server.wait()
    print(f"  exit code {code}", flush=True)


def main() -> None:
    """Run the server alone, and then with quiesce."""
    if importlib.util.find_spec("uvicorn") is None:
        sys.exit("this example runs uvicorn, which is not installed: pip install uvicorn")
    print("alone:", flush=True)
    serve("bare")
    print("with quiesce:", flush=True)
    serve("app")


if __name__ == "__main__":
    main()
