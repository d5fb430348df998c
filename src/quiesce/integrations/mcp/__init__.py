"""MCP sessions that are opened in one task, used in many, and closed from any, in any order.

- `connect_stdio(scope, params)`: a server that is a process of ours.
- `connect_http(scope, url)`: a server over streamable HTTP.
- `SessionPool(scope, servers)`: many, by name, each connected when it is first asked for.
- `take_part(server, node)`: a server of the SDK's, as part of a mesh.

For mcp 1.30 and newer, and 2.x, on asyncio, uvloop and trio.
"""

from quiesce.integrations.mcp.connecting import connect_http, connect_stdio
from quiesce.integrations.mcp.lost import ServerLost
from quiesce.integrations.mcp.mesh_server import take_part
from quiesce.integrations.mcp.pool import SessionPool, SessionPoolStats
from quiesce.integrations.mcp.session import Session

__all__ = [
    "ServerLost",
    "Session",
    "SessionPool",
    "SessionPoolStats",
    "connect_http",
    "connect_stdio",
    "take_part",
]
