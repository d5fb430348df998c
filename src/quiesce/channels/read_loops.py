"""The `async for` loops that read a queue, and the report entries for items left unread."""

from __future__ import annotations

import reprlib
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from quiesce.core import failures
from quiesce.core.report import Items, ReportEntry, with_kind
from quiesce.core.tree import ScopeState
from quiesce.errors import ChannelClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quiesce.channels.item_queue import Lane

T = TypeVar("T")

_OPEN, _CLOSING, _CLOSED = ScopeState.OPEN, ScopeState.CLOSING, ScopeState.CLOSED


class Grip:
    """A lane's record of one `async for` loop over it. The iterator itself may be dropped.

    A loop holds an item from the step in which it gets the item until it asks for the next one, is left, or
    its task ends: a failed task keeps the frames of its loops alive. If the reader is a service that failed
    or was cancelled while it held an item, the report names the item.
    """

    __slots__ = (
        "_forget",
        "_is_many",
        "_is_service",
        "_reader",
        "_reading_task",
        "holding",
        "item",
        "lane",
        "task",
    )

    def __init__(self, lane: Lane[Any], reader: Reader[Any], *, is_many: bool) -> None:
        self.lane: Lane[Any] = lane
        self.holding: bool = False
        self.item: Any = None  # the item that a dropped iterator held
        self.task: object = None
        self._reader: weakref.ref[Reader[Any]] = weakref.ref(reader)
        self._reading_task: Any = None  # the reading job, or the task if it is not a job
        self._is_many = is_many
        self._is_service = False
        self._forget: Callable[[], None] | None = None

    def take(self) -> None:
        """Record that the running task holds an item from this step on."""
        backend = self.lane.backend
        task = backend.task()
        if task is not self.task:
            self.end()
            self.task = task
            self._reading_task = key = backend.current()
            owner = self._owner()
            self._is_service = owner is not None and key in owner.services
            self._forget = backend.watch(self._task_ended)
        self.holding = True
        self.lane.grips.add(self)

    def put_down(self) -> None:
        """Record that the item has been handled."""
        if self.holding:
            self.holding = False
            self.item = None
            self._release()

    def leave(self) -> None:
        """Record that the loop was left, by `break` or by an exception.

        While the scope closes, this cannot tell whether the item was handled: a cancelled reader may
        still be cleaning up. The end of its task decides.
        """
        if self.task is None:
            return
        owner = self._owner()
        if self.lane.backend.ended(self.task):
            self._task_ended()
        elif _CLOSING in {self.lane.owner_node.phase, None if owner is None else owner.phase}:
            self._release()
        else:
            self.end()

    def end(self) -> None:
        """Record that the loop has ended, and forget its task. Idempotent."""
        forget, self._forget = self._forget, None
        self.task = self._reading_task = None
        if forget is not None:
            forget()
        self.put_down()
        reader = self._reader()
        if reader is not None:
            reader.item = None

    def _task_ended(self) -> None:
        if self.holding and self._is_lost():
            node = self.lane.owner_node
            if node.phase is _CLOSED:
                node = self._owner() or node
            reader = self._reader()
            item = self.item if reader is None else reader.item
            items = list(item) if self._is_many else [item]
            node.lose_items(Unread(self.lane, items, self._describe()), given_up=False)
        self.end()

    def _is_lost(self) -> bool:
        """Return whether the item has to be reported as lost.

        A failed or cancelled job is reported itself, and a task without a scope is in no report. A
        service may be stopped at any time without a report entry, so its item is reported.
        """
        fate, owner = self.lane.backend.fate(self.task), self._owner()
        if isinstance(fate, BaseException):
            heard = owner is not None and failures.has_function(owner, fate)
            return not heard and (owner is None or self._is_service)
        cut = owner is None and self.lane.owner_node.phase is _CLOSING
        return fate == "cancelled" and (self._is_service or cut)

    def _owner(self) -> Any:
        return getattr(self._reading_task, "owner_node", None)

    def _describe(self) -> str:
        return (
            "a task"
            if self._owner() is None
            else with_kind(self._reading_task.kind, self._reading_task.name)
        )

    def _release(self) -> None:
        lane = self.lane
        lane.grips.discard(self)
        if lane.queued_items:
            if lane.owner_node.phase is not _OPEN:
                lane.owner_node.ring_closings()  # a drain checks whether a reader is left
        elif not lane.grips:
            lane.turn_idle()


