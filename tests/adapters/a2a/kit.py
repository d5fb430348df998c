"""What the tests of the A2A adapter share: an agent, a durable store, and the words of either SDK."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, Task, TaskState, TaskStatus

from quiesce.integrations import sdk

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable

VERSION = sdk.require("a2a-sdk", extra="a2a", oldest="0.3.22")
FIRST = VERSION >= (1,)
# The SDK leaves the generators of some answers to the garbage collector, every time.
LEFT_TO_THE_COLLECTOR = [
    "generator:ActiveTask.subscribe",
    "generator:EventConsumer.consume_all",
    "generator:ResultAggregator.consume*",
]
TERMINAL = {"completed", "failed", "canceled", "rejected"}

if FIRST:
    from a2a.types import AgentInterface, SendMessageRequest
    from google.protobuf.json_format import MessageToDict, ParseDict
else:
    from a2a.types import MessageSendParams, TextPart


def state_of(task: Any) -> str:
    """Name the state of a task in the words of 0.3: `working`, `input-required`."""
    if isinstance(task, dict):
        name = str(task["status"]["state"])
    elif FIRST:
        name = TaskState.Name(task.status.state)
    else:
        name = task.status.state.value
    name = name.removeprefix("TASK_STATE_").replace("_", "-").lower()
    return "canceled" if name == "cancelled" else name  # as the REST of 0.3 has it


def to_dict(task: Any) -> dict[str, Any]:
    """Return a task as JSON has it."""
    if FIRST:
        found: dict[str, Any] = MessageToDict(task)
        return found
    dumped: dict[str, Any] = task.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def from_dict(data: dict[str, Any]) -> Any:
    """Return the task of some JSON."""
    return ParseDict(data, Task()) if FIRST else Task.model_validate(data)


def copied(task: Any) -> Any:
    """Return a copy of a task."""
    return from_dict(to_dict(task))


def text_of(message: Any) -> str:
    """Return the text of a message."""
    return "".join(part.text if FIRST else part.root.text for part in message.parts)


def card(url: str = "http://127.0.0.1:1/") -> Any:
    """Return a card."""
    options: dict[str, Any] = {
        "name": "tried",
        "description": "an agent that is tried",
        "version": "1",
        "default_input_modes": ["text"],
        "default_output_modes": ["text"],
        "capabilities": AgentCapabilities(streaming=True, push_notifications=True),
        "skills": [AgentSkill(id="all", name="all", description="all", tags=["all"])],
    }
    if FIRST:
        interfaces = [
            AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")
            for binding in ("JSONRPC", "HTTP+JSON")
        ]
        return AgentCard(supported_interfaces=interfaces, **options)
    return AgentCard(url=url, **options)


def sending(
    text: str, *, task_id: str = "", context_id: str = "", blocking: bool = True, webhook: str = ""
) -> dict[str, Any]:
    """Return the parameters of a send, as JSON."""
    part = {"text": text} if FIRST else {"kind": "text", "text": text}
    message: dict[str, Any] = {
        "messageId": os.urandom(8).hex(),
        "role": "ROLE_USER" if FIRST else "user",
        "parts": [part],
    }
    if task_id:
        message |= {"taskId": task_id}
    if context_id:
        message |= {"contextId": context_id}
    push = {"url": webhook, "token": "a token"}
    if FIRST:
        configuration: dict[str, Any] = {"returnImmediately": not blocking}
        configuration |= {"taskPushNotificationConfig": push} if webhook else {}
    else:
        configuration = {"blocking": blocking}
        configuration |= {"pushNotificationConfig": push} if webhook else {}
    return {"message": message, "configuration": configuration}


def request(text: str, **options: Any) -> Any:
    """Return the parameters of a send, as a handler takes them."""
    return parsed(sending(text, **options))


def parsed(data: dict[str, Any]) -> Any:
    """Return the parameters of a send, as a handler takes them, of what JSON has."""
    return (
        ParseDict(data, SendMessageRequest()) if FIRST else MessageSendParams.model_validate(data)
    )


def call_context() -> Any:
    """Return the context of a call by nobody in particular."""
    return ServerCallContext()


class Agent(AgentExecutor):  # type: ignore[misc]  # the SDK has no types here
    """Does what the text says, word by word.

    `complete`, `park`, `auth`, `fail`: the state. `raise`: an error. `wait KEY`: until
    `release(KEY)`. `stubborn KEY`: the same, whatever the cancellation. `obey KEY`: the same, or until it is
    cancelled; then the rest is left out, unless that is `complete`. `say`: a plain message.
    `artifact`: one. `update`: a working state with a text. `sleep SECONDS`: what it says.
    """

    def __init__(self) -> None:
        """Start without keys."""
        self._keys: dict[str, asyncio.Event] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.executed = 0

    def _event(self, table: dict[str, asyncio.Event], key: str) -> asyncio.Event:
        return table.setdefault(key, asyncio.Event())

    def release(self, key: str) -> None:
        """Let whoever waits for a key go on."""
        self._event(self._keys, key).set()

    async def waits(self, key: str) -> None:
        """Wait until somebody waits for a key."""
        await self._event(self.reached, key).wait()

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Go through the words."""
        self.executed += 1
        words = text_of(context.message).split()
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if words[0] == "say":
            await event_queue.enqueue_event(updater.new_agent_message(parts=[_text("said")]))
            return
        if words[0] == "raise-first":
            raise RuntimeError("the agent broke")
        if context.current_task is None:
            state = TaskState.TASK_STATE_SUBMITTED if FIRST else TaskState.submitted
            await event_queue.enqueue_event(
                Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=TaskStatus(state=state),
                    history=[context.message],
                )
            )
        await updater.start_work()
        while words:
            await self._do(words.pop(0), words, updater)

    async def _do(self, word: str, words: list[str], updater: Any) -> None:
        simple: dict[str, Callable[[], Any]] = {
            "complete": updater.complete,
            "park": updater.requires_input,
            "auth": updater.requires_auth,
            "fail": updater.failed,
            "update": lambda: updater.start_work(updater.new_agent_message(parts=[_text("on it")])),
            "artifact": lambda: updater.add_artifact([_text("made")], name="thing"),
            "turn": lambda: asyncio.sleep(0),
        }
        if word in simple:
            await simple[word]()
        elif word == "raise":
            raise RuntimeError("the agent broke")
        elif word == "sleep":
            await asyncio.sleep(float(words.pop(0)))
        elif word in {"wait", "stubborn", "obey"}:
            key = words.pop(0)
            self._event(self.reached, key).set()
            while True:
                try:
                    await self._event(self._keys, key).wait()
                    break
                except asyncio.CancelledError:
                    if word == "wait":
                        raise
                    if word == "obey":
                        words[:] = [word for word in words if word == "complete"]
                        break

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Say so."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _text(text: str) -> Any:
    if FIRST:
        return Part(text=text)
    return Part(root=TextPart(text=text))


