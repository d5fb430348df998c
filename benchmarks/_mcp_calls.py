"""Calls of an MCP tool over stdio, beside the bare SDK: how many a second, one and 64 in flight.

The server is a small program that answers at once, the same for both. It is another process, so the
benchmark measures the client's time for a call, and the way through the pipes.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

import mcp
from mcp.client.stdio import stdio_client

from benchmarks._harness import BARE, OURS, Result, compare, interleave, run_fresh
from benchmarks._subjects import now, wall
from quiesce import Scope
from quiesce.integrations.mcp import connect_stdio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.integrations.mcp import Session

    Clock = Callable[[], float]
    Use = Callable[[mcp.ClientSession | Session], Awaitable[float]]

LEAST = 0.9  # of the bare SDK's speed
_SERVER = """
import json, sys

def send(request, result):
    answer = {"jsonrpc": "2.0", "id": request["id"], "result": result}
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if method == "initialize":
        send(request, {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        })
    elif method == "tools/list":
        send(request, {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        send(request, {"content": [{"type": "text", "text": "a few words that are echoed"}]})
"""


def _params() -> mcp.StdioServerParameters:
    return mcp.StdioServerParameters(command=sys.executable, args=["-I", "-S", "-c", _SERVER])


async def bare(use: Use) -> float:
    """Use the SDK's own session."""
    async with stdio_client(_params()) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()
        return await use(session)


async def ours(use: Use) -> float:
    """Use a session of the adapter."""
    async with Scope("benchmark") as scope:
        session = await connect_stdio(scope, _params())
        seconds = await use(session)
        await session.aclose()
        return seconds


async def calls(
    count: int, in_flight: int, clock: Clock, session: mcp.ClientSession | Session
) -> float:
    """Make calls, some at a time; return microseconds a call, by a clock."""
    await session.list_tools()  # the SDK asks for them at the first call

    async def some() -> None:
        for _ in range(count // in_flight):
            await session.call_tool("echo", {"text": "a few words to be echoed"})

    begin = clock()
    await asyncio.gather(*(some() for _ in range(in_flight)))
    return (clock() - begin) / (count // in_flight * in_flight) * 1e6


def measure(backend: str = "asyncio", count: int = 800, rounds: int = 8) -> list[Result]:
    """Compare the speed and the client's processor time of calls with those of the bare SDK in `sys.path`.

    The SDK's version is not in the result, because the caller has set the path.
    """
    results = []
    for in_flight in (1, 64):
        for what, clock in (("calls", wall), ("cpu", now)):
            use = partial(calls, count, in_flight, clock)
            pieces = {
                label: partial(run_fresh, backend, partial(way, use))
                for label, way in ((BARE, bare), (OURS, ours))
            }
            label = f"mcp {what}, {in_flight} in flight"
            interleave(label, pieces, 1)  # to warm up
            found = interleave(label, pieces, rounds)
            about = "calls a second" if what == "calls" else "calls a second of the client's CPU"
            results.append(
                compare(
                    f"mcp_{what}_{in_flight}",
                    f"{about}, over stdio, {in_flight} in flight",
                    found,
                    unit="us a call",
                    limit=LEAST,
                    at_least=True,
                )
            )
    return results
