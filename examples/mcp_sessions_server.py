"""An MCP server for examples/mcp_sessions.py, written with the SDK (1.x or 2.x); over stdio."""

import os
import sys
import warnings
from typing import Any

import anyio

warnings.simplefilter("ignore")
try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # its name in mcp 1.x
    from mcp.server.fastmcp import FastMCP as Server

server: Any = Server("notes", log_level="ERROR")
notes: list[str] = []


def remember(text: str) -> str:
    """Keep a text."""
    notes.append(text)
    return f"{len(notes)} kept"


async def think() -> str:
    """Think for ever; report the cancellation when the client gives up."""
    try:
        await anyio.sleep_forever()
    finally:
        sys.stderr.write("thinking was cancelled\n")
    return ""


def crash() -> str:
    """End at once, as a program with a bug does."""
    sys.stderr.write("out of memory, or so\n")
    sys.stderr.flush()
    os._exit(3)


for tool in (remember, think, crash):
    server.add_tool(tool)

if __name__ == "__main__":
    server.run(transport="stdio")
