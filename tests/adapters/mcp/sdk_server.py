"""An MCP server that is written with the SDK, of either major version.

`python mcp/sdk_server.py [--notes FILE]` speaks over stdio; with `--http` over streamable HTTP, with
uvicorn, on a port that it prints.
"""

from __future__ import annotations

import importlib
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import anyio
import mcp.types
from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server

warnings.simplefilter("ignore")
server: Any = Server("real", log_level="ERROR")


class Answer(BaseModel):
    """What a user is asked for."""

    colour: str


def note(text: str) -> None:
    """Write down what happened, for the test to read."""
    if "--notes" in sys.argv:
        path = Path(sys.argv[sys.argv.index("--notes") + 1])
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail() -> str:
    """Fail."""
    message = "it did not work"
    raise ValueError(message)


async def wait() -> str:
    """Wait for ever, and note when that is cancelled."""
    note("waiting")
    try:
        await anyio.Event().wait()
    finally:
        note("cancelled")
    return "waited"


async def progress(ctx: Context) -> str:
    """Report the progress of the call."""
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3, f"step {step}")
    return "done"


async def ask_model(ctx: Context) -> str:
    """Ask the client's model to say something."""
    content = mcp.types.TextContent(type="text", text="say something")
    asked = mcp.types.SamplingMessage(role="user", content=content)
    found = await ctx.session.create_message(messages=[asked], max_tokens=10)
    return str(found.content.text)


async def ask_user(ctx: Context) -> str:
    """Ask the client's user something."""
    found = await ctx.elicit("which colour?", Answer)
    return f"{found.action} {getattr(found, 'data', None)}"


async def roots(ctx: Context) -> str:
    """Ask for the client's roots."""
    found = await ctx.session.list_roots()
    return " ".join(str(root.uri) for root in found.roots)


async def say(ctx: Context) -> str:
    """Send a line of a log."""
    await ctx.info("something happened")
    return "said"


def hello() -> str:
    """Return a text."""
    return "hello"


def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello, {name}!"


for tool in (add, fail, wait, progress, ask_model, ask_user, roots, say):
    server.add_tool(tool)
server.resource("text://hello")(hello)
server.prompt()(greet)


def serve_http() -> None:
    """Serve over streamable HTTP."""
    uvicorn: Any = importlib.import_module("uvicorn")  # slow, and in no place that mypy knows

    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if "--http" in sys.argv:
        serve_http()
    else:
        server.run(transport="stdio")
