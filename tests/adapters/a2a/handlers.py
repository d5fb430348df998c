"""A handler of the adapter's, its agent and its store, and what its events tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore

from quiesce.integrations.a2a import QuiescentRequestHandler
from tests.adapters.a2a import kit

first_only = pytest.mark.skipif(not kit.FIRST, reason="1.x alone has it")


class ServedAgent:
    """A handler, its agent and its store."""

    def __init__(self, agent: Any = None, store: Any = None, **options: Any) -> None:
        self.agent = agent or kit.Agent()
        self.store = store or InMemoryTaskStore()
        if kit.FIRST:
            options.setdefault("agent_card", kit.card())
        self.handler = QuiescentRequestHandler(
            agent_executor=self.agent,
            task_store=self.store,
            push_config_store=InMemoryPushNotificationConfigStore(),
            **options,
        )

    async def send(self, text: str, **options: Any) -> Any:
        """Send a message."""
        return await self.handler.on_message_send(kit.request(text, **options), kit.call_context())

    def stream(self, text: str, **options: Any) -> Any:
        """Send a message, and give the events."""
        return self.handler.on_message_send_stream(kit.request(text, **options), kit.call_context())

    async def stored(self, task_id: str) -> Any:
        """Return a task from the store."""
        return await self.store.get(task_id, kit.call_context())

    async def state(self, task_id: str) -> str:
        """Return the state that is stored."""
        return kit.state_of(await self.stored(task_id))

    async def busy(self, text: str = "wait k complete") -> Any:
        """Start a task whose executor waits for `k`."""
        task = await self.send(text, blocking=False)
        await self.agent.waits("k")
        while await self.state(task.id) == "submitted":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        return task


def told(event: Any) -> str:
    """Name the state that an event of a stream tells."""
    return kit.state_of(event) if hasattr(event, "status") else ""
