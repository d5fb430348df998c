"""An agent of google-adk without a model, served by `to_a2a`: `python -m tests.integration.unmodified.adk_agent CONFIG`.

It leaves work behind, calls the next agent with `RemoteA2aAgent`, and answers. CONFIG is JSON: `name`, `folder`,
`next`: the address of the next agent, or nothing, and `port`.
"""

from __future__ import annotations

import json
import socket
import sys
import warnings
from typing import TYPE_CHECKING, Any

warnings.simplefilter("ignore")  # what it calls experimental

from google.adk.a2a.utils.agent_to_a2a import to_a2a  # noqa: E402 - after the filter
from google.adk.agents import BaseAgent  # noqa: E402 - as above
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent  # noqa: E402 - as above
from google.adk.events import Event  # noqa: E402 - as above
from google.genai import types  # noqa: E402 - as above

from quiesce.mesh import Node  # noqa: E402 - as above
from tests.integration.unmodified.letting import leave, serve, tell  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_config = json.loads(sys.argv[1])
_name, _next = _config["name"], _config["next"]
_node = Node(
    _name,
    url=f"http://127.0.0.1:{_config['port']}",
    store=f"{_config['folder']}/{_name}.journal",
    peers=_config["peers"],
)
_client: Any = _node.client(timeout=60)


class Working(BaseAgent):  # type: ignore[misc]  # google-adk is not where mypy looks
    """What the agent does."""

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Any]:
        leave(_name)
        if _next:
            card = _next + "/.well-known/agent-card.json"
            remote = RemoteA2aAgent("remote", agent_card=card, httpx_client=_client)
            async for event in remote.run_async(ctx):
                if event.error_message:
                    tell(error=event.error_message)
        content = types.Content(role="model", parts=[types.Part(text="done")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)


if __name__ == "__main__":
    _listener = socket.create_server(("127.0.0.1", _config["port"]))
    serve(_node, to_a2a(Working(name=_name), port=_config["port"], host="127.0.0.1"), _listener)