class FileStore(TaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Tasks in files, which outlive the server; each file has all states that its task ever had."""

    def __init__(self, folder: Path) -> None:
        """Keep them in a folder."""
        self.folder = folder

    async def save(self, task: Any, context: Any = None) -> None:
        """Write a task, and the states that it has had, in one step."""
        del context
        states = self.had(task.id)
        if states[-1:] != [state_of(task)]:
            states.append(state_of(task))
        part = self.folder / f"{task.id}.part"
        part.write_text(json.dumps(to_dict(task) | {"states": states}), encoding="utf-8")
        part.rename(self.folder / f"{task.id}.json")

    async def get(self, task_id: str, context: Any = None) -> Any:
        """Read a task."""
        del context
        found = self.read(task_id)
        found.pop("states", None)
        return from_dict(found) if found else None

    async def list(self, params: Any, context: Any = None) -> Any:
        """Refuse: nobody asks."""
        raise NotImplementedError

    async def delete(self, task_id: str, context: Any = None) -> None:
        """Forget a task."""
        del context
        (self.folder / f"{task_id}.json").unlink(missing_ok=True)

    def read(self, task_id: str) -> dict[str, Any]:
        """Return what the file of a task has; nothing if there is none."""
        try:
            text = (self.folder / f"{task_id}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        found: dict[str, Any] = json.loads(text)
        return found

    def had(self, task_id: str) -> builtins.list[str]:
        """Return the states that a task has had, each change of them, oldest first."""
        states: builtins.list[str] = self.read(task_id).get("states", [])
        return states

    def all(self) -> dict[str, dict[str, Any]]:
        """Return what the file of every task has."""
        return {file.stem: self.read(file.stem) for file in self.folder.glob("*.json")}

    def states(self) -> dict[str, str]:
        """Return the state of every task."""
        return {task_id: state_of(found) for task_id, found in self.all().items()}


def bare_handler(
    agent: Any, store: Any = None, *, configs: Any = None, sender: Any = None
) -> DefaultRequestHandler:
    """Return the SDK's own handler."""
    options = {"agent_card": card()} if FIRST else {}
    return DefaultRequestHandler(
        agent_executor=agent,
        task_store=store or InMemoryTaskStore(),
        push_config_store=configs or InMemoryPushNotificationConfigStore(),
        push_sender=sender,
        **options,
    )


def bare_sender(client: Any, configs: Any) -> Any:
    """Return the SDK's own sender of pushes."""
    if FIRST and VERSION < (1, 1):
        return BasePushNotificationSender(client, configs, call_context())
    return BasePushNotificationSender(client, configs)


def measured(pid: int) -> dict[str, int]:
    """Count what a process has: open files, kilobytes, and processes that it has started."""
    place = Path("/proc", str(pid))
    if not place.exists():  # it has ended; or this is no Linux
        return {"files": 0, "kilobytes": 0, "processes": 0}
    children = [file.read_text().split() for file in place.glob("task/*/children")]
    status = (place / "status").read_text(encoding="utf-8")
    return {
        "files": len(list((place / "fd").iterdir())),
        "kilobytes": int(status.partition("VmRSS:")[2].split()[0]),
        "processes": sum(map(len, children)),
    }
