"""A stand-in for the CLI that claude-agent-sdk starts: stream-json over stdio, and no network.

`fake_cli.py --journal FILE [...]`; what the SDK adds to the command line is not read. It answers
`initialize`, and a prompt with one assistant message and the result, which tells what it was sent.
In between it may say something that nobody has heard of, think until a file is there, and then ask the
SDK to call a hook, for a permission, or to call a tool of an SDK MCP server. When its input has
ended it takes its time to flush, as the real one writes its session, and goes; with `--stubborn`,
SIGTERM does not make it go sooner. The journal tells how far it is, a line each: its process id,
`child` and the id of a child of its own, `initialized`, `asked`, `ended` for its input, `terminated`
for a SIGTERM, `flushed`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

VERSION = "9.9.9"  # newer than what any version of the SDK asks for
SESSION = "00000000-0000-0000-0000-000000000000"
THINKING_SECONDS_MAX = 10.0  # if the test dies, we do not stay
TOLD_VARIABLES = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION", "PWD", "ROW")


class FakeClaude:
    """The process."""

    def __init__(self, settings: argparse.Namespace, rest: list[str]) -> None:
        self.settings = settings
        self.rest = rest
        self.answers: list[Any] = []
        self.prompts: list[Any] = []

    def run(self) -> None:
        """Answer until the input ends, then flush."""
        signal.signal(signal.SIGTERM, self.terminate)
        self.note(os.getpid())
        if self.settings.child:
            self.note(f"child {child()}")
        if self.settings.complain:
            os.write(2, b"a complaint\n")
        while (message := read()) is not None:
            if message["type"] == "control_request":
                self.control(message)
            elif message["type"] == "user":
                self.prompts.append(message["message"]["content"])
                self.answer()
        self.note("ended")
        wait(self.settings.flush)
        self.note("flushed")

    def control(self, message: dict[str, Any]) -> None:
        """Answer what the SDK asks."""
        subtype = message["request"]["subtype"]
        if subtype == "initialize" and self.settings.mute:
            return
        answer = {"commands": [], "subtype": subtype}
        response = {"subtype": "success", "request_id": message["request_id"], "response": answer}
        say(type="control_response", response=response)
        if subtype == "initialize":
            self.note("initialized")

    def answer(self) -> None:
        """Answer a prompt."""
        settings = self.settings
        say(type="system", subtype="init", session_id=SESSION, claude_code_version=VERSION)
        for number in range(settings.messages):
            text = "I am on it." if number == 0 else f"{number}"
            content = [{"type": "text", "text": text + "." * settings.size}]
            message = {"role": "assistant", "model": "fake", "content": content}
            say(
                flush=not settings.novel,  # then both are read at once
                type="assistant",
                message=message,
                session_id=SESSION,
                parent_tool_use_id=None,
            )
        if settings.novel:
            say(type="unheard_of", session_id=SESSION)
        if settings.exit is not None:
            os._exit(settings.exit)
        if settings.think:
            wait(THINKING_SECONDS_MAX, until=settings.think)
        self.ask_all()
        told = {
            "arguments": self.rest,
            "environment": {name: os.environ.get(name) for name in TOLD_VARIABLES},
            "folder": os.getcwd(),  # noqa: PTH109 - pathlib takes long to import
            "prompts": self.prompts,
            "answers": self.answers,
        }
        say(
            type="result",
            subtype="success",
            duration_ms=1,
            duration_api_ms=1,
            is_error=False,
            num_turns=1,
            session_id=SESSION,
            total_cost_usd=0.0,
            result=json.dumps(told),
        )

    def ask_all(self) -> None:
        """Ask the SDK to call what its user has given it."""
        settings = self.settings
        if settings.hook:
            self.ask(
                subtype="hook_callback", callback_id="hook_0", input={"tool": "x"}, tool_use_id="1"
            )
        if settings.permission:
            self.ask(subtype="can_use_tool", tool_name="Bash", input={"command": "ls"})
        if settings.tool:
            about = {"protocolVersion": "2024-11-05", "capabilities": {}}
            about["clientInfo"] = {"name": "fake", "version": "1"}
            self.ask_tool("initialize", 1, about)
            self.ask_tool("notifications/initialized", None, {})
            self.ask_tool("tools/call", 2, {"name": "add", "arguments": {"a": 1, "b": 2}})

    def ask_tool(self, method: str, number: int | None, params: dict[str, Any]) -> None:
        """Send a message to the MCP server that is in the SDK's process."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        self.ask(subtype="mcp_message", server_name="tools", message=message)

    def ask(self, **request: Any) -> None:
        """Ask the SDK, and wait for its answer, or for the end."""
        identity = f"{request['subtype']} {len(self.answers)}"
        say(type="control_request", request_id=identity, request=request)
        self.note("asked")
        while (message := read()) is not None:
            if message["type"] == "control_request":
                self.control(message)
            elif message["type"] == "control_response":
                answer = message["response"]
                self.answers.append(answer.get("response", answer.get("error")))
                return

    def terminate(self, *_: object) -> None:
        """Go in the middle of whatever it is, or do not."""
        self.note("terminated")
        if not self.settings.stubborn:
            os._exit(128 + signal.SIGTERM)

    def note(self, event: object) -> None:
        """Write an event to the journal, for the test."""
        with open(self.settings.journal, "a", encoding="utf-8") as file:  # noqa: PTH123 - likewise
            file.write(f"{event}\n")


def child() -> int:
    """Start a process that holds our pipes, and gives its id."""
    pid = os.fork()
    if pid == 0:
        os.execlp("sleep", "sleep", "30")  # noqa: S606, S607 - a program that everybody has
    return pid


def read() -> Any:
    """Return the next message of the SDK; None when there is none any more."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def say(*, flush: bool = True, **message: Any) -> None:
    """Send a message to the SDK, which may have stopped listening."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), flush=flush)  # noqa: T201 - the protocol is spoken on stdout


def wait(seconds: float, *, until: str | None = None) -> None:
    """Let time pass, or less of it if a file appears, although signals come."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if until and os.path.exists(until):  # noqa: PTH110 - likewise
            return
        time.sleep(min(left, 0.02))


def main() -> None:
    """Read the command line and run."""
    if sys.argv[-1] == "-v":
        print(VERSION)  # noqa: T201 - older versions of the SDK start the CLI once to ask
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--think")
    parser.add_argument("--flush", type=float, default=0.0)
    parser.add_argument("--messages", type=int, default=1)
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--exit", type=int)
    for flag in ("stubborn", "child", "mute", "hook", "permission", "tool", "complain", "novel"):
        parser.add_argument(f"--{flag}", action="store_true")
    settings, rest = parser.parse_known_args()
    FakeClaude(settings, rest).run()
    os._exit(0)  # Python would try again to write what nobody reads, and fail


if __name__ == "__main__":
    main()
