"""An A2A agent that gets SIGTERM while it works: one task ends in time, and the other is stored as FAILED.

    pip install '.[a2a]' 'a2a-sdk[http-server]' uvicorn && python examples/a2a_agent.py

`python examples/a2a_agent.py serve 8000` serves the agent alone. Needs a2a-sdk 1.x.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import anyio

try:
    import a2a.server.routes  # noqa: F401 - not in the older SDK
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
        Part,
        Task,
        TaskState,
        TaskStatus,
    )

    from quiesce.integrations.a2a import DurablePushSender, quiesce_app
except ImportError as error:
    sys.exit(
        "This example needs a2a-sdk 1.x with its server: "
        f"pip install '.[a2a]' 'a2a-sdk[http-server]' uvicorn\n({error})"
    )

DRAIN_SECONDS = 1.5


class Counter(AgentExecutor):  # type: ignore[misc]  # the SDK has no types where we look
    """Counts to the number in its message, ten a second."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Count, and report how far it came."""
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        task = Task(id=context.task_id, context_id=context.context_id, status=status)
        await event_queue.enqueue_event(task)
        await updater.start_work()
        last = int(context.get_user_input())
        for _ in range(last):
            await anyio.sleep(0.1)
        await updater.add_artifact([Part(text=str(last))], name="count")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Report that the task is cancelled; the SDK cancels the counting."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def serve(port: int, folder: Path) -> None:
    """Serve the agent: this is all that a server needs."""
    card = AgentCard(
        name="counter",
        description="Counts.",
        version="1",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        skills=[AgentSkill(id="count", name="count", description="Counts.", tags=["numbers"])],
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
    )
    pushes = DurablePushSender(folder / "pushes.db", allow_private=["127.0.0.0/8"])
    app = quiesce_app(Counter(), card=card, outbox=pushes, grace=DRAIN_SECONDS)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


# What follows is the other side: a client, and its webhook.


class Webhook(BaseHTTPRequestHandler):
    """Prints the pushes that it gets."""

    names: dict[str, str]

    def do_POST(self) -> None:
        """Take a push."""
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = told.get("statusUpdate") or told.get("task")
        if status is not None:
            task = status.get("taskId") or status["id"]
            state = status["status"]["state"].removeprefix("TASK_STATE_").lower()
            why = status["status"].get("message", {}).get("parts", [{}])[0].get("text", "")
            print(f"  webhook: {self.names.get(task, 'a task')} is {state}{why and f' ({why})'}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


async def send(client: httpx.AsyncClient, url: str, count: int, webhook: str) -> str:
    """Send a message without waiting for its result; return the task's id."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": str(count)}]}
    push = {"url": webhook}
    configuration = {"returnImmediately": True, "taskPushNotificationConfig": push}
    params = {"message": message, "configuration": configuration}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    answer = (await client.post(url, json=body, headers={"A2A-Version": "1.0"})).json()
    return str(answer["result"]["task"]["id"])


async def main(folder: Path) -> None:
    """Start two tasks, and end the server while they are in flight."""
    receiver = HTTPServer(("127.0.0.1", 0), Webhook)
    Webhook.names = {}
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, "serve", str(port), str(folder)])  # noqa: ASYNC220 - short
    url = f"http://127.0.0.1:{port}/"
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            with anyio.fail_after(20):
                while True:
                    try:
                        await client.get(f"{url}.well-known/agent-card.json")
                        break
                    except httpx.ConnectError:
                        await anyio.sleep(0.05)
            hook = f"http://127.0.0.1:{receiver.server_port}/"
            for name, count in (("short", 8), ("long", 1000)):
                Webhook.names[await send(client, url, count, hook)] = f"the {name} task"
            print("two tasks are in flight; SIGTERM")
            server.send_signal(signal.SIGTERM)
            await anyio.to_thread.run_sync(server.wait)
    finally:
        server.kill()
        receiver.shutdown()
        receiver.server_close()
    print("the server has ended; nobody is left waiting")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        place = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()  # noqa: PLR2004 - the third
        serve(int(sys.argv[2]), place)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            anyio.run(main, Path(temporary))
