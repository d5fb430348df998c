"""A small MCP server that takes part in a mesh, without the SDK and without quiesce.

`python -I -S plain_mesh_server.py [--stranger] [--list-fails | --list-hangs] --notes FILE` speaks over stdio, and notes all that it hears.
Its tools are how a call is answered: `closed` with a receipt, `working`, `silent` without a word of the
edge, `refused` with an error that says that it never will run, `error` with one that says nothing, `garbage`,
`hang` not at all, `exit` by its end. A question is answered with a receipt, unless the tool was `busy`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

KEY, TOLD = "quiesce/cascade", "quiesce/cascade-receipt"
RECEIPT = {"s": "done", "n": 1}
Message = dict[str, Any]


def note(text: str) -> None:
    """Write down what happened, for the test to read."""
    with open(sys.argv[sys.argv.index("--notes") + 1], "a", encoding="utf-8") as file:  # noqa: PTH123 - quick
        file.write(text + "\n")


def send(message: Message) -> None:
    """Send a message to the client."""
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def greet() -> Message:
    """Return the result of the handshake."""
    offer: Message = {} if "--stranger" in sys.argv else {"experimental": {KEY: {"version": 0}}}
    return {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, **offer},
        "serverInfo": {"name": "small", "version": "1"},
    }


def call(request: Message) -> Message | None:
    """Answer a call of a tool, in the way that its name says."""
    name, given = request["params"]["name"], request["params"].get("_meta") or {}
    edge = given.get(KEY, "--").split("-")[2]
    digest = hashlib.blake2b(bytes.fromhex(edge), digest_size=16, person=b"quiesce edge")
    told = f"00-{digest.hexdigest()[:12]}"
    answers = {
        "closed": f"{told};s=closed;r={json.dumps(RECEIPT).encode().hex()}",
        "working": f"{told};s=working;d=ask",
        "busy": f"{told};s=working;d=ask",
        "refused": f"{told};s=never",
        "garbage": "nonsense",
    }
    if name == "hang":
        return None
    if name == "exit":
        os._exit(3)
    meta = {"_meta": {TOLD: answers[name]}} if name in answers else {}
    if name in {"refused", "error"}:
        return {"error": {"code": -1, "message": "no", "data": meta}}
    return {"result": {"content": [{"type": "text", "text": name}], "isError": False, **meta}}


def main() -> None:
    """Answer each line."""
    busy = False
    for line in sys.stdin:
        message: Message = json.loads(line)
        note(line.strip())
        method, answer = message["method"], None
        if method == "initialize":
            answer = {"result": greet()}
        elif method == "tools/call":
            busy = busy or message["params"]["name"] == "busy"
            answer = call(message)
        elif method == "tools/list":
            answer = {"result": {"tools": []}}
            if "--list-fails" in sys.argv:
                answer = {"error": {"code": -1, "message": "no list"}}
            if "--list-hangs" in sys.argv:
                answer = None
        elif method == "quiesce/receipts" and not busy:
            answers = [[edge, RECEIPT] for edge, _ in message["params"]["asks"]]
            answer = {"result": {"v": 0, "taken": [], "answers": answers}}
        if answer is not None and "id" in message:
            send({"id": message["id"], **answer})
    note("end of input")


main()
