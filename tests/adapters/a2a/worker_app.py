"""The app of an agent that `uvicorn --workers` serves: all workers share one store. The environment says where and which."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from quiesce.integrations.a2a import quiesce_app
from quiesce.mesh import Node
from tests.adapters.a2a import kit
from tests.adapters.a2a.mesh_kit import QUICK, Worker


class Noting(Worker):
    """An agent of several processes.

    `note`: write down which process works. `later PORT`: leave a task that waits for the gate at a port.
    """

    async def _do(self, word: str, words: list[str], updater: Any) -> None:
        if word == "note":
            with Path(os.environ["AGENT_NOTES"]).open("a", encoding="utf-8") as notes:  # noqa: ASYNC230 - a line
                notes.write(f"{os.getpid()}\n")
        elif word == "later":
            self.left.append(asyncio.create_task(_passed(int(words.pop(0)))))
        else:
            await super()._do(word, words, updater)


async def _passed(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read(1)
    writer.close()


def make() -> Any:
    """Return the app of one worker."""
    url = os.environ["AGENT_URL"]
    node = Node("shop", url=url, store=os.environ["AGENT_STORE"], patience=QUICK)
    return quiesce_app(Noting(), card=kit.card(f"{url}/"), node=node, grace=2, cleanup=1)
