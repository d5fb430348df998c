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
_getframe = sys._getframe


class Channel(Lane[T], Generic[T]):
    """A queue between tasks that is owned by a scope, and can be closed.

    ```python
    channel = quiesce.Channel[str](maxsize=100)
    await channel.send("hello")
    async for item in channel:
        ...
    ```

    What is in it is in flight: the scope is not idle, the frontier names the channel, a drain
    waits for it to be read, and what was not read is in the report as `undelivered`. An item
    that a reader of `async for` has taken counts until the loop comes back for the next.

    It never loses or doubles an item, whoever is cancelled: an item whose `send()` has returned
    is received once, or undelivered; one whose `send()` has raised was never in the channel.
    Any number of tasks may send and receive; those who wait are woken in the order in which they
    came. A `send()` that finds room and a `receive()` that finds an item do not wait, and do not let
    other tasks run.

    Args:
        maxsize: How many items it has room for; None: any number.
        name: What it is called in frontiers, reports and errors.
        scope: Who owns it; the current scope by default.
        fan_out: Whether it is read through its taps alone: nothing is kept for readers of the
            channel itself, and what is sent while there is no tap is dropped.
    """

    __slots__ = (
        "_append",
        "_blocked",
        "_dropped",
        "_fan_out",
        "_granted",
        "_limit",
        "_passed",
        "_readers",
        "_taps",
    )

    def __init__(
        self,
        maxsize: int | None = 100,
        *,
        name: str = "channel",
        scope: Scope | None = None,
        fan_out: bool = False,
    ) -> None:
        """Make an open channel."""
        limit = arguments.size("maxsize", maxsize)
        arguments.check_text("name", name)
        owner = owner_of("a channel", scope)
        self._limit = sys.maxsize if limit is None else limit
        frame = _getframe(1)
        if frame.f_globals.get("__name__") == "typing" and frame.f_back is not None:
            frame = frame.f_back  # Channel[int](…) is called by way of it
        super().__init__(owner, name, limit, frame, deque())
        self._granted = 0  # room that senders were woken for and have not used yet
        self._blocked: dict[Waiter, object] = {}  # the tasks that wait for room
        self._append = self._items.append
        self._dropped = 0
        self._passed = 0  # on to the taps alone
        self._fan_out = fan_out
        self._taps: list[TapLane[T]] = []
        self._readers: dict[object, Callable[[], None]] = {}  # jobs, and how to forget each

    # Sending.

    async def send(self, item: T) -> None:
        """Put an item into the channel, and wait for room first if there is none.

        *Cancel safety*: cancelled, it has not put the item into the channel.

        *Raises*: `ChannelClosed` if the channel is closed, or is while it waits; also when the
        scope is closed, or being drained and the sender is not work that is in flight.
        """
        for append in self._quick:
            append(item)
            return
        await self._wait_for_room()
        self._put(item)

    def send_nowait(self, item: T) -> None:
        """Put an item into the channel, now or not at all.

        *Raises*: `ChannelFull` if there is no room, or others wait for it; else as `send()`.
        """
        self._check_open()
        if self._senders or not self._has_room():
            message = f"channel {self._name!r} is full: {len(self._items)} items are waiting in it"
            raise ChannelFull(message)
        self._put(item)

    def _put(self, item: T) -> None:
        if not self._fan_out:
            self._enqueue(item)
        else:
            self._passed += 1
            self._dropped += not self._taps
        if self._taps:
            for tap in tuple(self._taps):
                tap.offer(item)
        elif not (self._fan_out or self._senders or self._waiting) and self._node._state is _OPEN:
            room = self._limit - len(self._items) - self._granted
            self._quick = repeat(self._append, room)

    def _check_open(self) -> None:
        self._check_here()
        if not self._closed and self._node._state is not _OPEN:
            try:
                self._node._admit()
            except ScopeClosed as error:
                message = f"channel {self._name!r} takes nothing more: {error}"
                raise ChannelClosed(message) from error
        if self._closed:
            message = f"channel {self._name!r} is closed: it takes nothing more"
            raise ChannelClosed(message)

    async def _wait_for_room(self) -> None:
        self._check_open()
        if not self._senders and self._has_room():
            return
        waiter = self._backend.waiter()
        self._senders.append(waiter)
        self._blocked[waiter] = self._backend.task()
        try:
            granted: bool = await waiter
        except BaseException:
            if waiter in self._senders:
                self._senders.remove(waiter)
            elif not (waiter.cancelled() or self._closed):
                self._granted -= 1
                self._grant()
            raise
        finally:
            del self._blocked[waiter]
        if not granted or self._closed:
            self._check_open()
        self._granted -= 1

    def _has_room(self) -> bool:
        if len(self._items) + self._granted >= self._limit:
            return False
        return not self._taps or all(tap.has_room(self._granted) for tap in self._taps)

    def _grant(self) -> None:
        """Wake senders for the room that there is."""
        while self._senders and self._has_room():
            waiter = self._senders.popleft()
            if not waiter.done():
                self._granted += 1
                waiter.set_result(True)

    # Fan-out.

    def tap(
        self, maxsize: int | None = 100, *, slow: Slow = "wait", name: str | None = None
    ) -> Tap[T]:
        """Open a tap, which sees every item that is sent from now on, beside the channel's readers.

        It is read as a channel is. It ends with the channel, or by `close()`, or when it is
        dropped; `with channel.tap() as tap:` does that at the end of the block.

        Args:
            maxsize: How many items it has room for; None: any number.
            slow: What happens to an item when there is no room: `"wait"`: the sender waits, as
                for the channel's own readers; `"drop"`: the tap's oldest item is let go;
                `"fail"`: the tap ends, and its reader gets `TapOverflow`.
            name: What it is called; a number by default.

        *Raises*: `ChannelClosed` if the channel is closed.
        """
        limit = arguments.size("maxsize", maxsize)
        arguments.one_of("slow", slow, ("wait", "drop", "fail"))
        self._check_open()
        number = len(self._taps) + 1
        label = f"{self._name} tap {number}" if name is None else arguments.check_text("name", name)
        lane = TapLane(self, label, limit, slow, _getframe(1))
        self._taps.append(lane)
        self._quick = ()
        return Tap(lane)

    # The end.

    def read_by(self, *jobs: Job[Any]) -> None:
        """Name the jobs that read the channel: when the last of them has ended, no reader is left.

        The channel is closed in that step. Tasks that wait in `send()` get `ChannelClosed`, and what is
        in the channel is undelivered. A channel whose readers were not named waits for readers until its
        scope ends.
        """
        for job in jobs:
            arguments.instance("job", job, Job)
        for job in jobs:
            self._readers[job] = job._when_done(partial(self._reader_ended, job))
            if job.done():
                self._reader_ended(job)

    def _reader_ended(self, job: Job[Any]) -> None:
        forget = self._readers.pop(job, None)
        if forget is None:
            return
        forget()
        if not self._readers and not self._over:
            self._abandon(given_up=self._node._state is not _OPEN)

    def close(self, *, immediate: bool = False, error: BaseException | None = None) -> None:
        """Close the channel, in this very step. Closing it twice is harmless.

        It takes nothing more, and tasks that wait in `send()` get `ChannelClosed`. What is in it is
        still delivered; then the readers' loops end. With `immediate=True` the readers end at once, and
        what is in the channel is undelivered. With an `error` the readers' loops do not end: after the
        last item they raise a `ChannelClosed` that is caused by the error, so that no reader takes what
        was cut short for the whole.

        To wait until everything was read, await the jobs that read it, or `scope.idle()`.
        """
        self._check_here()
        self._refuse(error)
        for lane in self._lanes() if immediate else ():
            lane._abandon(given_up=False)

    def _refuse(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        """Take nothing more, and end those of the queues that are empty."""
        self._limit = 0
        self._quick = ()
        for waiter in self._senders:
            if not waiter.done():
                waiter.set_result(False)
        self._senders.clear()
        for lane in self._lanes():
            if not lane._over:
                lane._closed = True
                lane._broken = lane._broken or broken
            if not lane._items:
                lane._finish(wake=wake)

    def _lanes(self) -> list[Lane[T]]:
        return [self, *self._taps]

    def _abandon(
        self, broken: BaseException | None = None, *, given_up: bool, wake: bool = True
    ) -> None:
        self._refuse(broken, wake=wake)
        super()._abandon(broken, given_up=given_up, wake=wake)

    def _finish(self, broken: BaseException | None = None, *, wake: bool = True) -> None:
        super()._finish(broken, wake=wake)
        readers, self._readers = self._readers, {}
        for forget in readers.values():
            forget()

    def _forsaken(self) -> bool:
        return not self._readers and super()._forsaken()

    def _users(self) -> Iterable[object]:
        full = len(self._items) + self._granted >= self._limit
        return self._blocked.values() if full else ()

    async def _wait(self) -> None:
        if self._fan_out:
            message = f"channel {self._name!r} is read through its taps alone: open a tap()"
            raise UsageError(message)
        await super()._wait()

    # Asking.

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed

    @property
    def undelivered(self) -> tuple[T, ...]:
        """The items that no task has read or ever will, in the order in which they were sent."""
        return tuple(self._undelivered)

    @property
    def stats(self) -> ChannelStats:
        """How it stands."""
        return self._count(
            dropped=self._dropped,
            passed=self._passed - self._dropped,
            senders_waiting=len(self._senders),
            taps=len(self._taps),
        )

    def __len__(self) -> int:
        """Return the number of items in it."""
        return len(self._items)

    def __bool__(self) -> bool:
        """Return True, also when the channel is empty."""
        return True

    def __repr__(self) -> str:
        """Name the channel, and say how it stands."""
        state = "closed" if self._closed else "open"
        return f"<Channel {self._name!r} {state}, {len(self._items)} in it>"
