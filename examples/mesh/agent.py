"""One agent: an A2A server that works for a while, and hands work on. The demo runs each in a process of its own."""

import json
import os
import socket
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Task,
    TaskState,
    TaskStatus,
)
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quiesce.integrations.a2a import DurablePushSender, quiesce_app
from quiesce.mesh import Node, Patience

PATIENCE = Patience(retry_first=0.05, retry_most=1.0, ask_in_doubt=0.3, ask_every=2.0, give_up=20.0)


class Truth:
    """A file of what really happens, which outlives the agent."""

    def __init__(self, path: Path, name: str) -> None:
        """Open the file; every line is one write."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._name = name

    def write(self, act: str, what: str) -> None:
        """Write what has just begun, or ended."""
        line = f"{json.dumps([time.monotonic(), act, self._name, os.getpid(), what])}\n"
        os.write(self._file, line.encode())


class Worker(AgentExecutor):  # type: ignore[misc]  # the SDK has no types where we look
    """Does what its message says: works, hands on, goes on in the background."""

    def __init__(
        self, truth: Truth, client: httpx.AsyncClient, urls: dict[str, str], own: str
    ) -> None:
        """Record the other agents, and how to reach them."""
        self._truth = truth
        self._client = client
        self._urls = urls
        self._own = own

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Work on one message."""
        plan = json.loads(context.get_user_input())
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        await event_queue.enqueue_event(
            Task(id=context.task_id, context_id=context.context_id, status=status)
        )
        await updater.start_work()
        work = f"{plan['what']} {uuid.uuid4().hex[:6]}"
        self._truth.write(plan["act"], f"begin {work}")
        try:
            await anyio.sleep(plan.get("seconds", 0.2))
            for one in plan.get("then", ()):
                await self._hand_on(plan["act"], one)
        finally:
            self._truth.write(plan["act"], f"end {work}")
        await updater.complete()

    async def _hand_on(self, act: str, one: dict[str, Any]) -> None:
        """Hand a message to another agent, which answers at once and pushes its result."""
        text = json.dumps({**one, "act": act})
        url = f"{self._own}/pushed/{act}"
        body = call("SendMessage", text, url)
        with suppress(httpx.HTTPError):  # the agent is gone: the verdict of the cascade says so
            await self._client.post(self._urls[one["to"]], json=body, headers=VERSION)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Report that the task is cancelled; the SDK cancels the work."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


VERSION = {"A2A-Version": "1.0"}


def call(method: str, text: str, webhook: str | None = None) -> dict[str, Any]:
    """Make a call of A2A's JSON-RPC."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    params: dict[str, Any] = {"message": message}
    if webhook is not None:
        push = {"url": webhook}
        params["configuration"] = {"returnImmediately": True, "taskPushNotificationConfig": push}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def main(path: str, name: str, listener: int) -> None:
    """Serve one agent until it is told to end."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    folder, urls = Path(config["folder"]), config["urls"]
    truth = Truth(folder / "truth", name)
    legacy = name == config["legacy"]
    node = Node(
        name,
        url=urls[name],
        store=config["store"] or folder / f"{name}.journal",
        peers=[url for other, url in urls.items() if other != config["legacy"]],
        patience=PATIENCE,
    )

    async def pushed(request: Request) -> Response:
        """Take a push; slowly, if this is the slow agent."""
        state = (await request.json()).get("statusUpdate", {}).get("status", {}).get("state", "")
        await anyio.sleep(config["webhook_seconds"])
        if state == "TASK_STATE_COMPLETED":
            truth.write(request.path_params["act"], "pushed")
        return Response()

    client = node.client(trust_env=False, timeout=30)
    app = quiesce_app(
        Worker(truth, client, urls, urls[name]),
        card=_card(name, urls[name]),
        outbox=DurablePushSender(folder / f"{name}.pushes", allow_private=["127.0.0.0/8"]),
        grace=10,
        routes=[Route("/pushed/{act}", pushed, methods=["POST"])],
        node=None if legacy else node,
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=15))
    server.run(sockets=[socket.socket(fileno=listener)])


def _card(name: str, url: str) -> AgentCard:
    interface = AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(
        name=name,
        description=f"The {name} of a trip.",
        version="1",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        skills=[AgentSkill(id=name, name=name, description=name, tags=["trip"])],
        supported_interfaces=[interface],
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
