"""The Agent Client Protocol: agents and clients of the ACP SDK, with a teardown that is right.

`run_agent`, `connect_to_agent` and `spawn_agent_process` have the SDK's own signatures, and always
end, bounded, with nothing left behind; `serve_websocket` runs one agent a connection.

The modules, in reading order:

- `agent`: one agent, served to one peer, in a scope of its own.
- `requests`: each request that an agent handles is a task, and a hold.
- `agent_transport`: what an agent is served over: streams, or standard input and output.
- `send_buffer`: messages that are to be sent to a peer that may not read.
- `json_lines`: a stream of bytes is cut into lines, and a line is parsed.
- `agent_calls`: what an agent asks of its client.
- `sdk_connection`: the SDK's own connection objects, made to send through ours.
- `witness`: observers of every message, as the SDK offers them.
- `handler_children`: processes that handlers start and do not end.
- `websocket_server`: a WebSocket bridge: one agent a connection, with limits and a drain.
- `websocket_settings`: the options of a bridge, checked.
- `websocket`: one WebSocket, and the listener that accepts them.
- `agent_client`: the client side: connections to agents that end when they are closed.
- `client_wire`: a client's messages to one agent, and its open requests.
- `client_calls`: one request of a client, while it waits for the answer.
- `client_streams`: what carries a client's messages: streams, pipes, or a transport.
- `agent_process`: agents that are child processes.
- `request_edges`: what a client asks of an agent inside of a hop is an edge.
- `request_hops`: a request that carries an edge is handled as its hop.
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
