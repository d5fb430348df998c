"""Taps: fan-out from a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from quiesce.channels.item_queue import Lane
from quiesce.channels.readers import Reader
from quiesce.errors import TapOverflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import FrameType, TracebackType

    from quiesce.channels.channel import Channel
    from quiesce.channels.channel_stats import ChannelStats
    from quiesce.errors import QuiesceError

    Slow = Literal["wait", "drop", "fail"]

__all__ = ["Tap"]

T = TypeVar("T")
R = TypeVar("R", bound=Reader[Any])


class TapLane(Lane[T]):
    """The queue of a tap."""

    __slots__ = ("_channel", "_failed", "_slow", "dropped")

    _kind = "tap"

    def __init__(
        self, channel: Channel[T], name: str, maxsize: int | None, slow: Slow, frame: FrameType
    ) -> None:
        super().__init__(channel._node, name, maxsize, frame, channel._senders)
        self._channel = channel
        self._slow = slow
        self._failed = False
        self.dropped: int = 0

    def has_room(self, granted: int) -> bool:
        """Return whether a sender may go on, as far as this tap is concerned."""
        full = self._maxsize is not None and len(self._items) + granted >= self._maxsize
        return not full or self._slow != "wait"

    def offer(self, item: T) -> None:
        """Take an item, as it was agreed for a slow tap if there is no room."""
        if self._closed:
            return
        if self._maxsize is not None and len(self._items) >= self._maxsize:
            if self._slow == "fail":
                self._failed = True
                self.leave()
                return
            if self._slow == "drop":
                self._items.popleft()
                self.dropped += 1
        self._enqueue(item)

    def leave(self) -> None:
        """End for its reader, who does not want what is left, or must not have it."""
        self.dropped += len(self._items)
        self._items.clear()
        self._abandon(given_up=False)

    def _finish(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        super()._finish(broken, wake=wake)
        if self in self._channel._taps:
            self._channel._taps.remove(self)
            self._channel._grant()

    def _grant(self) -> None:
        self._channel._grant()

    def _users(self) -> Iterable[object]:
        return () if self.has_room(0) else self._channel._blocked.values()

    def _end_of_items(self) -> QuiesceError:
        if self._failed:
            message = (
                f"the reader of {self._name!r} was too slow: more than {self._maxsize} items "
                "were waiting for it"
            )
            return TapOverflow(message)
        return super()._end_of_items()


class Tap(Generic[T]):
    """What sees every item that is sent to a channel while it is open; made by `Channel.tap()`."""

    __slots__ = ("__weakref__", "_lane")

    def __init__(self, lane: TapLane[T]) -> None:
        self._lane = lane

    async def receive(self) -> T:
        """Wait for the next item, and take it; see `Channel.receive`."""
        return await self._lane.receive()

    async def batch(self, at_most: int | None = None) -> list[T]:
        """Wait for at least one item, and take what is there; see `Channel.batch`."""
        return await self._lane.batch(at_most)

    def __aiter__(self) -> AsyncIterator[T]:
        """Read item by item, until the channel or the tap is closed."""
        return self._kept(self._lane.__aiter__())

    def batches(self, at_most: int | None = None) -> AsyncIterator[list[T]]:
        """Read all that is there at a time; see `Channel.batches`."""
        return self._kept(self._lane.batches(at_most))

    def _kept(self, reader: R) -> R:
        reader.keeps = self
        return reader

    def close(self) -> None:
        """End the tap; what is in it is let go, and not reported: its reader wants no more."""
        self._lane.leave()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._lane.name

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._lane._closed

    @property
    def undelivered(self) -> tuple[T, ...]:
        """The items that were in it when the channel was ended, and that nobody has read."""
        return tuple(self._lane._undelivered)

    @property
    def stats(self) -> ChannelStats:
        """How it stands."""
        return self._lane._count(dropped=self._lane.dropped)

    def __enter__(self) -> Self:
        """Return the tap itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the tap."""
        self.close()

    def __del__(self) -> None:
        """End the tap: with nobody to read it, it would hold up the senders for ever."""
        if not self._lane._over:
            self._lane._backend.post(self._lane.leave)

    def __repr__(self) -> str:
        """Name the tap, and say how it stands."""
        state = "closed" if self._lane._closed else "open"
        return f"<Tap {self.name!r} {state}, {len(self._lane._items)} in it>"
