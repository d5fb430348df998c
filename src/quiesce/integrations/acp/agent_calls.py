"""The requests and notifications that an agent sends to its client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from quiesce.integrations.acp.client_calls import settle_answer
from quiesce.integrations.acp.witness import INCOMING, OUTGOING

if TYPE_CHECKING:
    from quiesce.integrations.acp.json_lines import Message
    from quiesce.integrations.acp.send_buffer import SendBuffer
    from quiesce.integrations.acp.witness import Witness

__all__: list[str] = []


class AgentCalls:
    """The requests and notifications of one agent; the SDK's connection sends through this object."""

    def __init__(self, outbox: SendBuffer, witness: Witness | None) -> None:
        self._outbox = outbox
        self._witness = witness
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._next_id = 0
        self._ended = False

    async def request(self, method: str, params: Any = None) -> Any:
        """Send a request, and wait for its answer.

        *Cancel safety*: if cancelled, the client may have received the request.

        *Raises*: `ConnectionError` if no answer can come; the error with which the client answers.
        """
        if self._ended:
            raise _closed()
        number = self._next_id
        self._next_id += 1
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification, and wait until the outbox has room.

        *Cancel safety*: if cancelled, the notification is sent nevertheless.
        """
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def _send(self, message: Message) -> None:
        self._outbox.post(message)
        if self._witness is not None:
            self._witness.tell(OUTGOING, message)
        await self._outbox.room()

    def take_answer(self, message: Message) -> None:
        """Pass an answer of the client to the waiting caller; ignore an answer without a request."""
        number = message.get("id")
        answer = self._waiting.get(number) if isinstance(number, int) else None
        if answer is not None:
            if self._witness is not None:
                self._witness.tell(INCOMING, message)
            settle_answer(answer, message)

    def end(self) -> None:
        """Raise in waiting and later callers: the client sends no more answers."""
        self._ended = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_closed())


def _closed() -> ConnectionError:
    return ConnectionError("Connection closed")
