"""The loops that read a queue, and the items that were left unread."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from quiesce.core.report import Items, ReportEntry
from quiesce.errors import ChannelClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quiesce.channels.item_queue import Lane

T = TypeVar("T")


class Grip:
    """What a lane knows of an `async for` over it: not the iterator itself, which may be dropped.

    An item is in hand from the step in which the loop gets it until the loop comes back, is left, or its
    task has ended: a task that failed keeps the frames of its loops.
    """

    __slots__ = ("_forget", "holding", "lane", "task")

    def __init__(self, lane: Lane[Any]) -> None:
        self.lane: Lane[Any] = lane
        self.holding: bool = False
        self.task: object = None
        self._forget: Callable[[], None] | None = None

    def take(self) -> None:
        """Record that the running task has an item in hand."""
        task = self.lane._backend.task()
        if task is not self.task:
            self.end()
            self.task = task
            self._forget = self.lane._backend.watch(self.end)
        self.holding = True
        self.lane._in_hand.add(self)

    def put_down(self) -> None:
        """Record that what was in hand is handled."""
        if self.holding:
            self.holding = False
            lane = self.lane
            lane._in_hand.remove(self)
            if not lane._in_hand and not lane._items:
                lane._turn_idle()

    def end(self) -> None:
        """Record that the loop was left, or that its task has ended. Idempotent."""
        forget, self._forget = self._forget, None
        self.task = None
        if forget is not None:
            forget()
        self.put_down()


class Reader(Generic[T]):
    """An `async for` over a lane, item by item."""

    __slots__ = ("_grip", "_lane", "keeps")

    def __init__(self, lane: Lane[Any]) -> None:
        self._lane = lane
        self._grip = Grip(lane)
        self.keeps: object = None  # what must not be dropped while this is read

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> T:
        """Take the next item; what was taken before has been handled."""
        lane = self._lane
        if len(lane._items) <= lane._promised or not self._grip.holding:
            await self._come_back()
        items = lane._items
        item: T = items.popleft()
        lane._received += 1
        if lane._senders:
            lane._grant()
        if not items:
            lane._emptied()
        return item

    async def _come_back(self) -> None:
        """Record that what was in hand is handled, and wait for more, which is in hand from then on."""
        lane = self._lane
        if len(lane._items) <= lane._promised:
            self._grip.put_down()
            try:
                await lane._wait()
            except ChannelClosed as end:
                self._grip.end()
                if lane._broken is not None:
                    raise  # it must not be taken for the end
                raise StopAsyncIteration from end
        self._grip.take()

    def __del__(self) -> None:
        """Put down what was in hand: the loop was left, by `break` or by an exception.

        That is done in the event loop's next turn: the collector may run in any thread, and in the
        middle of a change to the scope's tables.
        """
        if self._grip.task is not None:
            self._lane._backend.post(self._grip.end)


class BatchReader(Reader[list[T]]):
    """An `async for` over a lane, several items at a time."""

    __slots__ = ("_at_most",)

    def __init__(self, lane: Lane[T], at_most: int | None) -> None:
        super().__init__(lane)
        self._at_most = at_most

    async def __anext__(self) -> list[T]:
        """Take the next items; what was taken before has been handled."""
        lane = self._lane
        if len(lane._items) <= lane._promised or not self._grip.holding:
            await self._come_back()
        return lane._take_many(self._at_most)


class Unread(Items):
    """The items that nobody read, as a report lists them: described only when somebody looks."""

    __slots__ = ("_items", "_of")

    def __init__(self, lane: Lane[Any], items: Sequence[object]) -> None:
        self._items = items
        age = lane._backend.clock() - lane.since
        self._of = lane.kind, lane.name, lane._node.name, lane.where, age

    def __len__(self) -> int:
        """Count them."""
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> ReportEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReportEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> ReportEntry | tuple[ReportEntry, ...]:
        """Describe one, or some."""
        if isinstance(index, slice):
            return tuple(self._describe(item) for item in self._items[index])
        return self._describe(self._items[index])

    def _describe(self, item: object) -> ReportEntry:
        kind, name, scope, where, age = self._of
        label = f"{reprlib.repr(item)} in {kind} {name}"
        return ReportEntry("item", label, scope, where, age, {kind: name, "item": item})
