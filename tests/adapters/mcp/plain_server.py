"""A small MCP server without the SDK: it starts at once, and misbehaves as it is told to.

`python -I -S plain_server.py [--mute] [--stubborn] [--grandchild] [--exit CODE] [--notes FILE]` speaks
over stdio; with `--http [--hang-delete]` over HTTP, on a port that it prints.

Its tools: `echo` answers with its text, `hang` never, `crash` exits with a code, `deaf` reads nothing
any more, `pid` tells its process id, `big` answers with a long text, `fail` with an error of the tool,
`refuse` with one of the protocol, `noise` writes a line that is no message before it answers, `close`
closes its output and goes on, `shut` its input, `last` answers and exits; over HTTP `forget` has lost the session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

TOOLS = ["echo", "hang", "crash", "deaf", "pid", "big", "fail", "refuse", "noise"]
TOOLS += ["close", "shut", "last"]
Message = dict[str, Any]


def option(name: str) -> str:
    """Return what follows an option."""
    return sys.argv[sys.argv.index(name) + 1]


def note(text: str) -> None:
    """Write down what happened, for the test to read."""
    if "--notes" in sys.argv:
        with open(option("--notes"), "a", encoding="utf-8") as file:  # noqa: PTH123 - quick
            file.write(text + "\n")


def send(message: Message) -> None:
    """Send a message to the client."""
    data = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def result(request: Message, text: str, *, failed: bool = False) -> Message:
    """Return the answer to a call of a tool."""
    content = [{"type": "text", "text": text}]
    return {"id": request["id"], "result": {"content": content, "isError": failed}}


def call(request: Message) -> Message | None:
    """Call a tool."""
    name = request["params"]["name"]
    given = request["params"].get("arguments") or {}
    note(f"called {name}")
    if name == "crash":
        sys.stderr.write("something is very wrong\n")
        sys.stderr.flush()
        os._exit(given.get("code", 3))
    if name == "deaf":
        threading.Event().wait(600)
    if name == "noise":
        os.write(1, b"this is no message\n")
    if name == "close":
        os.close(1)
    if name == "shut":
        os.close(0)
        send(result(request, "nothing more"))
        threading.Event().wait(600)
    if name == "last":
        os.write(1, b"this is no message\n" * given.get("noise", 0))
        send(result(request, "the last word"))
        os._exit(0)
    if name == "refuse":
        return {"id": request["id"], "error": {"code": -32000, "message": "refused"}}
    texts = {"pid": str(os.getpid()), "big": "ü" * given.get("size", 0), "noise": "quiet"}
    texts |= {"echo": given.get("text", ""), "fail": "it did not work"}
    return result(request, texts[name], failed=name == "fail") if name in texts else None


def answer(request: Message) -> Message | None:
    """Answer a message, if it wants that."""
    method = request.get("method")
    if method == "initialize":
        note("initialize")
        version = request["params"]["protocolVersion"]
        info = {"name": "small", "version": "1"}
        found = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        return None if "--mute" in sys.argv else {"id": request["id"], "result": found}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        return {"id": request["id"], "result": {"tools": tools}}
    if method == "tools/call":
        return call(request)
    if method == "ping":
        return {"id": request["id"], "result": {}}
    if method == "notifications/cancelled":
        note(f"cancelled {request['params']['requestId']}")
    elif "id" in request:
        return {"id": request["id"], "error": {"code": -32601, "message": "unknown"}}
    return None


def serve_http() -> None:
    """Serve over HTTP, each answer as JSON; a call that hangs, hangs its connection."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: PLC0415 - slow

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if request.get("params", {}).get("name") == "forget":
                self.reply(404, None)
                return
            found = answer(request)
            if found is None and "id" in request:
                threading.Event().wait(600)
            self.reply(202 if found is None else 200, found)

        def do_GET(self) -> None:
            self.reply(405, None)

        def do_DELETE(self) -> None:
            note("deleted")
            if "--hang-delete" in sys.argv:
                threading.Event().wait(600)
            self.reply(200, None)

        def reply(self, status: int, found: Message | None) -> None:
            data = b"" if found is None else json.dumps({"jsonrpc": "2.0", **found}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("mcp-session-id", "the-session")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


def main() -> None:
    """Serve until the end of the input; and longer, if stubborn."""
    note(f"started {os.getpid()}")
    if "--exit" in sys.argv:
        sys.stderr.write("no configuration found\n")
        sys.exit(int(option("--exit")))
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--grandchild" in sys.argv:
        subprocess.Popen(["sleep", "600"])  # noqa: S607 - wherever it is
    if "--http" in sys.argv:
        serve_http()
    while line := sys.stdin.buffer.readline():
        found = answer(json.loads(line))
        if found is not None:
            send(found)
    note("end of input")
    while "--stubborn" in sys.argv:
        threading.Event().wait(600)


if __name__ == "__main__":
    main()
