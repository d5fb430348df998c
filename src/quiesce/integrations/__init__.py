"""Adapters for the SDKs of other projects, with a teardown that loses nothing.

Each adapter is a package with the SDK's own names (`quiesce.integrations.acp.run_agent`). Adapters do not
import each other. docs/reference/compatibility.md lists the faults that each one mends, by version.

The modules, in reading order:

- `sdk`: checks that the SDK of an adapter is installed, in a supported version.
- `asgi`: any ASGI app, with a shutdown that loses nothing or reports what it lost.
- `a2a`: A2A servers that drain, and lose neither tasks nor pushes.
- `acp`: agents and clients of the Agent Client Protocol.
- `mcp`: MCP sessions that any task may use and close.
- `claude`: the Claude Agent SDK.
"""

__all__: list[str] = []