class Reader(Generic[T]):
    """The iterator of an `async for` loop that takes one item at a time from a lane."""

    __slots__ = ("__weakref__", "_grip", "item", "keeps", "lane")

    _is_many: ClassVar[bool] = False

    def __init__(self, lane: Lane[Any]) -> None:
        self.lane: Lane[Any] = lane
        self._grip = Grip(lane, self, is_many=self._is_many)
        self.item: Any = None  # the item held; if not None, the grip is holding
        self.keeps: object = None  # an object that must stay alive while this iterator is in use

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Take the next item; the previous item has been handled."""
        lane = self.lane
        items = lane.queued_items
        if len(items) <= lane.promised_count or self.item is None:
            await self._wait_for_next()
        item: T
        self.item = item = items.popleft()
        lane.received_count += 1
        if lane.sender_queue:
            lane.grant_room()
        if not items:
            lane.note_emptied()
        return item

    async def _wait_for_next(self) -> None:
        """Record that the item has been handled; wait for the next, and hold it from then on."""
        lane = self.lane
        self.item = None
        if len(lane.queued_items) <= lane.promised_count:
            self._grip.put_down()
            try:
                await lane.wait_for_item()
            except ChannelClosed as end:
                self._grip.end()
                if lane.broken_by is not None:
                    raise  # an early end must not look like the normal end
                raise StopAsyncIteration from end
        self._grip.take()

    def __del__(self) -> None:
        """Release the item: the loop was left by `break` or by an exception.

        This happens in the event loop's next turn: the garbage collector may run in any thread, and in
        the middle of a change to the scope's tables.
        """
        if self._grip.task is not None:
            self._grip.item = self.item
            self.lane.backend.post(self._grip.leave)


class BatchReader(Reader[list[T]]):
    """The iterator of an `async for` loop that takes several items at a time from a lane."""

    __slots__ = ("_at_most",)

    _is_many: ClassVar[bool] = True
    item: Any

    def __init__(self, lane: Lane[T], at_most: int | None) -> None:
        super().__init__(lane)
        self._at_most = at_most

    async def __anext__(self) -> list[T]:
        """Take the next items; the previous items have been handled."""
        lane = self.lane
        if len(lane.queued_items) <= lane.promised_count or self.item is None:
            await self._wait_for_next()
        taken: list[T]
        self.item = taken = lane.take_many(self._at_most)
        return taken


class Unread(Items):
    """The report entries for items that no task read, or whose reader died while handling them.

    An entry is made only when it is looked at.
    """

    __slots__ = ("_items", "_of", "_taken_by")

    def __init__(
        self, lane: Lane[Any], items: Sequence[object], taken_by: str | None = None
    ) -> None:
        self._items = items
        self._taken_by = taken_by
        age = lane.backend.clock() - lane.since
        self._of = lane.kind, lane.name, lane.owner_node.name, lane.where, age

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> ReportEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReportEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> ReportEntry | tuple[ReportEntry, ...]:
        if isinstance(index, slice):
            return tuple(self._describe(item) for item in self._items[index])
        return self._describe(self._items[index])

    def _describe(self, item: object) -> ReportEntry:
        kind, name, scope, where, age = self._of
        label, details = f"{reprlib.repr(item)} in {kind} {name}", {kind: name, "item": item}
        if self._taken_by is not None:
            label = f"{reprlib.repr(item)} of {kind} {name}, taken by {self._taken_by}"
            details["taken_by"] = self._taken_by
        return ReportEntry("item", label, scope, where, age, details)
