"""An agent of pydantic-ai, served by fasta2a: `python -m tests.integration.unmodified.fasta2a_agent CONFIG`.

A request is answered at once; a worker that the server has started runs the agent later, which calls the tool `work`
with the text of the message.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from quiesce.mesh import Node
from tests.integration.unmodified.letting import listen, serve, work


async def answer(messages: list[Any], _: Any) -> Any:
    """Answer as the model: call the tool first, then answer."""
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("work", {"name": messages[0].parts[-1].content})])
    return ModelResponse([TextPart("done")])


if __name__ == "__main__":
    _config = json.loads(sys.argv[1])
    _agent: Any = Agent(FunctionModel(answer))
    _agent.tool_plain(work)
    _listener, _url = listen()
    _node = Node("agent", url=_url, store=f"{_config['folder']}/agent.journal")
    serve(_node, agent_to_a2a(_agent), _listener)
