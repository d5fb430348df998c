"""What a client asks of its agent: each request, while it waits for the answer, is a hold."""

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


class AgentLost(PeerLost, ConnectionError):  # noqa: N818 - named as its base is
    """The agent is gone, and what was asked of it has no answer."""


class ConnectionClosed(ScopeClosed, ConnectionError):  # noqa: N818 - likewise
    """The connection was closed at this end."""


def settle_answer(answer: asyncio.Future[Any], message: Message) -> None:
    """Set what a response says, unless the caller gives up in this very step."""
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

    It is made for every request, so it has no `__init__`, and what it tells of itself is found when
    it is asked for.
    """

    __slots__ = ("_since", "answer", "cancellations", "message", "task", "wire")

    _fate: ClassVar[Fate] = "undelivered"
    _stops: ClassVar[bool] = False

    wire: ClientWire
    message: Message
    task: Any  # the caller's
    answer: asyncio.Future[Any]
    cancellations: int | None  # of the task, before, as long as the message may not be sent yet

    @property
    def kind(self) -> str:
        """Whether it has an answer."""
        return "request" if "id" in self.message else "notification"

    @property
    def name(self) -> str:
        """The method."""
        return str(self.message["method"])

    @property
    def details(self) -> Mapping[str, object]:
        """The id, and that we are the one who asks."""
        return {"id": self.message.get("id"), "direction": "to the agent"}

    @property
    def where(self) -> str | None:
        """The line that awaits it, or that has started the task which does nothing else."""
        for frame in reversed(callsites.await_chain(self.task.get_coro())):
            if not (frame.file.startswith(_SDK) or callsites._plumbing_of(frame.file)):
                return f"{frame.file}:{frame.line}"
        code = getattr(self.task, "_code_started", None)
        return callsites.describe(code, getattr(self.task, "_offset_started", 0))

    @property
    def key(self) -> object:
        """What it is known by: its id, if it has one."""
        return self.message.get("id", self)

    def _stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        self.wire.stop(self)

    def _swallowed(self) -> bool:
        return False

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        """Do nothing: a connection's scope hands nothing over."""

    def _reclassify(self) -> None:
        """Do nothing: it is no service."""
