"""Taps: queues that each get a copy of every item sent to a channel (fan-out)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from quiesce.channels.item_queue import Lane
from quiesce.channels.read_loops import Reader
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
    """The queue behind a tap."""

    __slots__ = ("_channel", "_failed", "_slow", "dropped")

    _kind = "tap"

    def __init__(
        self, channel: Channel[T], name: str, maxsize: int | None, slow: Slow, frame: FrameType
    ) -> None:
        super().__init__(channel.owner_node, name, maxsize, frame, channel.sender_queue)
        self._channel = channel
        self._slow = slow
        self._failed = False
        self.dropped: int = 0

    def has_room(self, granted: int) -> bool:
        """Return whether this tap lets a sender continue."""
        full = self._maxsize is not None and len(self.queued_items) + granted >= self._maxsize
        return not full or self._slow != "wait"

    def offer(self, item: T) -> None:
        """Queue an item; if the tap is full, do what its `slow` option says."""
        if self.is_closed:
            return
        if self._maxsize is not None and len(self.queued_items) >= self._maxsize:
            if self._slow == "fail":
                self._failed = True
                self.leave()
                return
            if self._slow == "drop":
                self.queued_items.popleft()
                self.dropped += 1
        self._enqueue(item)

    def leave(self) -> None:
        """End the tap for its reader, and drop the items that are left."""
        self.dropped += len(self.queued_items)
        self.queued_items.clear()
        self.abandon_items(given_up=False)

    def finish_lane(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        super().finish_lane(broken, wake=wake)
        if self in self._channel.tap_lanes:
            self._channel.tap_lanes.remove(self)
            self._channel.grant_room()

    def grant_room(self) -> None:
        self._channel.grant_room()

    def list_users(self) -> Iterable[object]:
        return () if self.has_room(0) else self._channel.blocked_senders.values()

    def _end_of_items(self) -> QuiesceError:
        if self._failed:
            message = (
                f"{self.name_given!r} was ended because its reader was too slow: more than "
                f"{self._maxsize} items were queued. Read faster, raise maxsize, or use slow='wait'"
            )
            return TapOverflow(message)
        return super()._end_of_items()


class Tap(Generic[T]):
    """A queue that gets a copy of every item sent to a channel; made by `Channel.tap()`."""

    __slots__ = ("__weakref__", "_lane")

    def __init__(self, lane: TapLane[T]) -> None:
        self._lane = lane

    async def receive(self) -> T:
        """Wait for the next item, and take it; see `Channel.receive`."""
        return await self._lane.receive()

    async def batch(self, at_most: int | None = None) -> list[T]:
        """Wait for at least one item, then take all queued items; see `Channel.batch`."""
        return await self._lane.batch(at_most)

    def __aiter__(self) -> AsyncIterator[T]:
        """Read item by item, until the channel or the tap is closed."""
        return self._keep_alive_with(self._lane.__aiter__())

    def batches(self, at_most: int | None = None) -> AsyncIterator[list[T]]:
        """Read all queued items at a time; see `Channel.batches`."""
        return self._keep_alive_with(self._lane.batches(at_most))

    def _keep_alive_with(self, reader: R) -> R:
        reader.keeps = self
        return reader

    def close(self) -> None:
        """End the tap; its queued items are dropped and not reported, as its reader gave them up."""
        self._lane.leave()

    @property
    def name(self) -> str:
        """The tap's name."""
        return self._lane.name

    @property
    def closed(self) -> bool:
        """Whether the tap refuses further items."""
        return self._lane.is_closed

    @property
    def undelivered(self) -> tuple[T, ...]:
        """The items that were queued when the channel ended and were never read."""
        return tuple(self._lane.undelivered_kept)

    @property
    def stats(self) -> ChannelStats:
        """The tap's figures now."""
        return self._lane.make_stats(dropped=self._lane.dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """End the tap: without a reader it would block the senders for ever."""
        if not self._lane.is_over:
            self._lane.backend.post(self._lane.leave)

    def __repr__(self) -> str:
        state = "closed" if self._lane.is_closed else "open"
        return f"<Tap {self.name!r} {state}, {len(self._lane.queued_items)} queued>"
