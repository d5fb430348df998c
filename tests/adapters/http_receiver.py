"""A server in a process of its own, that takes whatever is posted to it: for sweeps, which run loop after loop."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class Receiver(BaseHTTPRequestHandler):
    """Reads what is posted, and answers with an empty object."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


@contextmanager
def receiving() -> Iterator[str]:
    """Start a server for the block, and yield its address."""
    program = [sys.executable, "-m", "tests.adapters.http_receiver"]
    with subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
