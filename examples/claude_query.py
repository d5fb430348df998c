"""Ask Claude, and leave in the middle of the answer: the CLI has ended in order before the program goes on.

With the SDK alone, a `break` leaves the CLI to the garbage collector, and a program that ends then
kills it while it writes its session. Here the query belongs to a scope. The CLI is a stand-in
(claude_query_cli.py); give the SDK's own options, without `cli_path`, to talk to the real one.
"""

import os
import sys
import tempfile
from pathlib import Path

import anyio

import quiesce

try:
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage

    from quiesce.integrations.claude import ClaudeSDKClient, query
except ImportError as error:
    sys.exit(f"{error}\nThis example needs the Claude Agent SDK: pip install '.[claude]'")

CLI = Path(__file__).with_name("claude_query_cli.py")


def command(folder: str) -> Path:
    """Write a program that runs the stand-in; return its path."""
    path = Path(folder, "claude")
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{CLI}' \"$@\"\n")
    path.chmod(0o700)
    return path


def pids(frontier: quiesce.Frontier) -> list[int]:
    """Return the ids of the processes that are in flight."""
    found = []
    entries = list(frontier)
    while entries:
        entry = entries.pop()
        entries += entry.children
        if entry.kind == "process":
            found.append(int(str(entry.details["pid"])))
    return found


def alive(pid: int) -> bool:
    """Return whether a process with this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def ask(options: ClaudeAgentOptions, scope: quiesce.Scope) -> None:
    """Ask once, and leave after the first message of the answer."""
    async for message in query(prompt="What is the answer?", options=options):
        if isinstance(message, AssistantMessage):
            print("query:", message.content[0].text)
            (pid,) = pids(scope.frontier())
            break
    await scope.idle()
    print("query: left; the CLI is", "there" if alive(pid) else "gone")


async def converse(options: ClaudeAgentOptions) -> None:
    """Ask twice, in one conversation that one task opens and another closes."""
    client = ClaudeSDKClient(options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.connect)
    for question in ("Why?", "Really?"):
        await client.query(question)
        async for message in client.receive_response():
            if isinstance(message, ResultMessage):
                print("client:", question, message.result)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.disconnect)
    print("client:", "nothing lost" if client.report and client.report.ok else client.report)


async def main() -> None:
    """Use `query()`, and then a client."""
    with tempfile.TemporaryDirectory() as folder:
        options = ClaudeAgentOptions(
            cli_path=command(folder), stderr=lambda line: print(f"        ({line})")
        )
        async with quiesce.Scope("example") as scope:
            await ask(options, scope)
            await converse(options)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if sys.argv[1:] else "asyncio")
