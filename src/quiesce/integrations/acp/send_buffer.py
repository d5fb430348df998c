"""What is to be sent: a buffer between those who send and a peer that may not take it.

What holds:

1. Nobody who sends waits for a peer that is gone, nor, once the closing has begun, for one that is
   slow.
2. While something is unsent, the scope is busy: a drain waits until the last answer is written.
3. What was not sent by the end is in the report, as undelivered.
4. The transport is closed by the task that sends, which belongs to the scope, not to any caller.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core import report as reports
from quiesce.core.hold import Described
from quiesce.core.tree import ScopeState, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quiesce.core import callsites
    from quiesce.core.hold import Fate
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode
    from quiesce.integrations.acp.agent_transport import AgentTransport

__all__: list[str] = []

_BYTES_MAX = 1 << 20  # unsent, before those who send wait
_MESSAGES_MAX = 1024  # likewise, where the size is not known
_FLUSH_SECONDS = 1.0  # for a peer to take something, once the closing has begun

_encode = json.JSONEncoder(separators=(",", ":")).encode
_OPEN = ScopeState.OPEN


class SendBuffer(Described):
    """The unsent messages of one connection, and the hold that the scope has of them."""

    _kind = "output"
    _name = "unsent messages"
    _code = None  # many have sent
    _offset = 0
    _fate: ClassVar[Fate] = "undelivered"
    _stops: ClassVar[bool] = False

    def __init__(
        self,
        scope: Scope,
        transport: AgentTransport,
        on_lost: Callable[[Exception], object],
        *,
        flush_seconds: float = 1.0,
    ) -> None:
        """Register with an open scope; `on_lost` is called when the peer cannot be written to."""
        self._node: TreeNode = scope
        self._transport = transport
        self._on_lost = on_lost
        self._flush_seconds = min(flush_seconds, _FLUSH_SECONDS)
        self._decoded = transport.decoded
        self.size_max: int = _MESSAGES_MAX if self._decoded else _BYTES_MAX
        self._queue: list[Any] = []
        self.size: int = 0  # in bytes, or messages
        self._sending: list[Any] = []
        self._quiet = [0, 0]  # how many in each of the two are not work
        self._batches = 0  # sent so far
        self._seen = -1  # of these, at the last look at a peer that may take nothing
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._lost = 0
        self._loop = asyncio.get_running_loop()
        self._since: float = 0.0
        self._wanted: asyncio.Future[None] | None = None  # by the pump, to have something to send
        self._rooms: list[asyncio.Future[None]] = []

    # Those who send.

    async def room(self) -> None:
        """Wait for room, if `size` is above `size_max`, and the peer is worth waiting for.

        *Cancel safety*: may be cancelled at any time; what was posted is sent all the same.
        """
        while self.size > self.size_max and self._node._state is _OPEN and not self._over:
            room = self._loop.create_future()
            self._rooms.append(room)
            try:
                await room
            finally:
                with suppress(ValueError):
                    self._rooms.remove(room)

    def post(self, message: dict[str, Any], *, quiet: bool = False) -> None:
        """Send a message, in its turn, without ever waiting; one that is `quiet` is not missed if it is lost.

        *Raises*: `ConnectionError` for a request that nobody will ever answer; what encoding
        raises.
        """
        if self._over:
            if not quiet:
                self._refuse(message)
            return
        data: Any = message if self._decoded else _encode(message).encode()
        if not self._queue:
            if not self._sending:
                self._since = self._node._backend.clock()
                self._node._insert(self, self)
            if self._wanted is not None and not self._wanted.done():
                self._wanted.set_result(None)
        self._queue.append(data)
        self._quiet[0] += quiet
        self.size += 1 if self._decoded else len(data)

    def _refuse(self, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            error = "Connection closed"
            raise ConnectionError(error)
        self._lost += 1

    # The one that really sends.

    async def pump(self) -> None:
        """Send until cancelled, then close the transport. The body of a service."""
        try:
            while True:
                if not self._queue:
                    self._wanted = self._loop.create_future()
                    await self._wanted
                await self._send_batch()
                if self._over:
                    await self._loop.create_future()  # for the end: there is nothing more to do
        finally:
            self._give_up()
            await self._transport.close()

    async def _send_batch(self) -> None:
        self._sending, self._queue, self.size = self._queue, [], 0
        self._quiet = [0, self._quiet[0]]
        self._make_room()
        try:
            await self._transport.send(self._sending)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peer cannot be written to
            logger.debug("the peer cannot be written to: %r", error)
            self._give_up()
            self._on_lost(error)
            return
        self._batches += 1
        self._sending, self._quiet[1] = [], 0
        if not self._queue:
            self._node._discard(self)

    def _make_room(self) -> None:
        for room in self._rooms:
            if not room.done():
                room.set_result(None)

    def _give_up(self) -> None:
        """Drop what is unsent, and whatever comes: the peer does not take it."""
        if not self._over:
            self._over = True
            self._lost += len(self._sending) + len(self._queue) - sum(self._quiet)
            if self._lost:
                self._since = self._since or self._node._backend.clock()
                ended = reports.report_entry(self, self._node.name, self._node._backend.clock())
                self._node._lose((ended,), given_up=False)
            self._sending, self._queue, self.size = [], [], 0
            self._make_room()
            self._node._discard(self)
            if self._timer is not None:
                self._timer.cancel()

    # What the scope asks of what it holds.

    @property
    def details(self) -> Mapping[str, object]:
        """How many messages they are."""
        return {"messages": self._lost or len(self._sending) + len(self._queue)}

    def _stop(self, *, force: bool = False) -> None:
        """See to it that the peer takes something from time to time, or is given up."""
        if force:
            self._give_up()
        elif self._seen < 0:
            self._look()
        self._make_room()

    def _look(self) -> None:
        """Stop if nothing was taken since the last look; until then look again."""
        waiting = self._sending or self._queue
        if waiting and self._seen == self._batches:
            self._give_up()
        elif waiting:
            self._seen = self._batches
            self._timer = self._loop.call_later(self._flush_seconds, self._look)
        else:
            self._seen = -1  # the scope asks again if there is more

    def _swallowed(self) -> bool:
        return False

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: it is no task."""
