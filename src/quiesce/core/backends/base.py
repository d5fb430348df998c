"""The interface between the core and an event loop; each backend implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Generator
    from types import CodeType

    from quiesce.core.hold import Held
    from quiesce.core.job import Job
    from quiesce.core.report import ReportEntry
    from quiesce.core.tree import TreeNode


class Waiter(Protocol):
    """An object that one task awaits, once; on asyncio a plain future, which is the quickest."""

    def done(self) -> bool:
        """Return whether the result was set, or the task was cancelled."""

    def cancelled(self) -> bool:
        """Return whether the task was cancelled before the result was set; on trio always False."""

    def set_result(self, result: Any, /) -> None:
        """Wake the task that awaits this, now or later, with a result. Call it only if not `done()`."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait for the result. If cancelled, raise at once."""


class Bell(Protocol):
    """Wakes an owner task by a ring, at a deadline or by a cancellation. The cancellation does not end the task.

    When the event loop shuts down and cancels the owner task, `interrupted` becomes true for good. The
    task then ends its waits early, but finishes its work.
    """

    interrupted: bool

    def ring(self) -> None:
        """Wake the owner task. If the task does not wait now, the ring ends its next wait."""

    async def wait(self, deadline: float | None) -> None:
        """Wait for a ring, the deadline, or the first cancellation."""

    async def yield_once(self) -> None:
        """Wait until every other task that is ready has run once."""


class Body(Protocol):
    """The body of an `async with Scope(on_error="cancel")` block, which a failure interrupts."""

    def interrupt(self) -> None:
        """Cancel the body."""

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End the block; return `exc` without the interruption, or None if `exc` was only the interruption."""


class Backend(Protocol):
    """One event loop."""

    name: str
    cancelled: type[BaseException]
    """The exception that delivers a cancellation."""
    clock: Callable[[], float]
    """The event loop's own clock, so that a test that controls the loop's time controls ours."""
    waiter: Callable[[], Waiter]
    """Make a waiter for the running task."""
    task: Callable[[], object]
    """Return the running task, in a scope or not."""
    late_body: Callable[[Any], Body] | None
    """Make the body of a task only when it is interrupted; None if it must be made when the body begins."""

    @property
    def loop(self) -> object | None:
        """The asyncio loop, for a quick check: if it is the running loop, `here()` is true."""

    @property
    def start(self) -> Callable[[TreeNode, Coroutine[Any, Any, Any], str, CodeType, int], Job[Any]]:
        """The function that starts a task as a job. Its caller inserts the job in the same step."""

    def here(self) -> bool:
        """Return whether the running code is in this loop, and in its thread."""

    def alive(self) -> bool:
        """Return whether the loop may still run."""

    def current(self) -> object | None:
        """Return the key under which the running task would be held."""

    def working_for(self) -> Collection[object]:
        """Return the running task and the tasks that it is part of: its job on trio, its services on asyncio."""

    def fate(self, task: Any) -> BaseException | Literal["cancelled"] | None:
        """Return the error of a task, or "cancelled", without counting as a reader of the error.

        Return None if the task succeeded or still runs. On trio the result of a nursery's task is unknown: it
        counts as cancelled if its job was cancelled, and otherwise as a success.
        """

    def ended(self, task: Any) -> bool:
        """Return whether a task has ended, whether or not a scope holds it."""

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call`, in the loop, when the running task has ended; return a function that undoes this."""

    def own(
        self,
        fn: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        interrupt: Callable[[], None] | None = None,
    ) -> bool:
        """Start a task that no scope holds and no caller can cancel; return False if the loop is ending.

        Cancelling the task calls `interrupt`, if given, instead, even before the task has begun.
        """

    def cancellations(self) -> int:
        """Return how many cancellations of the running task are pending; on trio always 0."""

    def bell(self) -> Bell: ...

    def body(self) -> Body: ...

    def soon(self, fn: Callable[[], object]) -> bool:
        """Call `fn` in the loop's next turn; call it from the loop only. Return False if the loop has ended.

        The call has an empty context, so `about_to_run()` does not count it as a callback of a scope.
        """

    def about_to_run(self) -> set[TreeNode] | None:
        """Return the scopes whose code left callbacks in the loop's ready queue, and their ancestors.

        Return None if the loop does not show its queue. Some callbacks may have been called in this turn.
        """

    def post(self, fn: Callable[..., object], *args: object) -> bool:
        """Call `fn` in the loop, from any thread; return False if the loop has ended."""

    def fatal(self, error: BaseException, *, caught: bool) -> None:
        """Make the event loop raise a KeyboardInterrupt or SystemExit of a job.

        With `caught`, `on_error` raised it, and quiesce caught it.
        """

    def unasked(self, entries: list[tuple[Any, ReportEntry]]) -> list[tuple[Held, ReportEntry]]:
        """Return the adopted tasks whose failure no task has received, and mark these failures as received."""

    def stop_all(self, node: TreeNode, table: dict[object, Held]) -> int:
        """Ask a node's holds to end, but hand shared tasks to the scopes that await them; return their number."""

    def look_at_parts(self, node: TreeNode) -> None:
        """Find the tasks below a node that services have started and now await (service_tasks.py)."""

    def adopt(self) -> Callable[[], None]:
        """Make scopes hold every task that is created inside them; return a function that ends this."""
