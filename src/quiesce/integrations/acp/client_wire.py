"""The wire of a client: its messages to one agent, and the requests that wait for an answer.

Rules:

1. A message is written completely in one step, or not at all. If a caller is cancelled while it waits
   for room, it has sent nothing, and later messages are intact.
2. A request is a hold of the connection's scope, from before it is sent until its answer.
3. When a caller gives up a request that was sent, the agent is notified in the same step.
4. When the agent is gone or the scope is closed, every waiting caller gets an error, once: no caller
   waits for an answer that cannot come. (Since 0.12 the SDK ends a `prompt` only when the updates
   that came before it have been handled.)

`request` and `notify` replace the SDK's own `Connection.send_request` and `send_notification`.
A request costs no more than in the SDK, because it does not pass through both.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import current_task
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.tree import ScopeState, current, logger
from quiesce.errors import ScopeClosed, UsageError
from quiesce.integrations.acp.client_calls import (
    AgentCall,
    AgentLost,
    ConnectionClosed,
    settle_answer,
)
from quiesce.integrations.acp.client_streams import LinePeer
from quiesce.integrations.acp.witness import INCOMING, OUTGOING, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from acp.connection import StreamDirection

    from quiesce.core.scope import Scope
    from quiesce.integrations.acp.client_streams import ClientPeer
    from quiesce.integrations.acp.json_lines import Message

__all__: list[str] = []

CANCEL_REQUEST = "$/cancel_request"
_PROMPT, _CANCEL_SESSION = "session/prompt", "session/cancel"
_NOTICE_SECONDS = 5.0  # how long the notice of a cancelled request may take
_OPEN = ScopeState.OPEN


class ClientWire:
    """The messages of one connection; the SDK uses this object as its transport."""

    def __init__(
        self,
        scope: Scope,
        peer: ClientPeer,
        *,
        cancel_session: bool,
        why_lost: Callable[[], str],
        observers: Sequence[Callable[[Any], Any]] = (),
    ) -> None:
        """Wrap the peer object that carries the messages.

        Args:
            scope: the connection's own scope.
            peer: the object that carries the messages.
            cancel_session: whether an abandoned prompt also cancels its session's turn.
            why_lost: returns what is known about the end of an agent that is gone.
            observers: functions that see every message.
        """
        self._scope = scope
        self._holds = scope.holds  # contains the requests by their ids
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._clock = scope.backend.clock
        self._peer = peer
        self._send = peer.send
        self._stream = peer if isinstance(peer, LinePeer) else None
        self._cancel_session = cancel_session
        self._why_lost = why_lost
        self._witness = Witness(observers) if observers else None
        self._next_id = 0
        self._interrupted: set[AgentCall] = set()  # calls whose task the wire itself has cancelled
        self._lost: BaseException | None = None

    # The SDK calls these to send requests to the agent.

    async def request(self, method: str, params: Any = None, *, answered: bool = True) -> Any:
        """Send a request, and wait for its answer."""
        loop, scope = self._loop, self._scope
        task: Any = current_task(loop)
        if (
            scope.phase is not _OPEN
            or self._lost is not None
            or task is None
            or get_ident() != self._thread
        ):
            self._check(answered=answered)
        call = AgentCall()
        if answered:
            key: Any = self._next_id
            self._next_id = key + 1
            message = {"jsonrpc": "2.0", "id": key, "method": method, "params": params}
        else:
            key, message = call, {"jsonrpc": "2.0", "method": method, "params": params}
        answer = loop.create_future()
        call.wire = self
        call.message = message
        call.answer = answer
        call.task = task
        call.cancellations = None
        call.began_at = self._clock()
        holds = self._holds
        if not holds:
            scope.note_busy()
        holds[key] = call
        try:
            stream = self._stream
            if stream is None or not stream.has_room:
                call.cancellations = task.cancelling()
                await (self._send(message) if stream is None else stream.room())
                call.cancellations = None
            if stream is not None:
                stream.write(message)
            if self._witness is not None:
                self._observe(OUTGOING, message)
            if answered or answer.done():
                return await answer
            self._end(call)
        except BaseException as error:
            self._given_up(call, error)
            raise

    def notify(self, method: str, params: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification; it is a hold while it waits for room."""
        return self.request(method, params, answered=False)

    def _check(self, *, answered: bool) -> None:
        """Raise unless a request may be sent now; during a drain a notification may still be sent."""
        scope = self._scope
        if scope.state in {"closing", "closed"}:
            raise self._closed()
        if self._lost is not None:
            raise self._loss()
        if answered or scope.phase is _OPEN:
            try:
                scope.check_may_start()
            except ScopeClosed as error:
                raise self._closed() from error

    def _closed(self) -> ConnectionClosed:
        return ConnectionClosed(f"the connection {self._scope.name!r} was closed")

    def _loss(self) -> AgentLost:
        error = AgentLost(f"the agent is gone: {self._lost}{self._why_lost()}")
        error.__cause__ = self._lost
        return error

    def _end(self, call: AgentCall) -> bool:
        """Stop holding a call; return False if it had already ended."""
        waited = call.key in self._holds
        self._scope.discard_hold(call.key)
        return waited

    def _given_up(self, call: AgentCall, error: BaseException) -> None:
        """End a call that failed; raise the error that its caller should get, if it differs."""
        waited, answer = self._end(call), call.answer
        told = answer.exception() if answer.done() and not answer.cancelled() else None
        ours = False
        if call in self._interrupted:
            self._interrupted.discard(call)
            ours = call.task.uncancel() <= (call.cancellations or 0)
        if isinstance(error, asyncio.CancelledError):
            if ours and told is not None:
                raise told from told.__cause__
            if waited and told is None and (self._stream is None or call.cancellations is None):
                self._abandon(call.message)
        elif told is not None:
            if told is not error:
                raise told from told.__cause__
        elif _is_loss(error):
            self.lose(error)
            raise self._loss() from error

    def _abandon(self, message: Message) -> None:
        """Notify the agent that no caller waits for the answer any longer."""
        if "id" not in message or self._lost is not None:
            return
        self._tell({"method": CANCEL_REQUEST, "params": {"requestId": message["id"]}})
        params = message["params"]
        if self._cancel_session and message["method"] == _PROMPT and params:
            self._tell({"method": _CANCEL_SESSION, "params": {"sessionId": params["sessionId"]}})

    def _tell(self, message: Message) -> None:
        message = {"jsonrpc": "2.0", **message}
        if self._stream is not None:
            with suppress(OSError, RuntimeError):  # the agent is gone: nothing is left to cancel
                self._stream.write(message)
        elif self._scope.state == "open":
            self._scope.spawn(self._notify, message, name=message["method"])

    async def _notify(self, message: Message) -> None:
        with anyio.move_on_after(_NOTICE_SECONDS):
            try:
                await self._peer.send(message)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything
                logger.debug("the notice of a cancelled request could not be sent: %s", error)

    def stop(self, call: AgentCall) -> None:
        """Raise an error in the caller of a request: the scope closes."""
        self._interrupt(call, self._closed())
        self._end(call)

    def lose(self, error: BaseException) -> None:
        """Record that the agent is gone, and fail the calls that wait for an answer."""
        if self._lost is None:
            self._lost = error
            for call in list(self._holds.values()):
                if isinstance(call, AgentCall):
                    self._interrupt(call, self._loss())

    def _interrupt(self, call: AgentCall, error: Exception) -> None:
        """Raise `error` in a caller, unless its answer is already set."""
        if call.answer.done():
            return
        call.answer.set_exception(error)
        if call.cancellations is not None:  # the caller does not await the answer yet
            self._interrupted.add(call)
            call.task.cancel()

    # The SDK calls these as its transport, for the agent's requests and the answers to them.

    async def send(self, message: Message) -> None:
        """Send an answer of the SDK."""
        if self._lost is not None:
            return  # the agent does not read it any more
        try:
            stream = self._stream
            if stream is None:
                await self._send(message)
            else:
                if not stream.has_room:
                    await stream.room()
                stream.write(message)
        except Exception as error:
            if not _is_loss(error):
                raise
            self.lose(error)
            raise self._loss() from error

    async def receive(self) -> Message | None:
        """Wait for a message that the SDK has to handle; return None when the agent is gone."""
        try:
            message = await self._next()
        except TimeoutError:
            self.lose(TimeoutError("it sent no message within receive_timeout"))
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            self.lose(error)
        else:
            if message is None:
                self.lose(EOFError("it closed its output"))
            return message
        return None

    async def _next(self) -> Message | None:
        """Return the next message that is not an answer; pass the answers before it to their callers."""
        receive, holds = self._peer.receive, self._holds
        while (message := await receive()) is not None and message.get("method") is None:
            if self._witness is not None:
                self._observe(INCOMING, message)
            try:
                call: Any = holds.pop(message.get("id"), None)
            except TypeError:  # the id has a type that ids cannot have
                continue
            if call is None:
                continue
            if not holds:
                self._scope.note_idle()
            settle_answer(call.answer, message)
        return message

    async def receive_line(self) -> bytes:
        """Wait for a message that the SDK has to handle, as a line; return b"" when the agent is gone."""
        message = await self.receive()
        if message is None:
            return b""
        line = json.dumps(message).encode() if self._stream is None else self._stream.line
        return line + b"\n"

    async def close(self) -> None:
        """Close the peer object; called by the scope's own job and by the SDK."""
        await self._peer.close()

    def _observe(self, direction: StreamDirection, message: Message) -> None:
        """Notify the observers; tasks that they start belong to the connection."""
        assert self._witness is not None  # noqa: S101 - the caller has checked it, for speed
        token = current.set(self._scope)
        try:
            self._witness.tell(direction, message)
        finally:
            current.reset(token)


def _is_loss(error: BaseException) -> bool:
    """Return whether a transport uses this error to say that it is closed."""
    return isinstance(error, OSError | RuntimeError) and not isinstance(
        error, UsageError | RecursionError
    )
