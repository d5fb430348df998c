"""A handler that pushes, for the tests of pushes."""

from __future__ import annotations

from typing import Any

from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore

from quiesce.integrations.a2a import DurablePushSender, MemoryOutbox, QuiescentRequestHandler
from quiesce.pool.backoff import Backoff
from tests.adapters.a2a import kit

SOON = Backoff(first_seconds=0.01, longest_seconds=0.05)
LOCAL = ["127.0.0.0/8"]


class PushingAgent:
    """A handler that pushes."""

    def __init__(self, sender: Any = None, store: Any = None, **options: Any) -> None:
        self.agent = kit.Agent()
        self.store = store or InMemoryTaskStore()
        self.configs = InMemoryPushNotificationConfigStore()
        settings: dict[str, Any] = {"allow_private": LOCAL, "backoff": SOON} | options
        self.sender = sender or DurablePushSender(MemoryOutbox(), **settings)
        self.handler = QuiescentRequestHandler(
            agent_executor=self.agent,
            task_store=self.store,
            push_config_store=self.configs,
            push_sender=self.sender,
            **({"agent_card": kit.card()} if kit.FIRST else {}),
        )

    async def send(self, text: str, **options: Any) -> Any:
        """Send a message."""
        return await self.handler.on_message_send(kit.request(text, **options), kit.call_context())

    async def state(self, task_id: str) -> str:
        """Return the state that is stored."""
        return kit.state_of(await self.store.get(task_id, kit.call_context()))

    async def name_receiver(self, task_id: str, url: str) -> None:
        """Store a push configuration for a task, as the SDK does on a client's wish."""
        if kit.FIRST:
            from a2a.types import TaskPushNotificationConfig  # noqa: PLC0415 - not in 0.3

            config = TaskPushNotificationConfig(id="one", task_id=task_id, url=url)
            await self.configs.set_info(task_id, config, kit.call_context())
            return
        from a2a.types import PushNotificationConfig  # noqa: PLC0415 - not in 1.x

        await self.configs.set_info(task_id, PushNotificationConfig(id="one", url=url))

    async def take_receiver_away(self, task_id: str) -> None:
        """Delete it."""
        if kit.FIRST:
            await self.configs.delete_info(task_id, kit.call_context(), "one")
        else:
            await self.configs.delete_info(task_id, "one")


def authenticate(params: Any, scheme: str, credentials: str) -> None:
    """Set how the pushes of a message are authenticated."""
    if kit.FIRST:
        config = params.configuration.task_push_notification_config
        config.authentication.scheme = scheme
        config.authentication.credentials = credentials
        return
    from a2a.types import PushNotificationAuthenticationInfo  # noqa: PLC0415 - not in 1.x

    params.configuration.push_notification_config.authentication = (
        PushNotificationAuthenticationInfo(schemes=[scheme], credentials=credentials)
    )
