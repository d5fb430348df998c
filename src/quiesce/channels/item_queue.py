"""The queue behind a channel or a tap, together with its waiting readers and senders.

Two rules keep a cancellation from losing or duplicating an item:

- An item leaves the queue in the step in which `receive()` returns it, never before. A woken
  reader is *promised* an item, which stays in the queue. If the reader is cancelled before it
  takes the item, the promise passes to the next reader.
- An item enters the queue in the step in which `send()` returns. A woken sender is *granted* a
  place. If the sender is cancelled before it uses the place, the grant passes to the next sender.
"""

from __future__ import annotations

import reprlib
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from quiesce.channels.channel_stats import ChannelStats
from quiesce.channels.read_loops import BatchReader, Reader, Unread
from quiesce.core import arguments, callsites
from quiesce.core.hold import Described, Fate
from quiesce.core.tree import ScopeState
from quiesce.errors import ChannelClosed, ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from types import CodeType, FrameType

    from quiesce.channels.read_loops import Grip
    from quiesce.core.backends import Waiter
    from quiesce.core.backends.base import Backend
    from quiesce.core.tree import TreeNode
    from quiesce.errors import QuiesceError

T = TypeVar("T")

_OPEN = ScopeState.OPEN


class Lane(Described, Generic[T]):
    """A queue with its readers. It is a hold of its scope while it contains items.

    An item that an `async for` loop is handling also keeps the hold.
    """

    __slots__ = (
        "__weakref__",
        "_busy",
        "_maxsize",
        "_quick",
        "_waiting",
        "backend",
        "began_at",
        "broken_by",
        "grips",
        "is_closed",
        "is_over",
        "name_given",
        "owner_node",
        "place_code",
        "place_offset",
        "promised_count",
        "queued_items",
        "received_count",
        "sender_queue",
        "undelivered_kept",
    )

    fate: ClassVar[Fate] = "undelivered"
    can_be_stopped: ClassVar[bool] = False
    _kind = "channel"

    def __init__(
        self,
        node: TreeNode,
        name: str,
        maxsize: int | None,
        frame: FrameType,
        senders: deque[Waiter],
    ) -> None:
        self.owner_node: TreeNode = node
        self.backend: Backend = node.backend
        self.name_given: str = name
        self._maxsize = maxsize
        self.place_code: CodeType = frame.f_code
        self.place_offset: int = frame.f_lasti
        self.queued_items: deque[T] = deque()
        self.sender_queue: deque[Waiter] = senders  # senders that wait for room in the channel
        # The append method of the queue, repeated once for each item that may be queued without
        # further checks; a `for` loop takes one in fewer steps than a counter needs. While it is
        # not empty, no task waits to be woken and the lane is busy. Room can only have grown since.
        self._quick: Iterable[Callable[[T], None]] = ()
        self.promised_count: int = (
            0  # items promised to readers that were woken and have not run yet
        )
        self._waiting: deque[Waiter] = deque()  # readers without a promised item
        self.grips: set[Grip] = set()  # one for each loop whose body handles an item
        self._busy = False
        self.is_closed: bool = False  # senders are refused
        self.is_over: bool = False  # readers are refused as well
        self.broken_by: BaseException | None = None  # the error that ended the lane early
        self.began_at: float = 0.0
        self.received_count: int = 0
        self.undelivered_kept: list[T] = []
        node.register_resource(self)

    # Reading.

    async def receive(self) -> T:
        """Wait for the next item, and take it.

        *Cancel safety*: if cancelled, no item was taken; the next reader gets it.

        *Raises*: `ChannelClosed` when the channel is closed and all items have been read.
        """
        if len(self.queued_items) <= self.promised_count:
            await self.wait_for_item()
        item = self.queued_items.popleft()
        self.received_count += 1
        if self.sender_queue:
            self.grant_room()
        if not self.queued_items:
            self.note_emptied()
        return item

    async def batch(self, at_most: int | None = None) -> list[T]:
        """Wait for at least one item, then take all queued items, up to `at_most`.

        *Cancel safety*: if cancelled, no item was taken.

        *Raises*: `ChannelClosed` when the channel is closed and all items have been read.
        """
        limit = arguments.size("at_most", at_most)
        if len(self.queued_items) <= self.promised_count:
            await self.wait_for_item()
        return self.take_many(limit)

    def __aiter__(self) -> Reader[T]:
        """Read item by item, until the channel is closed and all items have been read.

        An item counts as in flight until the loop asks for the next item, so the scope is not idle
        while the loop's body handles the item.
        """
        return Reader(self)

    def batches(self, at_most: int | None = None) -> BatchReader[T]:
        """Read with `async for`, but take all queued items at a time, up to `at_most`.

        ```python
        async for items in channel.batches(100):
            await store(items)
        ```
        """
        return BatchReader(self, arguments.size("at_most", at_most))

    async def wait_for_item(self) -> None:
        """Wait until an item is queued for this reader. The item stays queued, promised to the reader."""
        if not self.is_over and not (self.is_closed and not self.queued_items):
            self._check_here()
            waiter = self.backend.waiter()
            self._waiting.append(waiter)
            self._quick = ()
            try:
                promised: bool = await waiter
            except BaseException:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not (waiter.cancelled() or self.is_over):
                    self.promised_count -= 1
                    self._promise(1)  # to the next reader
                raise
            if promised and self.queued_items:
                self.promised_count -= 1
                return
        raise self._end_of_items()

    def _promise(self, count: int) -> None:
        """Wake readers for queued items that are not promised yet."""
        while count and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.promised_count += 1
                count -= 1
                waiter.set_result(True)

    def _enqueue(self, item: T) -> None:
        """Queue an item. The caller has checked the limit, where a limit applies."""
        if not self._busy:
            self._turn_busy()
        self.queued_items.append(item)
        if self._waiting:
            self._promise(
                len(self.queued_items) - self.promised_count
            )  # 0 if a tap has dropped an item to make room

    def take_many(self, at_most: int | None) -> list[T]:
        count = len(self.queued_items) - self.promised_count
        if at_most is not None and at_most < count:
            count = at_most
        if count == len(self.queued_items):
            taken = list(self.queued_items)
            self.queued_items.clear()
        else:
            taken = [self.queued_items.popleft() for _ in range(count)]
        self.received_count += count
        if self.sender_queue:
            self.grant_room()
        if not self.queued_items:
            self.note_emptied()
        return taken

    def note_emptied(self) -> None:
        """Record that the last item was taken."""
        if self.is_closed:
            self.finish_lane()
        if not self.grips:
            self.turn_idle()

    def grant_room(self) -> None:
        """Wake senders that wait for room."""
        raise NotImplementedError

    # The end.

    def finish_lane(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        """End the readers: no more items will come. `broken` is the error that ended the lane early.

        When the scope closes, `wake` is False: the readers are cancelled, or `note_scope_closed()` wakes them.
        """
        if self.is_over:
            return
        self.is_over = True
        self.broken_by = self.broken_by or broken
        if wake:
            self.note_scope_closed()

    def note_scope_closed(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(False)
        self._waiting.clear()
        self.owner_node.unregister_resource(self)

    def abandon_items(
        self, broken: BaseException | None = None, *, given_up: bool, wake: bool = True
    ) -> None:
        """Remove the items that no reader will take, and report them."""
        if self.queued_items:
            left = list(self.queued_items)
            self.queued_items.clear()
            self.undelivered_kept += left
            self.owner_node.lose_items(Unread(self, left), given_up=given_up)
        self.promised_count = 0
        self.is_closed = True
        self.finish_lane(broken, wake=wake)
        if not self.grips:
            self.turn_idle()

    def _end_of_items(self) -> QuiesceError:
        why = "is closed and all its items have been read"
        if self.broken_by is not None:
            why = f"was cut short: {type(self.broken_by).__name__}: {self.broken_by}"
        error = ChannelClosed(f"{self._kind} {self.name_given!r} {why}")
        error.__cause__ = self.broken_by
        return error

    # As a hold, and as a resource, of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        """The number of queued items, the oldest item, and the number of items being handled."""
        found: dict[str, object] = {"depth": len(self.queued_items)}
        if self.queued_items:
            found["oldest"] = reprlib.repr(self.queued_items[0])
        if self.grips:
            found["in hand"] = len(self.grips)
        return found

    def make_stats(
        self, *, dropped: int, passed: int = 0, senders_waiting: int = 0, taps: int = 0
    ) -> ChannelStats:
        return ChannelStats(
            depth=len(self.queued_items),
            maxsize=self._maxsize,
            sent=len(self.queued_items)
            + self.received_count
            + len(self.undelivered_kept)
            + dropped
            + passed,
            received=self.received_count,
            undelivered=len(self.undelivered_kept),
            dropped=dropped,
            senders_waiting=senders_waiting,
            readers_waiting=len(self._waiting),
            taps=taps,
        )

    def _turn_busy(self) -> None:
        self._check_here()
        self._busy = True
        self.began_at = self.backend.clock()
        self.owner_node.insert_hold(self, self)
        if self.owner_node.phase is not _OPEN:
            self.owner_node.ring_closings()  # sent by work in flight: a drain checks for a reader

    def turn_idle(self) -> None:
        if self._busy:
            self._busy = False
            self._quick = ()
            self.owner_node.discard_hold(self)

    def _check_here(self) -> None:
        if not self.backend.here():
            message = (
                f"{self._kind} {self.name_given!r} was used from another thread or event loop: "
                "use scope.from_thread(channel.send_nowait, item)"
            )
            raise UsageError(message)

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        self.shut_down()

    def shut_down(self) -> None:
        if not self.is_over:
            broken = ScopeClosed(f"scope {self.owner_node.name!r} was closed")
            self.abandon_items(broken, given_up=True, wake=False)
        self.turn_idle()  # an item that a reader has taken stays with that reader

    def note_drain(self) -> None:
        self._quick = ()

    def is_forsaken(self) -> bool:
        """Return whether items are queued, but no task waits for one and no loop handles one.

        A loop whose body awaits the end of the scope does not count.
        """
        return bool(self.queued_items and not self._waiting) and all(
            self.owner_node.is_close_awaited_by(grip.task) for grip in self.grips
        )

    def expects_services(self) -> bool:
        return True

    def list_users(self) -> Iterable[object]:
        return ()

    def handled_by(self, tasks: Collection[object]) -> bool:
        return any(grip.task in tasks for grip in self.grips)

    def goes_on_regardless(self) -> bool:
        return False

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        """Do nothing: a lane is not a task."""
