"""An MCP server over streamable HTTP, by mcp or fastmcp: `python -m tests.integration.unmodified.mcp_agent CONFIG`.

Its tool `work` leaves a task behind, and answers. CONFIG is JSON: `kind` and `folder`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from quiesce.mesh import Node
from tests.integration.unmodified.letting import leave, listen, serve


async def work(name: str) -> str:
    """Leave work behind."""
    leave(name)
    return "ok"


def made(kind: str) -> Any:
    """Return the app."""
    if kind == "fastmcp":
        from fastmcp import FastMCP  # noqa: PLC0415 - only one of them is tried

        fast: Any = FastMCP("agent")
        fast.tool(work)
        return fast.http_app()
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - as above

    server: Any = MCPServer("agent", log_level="ERROR")
    server.tool()(work)
    return server.streamable_http_app(stateless_http=kind == "mcp_stateless")


if __name__ == "__main__":
    _config = json.loads(sys.argv[1])
    _listener, _url = listen()
    _node = Node("agent", url=_url, store=f"{_config['folder']}/agent.journal")
    serve(_node, made(_config["kind"]), _listener)
