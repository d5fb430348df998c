"""Agents of the mesh that talk A2A: as servers of the SDK with the adapter, and as its clients.

Versions of the SDK are mixed. Those of 1.x serve, and send, what 0.3 understands as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig
from a2a.server.agent_execution import AgentExecutor
from a2a.server.tasks import TaskUpdater
from a2a.types import Task, TaskState, TaskStatus

from quiesce import Backoff
from quiesce.integrations.a2a import DurablePushSender, quiesce_app, quiesce_client
from quiesce.mesh import Node
from tests.adapters.a2a import kit
from tests.integration.mesh.plans import Plan

if TYPE_CHECKING:
    from tests.integration.mesh.agent import Agent

_hop: contextvars.ContextVar[str] = contextvars.ContextVar("hop", default="")


class Executor(AgentExecutor):  # type: ignore[misc]  # the SDK has no types here
    """Does what the plan in a message tells it."""

    def __init__(self, agent: Agent) -> None:
        """Record the agent that this is a part of."""
        self._agent = agent

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Make a task, do the work, complete the task; and go on for a while."""
        asked = json.loads(kit.text_of(context.message))
        plan, cascade = Plan.from_json(asked["plan"]), asked["cascade"]
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        state = TaskState.TASK_STATE_SUBMITTED if kit.FIRST else TaskState.submitted
        await event_queue.enqueue_event(
            Task(
                id=context.task_id, context_id=context.context_id, status=TaskStatus(state=state),
                history=[context.message],
            )
        )  # fmt: skip
        await updater.start_work()

        async def turn() -> None:
            if plan.stream:
                await updater.start_work()

        await self._agent.carry_out(cascade, plan, turn)
        with self._agent.piece(cascade, plan, "tail"):
            await updater.complete()
            await asyncio.sleep(plan.tail)

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Say so."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def app(agent: Agent) -> Any:
    """Make a server that takes part, and whose pushes do."""
    sender = DurablePushSender(
        Path(agent.config.folder, f"{agent.config.name}.pushes"),
        allow_private=["127.0.0.0/8"],
        backoff=Backoff(first_seconds=0.05, longest_seconds=0.5),
    )
    made = quiesce_app(
        Executor(agent), card=_card(agent), node=agent.node, outbox=sender, grace=5.0, cleanup=1.0
    )
    if kit.FIRST:
        made.router.routes[:0] = _routes(made.state.a2a)
    return made


def _routes(handler: Any) -> list[Any]:
    from a2a.server.routes import create_jsonrpc_routes  # noqa: PLC0415 - not in 0.3

    made: list[Any] = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)
    return made


def _card(agent: Agent) -> Any:
    url = f"{agent.config.url}/"
    card = kit.card(url)
    if kit.FIRST:
        del card.supported_interfaces[:]
        for version in ("1.0", "0.3"):
            card.supported_interfaces.add(
                url=url, protocol_binding="JSONRPC", protocol_version=version
            )
    return card


class Clients:
    """The clients of an agent, one for each that it sends to, and way of sending."""

    def __init__(self, agent: Agent, seconds: float) -> None:
        """Make the HTTP client; no client of an agent exists yet."""
        self._agent = agent
        headers = {"X-From": agent.config.name} | ({"A2A-Version": "1.0"} if kit.FIRST else {})
        hooks = {"request": [_mark], "response": []}
        self._http = httpx.AsyncClient(timeout=seconds, headers=headers, event_hooks=hooks)
        self._node = agent.node or Node("nobody")
        self._cards: dict[str, Any] = {}
        self._clients: dict[tuple[str, str], Any] = {}

    async def send(self, cascade: str, plan: Plan) -> None:
        """Send a message, and wait for the answer; or leave a stream after its first event."""
        leaves = plan.mode == "retry"
        way = "polling" if plan.mode == "background" else "blocking"
        client = await self._client(cascade, plan, "streaming" if plan.stream or leaves else way)
        text = json.dumps({"cascade": cascade, "plan": plan.to_json()})
        _hop.set(f"{cascade}/{plan.hop}")
        events = client.send_message(_outgoing(text))
        async for _ in events:
            if leaves:
                await events.aclose()
                return

    async def _client(self, cascade: str, plan: Plan, way: str) -> Any:
        found = self._clients.get((plan.agent, way))
        if found is None or plan.push:
            config = ClientConfig(
                streaming=way == "streaming", polling=way == "polling", httpx_client=self._http
            )
            peers = self._agent.config.peers
            if plan.push:
                config = _pushing(config, f"{peers['hook']}/hook/{cascade}/{plan.hop}")
            found = await quiesce_client(self._node, await self._card(plan.agent), config=config)
            if not plan.push:
                self._clients[plan.agent, way] = found
        return found

    async def _card(self, name: str) -> Any:
        if name not in self._cards:
            resolver = A2ACardResolver(self._http, self._agent.config.peers[name])
            self._cards[name] = await resolver.get_agent_card()
        return self._cards[name]


def _pushing(config: Any, url: str) -> Any:
    """Add to a configuration that the agent pushes what becomes of a task."""
    if kit.FIRST:
        from a2a.types import TaskPushNotificationConfig  # noqa: PLC0415 - not in 0.3

        made = TaskPushNotificationConfig(url=url)
        return dataclasses.replace(config, push_notification_config=made)
    from a2a.types import PushNotificationConfig  # noqa: PLC0415 - not in 1.x

    return dataclasses.replace(config, push_notification_configs=[PushNotificationConfig(url=url)])


async def _mark(request: Any) -> None:
    """Say which message it is, for the proxy."""
    if request.method == "POST":
        request.headers["X-Hop"] = _hop.get()


def _outgoing(text: str) -> Any:
    """Return what a client of the SDK sends: a request in 1.x, a message in 0.3."""
    made = kit.request(text)
    if kit.FIRST:
        made.ClearField("configuration")  # it is the client's
        return made
    return made.message
