"""Adapters: the real SDKs, with a teardown that is right.

Each is a module of its own with the SDK's own names (`quiesce.integrations.acp.run_agent`), and none
imports another. What each mends, in which version, is in docs/reference/compatibility.md.

The modules, in reading order:

- `sdk`: that the SDK beneath an adapter is there, and of a version that the adapter knows.
- `asgi`: any ASGI app, with a shutdown that loses nothing, or says what it lost.
- `a2a`: A2A servers that drain, and lose neither tasks nor pushes.
- `acp`: agents and clients of the Agent Client Protocol.
- `mcp`: MCP sessions that any task may use and close.
- `claude`: the Claude Agent SDK.
"""

__all__: list[str] = []
