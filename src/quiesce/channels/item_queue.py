"""One queue of a channel, with those who read it: the channel's own, or a tap's.

How an item goes through, so that no cancellation can lose or double it:

- An item leaves the queue in the step in which `receive()` returns it, never before. A waiting
  reader is *promised* an item, which stays in the queue; if the reader is cancelled before it
  has taken the item, the promise goes to the next.
- An item enters the queue in the step in which `send()` returns. A waiting sender is *granted*
  room; if it is cancelled before it has used the room, the grant goes to the next.
"""

from __future__ import annotations

import reprlib
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from quiesce.channels.channel_stats import ChannelStats
from quiesce.channels.readers import BatchReader, Reader, Unread
from quiesce.core import arguments, callsites
from quiesce.core.hold import Described, Fate
from quiesce.core.tree import ScopeState
from quiesce.errors import ChannelClosed, ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType, FrameType

    from quiesce.channels.readers import Grip
    from quiesce.core.backends import Waiter
    from quiesce.core.tree import TreeNode
    from quiesce.errors import QuiesceError

T = TypeVar("T")

_OPEN = ScopeState.OPEN


class Lane(Described, Generic[T]):
    """A queue that is read. It is a hold of its scope while there is anything in it.

    What a reader of `async for` has taken, and has not come back from, counts as well.
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_broken",
        "_busy",
        "_closed",
        "_code",
        "_in_hand",
        "_items",
        "_maxsize",
        "_name",
        "_node",
        "_offset",
        "_over",
        "_promised",
        "_quick",
        "_received",
        "_senders",
        "_since",
        "_undelivered",
        "_waiting",
    )

    _fate: ClassVar[Fate] = "undelivered"
    _stops: ClassVar[bool] = False
    _kind = "channel"

    def __init__(
        self,
        node: TreeNode,
        name: str,
        maxsize: int | None,
        frame: FrameType,
        senders: deque[Waiter],
    ) -> None:
        self._node: TreeNode = node
        self._backend = node._backend
        self._name = name
        self._maxsize = maxsize
        self._code: CodeType = frame.f_code
        self._offset: int = frame.f_lasti
        self._items: deque[T] = deque()
        self._senders = senders  # that wait for room in the channel
        # The queue's append, as often as an item may come in without a question: `for` takes it
        # in fewer steps than a number is counted down. It is empty, or nobody is owed a wake-up,
        # the lane is busy, and since it was counted there can only have come more room.
        self._quick: Iterable[Callable[[T], None]] = ()
        self._promised = 0  # of the items, to readers that were woken and have not run yet
        self._waiting: deque[Waiter] = deque()  # readers that nothing was promised to
        self._in_hand: set[Grip] = set()  # of the loops whose body handles an item
        self._busy = False
        self._closed = False  # for senders
        self._over = False  # for readers as well
        self._broken: BaseException | None = None  # why it has ended before its time
        self._since = 0.0
        self._received = 0
        self._undelivered: list[T] = []
        node._register(self)

    # Reading.

    async def receive(self) -> T:
        """Wait for the next item, and take it.

        *Cancel safety*: cancelled, it has taken nothing; the item is the next reader's.

        *Raises*: `ChannelClosed` when the channel is closed and everything was delivered.
        """
        if len(self._items) <= self._promised:
            await self._wait()
        item = self._items.popleft()
        self._received += 1
        if self._senders:
            self._grant()
        if not self._items:
            self._emptied()
        return item

    async def batch(self, at_most: int | None = None) -> list[T]:
        """Wait for at least one item, and take what is there, `at_most` that many.

        *Cancel safety*: cancelled, it has taken nothing.

        *Raises*: `ChannelClosed` when the channel is closed and everything was delivered.
        """
        limit = arguments.size("at_most", at_most)
        if len(self._items) <= self._promised:
            await self._wait()
        return self._take_many(limit)

    def __aiter__(self) -> Reader[T]:
        """Read item by item, until the channel is closed and everything was delivered.

        An item counts as in flight until the loop comes back for the next, so that the scope is
        not idle while it is being handled.
        """
        return Reader(self)

    def batches(self, at_most: int | None = None) -> BatchReader[T]:
        """Read as with `async for`, but all that is there at a time, `at_most` that many.

        ```python
        async for items in channel.batches(100):
            await store(items)
        ```
        """
        return BatchReader(self, arguments.size("at_most", at_most))

    async def _wait(self) -> None:
        """Wait until there is an item for us; it stays in the queue, promised to nobody else."""
        if not self._over and not (self._closed and not self._items):
            self._check_here()
            waiter = self._backend.waiter()
            self._waiting.append(waiter)
            self._quick = ()
            try:
                promised: bool = await waiter
            except BaseException:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not (waiter.cancelled() or self._over):
                    self._promised -= 1
                    self._promise(1)  # to the next
                raise
            if promised and self._items:
                self._promised -= 1
                return
        raise self._end_of_items()

    def _promise(self, count: int) -> None:
        """Wake readers for items that are in the queue and promised to nobody."""
        while count and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._promised += 1
                count -= 1
                waiter.set_result(True)

    def _enqueue(self, item: T) -> None:
        """Put an item in: there is room, or it does not matter."""
        if not self._busy:
            self._turn_busy()
        self._items.append(item)
        if self._waiting:
            self._promise(len(self._items) - self._promised)  # 0 if a tap has dropped one for it

    def _take_many(self, at_most: int | None) -> list[T]:
        count = len(self._items) - self._promised
        if at_most is not None and at_most < count:
            count = at_most
        if count == len(self._items):
            taken = list(self._items)
            self._items.clear()
        else:
            taken = [self._items.popleft() for _ in range(count)]
        self._received += count
        if self._senders:
            self._grant()
        if not self._items:
            self._emptied()
        return taken

    def _emptied(self) -> None:
        """See that the last item was taken."""
        if self._closed:
            self._finish()
        if not self._in_hand:
            self._turn_idle()

    def _grant(self) -> None:
        """Wake senders that wait for room."""
        raise NotImplementedError

    # The end.

    def _finish(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        """End the readers: there will be nothing more. Or it was `broken` off, and there should be.

        When the scope closes they are not woken: they are cancelled, or `_gone()` comes.
        """
        if self._over:
            return
        self._over = True
        self._broken = self._broken or broken
        if wake:
            self._gone()

    def _gone(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(False)
        self._waiting.clear()
        self._node._unregister(self)

    def _abandon(
        self, broken: BaseException | None = None, *, given_up: bool, wake: bool = True
    ) -> None:
        """Take out what nobody will read, and report it."""
        if self._items:
            left = list(self._items)
            self._items.clear()
            self._undelivered += left
            self._node._lose(Unread(self, left), given_up=given_up)
        self._promised = 0
        self._closed = True
        self._finish(broken, wake=wake)
        if not self._in_hand:
            self._turn_idle()

    def _end_of_items(self) -> QuiesceError:
        why = "is closed: there is nothing more to read"
        if self._broken is not None:
            why = f"was cut short: {type(self._broken).__name__}: {self._broken}"
        error = ChannelClosed(f"{self._kind} {self._name!r} {why}")
        error.__cause__ = self._broken
        return error

    # As a hold, and as a resource, of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        """How much is in it, and what has been there longest."""
        found: dict[str, object] = {"depth": len(self._items)}
        if self._items:
            found["oldest"] = reprlib.repr(self._items[0])
        if self._in_hand:
            found["in hand"] = len(self._in_hand)
        return found

    def _count(
        self, *, dropped: int, passed: int = 0, senders_waiting: int = 0, taps: int = 0
    ) -> ChannelStats:
        return ChannelStats(
            depth=len(self._items),
            maxsize=self._maxsize,
            sent=len(self._items) + self._received + len(self._undelivered) + dropped + passed,
            received=self._received,
            undelivered=len(self._undelivered),
            dropped=dropped,
            senders_waiting=senders_waiting,
            readers_waiting=len(self._waiting),
            taps=taps,
        )

    def _turn_busy(self) -> None:
        self._check_here()
        self._busy = True
        self._since = self._backend.clock()
        self._node._insert(self, self)
        if self._node._state is not _OPEN:
            self._node._ring_all()  # work in flight has sent it: a drain looks whether it is read

    def _turn_idle(self) -> None:
        if self._busy:
            self._busy = False
            self._quick = ()
            self._node._discard(self)

    def _check_here(self) -> None:
        if not self._backend.here():
            message = (
                f"{self._kind} {self._name!r} was used from another thread or event loop: "
                "use scope.from_thread(channel.send_nowait, item)"
            )
            raise UsageError(message)

    def _stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        self._shut()

    def _shut(self) -> None:
        if not self._over:
            broken = ScopeClosed(f"scope {self._node.name!r} was closed")
            self._abandon(broken, given_up=True, wake=False)
        self._turn_idle()  # what is still in a reader's hand is the reader's

    def _drain(self) -> None:
        self._quick = ()

    def _forsaken(self) -> bool:
        """Return whether there are items, and no task waits for one, or handles one in a loop.

        A loop whose body waits for the end of the scope does not count.
        """
        return bool(self._items and not self._waiting) and all(
            self._node._awaited_by(grip.task) for grip in self._in_hand
        )

    def _expects_services(self) -> bool:
        return True

    def _users(self) -> Iterable[object]:
        return ()

    def _swallowed(self) -> bool:
        return False

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: it is no task."""
