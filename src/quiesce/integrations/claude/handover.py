"""Pass the SDK's messages from the task that reads the CLI to the task that yields them.

Messages come in bunches, as the CLI writes them. The SDK's memory stream takes two turns of the event
loop for each message, and a stream's task and its reader would take two more. Here a bunch is passed
on at once, up to the size that the SDK has set. A stream asks whether another message is ready, so it
never steps the SDK's generator into a wait that no reader has asked for. A generator that the reader
leaves by `break` is then at a point where it can be closed.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import anyio

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

__all__: list[str] = []

# Each of these becomes one message for the user. The SDK may drop messages of other types and then wait
# for more, or they end its generator.
_PLAIN = frozenset({"assistant", "stream_event", "system", "user"})
# The SDK's reader ends with these. Up to 0.1.66 it sends them even after it was cancelled. No task
# receives then, so a sender that waited for room would never end.
_LAST = frozenset({"end", "error"})


class SendingEnd:
    """The sending end of the SDK's memory stream."""

    def __init__(self, inner: MemoryObjectSendStream[Any], receiving: ReceivingEnd) -> None:
        self._inner = inner
        self._receiving = receiving

    async def send(self, item: Any) -> None:
        """Send, and wait only if there is no room; the SDK's last message always has room.

        *Cancel safety*, *Raises*: as anyio's stream.
        """
        last = self._receiving.last
        if not last:
            try:
                self._inner.send_nowait(item)
            except anyio.WouldBlock:
                pass
            else:
                return
        if item.get("type") in _LAST:
            last.append(item)
        else:
            await self._inner.send(item)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ReceivingEnd:
    """The receiving end of the SDK's memory stream."""

    def __init__(self, inner: MemoryObjectReceiveStream[Any]) -> None:
        self._inner = inner
        self._at_hand: deque[Any] = deque()
        self.last: deque[Any] = deque()
        """The SDK's last messages if the stream had no room; they follow the stream's own."""

    def is_ready(self) -> bool:
        """Return whether the SDK's generator would yield a message without waiting."""
        return bool(self._at_hand) and self._at_hand[0].get("type") in _PLAIN

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        """Take the next message; wait only if there is none.

        *Cancel safety*: if cancelled, no message was taken.

        *Raises*: as anyio's stream.
        """
        if not self._at_hand:
            self._take_all()
        if not self._at_hand:
            # Last messages arrive only when the stream is full, so this does not wait past them.
            self._at_hand.append(await self._inner.receive())
            self._take_all()
        return self._at_hand.popleft()

    def _take_all(self) -> None:
        with suppress(anyio.WouldBlock, anyio.EndOfStream):
            while True:  # at most as many as fit into the stream
                self._at_hand.append(self._inner.receive_nowait())
        self._at_hand += self.last
        self.last.clear()

    def receive_nowait(self) -> Any:
        """Take the next message if there is one.

        *Raises*: as anyio's stream.
        """
        if not self._at_hand:
            self._take_all()
        return self._at_hand.popleft() if self._at_hand else self._inner.receive_nowait()

    def close(self) -> None:
        """Close the stream; messages that were not taken are dropped."""
        self._at_hand.clear()
        self.last.clear()
        self._inner.close()

    async def aclose(self) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
