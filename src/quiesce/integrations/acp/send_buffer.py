"""A buffer of unsent messages, between senders and a peer that may not read them.

Rules:

1. A sender does not wait for a peer that is gone, nor, once the close has begun, for a slow peer.
2. While messages are unsent, the scope is busy: a drain waits until the last answer is written.
3. Messages that were not sent by the end are in the report as undelivered.
4. The sending task closes the transport. The task belongs to the scope, not to a caller.
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
    from types import CodeType

    from quiesce.core import callsites
    from quiesce.core.hold import Fate
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode
    from quiesce.integrations.acp.agent_transport import AgentTransport

__all__: list[str] = []

_BYTES_MAX = 1 << 20  # unsent bytes above which senders wait
_MESSAGES_MAX = 1024  # the same in messages, where the size is unknown
_FLUSH_SECONDS = 1.0  # how long a peer may read nothing once the close has begun

_encode = json.JSONEncoder(separators=(",", ":")).encode
_OPEN = ScopeState.OPEN


class SendBuffer(Described):
    """The unsent messages of one connection; it is a hold of the scope."""

    _kind = "output"
    name_given = "unsent messages"
    place_code: CodeType | None = None  # there are many senders
    place_offset = 0
    fate: ClassVar[Fate] = "undelivered"
    can_be_stopped: ClassVar[bool] = False

    def __init__(
        self,
        scope: Scope,
        transport: AgentTransport,
        on_lost: Callable[[Exception], object],
        *,
        flush_seconds: float = 1.0,
    ) -> None:
        """Register with an open scope; `on_lost` is called when the peer cannot be written to."""
        self.owner_node: TreeNode = scope
        self._transport = transport
        self._on_lost = on_lost
        self._flush_seconds = min(flush_seconds, _FLUSH_SECONDS)
        self._decoded = transport.decoded
        self.size_max: int = _MESSAGES_MAX if self._decoded else _BYTES_MAX
        self._queue: list[Any] = []
        self.size: int = 0  # in bytes, or in messages if the transport takes decoded ones
        self._sending: list[Any] = []
        self._quiet = [0, 0]  # the number of quiet messages in `_queue` and in `_sending`
        self._batches = 0  # sent so far
        self._seen = -1  # the value of `_batches` at the last check of a slow peer
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._lost = 0
        self._loop = asyncio.get_running_loop()
        self.began_at: float = 0.0
        self._wanted: asyncio.Future[None] | None = None  # set while the pump waits for a message
        self._rooms: list[asyncio.Future[None]] = []

    # Called by senders.

    async def room(self) -> None:
        """Wait while `size` is above `size_max`; do not wait for a peer that is gone or given up.

        *Cancel safety*: if cancelled, posted messages are sent nevertheless.
        """
        while self.size > self.size_max and self.owner_node.phase is _OPEN and not self._over:
            room = self._loop.create_future()
            self._rooms.append(room)
            try:
                await room
            finally:
                with suppress(ValueError):
                    self._rooms.remove(room)

    def post(self, message: dict[str, Any], *, quiet: bool = False) -> None:
        """Queue a message without waiting; a lost `quiet` message is not reported.

        *Raises*: `ConnectionError` for a request that cannot be answered any more; errors of the
        encoding.
        """
        if self._over:
            if not quiet:
                self._refuse(message)
            return
        data: Any = message if self._decoded else _encode(message).encode()
        if not self._queue:
            if not self._sending:
                self.began_at = self.owner_node.backend.clock()
                self.owner_node.insert_hold(self, self)
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

    # The sending task.

    async def pump(self) -> None:
        """Send until cancelled, then close the transport. The body of a service."""
        try:
            while True:
                if not self._queue:
                    self._wanted = self._loop.create_future()
                    await self._wanted
                await self._send_batch()
                if self._over:
                    await (
                        self._loop.create_future()
                    )  # until cancelled: there is nothing more to send
        finally:
            self._give_up()
            await self._transport.close()

    async def _send_batch(self) -> None:
        self._sending, self._queue, self.size = self._queue, [], 0
        self._quiet = [0, self._quiet[0]]
        self._make_room()
        try:
            await self._transport.send(self._sending)
        except Exception as error:  # noqa: BLE001 - any error means that the peer cannot be written to
            logger.debug("the peer cannot be written to: %r", error)
            self._give_up()
            self._on_lost(error)
            return
        self._batches += 1
        self._sending, self._quiet[1] = [], 0
        if not self._queue:
            self.owner_node.discard_hold(self)

    def _make_room(self) -> None:
        for room in self._rooms:
            if not room.done():
                room.set_result(None)

    def _give_up(self) -> None:
        """Drop all unsent and later messages: the peer does not read them."""
        if not self._over:
            self._over = True
            self._lost += len(self._sending) + len(self._queue) - sum(self._quiet)
            if self._lost:
                self.began_at = self.began_at or self.owner_node.backend.clock()
                ended = reports.report_entry(
                    self, self.owner_node.name, self.owner_node.backend.clock()
                )
                self.owner_node.lose_items((ended,), given_up=False)
            self._sending, self._queue, self.size = [], [], 0
            self._make_room()
            self.owner_node.discard_hold(self)
            if self._timer is not None:
                self._timer.cancel()

    # As a hold of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        return {"messages": self._lost or len(self._sending) + len(self._queue)}

    def request_stop(self, *, force: bool = False) -> None:
        """Begin to check that the peer still reads; with `force`, drop the messages at once."""
        if force:
            self._give_up()
        elif self._seen < 0:
            self._look()
        self._make_room()

    def _look(self) -> None:
        """Drop the messages if the peer has read nothing since the last check; otherwise check again later."""
        waiting = self._sending or self._queue
        if waiting and self._seen == self._batches:
            self._give_up()
        elif waiting:
            self._seen = self._batches
            self._timer = self._loop.call_later(self._flush_seconds, self._look)
        else:
            self._seen = -1  # the scope calls `request_stop` again for later messages

    def goes_on_regardless(self) -> bool:
        return False

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        """Do nothing: the buffer is not a task."""
