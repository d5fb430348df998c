"""The Agent Client Protocol: agents and clients of the ACP SDK, with a teardown that is right.

`run_agent`, `connect_to_agent` and `spawn_agent_process` have the SDK's own signatures, and always
end, bounded, with nothing left behind; `serve_websocket` runs one agent a connection.
"""

from quiesce.integrations import sdk

sdk.require("agent-client-protocol", extra="acp", oldest="0.8.1")

from quiesce.integrations.acp.agent import run_agent  # noqa: E402 - the SDK is checked first
from quiesce.integrations.acp.client import (  # noqa: E402 - likewise
    connect_agent,
    connect_to_agent,
    scope_of,
)
from quiesce.integrations.acp.client_calls import (  # noqa: E402 - likewise
    AgentLost,
    ConnectionClosed,
)
from quiesce.integrations.acp.requests import REFUSED, REQUEST_CANCELLED  # noqa: E402 - likewise
from quiesce.integrations.acp.serving import (  # noqa: E402 - likewise
    WebSocketServer,
    WebSocketStats,
    open_websocket_server,
    serve_websocket,
)
from quiesce.integrations.acp.serving_settings import WebSocketOptions  # noqa: E402 - likewise
from quiesce.integrations.acp.spawning import (  # noqa: E402 - likewise
    AgentProcess,
    open_agent_process,
    spawn_agent_process,
)

__all__ = [
    "REFUSED",
    "REQUEST_CANCELLED",
    "AgentLost",
    "AgentProcess",
    "ConnectionClosed",
    "WebSocketOptions",
    "WebSocketServer",
    "WebSocketStats",
    "connect_agent",
    "connect_to_agent",
    "open_agent_process",
    "open_websocket_server",
    "run_agent",
    "scope_of",
    "serve_websocket",
    "spawn_agent_process",
]
