"""The requests that a client sends to its agent; each is a hold while it waits for the answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import acp

from quiesce.core import callsites
from quiesce.core.hold import Described
from quiesce.errors import PeerLost, ScopeClosed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from quiesce.core.hold import Fate
    from quiesce.core.tree import TreeNode
    from quiesce.integrations.acp.client_wire import ClientWire
    from quiesce.integrations.acp.json_lines import Message

__all__ = ["AgentLost", "ConnectionClosed"]

_SDK = f"{Path(acp.__file__).parent}{os.sep}"


class AgentLost(PeerLost, ConnectionError):  # noqa: N818 - named like its base class
    """The agent is gone, so the request gets no answer."""


class ConnectionClosed(ScopeClosed, ConnectionError):  # noqa: N818 - likewise
    """The connection was closed on this side."""


def settle_answer(answer: asyncio.Future[Any], message: Message) -> None:
    """Set the result or error of a response, unless the caller has given up in this very step."""
    if answer.done():
        return
    if "result" in message or "error" not in message:
        answer.set_result(message.get("result"))
        return
    given = message["error"] if isinstance(message["error"], dict) else {}
    code, text = given.get("code", -32603), given.get("message", "Error")
    answer.set_exception(acp.RequestError(code, text, given.get("data")))


class AgentCall(Described):
    """A request that waits for its answer, or a notification that waits for room; it is a hold.

    One is made for every request, so it has no `__init__`, and its descriptions are computed only when
    they are asked for.
    """

    __slots__ = ("answer", "began_at", "cancellations", "message", "task", "wire")

    fate: ClassVar[Fate] = "undelivered"
    can_be_stopped: ClassVar[bool] = False

    wire: ClientWire
    message: Message
    task: Any  # the caller's task
    answer: asyncio.Future[Any]
    cancellations: int | None  # the task's count before the call; None once the message is sent

    @property
    def kind(self) -> str:
        """`request` if an answer is expected, otherwise `notification`."""
        return "request" if "id" in self.message else "notification"

    @property
    def name(self) -> str:
        return str(self.message["method"])

    @property
    def details(self) -> Mapping[str, object]:
        """The id and the direction of the message."""
        return {"id": self.message.get("id"), "direction": "to the agent"}

    @property
    def where(self) -> str | None:
        """The line that awaits the call, or the line that started a task which only makes the call."""
        for frame in reversed(callsites.await_chain(self.task.get_coro())):
            if not (frame.file.startswith(_SDK) or callsites.plumbing_of(frame.file)):
                return f"{frame.file}:{frame.line}"
        code = getattr(self.task, "started_code", None)
        return callsites.describe(code, getattr(self.task, "started_offset", 0))

    @property
    def key(self) -> object:
        """The key in the scope's table of holds: the id, if the call has one."""
        return self.message.get("id", self)

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        self.wire.stop(self)

    def goes_on_regardless(self) -> bool:
        return False

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        """Do nothing: a connection's scope is never merged into another."""

    def reclassify(self) -> None:
        """Do nothing: a call is not a service."""
