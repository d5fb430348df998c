"""MCP sessions: opened by one task, used by many, closed by others, in any order; and a crash.

    pip install '.[mcp]' && python examples/mcp_sessions.py

The servers are examples/mcp_sessions_server.py, written with the SDK, as processes of this program.
"""

import sys
from pathlib import Path

import anyio

import quiesce

try:
    from mcp import StdioServerParameters

    from quiesce.integrations.mcp import ServerLost, SessionPool, connect_stdio
except ImportError as error:
    sys.exit(f"This example needs the MCP SDK: pip install '.[mcp]'\n({error})")

SERVER = Path(__file__).with_name("mcp_sessions_server.py")


def server() -> StdioServerParameters:
    """Return the parameters that start a server."""
    path = {"PYTHONPATH": ":".join(sys.path)}  # the server finds the SDK where this program did
    return StdioServerParameters(command=sys.executable, args=[str(SERVER)], env=path)


async def out_of_order(scope: quiesce.Scope) -> None:
    """Open two sessions, and close the first one first, from other tasks."""
    first = await connect_stdio(scope, server(), name="first")
    second = await connect_stdio(scope, server(), name="second")
    for session in (first, second):
        async with anyio.create_task_group() as group:
            group.start_soon(session.aclose)
        print(f"  {session.name}: {session.state}")


async def abandoned(pool: SessionPool, told: anyio.Event) -> None:
    """Cancel a call: the server is told, and stops."""
    session = await pool.session("notes")
    with anyio.move_on_after(0.5):
        await session.call_tool("think")
    print("  gave up waiting")
    with anyio.fail_after(5):
        await told.wait()
    print("  the server has cancelled it, too")


async def crashed(pool: SessionPool) -> None:
    """Crash the server: the call raises how the server ended, and the next call gets a new server."""
    session = await pool.session("notes")
    try:
        await session.call_tool("crash")
    except ServerLost as lost:
        print(f"  {lost}")
    found = await session.call_tool("remember", {"text": "a fresh start"})
    print(f"  the next call: {found.content[0].text}, after {session.starts} starts")


async def main() -> None:
    """Run each of the three."""
    told = anyio.Event()

    def listen(_: str, line: str) -> None:
        """Take a line of a server's standard error."""
        if line == "thinking was cancelled":
            told.set()

    async with quiesce.Scope("example") as scope:
        print("two sessions, closed in the order of opening, by other tasks:")
        await out_of_order(scope)
        pool = SessionPool(scope, {"notes": server()}, logs=listen)
        print("a call that nobody waits for any more:")
        await abandoned(pool, told)
        print("a crash:")
        await crashed(pool)
        print("while five tasks call:")
        session = await pool.session("notes")
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(session.call_tool, "think")
            await anyio.sleep(0.1)
            print(f"  {pool.stats.calls} calls in flight, {pool.stats.connected} server")
            group.cancel_scope.cancel()
        report = await pool.drain(grace=5)
    print(f"nothing lost: {report.ok}")


if __name__ == "__main__":
    anyio.run(main)
