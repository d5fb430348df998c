"""An ACP agent with a journal: `python acp/mesh_agent.py JOURNAL`, speaks over stdio.

The prompt `later` leaves work that ends soon, and says so in a file; `never` leaves work that does not.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import acp

from quiesce.integrations.acp import run_agent
from quiesce.mesh import Node
from tests.adapters.acp.agents import busy

JOURNAL = Path(sys.argv[1])


class Agent:
    """Leaves work."""

    def on_connect(self, conn: Any) -> None:
        """Need no client."""

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        """Introduce itself."""
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def prompt(self, prompt: list[Any], **_: Any) -> Any:
        """Leave what the prompt asks for."""
        later: Any = self.later() if prompt[0].text == "later" else asyncio.Event().wait()
        self.task = asyncio.get_running_loop().create_task(later)
        return acp.PromptResponse(stop_reason="end_turn")

    async def later(self) -> None:
        """Say that the work has ended."""
        await busy(0.05)
        JOURNAL.with_suffix(".done").write_text("done")


async def main() -> None:
    """Serve one client."""
    agent: Any = Agent()
    async with Node("coder", store=JOURNAL) as node:
        await run_agent(agent, node=node, grace=0.1)


asyncio.run(main())
