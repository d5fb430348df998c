"""How the SDK's messages get from the task that reads the CLI to the one that gives them out.

They come in bunches, as the CLI writes them. The SDK's memory stream takes two turns of the event
loop for each of them, and a stream's task and its reader would take two more. Here a bunch is handed
over at once, within the bound that the SDK has set. A stream asks whether there is more: so it never
steps the SDK's generator into a wait that no reader has asked for, and one that is left by `break`
is left where it can be closed.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import anyio

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

__all__: list[str] = []

# Each of these becomes one message of the user's. Others may be dropped by the SDK, which then waits
# for more, or they end its generator.
_PLAIN = frozenset({"assistant", "stream_event", "system", "user"})
# With these the SDK's reader ends. Up to 0.1.66 it sends them when it was cancelled, too: nobody takes
# anything then, and it would never end.
_LAST = frozenset({"end", "error"})


class SendingEnd:
    """The sending end of the SDK's memory stream."""

    def __init__(self, inner: MemoryObjectSendStream[Any], receiving: ReceivingEnd) -> None:
        """Stand for what anyio has made."""
        self._inner = inner
        self._receiving = receiving

    async def send(self, item: Any) -> None:
        """Send, and wait only if there is no room; the SDK's last word has room always.

        *Cancel safety*, *Raises*: as anyio's.
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
        """Return what anyio's stream has under this name."""
        return getattr(self._inner, name)


class ReceivingEnd:
    """The receiving end of the SDK's memory stream."""

    def __init__(self, inner: MemoryObjectReceiveStream[Any]) -> None:
        """Stand for what anyio has made."""
        self._inner = inner
        self._at_hand: deque[Any] = deque()
        self.last: deque[Any] = deque()
        """The SDK's last words that had no room; they come after all that the stream has."""

    def is_ready(self) -> bool:
        """Return whether the SDK's generator would give a message without waiting."""
        return bool(self._at_hand) and self._at_hand[0].get("type") in _PLAIN

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Take the next one, as `receive()` does."""
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        """Take the next one, and wait only if there is none.

        *Cancel safety*: cancelled, it has taken nothing.

        *Raises*: as anyio's.
        """
        if not self._at_hand:
            self._take_all()
        if not self._at_hand:
            # If there are last words by the time it has to wait, then the stream is full: it does not wait.
            self._at_hand.append(await self._inner.receive())
            self._take_all()
        return self._at_hand.popleft()

    def _take_all(self) -> None:
        with suppress(anyio.WouldBlock, anyio.EndOfStream):
            while True:  # as many as the stream has room for
                self._at_hand.append(self._inner.receive_nowait())
        self._at_hand += self.last
        self.last.clear()

    def receive_nowait(self) -> Any:
        """Take the next one, if there is one.

        *Raises*: as anyio's.
        """
        if not self._at_hand:
            self._take_all()
        return self._at_hand.popleft() if self._at_hand else self._inner.receive_nowait()

    def close(self) -> None:
        """Close it; what nobody has taken is thrown away."""
        self._at_hand.clear()
        self.last.clear()
        self._inner.close()

    async def aclose(self) -> None:
        """Close it."""
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Return what anyio's stream has under this name."""
        return getattr(self._inner, name)
