"""Agents for the tests of the client side: `python acp/client_agent.py WHAT`, speaks ACP on stdio.

Written without an SDK, so that it starts quickly and can misbehave.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SEEN: list[dict[str, Any]] = []
"""The notifications so far, for who asks `_log`."""
INITIALIZED = {"protocolVersion": 1, "agentCapabilities": {}}


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(message: dict[str, Any], what: str) -> None:
    """Answer a request, if it is one that is answered."""
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        send({"id": number, "result": INITIALIZED})
    elif method == "session/new":
        send({"id": number, "result": {"sessionId": "s"}})
    elif method == "session/prompt" and what == "big":
        text = {"type": "text", "text": "é" * 300_000}
        update = {"sessionUpdate": "agent_message_chunk", "content": text}
        send({"method": "session/update", "params": {"sessionId": "s", "update": update}})
        send({"id": number, "result": {"stopReason": "end_turn"}})
    elif method == "session/prompt" and what == "dies":
        sys.stderr.write("the model fell over\n")
        sys.stderr.flush()
        os._exit(3)
    elif method == "_echo":
        send({"id": number, "result": message["params"]})
    elif method == "_log":
        send({"id": number, "result": {"seen": SEEN}})
    elif number is None:
        SEEN.append(message)


def stay() -> None:
    """Stay, until a signal that is not ignored."""
    while True:
        signal.pause()


def main() -> None:
    """Run the agent that was asked for."""
    what = sys.argv[1]
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what == "grandchild":
        child = subprocess.Popen(["/bin/sh", "-c", "sleep 60"])
        Path(sys.argv[2]).write_text(str(child.pid))
    if what == "deaf":
        stay()
    for line in sys.stdin:
        answer(json.loads(line), what)
    if what == "stubborn":
        stay()


if __name__ == "__main__":
    main()
