"""Three A2A agents that hand work on without waiting for it: when is all of it done?

    pip install '.[a2a]' 'a2a-sdk[http-server]' uvicorn && python examples/a2a_mesh.py

The agents are real servers on loopback, here in one process; each may as well be one of its own. Needs
a2a-sdk 1.x.
"""

import asyncio
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

try:
    import a2a.server.routes  # noqa: F401 - not in the older SDK
    import uvicorn
    from a2a.client import ClientConfig
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskUpdater
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        AgentInterface,
        AgentSkill,
        Message,
        Part,
        Role,
        SendMessageRequest,
        Task,
        TaskState,
        TaskStatus,
    )

    from quiesce.integrations.a2a import quiesce_app, quiesce_client
    from quiesce.mesh import Node
except ImportError as error:
    sys.exit(
        "This example needs a2a-sdk 1.x with its server: "
        f"pip install '.[a2a]' 'a2a-sdk[http-server]' uvicorn\n({error})"
    )

NAMES = ("planner", "hotel", "bank")


def request(text: str) -> SendMessageRequest:
    """Make a message."""
    message = Message(
        message_id=uuid.uuid4().hex, role=Role.Value("ROLE_USER"), parts=[Part(text=text)]
    )
    return SendMessageRequest(message=message)


class Agent(AgentExecutor):  # type: ignore[misc]  # the SDK has no types where we look
    """Answers that it is done, and then hands the rest of the message on, in a task of its own."""

    def __init__(self, node: Node, urls: dict[str, str]) -> None:
        """Record the other agents."""
        self.node = node
        self.urls = urls
        self.running: set[asyncio.Task[None]] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer at once; the work goes on."""
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        task = Task(id=context.task_id, context_id=context.context_id, status=status)
        await event_queue.enqueue_event(task)
        work = asyncio.create_task(self.work(context.get_user_input().split()))
        self.running.add(work)  # it belongs to the cascade without a further line
        await updater.complete()

    async def work(self, others: list[str]) -> None:
        """Work for half a second, then send a message to the next agent."""
        await asyncio.sleep(0.5)
        if others:
            config = ClientConfig(streaming=False, polling=True)
            async with await quiesce_client(
                self.node, self.urls[others[0]], config=config
            ) as client:
                async for _ in client.send_message(request(" ".join(others[1:]))):
                    pass

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Say so."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(name: str, url: str) -> AgentCard:
    """Make the card of an agent; `quiesce_app` adds that the agent takes part."""
    interface = AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(
        name=name,
        description=name,
        version="1",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id="all", name=name, description="Hands work on.", tags=["trips"])],
        supported_interfaces=[interface],
    )


@asynccontextmanager
async def serving(
    name: str, urls: dict[str, str], listener: socket.socket, folder: Path
) -> AsyncIterator[None]:
    """Serve an agent."""
    url = urls[name]
    node = Node(name, url=url, store=folder / f"{name}.journal", peers=urls.values())
    app = quiesce_app(Agent(node, urls), card=card(name, url), node=node, hold_signal=False)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await running


async def main(folder: Path) -> None:
    """Begin a cascade, and wait for all of it."""
    async with AsyncExitStack() as stack:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
        urls = {
            name: f"http://127.0.0.1:{listener.getsockname()[1]}"
            for name, listener in listeners.items()
        }
        for name, listener in listeners.items():
            await stack.enter_async_context(serving(name, urls, listener, folder))
        node = await stack.enter_async_context(Node("you"))
        client = await stack.enter_async_context(await quiesce_client(node, urls["planner"]))
        began = time.monotonic()
        async with node.cascade("book a trip") as cascade:
            async for _ in client.send_message(request("hotel bank")):
                pass
        print(f"{time.monotonic() - began:.1f} s: the stream has closed, and the task is completed")
        async for frontier in cascade.watch(every=0.4):
            busy = ", ".join(sorted({one.name for one in frontier.busy if one.name != "you"}))
            print(f"{time.monotonic() - began:.1f} s: still busy: {busy or 'a message under way'}")
        print(await cascade.settled())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
