"""The owner's side of a stream: one job that steps an async generator, from its start to its end.

A generator that is stepped by one task and closed by another breaks whatever it has opened around
its `yield` (a task group, a cancel scope, a context variable). So only the pump touches it.

What holds:

- The pump does not know the user's handle, so that dropping the handle can be noticed.
- It steps the generator only when somebody waits, or to fill the buffer.
- An item leaves the queue in the step in which its reader returns it: a cancelled reader took nothing.
- What interrupts the pump while the generator is suspended at its `yield` is thrown into the
  generator: it is meant for a cancel scope that the generator has open, or for the whole job.
- An error has one taker: the reader, the one who closes, or else the scope's report.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import anyio

from quiesce.core import callsites
from quiesce.core.failures import is_fatal
from quiesce.core.graveyard import Graveyard
from quiesce.core.hold import Described, Fate
from quiesce.core.latch import Latch
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import JobCancelled, ScopeClosed, UsageError
from quiesce.streams import sources
from quiesce.streams.nested_generators import Nested, handles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from types import CodeType, FrameType

    from quiesce.core.backends import Waiter
    from quiesce.core.tree import TreeNode

T = TypeVar("T")

_OPEN = ScopeState.OPEN
_AT_HAND_MAX = 64  # items that are taken without waiting, before their reader has a turn


class Pump(Described, Generic[T]):
    """The job behind a stream, its queue, and who waits at either end."""

    __slots__ = (
        "__weakref__",
        "_anonymous",
        "_backend",
        "_body",
        "_calling",
        "_closers",
        "_closing",
        "_code",
        "_cut",
        "_end",
        "_error",
        "_items",
        "_iterator",
        "_job",
        "_last_reader",
        "_limit",
        "_name",
        "_nested",
        "_node",
        "_offset",
        "_over",
        "_parked",
        "_reader",
        "_ready",
        "_shut_down",
        "_since",
        "_source",
        "_task",
        "_thread",
        "_thrown",
        "_wake_from",
    )

    _kind = "stream"
    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True

    def __init__(
        self,
        node: TreeNode,
        source: Any,
        limit: int,
        name: str,
        frame: FrameType,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        self._node: TreeNode = node
        self._backend = node._backend
        self._source = source
        self._limit: int = limit
        self._ready = ready  # tells whether a step would give an item without waiting
        self._name = name
        self._code: CodeType = frame.f_code
        self._offset: int = frame.f_lasti
        self._since = 0.0
        self._items: deque[T] = deque()
        self._wake_from: int = 0  # a reader that finds so many items, or fewer, wakes the pump
        self._thread = get_ident()
        self._iterator: Any = None
        self._job: Any = None  # a job of either backend, which has more than Job says
        self._task: object = None  # once it has begun
        self._parked: Waiter | None = None  # while the generator is suspended at its `yield`
        self._reader: Waiter | None = None
        self._calling: Waiter | None = None  # the reader, until it is woken
        self._last_reader: weakref.ref[Any] | None = None
        self._anonymous = False
        self._thrown: BaseException | None = None  # a cancellation, for the generator's `yield`
        self._closing = False
        self._closers = 0
        self._shut_down = False  # it was the scope that closed it
        self._cut = False  # a step of the generator was cancelled, in order to close
        self._nested = Nested()
        self._body: Any = None  # what the job runs
        self._over = False
        self._error: BaseException | None = None  # that nobody has taken so far
        self._end: Latch = Latch(node._backend)

    # The reader's side; all of it in the event loop.

    async def read(self) -> None:
        """Wait until there is an item, and leave it in the queue; raises the end, or an error."""
        if self._parked is None or self._reader is not None or self._closing:
            self._check_reader()  # nothing of it can be amiss otherwise
            if self._over or self._closing:
                raise self._outcome()
            if self._job is None:
                self._start()
        if get_ident() != self._thread:
            self.check_here()
        task = self._backend.task()
        if self._last_reader is None or task is not self._last_reader():
            self._meet(task)
        self._calling = self._reader = waiter = self._backend.waiter()
        parked = self._parked
        if parked is not None and not parked.done():
            parked.set_result(None)
        try:
            await waiter
        finally:
            self._calling = self._reader = None
            if self._node._state is not _OPEN:
                self._node._ring_all()
        if not self._items:
            raise self._outcome()

    def _meet(self, task: Any) -> None:
        """Record the last reader; a task for one `anext()` was made by an unknown task."""
        self._anonymous = task is None or sources.reads_only(task)
        self._last_reader = None if self._anonymous else weakref.ref(task)

    def _check_reader(self) -> None:
        if self._task is not None and self._task is self._backend.task():
            message = f"stream {self._name!r} was read by its own generator"
            raise UsageError(message)
        if self._reader is not None:
            message = f"stream {self._name!r} is being read by another task already"
            raise UsageError(message)

    def check_here(self) -> None:
        """Refuse other threads and event loops."""
        if not self._backend.here():
            message = (
                f"stream {self._name!r} was used from another thread or event loop: "
                "use scope.from_thread(...)"
            )
            raise UsageError(message)

    def _outcome(self) -> BaseException:
        """Return the exception to raise when the stream has no item."""
        error = self._error
        if error is not None and not self._closing:  # else it is the closer's
            self._error = None
            self._unlist()
            return error
        if self._shut_down:
            return ScopeClosed(f"stream {self._name!r} was closed with scope {self._node.name!r}")
        outcome = None if self._job is None or self._closing else self._job.outcome
        if outcome is not None and outcome.status != "completed":
            return JobCancelled(f"stream {self._name!r} was cancelled")
        return StopAsyncIteration()

    def wake(self) -> None:
        """Wake the pump, to see to its queue."""
        if get_ident() != self._thread:
            self.check_here()  # before anything was taken
        self._wake_from = 0
        parked = self._parked
        if parked is not None and not parked.done():
            parked.set_result(None)

    def _start(self) -> None:
        node = self._node
        node._admit()
        self._since = node._backend.clock()
        name = f"stream {self._name}"
        self._job = job = self._backend.start(node, self._run(), name, self._code, self._offset)
        node._insert(job, self)
        node._register(self)
        job._when_done(self._ended)

    # Closing.

    def close(self, *, wake: bool = True) -> None:
        """Ask for the generator's end, and end the reader. Idempotent."""
        if self._job is None:
            self._source = None
            self._over = True
        if self._over:
            self._items.clear()
            self._tell()
        elif not self._closing:
            self._closing = True
            self._thrown = None
            self._items.clear()
            if wake:
                self._wake_reader()
            self._interrupt()

    def was_dropped(self) -> None:
        """Close, in the event loop's next turn: no code can read the stream any longer."""
        if self._job is not None and not (self._over and self._error is None):
            self._backend.post(self.close)

    @property
    def state(self) -> str:
        """How the stream stands, in a word or two."""
        if self._job is None:
            return "closed" if self._over else "not begun"
        if self._over:
            return "ended"
        return "closing" if self._closing else "open"

    def _interrupt(self) -> None:
        """Wake the pump, to see that it is to close."""
        if self._parked is not None:
            self.wake()
        elif self._task is not None and self._job not in self._node._closers:
            # In the middle of a step; if that has called for the close of the scope, it waits for
            # it, and is cancelled by the scope if it does not end.
            self._cut = True
            self._job.cancel()

    async def wait_closed(self) -> None:
        """Close, and wait for the end; raises what the generator raised meanwhile."""
        if self._task is not None and self._task is self._backend.task():
            message = f"stream {self._name!r} was closed by its own generator: use `return`"
            raise UsageError(message)
        self.close()
        if self._over:
            return
        self._closers += 1
        try:
            await self._end.wait()
        except BaseException:
            self._closers -= 1
            if self._end.is_open and not self._closers:
                self._tell()
            raise
        self._closers -= 1
        if self._error is not None:
            error, self._error = self._error, None
            self._unlist()
            raise error

    # The pump's side: all of it in the job.

    async def _run(self) -> None:
        """Run the body of the job."""
        self._body = self._pump()
        try:
            await self._nested.own(self._body)
        finally:
            self._body = None

    async def _pump(self) -> None:
        """Step the generator until it ends or is to be closed, and close what is inside it."""
        self._task = self._backend.task()
        try:
            try:
                await self._step_to_the_end()
            finally:
                self._iterator = None
                await self._nested.close(sources.close_source)
                self._nested.end()
        except BaseException as error:
            rest = sources.without(error, self._backend.cancelled)
            if rest is None or is_fatal(rest):
                raise
            self._error = rest
        finally:
            self._iterator = self._task = None
            if self._closing and not self._closers:
                self._tell()

    async def _step_to_the_end(self) -> None:
        try:
            await self._produce(self._begin())
        except StopAsyncIteration:
            return
        except BaseException as error:
            if sources.without(error, self._backend.cancelled) is not None:
                raise
            self._uncancel()
            await sources.close_source(self._iterator)
            if self._shut_down or not self._cut:
                raise
        else:
            self._uncancel()
            await sources.close_source(self._iterator)

    def _begin(self) -> Any:
        """Return the iterator; a function is called here, in the job."""
        source, self._source = self._source, None
        if self._closing or source is None:
            raise StopAsyncIteration
        self._iterator = sources.iterator_of(source, self._name)
        return self._iterator

    async def _produce(self, iterator: Any) -> None:
        """Step the generator when it is wanted, until a close is asked for. The path of each item."""
        step, items, limit = iterator.__anext__, self._items, self._limit
        most = limit if self._ready is None else max(limit, _AT_HAND_MAX)
        new_waiter, cancelled = self._backend.waiter, self._backend.cancelled
        dropped = self._nested.dropped
        while not self._closing or self._thrown is not None:
            items.append(await (step() if self._thrown is None else self._throw_in(iterator)))
            self._wake_reader()
            # Reading ahead, with nobody to wake: as few questions as there can be for an item.
            while len(items) < limit and self._calling is None and not (self._closing or dropped):
                items.append(await step())
            if self._ready is not None:
                step = await self._take_at_hand(step, self._ready)
            if self._closing:
                items.clear()
                return
            self._wake_reader()
            if dropped:  # left half-read by the generator
                await self._nested.close(sources.close_source)
            while len(items) >= limit and self._unwanted():
                self._wake_from = limit
                if self._node._state is not _OPEN:
                    self._node._ring_all()
                try:
                    if len(items) > most and len(items) > 1:
                        await self._park_shielded()
                    else:
                        self._parked = new_waiter()
                        await self._parked
                except cancelled as error:
                    self._thrown = error
                finally:
                    self._parked = None

    async def _take_at_hand(
        self, step: Callable[[], Awaitable[T]], ready: Callable[[], bool]
    ) -> Callable[[], Awaitable[T]]:
        """Take the items that need no waiting; return the next step, for an error is its reader's."""
        items, dropped = self._items, self._nested.dropped
        while len(items) < _AT_HAND_MAX and not (self._closing or dropped) and ready():
            try:
                items.append(await step())
            except Exception as error:  # noqa: BLE001 - told to whoever reads so far
                return partial(sources.fail, error)
        return step

    def _unwanted(self) -> bool:
        """Return whether nobody needs a step of the generator."""
        items_suffice = bool(self._items) or self._reader is None
        return items_suffice and self._thrown is None and not self._closing

    async def _park_shielded(self) -> None:
        """Wait although cancelled: the generator has answered with an item that nobody asked for.

        It could do so again and again, and the queue would grow without end.
        """
        self._wake_from = len(self._items)
        self._parked = self._backend.waiter()
        with anyio.CancelScope(shield=True):
            await self._parked

    async def _throw_in(self, iterator: Any) -> T:
        """Raise a cancellation at the generator's `yield`, and return the item that comes instead."""
        error, self._thrown = self._thrown, None
        if not hasattr(iterator, "athrow"):
            assert error is not None  # noqa: S101 - asked by the caller
            raise error
        item: T = await iterator.athrow(error)
        return item

    def _uncancel(self) -> None:
        """Take back the cancellation of a step: it has been delivered, and was our own."""
        uncancel = getattr(self._job, "uncancel", None)
        if self._cut and uncancel is not None:
            uncancel()

    # The end.

    def _ended(self) -> None:
        """See the end of the job; the scope has stopped holding it."""
        self._over = True
        self._source = None
        # A reader whose scope is being closed is cancelled as well, or `_gone()` comes.
        if not self._shut_down or self._reader is None:
            self._wake_reader()
            if self._error is None:
                self._unlist()
        self._end.open()

    def _wake_reader(self) -> None:
        calling, self._calling = self._calling, None
        if calling is not None and not calling.done():
            calling.set_result(None)

    def _tell(self) -> None:
        """Report an error that nobody will take any more."""
        error, self._error = self._error, None
        if error is None:
            return
        self._unlist()
        node = self._node
        if node._state is ScopeState.CLOSED and not isinstance(node, Graveyard):
            logger.error("stream %s failed after its scope was closed", self._name, exc_info=error)
        else:
            node._job_failed(self, error)

    def _unlist(self) -> None:
        self._node._unregister(self)

    # As a hold, and as a resource, of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        """Whether somebody reads, or it is being closed, and how much is buffered."""
        found: dict[str, object] = {"reader": self._reader is not None}
        if self._items:
            found["buffered"] = len(self._items)
        if self._closing:
            found["closing"] = True
        return found

    def _drain(self) -> None:
        """Do nothing: who reads may go on."""

    def _forsaken(self) -> bool:
        return self._parked is not None and self._reader is None and not self._closing

    def _expects_services(self) -> bool:
        """Return whether who has read it last may come back."""
        task = None if self._last_reader is None else self._last_reader()
        if task is None:
            return self._anonymous
        return not (self._backend.ended(task) or self._node._awaited_by(task))

    def _users(self) -> Iterable[object]:
        return ()

    def _shut(self) -> None:
        if not self._closing and (not self._over or self._error is not None):
            self._shut_down = True
        self.close(wake=False)

    def _gone(self) -> None:
        self._wake_reader()
        self._unlist()

    def _stop(self, *, force: bool = False) -> None:
        asked = self._closing
        self._shut()
        if force or (asked and self._swallowed()):
            self._job._stop(force=force)

    def _swallowed(self) -> bool:
        return bool(self._job._swallowed()) and not handles(self._body, self._backend.cancelled)

    def _chain(self) -> list[callsites.Frame]:
        frame = getattr(self._iterator, "ag_frame", None)
        if self._parked is None or frame is None:
            chain: list[callsites.Frame] = self._job._chain()
            return chain if self._body is None else [*chain[:1], *callsites.await_chain(self._body)]
        # Suspended at its `yield`, where it waits for a reader.
        return [callsites.Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)]

    def _move(self, node: TreeNode) -> None:
        self._node = node
        if self._job is not None:
            self._job._move(node)

    def _reclassify(self) -> None: ...  # no pattern makes a stream a service
