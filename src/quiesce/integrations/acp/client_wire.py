"""The wire of a client: its messages to one agent, and the requests that wait for an answer.

What holds:

1. A message is written whole, in one step, or not at all: whoever is cancelled while it waits for
   room has sent nothing, and later messages are not torn.
2. A request is a hold of the connection's scope, from before it is sent until its answer.
3. A caller that gives up on a request which was sent has the agent told so, in the same step.
4. When the agent is gone, or the scope is closed, every caller that waits is told, once: nobody
   waits for an answer that cannot come.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.hold import Hold
from quiesce.core.node import State, logger
from quiesce.errors import PeerLost, ScopeClosed, UsageError
from quiesce.integrations.acp.client_streams import StreamPeer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quiesce.core.scope import Scope
    from quiesce.core.sites import Place
    from quiesce.integrations.acp.client_streams import Message, Peer

__all__ = ["AgentLost", "ConnectionClosed"]

CANCEL_REQUEST = "$/cancel_request"
_PROMPT, _CANCEL_SESSION = "session/prompt", "session/cancel"
_NOTICE_SECONDS = 5.0  # that telling the agent of a cancelled request may take


class AgentLost(PeerLost, ConnectionError):  # noqa: N818 - named as its base is
    """The agent is gone, and what was asked of it has no answer."""


class ConnectionClosed(ScopeClosed, ConnectionError):  # noqa: N818 - likewise
    """The connection was closed at this end."""


class Call:
    """One call of a method of the connection, and the request that it has sent, if any."""

    __slots__ = (
        "_cancellations",
        "_task",
        "answered",
        "error",
        "hold",
        "key",
        "message",
        "place",
        "sent",
    )

    def __init__(self, task: asyncio.Task[Any], place: FrameType | Place) -> None:
        self.place: FrameType | Place = place
        self._task = task
        self._cancellations = task.cancelling()
        self.error: BaseException | None = None
        self.key: object = self  # the request's id, if it is one
        self.message: Message = {}
        self.hold: Hold | None = None
        self.sent: bool = False
        self.answered: bool = False

    def interrupt(self, error: BaseException) -> None:
        """Have the caller raise `error`, unless its answer is on the way to it."""
        if not self.answered and self.error is None:
            self.error = error
            self._task.cancel()

    def is_ours(self) -> bool:
        """Tell whether the cancellation that has come is our own interruption, and no other."""
        return self.error is not None and self._task.uncancel() <= self._cancellations


_calling: ContextVar[Call | None] = ContextVar("quiesce_acp_call", default=None)


class Wire:
    """The messages of one connection; what the SDK takes for its transport."""

    def __init__(
        self, scope: Scope, peer: Peer, *, cancel_session: bool, why_lost: Callable[[], str]
    ) -> None:
        """Wrap what carries the messages.

        Args:
            scope: the connection's own.
            peer: what carries them.
            cancel_session: whether an abandoned prompt also cancels its session's turn.
            why_lost: gives what is known about the end of an agent that is gone.
        """
        self._scope = scope
        self._peer = peer
        self._stream = peer if isinstance(peer, StreamPeer) else None
        self._cancel_session = cancel_session
        self._why_lost = why_lost
        self._calls: dict[object, Call] = {}
        self._lost: BaseException | None = None

    # The calls.

    async def call(self, call: Call, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the SDK's connection, which sends at most one request."""
        if self._lost is not None or self._scope._state is not State.OPEN:
            ended = self._ending()
            if ended is not None:
                raise ended
        token = _calling.set(call)
        try:
            return await method(*args, **options)
        except asyncio.CancelledError:
            if call.is_ours():
                assert call.error is not None  # noqa: S101 - that is why it is ours
                raise call.error from None
            self._abandon(call)
            raise
        except ConnectionError as error:
            if isinstance(error, AgentLost | ConnectionClosed):
                raise
            ours = self._ending()
            if ours is None:
                raise
            raise ours from error
        finally:
            _calling.reset(token)
            self._end(call)

    def _ending(self) -> Exception | None:
        """Give what ends this connection, if anything does: the SDK only says that it is closed."""
        if self._scope.state in {"closing", "closed"}:
            return self._closed()
        return self._loss() if self._lost is not None else None

    def _closed(self) -> ConnectionClosed:
        return ConnectionClosed(f"the connection {self._scope.name!r} was closed")

    def _loss(self) -> AgentLost:
        error = AgentLost(f"the agent is gone: {self._lost}{self._why_lost()}")
        error.__cause__ = self._lost
        return error

    def _begin(self, call: Call, message: Message) -> None:
        """Take the hold of what is to be sent, before it waits for room or is written."""
        call.key, call.message = message.get("id", call), message
        kind = "request" if "id" in message else "notification"
        place = call.place
        details = {"id": message.get("id"), "direction": "to the agent"}
        name = str(message.get("method"))
        self._scope._admit()
        call.hold = Hold(
            self._scope, kind, name, details, place.f_code, place.f_lasti,
            lambda: self._stop(call),
        )  # fmt: skip
        self._scope._insert(call.hold, call.hold)
        self._calls[call.key] = call

    def _stop(self, call: Call) -> None:
        """Tell a caller that its request ends with the scope."""
        call.interrupt(self._closed())
        self._end(call)

    def _end(self, call: Call) -> None:
        hold, call.hold = call.hold, None
        if hold is not None:
            hold.release()
            self._calls.pop(call.key, None)

    def _abandon(self, call: Call) -> None:
        """Tell the agent that nobody waits for the answer any more."""
        if not call.sent or call.answered or "id" not in call.message or self._lost is not None:
            return
        self._tell({"method": CANCEL_REQUEST, "params": {"requestId": call.key}})
        params = call.message.get("params")
        if self._cancel_session and call.message.get("method") == _PROMPT and params:
            self._tell({"method": _CANCEL_SESSION, "params": {"sessionId": params["sessionId"]}})

    def _tell(self, message: Message) -> None:
        message = {"jsonrpc": "2.0", **message}
        if self._stream is not None:
            with suppress(OSError, RuntimeError):  # then it is gone, and has nothing to cancel
                self._stream.write(message)
        elif self._scope.state == "open":
            self._scope.spawn(self._notify, message, name=message["method"])

    async def _notify(self, message: Message) -> None:
        with anyio.move_on_after(_NOTICE_SECONDS):
            try:
                await self._peer.send(message)
            except Exception as error:  # noqa: BLE001 - whatever the transport is made of
                logger.debug("the agent could not be told of a cancelled request: %s", error)

    # What the SDK calls.

    async def send(self, message: Message) -> None:
        """Send a message of the SDK; the request of a call is a hold from here on."""
        call = _calling.get()
        if self._lost is not None:
            if call is None:
                return  # an answer to an agent that is gone
            raise self._loss()
        try:
            if self._stream is not None:
                await self._write(self._stream, call, message)
            else:
                if call is not None and "method" in message and "id" in message:
                    self._begin(call, message)
                    call.sent = True
                await self._peer.send(message)
        except (OSError, RuntimeError) as error:
            if isinstance(error, UsageError):
                raise
            if call is not None:
                self._end(call)  # it raises here, and is not to be interrupted as well
            self.lose(error)
            raise self._loss() from error
        except ScopeClosed as error:
            raise self._closed() from error

    async def _write(self, stream: StreamPeer, call: Call | None, message: Message) -> None:
        full = not stream.has_room
        if call is not None and "method" in message and (full or "id" in message):
            self._begin(call, message)
        if full:
            await stream.room()
        if call is not None:
            call.sent = True
        stream.write(message)

    async def receive(self) -> Message | None:
        """Wait for a message to the SDK; None when the agent is gone."""
        try:
            message = await self._peer.receive()
        except TimeoutError:
            self.lose(TimeoutError("it was silent for too long"))
            raise  # as the SDK expects it
        except Exception as error:  # noqa: BLE001 - whatever the transport is made of
            self.lose(error)
            return None
        if message is None:
            self.lose(EOFError("it has closed its output"))
            return None
        if "method" not in message:
            self._answered(message.get("id"))
        return message

    def _answered(self, key: object) -> None:
        call = self._calls.get(key) if isinstance(key, int | str) else None
        if call is not None:
            call.answered = True
            self._end(call)

    async def receive_line(self) -> bytes:
        """Wait for a message to the SDK, as a line; nothing when the agent is gone."""
        message = await self.receive()
        if message is None:
            return b""
        line = json.dumps(message).encode() if self._stream is None else self._stream.line
        return line + b"\n"

    async def close(self) -> None:
        """Close what carries the messages; called by the scope's own job, and by the SDK."""
        await self._peer.close()

    def lose(self, error: BaseException) -> None:
        """Know that the agent is gone; whoever waits for an answer is told."""
        if self._lost is None:
            self._lost = error
            for call in list(self._calls.values()):
                call.interrupt(self._loss())
