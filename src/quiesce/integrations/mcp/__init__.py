"""MCP sessions that are opened in one task, used in many, and closed from any, in any order.

- `connect_stdio(scope, params)`: a server that is a process of ours.
- `connect_http(scope, url)`: a server over streamable HTTP.
- `SessionPool(scope, servers)`: many, by name, each connected when it is first asked for.
- `take_part(server, node)`: a server of the SDK's, as part of a mesh.

For mcp 1.30 and newer, and 2.x, on asyncio, uvloop and trio.

The modules, in reading order:

- `session`: the session that users call, over whichever connection it has at the time.
- `server_connect`: connect to a server: what is asked for, checked before anything is started.
- `servers`: how to reach a server: as a process, or over HTTP.
- `connection`: one connection, from its handshake to its end.
- `stdio_wire`: the pipes of a server process, as the streams of an MCP session.
- `session_pool`: many servers, each by its name.
- `server_name`: the name of a server whose program does not say.
- `server_lost`: a server that is gone, and what it has said last.
- `tool_edges`: a tool that is called inside of a hop is handed an edge.
- `tool_hops`: a tool call that carries an edge is handled as its hop.
- `versions`: what differs between mcp 1.x and 2.x.
"""

from quiesce.integrations.mcp.server_connect import connect_http, connect_stdio
from quiesce.integrations.mcp.server_lost import ServerLost
from quiesce.integrations.mcp.session import Session
from quiesce.integrations.mcp.session_pool import SessionPool, SessionPoolStats
from quiesce.integrations.mcp.tool_hops import take_part

__all__ = [
    "ServerLost",
    "Session",
    "SessionPool",
    "SessionPoolStats",
    "connect_http",
    "connect_stdio",
    "take_part",
]
