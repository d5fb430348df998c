"""Channels: producers and readers that stop together."""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quiesce.channels.item_queue import Lane
from quiesce.channels.tap import Tap, TapLane
from quiesce.core import arguments
from quiesce.core.job import Job
from quiesce.core.owner import owner_of
from quiesce.core.python_private import get_frame
from quiesce.core.tree import ScopeState
from quiesce.errors import ChannelClosed, ChannelFull, ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.channels.channel_stats import ChannelStats
    from quiesce.channels.tap import Slow
    from quiesce.core.backends import Waiter
    from quiesce.core.scope import Scope

__all__ = ["Channel"]

T = TypeVar("T")

_OPEN = ScopeState.OPEN


class Channel(Lane[T], Generic[T]):
    """A queue between tasks that is owned by a scope, and can be closed.

    ```python
    channel = quiesce.Channel[str](maxsize=100)
    await channel.send("hello")
    async for item in channel:
        ...
    ```

    Queued items count as work in flight. While the channel holds items, its scope is not idle, the
    frontier names the channel, and a drain waits until the items have been read. Items that are never
    read are listed in the report as `undelivered`. An item that an `async for` loop has taken
    counts as in flight until the loop asks for the next item.

    Cancellation never loses or duplicates an item. If `send()` returned, the item is received
    exactly once or reported as undelivered. If `send()` raised, the item was not queued.

    Any number of tasks may send and receive. Waiting tasks are woken in the order in which they
    began to wait. A `send()` that finds room and a `receive()` that finds an item return at once,
    without letting other tasks run.

    Args:
        maxsize: The number of items that fit into the channel; None: no limit.
        name: The channel's name in frontiers, reports and errors.
        scope: The owning scope; the current scope by default.
        fan_out: Whether only taps read the channel. The channel then keeps no items itself, and
            drops an item that is sent while no tap is open.
    """

    __slots__ = (
        "_append",
        "_dropped",
        "_granted",
        "_limit",
        "_passed",
        "_readers",
        "blocked_senders",
        "is_fan_out",
        "tap_lanes",
    )

    def __init__(
        self,
        maxsize: int | None = 100,
        *,
        name: str = "channel",
        scope: Scope | None = None,
        fan_out: bool = False,
    ) -> None:
        limit = arguments.size("maxsize", maxsize)
        arguments.check_text("name", name)
        owner = owner_of("a channel", scope)
        self._limit = sys.maxsize if limit is None else limit
        frame = get_frame(1)
        if frame.f_globals.get("__name__") == "typing" and frame.f_back is not None:
            frame = frame.f_back  # `Channel[int](…)` is called by a function of `typing`
        super().__init__(owner, name, limit, frame, deque())
        self._granted = 0  # places that woken senders may use and have not used yet
        self.blocked_senders: dict[Waiter, object] = {}  # the tasks that wait for room
        self._append = self.queued_items.append
        self._dropped = 0
        self._passed = 0  # items that went to the taps alone
        self.is_fan_out: bool = fan_out
        self.tap_lanes: list[TapLane[T]] = []
        self._readers: dict[object, Callable[[], None]] = {}  # job -> removes its callback

    # Sending.

    async def send(self, item: T) -> None:
        """Put an item into the channel; wait first if the channel is full.

        *Cancel safety*: if cancelled, the item was not queued.

        *Raises*: `ChannelClosed` if the channel is closed now or while the sender waits. Also if the
        scope is closed, or if the scope drains and the sender is not work in flight.
        """
        for append in self._quick:
            append(item)
            return
        await self._wait_for_room()
        self._put(item)

    def send_nowait(self, item: T) -> None:
        """Put an item into the channel, or raise at once if that is not possible.

        *Raises*: `ChannelFull` if the channel is full or other senders wait for room; otherwise the
        errors of `send()`.
        """
        self._check_open()
        if self.sender_queue or not self._has_room():
            message = f"channel {self.name_given!r} is full: {len(self.queued_items)} items are waiting in it"
            raise ChannelFull(message)
        self._put(item)

    def _put(self, item: T) -> None:
        if not self.is_fan_out:
            self._enqueue(item)
        else:
            self._passed += 1
            self._dropped += not self.tap_lanes
        if self.tap_lanes:
            for tap in tuple(self.tap_lanes):
                tap.offer(item)
        elif (
            not (self.is_fan_out or self.sender_queue or self._waiting)
            and self.owner_node.phase is _OPEN
        ):
            room = self._limit - len(self.queued_items) - self._granted
            self._quick = repeat(self._append, room)

    def _check_open(self) -> None:
        self._check_here()
        if not self.is_closed and self.owner_node.phase is not _OPEN:
            try:
                self.owner_node.check_may_start()
            except ScopeClosed as error:
                message = f"channel {self.name_given!r} accepts no more items: {error}"
                raise ChannelClosed(message) from error
        if self.is_closed:
            message = f"channel {self.name_given!r} is closed: it accepts no more items"
            raise ChannelClosed(message)

    async def _wait_for_room(self) -> None:
        self._check_open()
        if not self.sender_queue and self._has_room():
            return
        waiter = self.backend.waiter()
        self.sender_queue.append(waiter)
        self.blocked_senders[waiter] = self.backend.task()
        try:
            granted: bool = await waiter
        except BaseException:
            if waiter in self.sender_queue:
                self.sender_queue.remove(waiter)
            elif not (waiter.cancelled() or self.is_closed):
                self._granted -= 1
                self.grant_room()
            raise
        finally:
            del self.blocked_senders[waiter]
        if not granted or self.is_closed:
            self._check_open()
        self._granted -= 1

    def _has_room(self) -> bool:
        if len(self.queued_items) + self._granted >= self._limit:
            return False
        return not self.tap_lanes or all(tap.has_room(self._granted) for tap in self.tap_lanes)

    def grant_room(self) -> None:
        """Wake as many waiting senders as there are free places."""
        while self.sender_queue and self._has_room():
            waiter = self.sender_queue.popleft()
            if not waiter.done():
                self._granted += 1
                waiter.set_result(True)

    # Fan-out.

    def tap(
        self, maxsize: int | None = 100, *, slow: Slow = "wait", name: str | None = None
    ) -> Tap[T]:
        """Open a tap: a queue that gets a copy of every item sent from now on.

        A tap is read in the same ways as a channel. It ends with the channel, when it is closed with
        `close()`, or when it is dropped. `with channel.tap() as tap:` closes it at the end of the block.

        Args:
            maxsize: The number of items that fit into the tap; None: no limit.
            slow: What a sender does when the tap is full. `"wait"`: the sender waits until the tap
                has room. `"drop"`: the tap's oldest item is dropped. `"fail"`: the tap ends, and
                its reader gets `TapOverflow`.
            name: The tap's name; the channel's name and a number by default.

        *Raises*: `ChannelClosed` if the channel is closed.
        """
        limit = arguments.size("maxsize", maxsize)
        arguments.one_of("slow", slow, ("wait", "drop", "fail"))
        self._check_open()
        number = len(self.tap_lanes) + 1
        label = (
            f"{self.name_given} tap {number}"
            if name is None
            else arguments.check_text("name", name)
        )
        lane = TapLane(self, label, limit, slow, get_frame(1))
        self.tap_lanes.append(lane)
        self._quick = ()
        return Tap(lane)

    # The end.

    def read_by(self, *jobs: Job[Any]) -> None:
        """Name the jobs that read the channel; when the last of them ends, the channel closes.

        The channel closes in the same step. Tasks that wait in `send()` get `ChannelClosed`, and
        queued items become undelivered. If no jobs are named, the channel waits for readers until
        its scope ends.
        """
        for job in jobs:
            arguments.instance("job", job, Job)
        for job in jobs:
            self._readers[job] = job.call_when_done(partial(self._reader_ended, job))
            if job.done():
                self._reader_ended(job)

    def _reader_ended(self, job: Job[Any]) -> None:
        forget = self._readers.pop(job, None)
        if forget is None:
            return
        forget()
        if not self._readers and not self.is_over:
            self.abandon_items(given_up=self.owner_node.phase is not _OPEN)

    def close(self, *, immediate: bool = False, error: BaseException | None = None) -> None:
        """Close the channel at once; there is nothing to await. Closing it twice is harmless.

        The channel accepts no more items, and tasks that wait in `send()` get `ChannelClosed`.
        Readers still get the queued items, and then their loops end. With `immediate=True` the readers
        end at once, and queued items become undelivered. With an `error`, the readers get the queued
        items and then a `ChannelClosed` whose cause is the error, so that a reader does not take the
        items it got for all of them.

        To wait until all items have been read, await the jobs that read them, or `scope.idle()`.
        """
        self._check_here()
        self._refuse(error)
        for lane in self._lanes() if immediate else ():
            lane.abandon_items(given_up=False)

    def _refuse(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        """Refuse further items, and end the queues that are empty."""
        self._limit = 0
        self._quick = ()
        for waiter in self.sender_queue:
            if not waiter.done():
                waiter.set_result(False)
        self.sender_queue.clear()
        for lane in self._lanes():
            if not lane.is_over:
                lane.is_closed = True
                lane.broken_by = lane.broken_by or broken
            if not lane.queued_items:
                lane.finish_lane(wake=wake)

    def _lanes(self) -> list[Lane[T]]:
        return [self, *self.tap_lanes]

    def abandon_items(
        self, broken: BaseException | None = None, *, given_up: bool, wake: bool = True
    ) -> None:
        self._refuse(broken, wake=wake)
        super().abandon_items(broken, given_up=given_up, wake=wake)

    def finish_lane(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        super().finish_lane(broken, wake=wake)
        readers, self._readers = self._readers, {}
        for forget in readers.values():
            forget()

    def is_forsaken(self) -> bool:
        return not self._readers and super().is_forsaken()

    def list_users(self) -> Iterable[object]:
        full = len(self.queued_items) + self._granted >= self._limit
        return self.blocked_senders.values() if full else ()

    async def wait_for_item(self) -> None:
        if self.is_fan_out:
            message = f"channel {self.name_given!r} has fan_out=True and is read only by its taps: open one with tap()"
            raise UsageError(message)
        await super().wait_for_item()

    # Asking.

    @property
    def closed(self) -> bool:
        """Whether the channel refuses further items."""
        return self.is_closed

    @property
    def undelivered(self) -> tuple[T, ...]:
        """The items that were never read, in the order in which they were sent."""
        return tuple(self.undelivered_kept)

    @property
    def stats(self) -> ChannelStats:
        """The channel's figures now."""
        return self.make_stats(
            dropped=self._dropped,
            passed=self._passed - self._dropped,
            senders_waiting=len(self.sender_queue),
            taps=len(self.tap_lanes),
        )

    def __len__(self) -> int:
        """Return the number of queued items."""
        return len(self.queued_items)

    def __bool__(self) -> bool:
        """Return True, even when the channel is empty."""
        return True

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<Channel {self.name_given!r} {state}, {len(self.queued_items)} queued>"
