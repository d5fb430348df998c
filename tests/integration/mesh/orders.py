"""What the rig tells an agent, line by line, on its standard input: each is a fault that it brings about itself."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.integration.mesh.agent import Agent

_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class Orders:
    """The standard input of an agent."""

    def __init__(self, agent: Agent) -> None:
        """Obey for an agent."""
        self._agent = agent
        self._rest = b""

    def read(self) -> None:
        """Read what there is, and do it; end with the input."""
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(3)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, asked: dict[str, Any]) -> None:
        agent = self._agent
        match asked["do"]:
            case "told":
                agent.ways.told[asked["cascade"]].set()
                return
            case "clock":
                agent.seconds_ahead = asked["seconds"]
            case "full":
                size = agent.journal.stat().st_size + int(asked["bytes"])
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            case "room":
                resource.setrlimit(resource.RLIMIT_FSIZE, _NO_LIMIT)
                agent.keep(self._recover(asked["number"]), outside=True)
                return
        agent.log.write("did", number=asked["number"])

    async def _recover(self, number: int) -> None:
        """Say when the node takes messages again."""
        node = self._agent.node
        assert node is not None
        while not node.health.takes_messages:  # noqa: ASYNC110 - as a probe asks
            await asyncio.sleep(0.05)
        self._agent.log.write("did", number=number)
