"""Agents and clients of the Agent Client Protocol's SDK, with a teardown that always ends.

`run_agent`, `connect_to_agent` and `spawn_agent_process` have the SDK's own signatures. Each of them
ends within its time limits and leaves nothing behind. `serve_websocket` runs one agent for each
connection.

The modules, in reading order:

- `agent`: one agent, served to one peer, in its own scope.
- `requests`: each request that an agent handles is a task and a hold.
- `agent_transport`: the streams, or standard input and output, over which an agent is served.
- `send_buffer`: messages that wait to be sent to a peer that may not read.
- `json_lines`: cuts a byte stream into lines, and parses a line.
- `agent_calls`: the requests and notifications that an agent sends to its client.
- `sdk_connection`: the SDK's own connection objects, changed to send through quiesce.
- `witness`: observers that see every message, as in the SDK.
- `handler_children`: processes that handlers start and do not end.
- `websocket_server`: a WebSocket bridge: one agent for each connection, with limits and a drain.
- `websocket_settings`: the checked options of a bridge.
- `websocket`: one WebSocket, and the listener that accepts them.
- `agent_client`: the client side: connections to agents that end when they are closed.
- `client_wire`: a client's messages to one agent, and its open requests.
- `client_calls`: one request of a client while it waits for the answer.
- `client_streams`: carries a client's messages: streams, pipes, or a transport.
- `agent_process`: agents that are child processes.
- `request_edges`: a request that a client sends inside a hop is an edge of that hop.
- `request_hops`: a request that carries an edge is handled as a hop.
"""

from quiesce.integrations import sdk

sdk.require("agent-client-protocol", extra="acp", oldest="0.8.1")

from quiesce.integrations.acp.agent import run_agent  # noqa: E402 - the SDK is checked first
from quiesce.integrations.acp.agent_client import (  # noqa: E402 - likewise
    connect_agent,
    connect_to_agent,
    scope_of,
)
from quiesce.integrations.acp.agent_process import (  # noqa: E402 - likewise
    AgentProcess,
    open_agent_process,
    spawn_agent_process,
)
from quiesce.integrations.acp.client_calls import (  # noqa: E402 - likewise
    AgentLost,
    ConnectionClosed,
)
from quiesce.integrations.acp.requests import REFUSED, REQUEST_CANCELLED  # noqa: E402 - likewise
from quiesce.integrations.acp.websocket_server import (  # noqa: E402 - likewise
    WebSocketServer,
    WebSocketStats,
    open_websocket_server,
    serve_websocket,
)
from quiesce.integrations.acp.websocket_settings import WebSocketOptions  # noqa: E402 - likewise

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
