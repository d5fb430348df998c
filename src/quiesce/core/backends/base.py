"""What the core needs from an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
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
    """Wakes an owner task: by a ring, at a deadline, or by a cancellation, which does not end it.

    `interrupted` becomes true, and stays so, when the event loop shuts down and cancels the owner
    task. The task then ends its waits early, but finishes its work.
    """

    interrupted: bool

    def ring(self) -> None:
        """Wake the owner task. A ring while it does not wait ends its next wait."""

    async def wait(self, deadline: float | None) -> None:
        """Wait for a ring, the deadline, or the first cancellation."""

    async def yield_once(self) -> None:
        """Wait until every other task that is ready has run once."""


class Body(Protocol):
    """The body of an `async with Scope(on_error="cancel")` block, which a failure interrupts."""

    def interrupt(self) -> None:
        """Cancel the body."""

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End the block; return `exc` without the interruption, or None if it was only that."""


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
        """The asyncio loop. If it is the running loop, the code is in this loop; else ask `here()`."""

    @property
    def start(self) -> Callable[[TreeNode, Coroutine[Any, Any, Any], str, CodeType, int], Job[Any]]:
        """Start a task that carries its own hold; the caller inserts it in the same step."""

    def here(self) -> bool:
        """Return whether the running code is in this loop, and in its thread."""

    def alive(self) -> bool:
        """Return whether the loop may still run."""

    def current(self) -> object | None:
        """Return the key under which the running task would be held."""

    def ended(self, task: Any) -> bool:
        """Return whether a task, in a scope or not, has ended."""

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
        """Return how often the running task was asked to cancel; on trio always 0."""

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
        """Return the adopted tasks whose failure no task has received, and mark it as received."""

    def stop_all(self, node: TreeNode, table: dict[object, Held]) -> int:
        """Ask a node's holds to end, but hand on tasks that other scopes await; return how many those are."""

    def look_at_parts(self, node: TreeNode) -> None:
        """Find the tasks below a node that services have started and now await (service_tasks.py)."""

    def adopt(self) -> Callable[[], None]:
        """Begin to hold every new task in the scope that it is created in; return a function that undoes this."""
