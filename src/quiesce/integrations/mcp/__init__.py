"""MCP sessions that are opened in one task, used in many, and closed from any, in any order.

- `connect_stdio(scope, params)`: connects to a server that runs as a child process.
- `connect_http(scope, url)`: connects to a server over streamable HTTP.
- `SessionPool(scope, servers)`: many servers by name, each connected at its first use.
- `take_part(server, node)`: makes one of the SDK's servers part of a mesh.

Works with mcp 1.30 and newer, and 2.x, on asyncio, uvloop and trio.

The modules, in reading order:

- `session`: the session that users call; it makes a new connection when the old one is lost.
- `server_connect`: `connect_stdio` and `connect_http`.
- `servers`: how to reach a server, as a process or over HTTP; the options are checked before anything starts.
- `connection`: one connection, from its handshake to its end.
- `stdio_wire`: the pipes of a server process, as the streams of an MCP session.
- `session_pool`: sessions with many servers, by name.
- `server_name`: a default name for a server, from its command line.
- `server_lost`: the error for calls to a server that is gone.
- `tool_edges`: a tool call that a client makes inside a hop carries an edge.
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
