"""The job behind a stream: it steps an async generator from its start to its end.

If one task steps a generator and another task closes it, everything that is open around its
`yield` breaks: a task group, a cancel scope, a context variable. So only the pump touches it.

Rules:

- The pump has no reference to the user's `Stream`, so that dropping the `Stream` can be noticed.
- The pump steps the generator only when a reader waits, or to fill the buffer.
- An item leaves the queue in the step in which the reader returns it: a cancelled reader took no item.
- A cancellation that reaches the pump while the generator is suspended at its `yield` is thrown into
  the generator: it is meant for a cancel scope inside the generator, or for the whole job.
- An error is delivered once: to the reader, to the caller of `aclose()`, or to the scope's report.
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
from quiesce.core.hold import Described, EmptyHanded, Fate
from quiesce.core.latch import Latch
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import JobCancelled, ScopeClosed, UsageError
from quiesce.streams import sources
from quiesce.streams.nested_generators import Nested, is_handling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from types import CodeType, FrameType

    from quiesce.core.backends import Waiter
    from quiesce.core.backends.base import Backend
    from quiesce.core.tree import TreeNode

T = TypeVar("T")

_OPEN = ScopeState.OPEN
_AT_HAND_MAX = 64  # most items taken without waiting before the reader runs


class Pump(EmptyHanded, Described, Generic[T]):
    """The job behind a stream, its queue, and its waiting reader and closers."""

    __slots__ = (
        "__weakref__", "_body", "_calling", "_closers", "_closing", "_error", "_iterator", "_job",
        "_last_reader", "_limit", "_nested", "_over", "_parked", "_reader_unknown", "_ready",
        "_shut_down", "_source", "_step_cancelled", "_thread", "_thrown", "backend", "began_at",
        "ended_latch", "items", "name_given", "own_task", "owner_node", "place_code", "place_offset",
        "waiting_reader", "wake_at_items",
    )  # fmt: skip

    _kind = "stream"
    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True

    def __init__(
        self,
        node: TreeNode,
        source: Any,
        limit: int,
        name: str,
        frame: FrameType,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        self.owner_node: TreeNode = node
        self.backend: Backend = node.backend
        self._source = source
        self._limit: int = limit
        self._ready = ready  # returns whether a step would yield an item without waiting
        self.name_given: str = name
        self.place_code: CodeType = frame.f_code
        self.place_offset: int = frame.f_lasti
        self.began_at: float = 0.0
        self.items: deque[T] = deque()
        self.wake_at_items: int = 0  # a reader that finds at most this many items wakes the pump
        self._thread = get_ident()
        self._iterator: Any = None
        self._job: Any = None  # a job of either backend; `Job` does not declare all of its methods
        self.own_task: object = None  # set when the job begins
        self._parked: Waiter | None = None  # set while the generator is suspended at its `yield`
        self.waiting_reader: Waiter | None = None
        self._calling: Waiter | None = None  # the reader's waiter, until it is woken
        self._last_reader: weakref.ref[Any] | None = None
        self._reader_unknown = False
        self._thrown: BaseException | None = None  # to raise at the generator's `yield`
        self._closing = False
        self._closers = 0
        self._shut_down = False  # the scope closed the stream
        self._step_cancelled = False  # a step of the generator was cancelled by a close
        self._nested = Nested()
        self._body: Any = None  # the coroutine that the job runs
        self._over = False
        self._error: BaseException | None = None  # not delivered yet
        self.ended_latch: Latch = Latch(node.backend)

    # For the reader; called in the event loop.

    async def read(self) -> None:
        """Wait until an item is queued, and leave it queued. Raise the stream's end or its error."""
        if self._parked is None or self.waiting_reader is not None or self._closing:
            self._check_reader()  # the other cases need no check
            if self._over or self._closing:
                raise self._outcome()
            if self._job is None:
                self._start()
        if get_ident() != self._thread:
            self.check_here()
        task = self.backend.task()
        if self._last_reader is None or task is not self._last_reader():
            self._remember_reader(task)
        self._calling = self.waiting_reader = waiter = self.backend.waiter()
        parked = self._parked
        if parked is not None and not parked.done():
            parked.set_result(None)
        try:
            await waiter
        finally:
            self._calling = self.waiting_reader = None
            if self.owner_node.phase is not _OPEN:
                self.owner_node.ring_closings()
        if not self.items:
            raise self._outcome()

    def _remember_reader(self, task: Any) -> None:
        """Remember the reading task, unless it exists only for one `anext()`: its parent is unknown."""
        self._reader_unknown = task is None or sources.reads_only(task)
        self._last_reader = None if self._reader_unknown else weakref.ref(task)

    def _check_reader(self) -> None:
        if self.own_task is not None and self.own_task is self.backend.task():
            message = f"stream {self.name_given!r} was read by its own generator, which would wait for itself"
            raise UsageError(message)
        if self.waiting_reader is not None:
            message = f"stream {self.name_given!r} is being read by another task already: only one task at a time may read"
            raise UsageError(message)

    def check_here(self) -> None:
        """Raise `UsageError` in another thread or event loop."""
        if not self.backend.here():
            message = (
                f"stream {self.name_given!r} was used from another thread or event loop: "
                "use scope.from_thread(...)"
            )
            raise UsageError(message)

    def _outcome(self) -> BaseException:
        """Return the exception to raise when the stream has no item."""
        error = self._error
        if error is not None and not self._closing:  # otherwise the closer gets it
            self._error = None
            self._unlist()
            return error
        if self._shut_down:
            return ScopeClosed(
                f"stream {self.name_given!r} was closed with scope {self.owner_node.name!r}"
            )
        outcome = None if self._job is None or self._closing else self._job.outcome
        if outcome is not None and outcome.status != "completed":
            return JobCancelled(f"stream {self.name_given!r} was cancelled")
        return StopAsyncIteration()

    def wake(self) -> None:
        """Wake the pump, so that it checks its queue."""
        if get_ident() != self._thread:
            self.check_here()  # before an item is taken
        self.wake_at_items = 0
        parked = self._parked
        if parked is not None and not parked.done():
            parked.set_result(None)

    def _start(self) -> None:
        node = self.owner_node
        node.check_may_start()
        self.began_at = node.backend.clock()
        name = f"stream {self.name_given}"
        self._job = job = self.backend.start(
            node, self._run(), name, self.place_code, self.place_offset
        )
        node.insert_hold(job, self)
        node.register_resource(self)
        job.call_when_done(self._ended)

    # Closing.

    def close(self, *, wake: bool = True) -> None:
        """Ask the generator to end, and end the reader. Idempotent."""
        if self._job is None:
            self._source = None
            self._over = True
        if self._over:
            self.items.clear()
            self._report_error()
        elif not self._closing:
            self._closing = True
            self._thrown = None
            self.items.clear()
            if wake:
                self._wake_reader()
            self._interrupt()

    def was_dropped(self) -> None:
        """Close in the event loop's next turn: the handle is gone, so no task can read the stream."""
        if self._job is not None and not (self._over and self._error is None):
            self.backend.post(self.close)

    @property
    def state(self) -> str:
        if self._job is None:
            return "closed" if self._over else "not begun"
        if self._over:
            return "ended"
        return "closing" if self._closing else "open"

    def _interrupt(self) -> None:
        """Wake the pump, so that it notices the close."""
        if self._parked is not None:
            self.wake()
        elif self.own_task is not None and self._job not in self.owner_node.closers:
            # The generator is in the middle of a step. If that step called for the close of the
            # scope, it waits for the close, and the scope cancels it if it does not end.
            self._step_cancelled = True
            self._job.cancel()

    async def wait_closed(self) -> None:
        """Close the stream, and wait for its end. Raise the error that the generator raised meanwhile."""
        if self.own_task is not None and self.own_task is self.backend.task():
            message = f"stream {self.name_given!r} was closed by its own generator: use `return`"
            raise UsageError(message)
        self.close()
        if self._over:
            return
        self._closers += 1
        try:
            await self.ended_latch.wait()
        except BaseException:
            self._closers -= 1
            if self.ended_latch.is_open and not self._closers:
                self._report_error()
            raise
        self._closers -= 1
        if self._error is not None:
            error, self._error = self._error, None
            self._unlist()
            raise error

    # For the job.

    async def _run(self) -> None:
        self._body = self._pump()
        try:
            await self._nested.run_body(self._body)
        finally:
            self._body = None

    async def _pump(self) -> None:
        """Step the generator until it ends or is closed, then close the generators inside it."""
        self.own_task = self.backend.task()
        try:
            try:
                await self._step_to_the_end()
            finally:
                self._iterator = None
                await self._nested.close(sources.close_source)
                self._nested.end()
        except BaseException as error:
            rest = sources.without(error, self.backend.cancelled)
            if rest is None or is_fatal(rest):
                raise
            self._error = rest
        finally:
            self._iterator = self.own_task = None
            if self._closing and not self._closers:
                self._report_error()

    async def _step_to_the_end(self) -> None:
        try:
            await self._produce(self._begin())
        except StopAsyncIteration:
            return
        except BaseException as error:
            if sources.without(error, self.backend.cancelled) is not None:
                raise
            self._uncancel()
            await sources.close_source(self._iterator)
            if self._shut_down or not self._step_cancelled:
                raise
        else:
            self._uncancel()
            await sources.close_source(self._iterator)

    def _begin(self) -> Any:
        """Return the iterator. If the source is a function, call it here, in the job."""
        source, self._source = self._source, None
        if self._closing or source is None:
            raise StopAsyncIteration
        self._iterator = sources.iterator_of(source, self.name_given)
        return self._iterator

    async def _produce(self, iterator: Any) -> None:
        """Step the generator while items are wanted, until the stream is closed. Every item passes here."""
        step, items, limit = iterator.__anext__, self.items, self._limit
        most = limit if self._ready is None else max(limit, _AT_HAND_MAX)
        new_waiter, cancelled = self.backend.waiter, self.backend.cancelled
        dropped = self._nested.dropped
        while not self._closing or self._thrown is not None:
            items.append(await (step() if self._thrown is None else self._throw_in(iterator)))
            self._wake_reader()
            # Reading ahead without a waiting reader: as few checks as possible for each item.
            while len(items) < limit and self._calling is None and not (self._closing or dropped):
                items.append(await step())
            if self._ready is not None:
                step = await self._take_at_hand(step, self._ready)
            if self._closing:
                items.clear()
                return
            self._wake_reader()
            if dropped:  # generators that the generator left half-read
                await self._nested.close(sources.close_source)
            while len(items) >= limit and self._needs_no_step():
                self.wake_at_items = limit
                if self.owner_node.phase is not _OPEN:
                    self.owner_node.ring_closings()
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
        """Take the items that need no waiting. Return the next step; an error is raised by that step."""
        items, dropped = self.items, self._nested.dropped
        while len(items) < _AT_HAND_MAX and not (self._closing or dropped) and ready():
            try:
                items.append(await step())
            except Exception as error:  # noqa: BLE001 - raised when a reader has taken the items before it
                return partial(sources.fail, error)
        return step

    def _needs_no_step(self) -> bool:
        """Return whether no step of the generator is needed now."""
        items_suffice = bool(self.items) or self.waiting_reader is None
        return items_suffice and self._thrown is None and not self._closing

    async def _park_shielded(self) -> None:
        """Wait in spite of a cancellation: the generator answered it with an item that no reader wants.

        It could do so again and again, and the queue would grow without a limit.
        """
        self.wake_at_items = len(self.items)
        self._parked = self.backend.waiter()
        with anyio.CancelScope(shield=True):
            await self._parked

    async def _throw_in(self, iterator: Any) -> T:
        """Throw the cancellation in at the generator's `yield`, and return the item that it yields instead."""
        error, self._thrown = self._thrown, None
        if not hasattr(iterator, "athrow"):
            assert error is not None  # noqa: S101 - the caller has checked it
            raise error
        item: T = await iterator.athrow(error)
        return item

    def _uncancel(self) -> None:
        """Withdraw the cancellation of a step: the pump itself asked for it, and it has been delivered."""
        uncancel = getattr(self._job, "uncancel", None)
        if self._step_cancelled and uncancel is not None:
            uncancel()

    # The end.

    def _ended(self) -> None:
        """Record the end of the job; the scope no longer holds it."""
        self._over = True
        self._source = None
        # A reader in the closing scope is cancelled too, or `note_scope_closed()` wakes it.
        if not self._shut_down or self.waiting_reader is None:
            self._wake_reader()
            if self._error is None:
                self._unlist()
        self.ended_latch.open()

    def _wake_reader(self) -> None:
        calling, self._calling = self._calling, None
        if calling is not None and not calling.done():
            calling.set_result(None)

    def _report_error(self) -> None:
        """Report an error that no reader or closer will take any more."""
        error, self._error = self._error, None
        if error is None:
            return
        self._unlist()
        node = self.owner_node
        if node.phase is ScopeState.CLOSED and not isinstance(node, Graveyard):
            logger.error(
                "stream %s failed after its scope was closed", self.name_given, exc_info=error
            )
        else:
            node.note_failed(self, error)

    def _unlist(self) -> None:
        self.owner_node.unregister_resource(self)

    # As a hold, and as a resource, of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        """Whether a reader waits, whether the stream is closing, and the number of buffered items."""
        found: dict[str, object] = {"reader": self.waiting_reader is not None}
        if self.items:
            found["buffered"] = len(self.items)
        if self._closing:
            found["closing"] = True
        return found

    def note_drain(self) -> None:
        """Do nothing: readers may continue during a drain."""

    def is_forsaken(self) -> bool:
        return self._parked is not None and self.waiting_reader is None and not self._closing

    def expects_services(self) -> bool:
        """Return whether the last reader may come back."""
        task = None if self._last_reader is None else self._last_reader()
        if task is None:
            return self._reader_unknown
        return not (self.backend.ended(task) or self.owner_node.is_close_awaited_by(task))

    def list_users(self) -> Iterable[object]:
        return ()

    def shut_down(self) -> None:
        if not self._closing and (not self._over or self._error is not None):
            self._shut_down = True
        self.close(wake=False)

    def note_scope_closed(self) -> None:
        self._wake_reader()
        self._unlist()

    def request_stop(self, *, force: bool = False) -> None:
        asked = self._closing
        self.shut_down()
        if force or (asked and self.goes_on_regardless()):
            self._job.request_stop(force=force)

    def goes_on_regardless(self) -> bool:
        return bool(self._job.goes_on_regardless()) and not is_handling(
            self._body, self.backend.cancelled
        )

    def list_frames(self) -> list[callsites.Frame]:
        frame = getattr(self._iterator, "ag_frame", None)
        if self._parked is None or frame is None:
            chain: list[callsites.Frame] = self._job.list_frames()
            return chain if self._body is None else [*chain[:1], *callsites.await_chain(self._body)]
        # The generator is suspended at its `yield` and waits for a reader.
        return [callsites.Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)]

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node
        if self._job is not None:
            self._job.move_to(node)

    def reclassify(self) -> None: ...  # no pattern makes a stream a service
