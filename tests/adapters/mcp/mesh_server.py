"""An MCP server of the SDK's, of either major version, that takes part in a mesh.

`python mcp/mesh_server.py JOURNAL [--low]` speaks over stdio; with `--http` over streamable HTTP, with
uvicorn, on a port that it prints. `--low`: the SDK's low-level server. `--grace SECONDS`: with `--http`, in a `Quiesce`
that has so much grace.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import anyio
import mcp.types
from mcp.server.lowlevel import Server as LowServer
from mcp.server.stdio import stdio_server

from quiesce.integrations.asgi import Quiesce
from quiesce.integrations.mcp import take_part, versions
from quiesce.mesh import Node, current_hop

try:
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server

warnings.simplefilter("ignore")


async def later(path: str) -> str:
    """Leave work that ends soon, and says so in a file."""

    async def work() -> None:
        await anyio.Path(path).write_text("done", encoding="utf-8")

    hop = current_hop()
    assert hop is not None
    hop.spawn(work)
    return "begun"


async def never() -> str:
    """Leave work that does not end."""
    hop = current_hop()
    assert hop is not None
    hop.spawn(anyio.Event().wait)
    return "begun"


async def _byte(port: int) -> None:
    """Wait until the test sends a byte, or is gone."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.receive()


async def hold(port: int) -> str:
    """Leave work that ends when the test says so."""
    hop = current_hop()
    assert hop is not None
    hop.spawn(_byte, port)
    return "begun"


async def wait(port: int) -> str:
    """Answer when the test says so."""
    await _byte(port)
    return "waited"


_released = asyncio.Event()
_left: list[asyncio.Task[bool]] = []


async def leave() -> str:
    """Leave a task that no hop was told of, until `release` is called."""
    _left.append(asyncio.create_task(_released.wait()))
    return "begun"


async def release() -> str:
    """End the tasks that were left."""
    _released.set()
    return "released"


async def report(ctx: Context) -> str:
    """Send a notification of progress."""
    await ctx.report_progress(1, 2)
    return "reported"


async def where() -> str:
    """Return which cascade the tool is called for."""
    hop = current_hop()
    return "none" if hop is None else hop.cascade


async def hang() -> str:
    """Never answer."""
    await anyio.Event().wait()
    return "never"


async def wrong() -> str:
    """Fail as the protocol has it."""
    if versions.SECOND:
        raise versions.Error(-7, "wrong", {"why": "so"})
    raise versions.Error(mcp.types.ErrorData(code=-7, message="wrong", data={"why": "so"}))


async def fail() -> str:
    """Fail as a tool does."""
    raise ValueError


TOOLS = {
    tool.__name__: tool
    for tool in (later, never, hold, wait, leave, release, report, where, hang, wrong, fail)
}


def server() -> Any:
    """Make a server whose tools are these."""
    made: Any = Server("real", log_level="ERROR")
    for tool in TOOLS.values():
        made.add_tool(tool)
    return made


async def _call(name: str, given: dict[str, Any]) -> list[Any]:
    return [mcp.types.TextContent(type="text", text=await TOOLS[name](**given))]


def low_server() -> Any:
    """Make a low-level server whose tools are these, and `meta`, which tells what it is given of that."""
    low: Any = LowServer
    if versions.SECOND:

        async def call_second(context: Any, params: Any) -> Any:
            if params.name == "meta":
                text = f"{context.meta} {context.params} {params}"
                content: Any = [mcp.types.TextContent(type="text", text=text)]
            else:
                content = await _call(params.name, params.arguments or {})
            return mcp.types.CallToolResult(content=content)

        async def list_second(_: Any, __: Any) -> Any:
            return mcp.types.ListToolsResult(tools=[])

        return low("low", on_call_tool=call_second, on_list_tools=list_second)
    made = low("low")

    async def call_first(name: str, given: dict[str, Any]) -> list[Any]:
        if name == "meta":
            return [mcp.types.TextContent(type="text", text=str(made.request_context.meta))]
        return await _call(name, given)

    made.call_tool(validate_input=False)(call_first)

    async def list_first() -> list[Any]:
        return []

    made.list_tools()(list_first)
    return made


async def main() -> None:
    """Serve one client over stdio."""
    async with Node("tools", store=sys.argv[1]) as node:
        if "--low" not in sys.argv:
            made = server()
            take_part(made, node)
            await made.run_stdio_async()
            return
        made = low_server()
        take_part(made, node)
        async with stdio_server() as (read, write):
            await made.run(read, write, made.create_initialization_options())


def serve_http() -> None:
    """Serve over streamable HTTP; the node is open while the app is."""
    uvicorn: Any = importlib.import_module("uvicorn")  # slow, and in no place that mypy knows
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    node, made = Node("tools", url=url, store=Path(sys.argv[1])), server()
    take_part(made, node)
    app = made.streamable_http_app()
    if "--grace" in sys.argv:
        app = Quiesce(app, float(sys.argv[sys.argv.index("--grace") + 1]), node=node)
        logging.getLogger().handlers.clear()  # the SDK's breaks lines: the report goes to standard error
    else:
        app = node.asgi(app)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    serve_http() if "--http" in sys.argv else anyio.run(main)
