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
    """What one task awaits, once: on asyncio a plain future, which is the quickest there is."""

    def done(self) -> bool:
        """Return whether it was set, or its task was cancelled."""

    def cancelled(self) -> bool:
        """Return whether its task was cancelled before it was set, if that can be told."""

    def set_result(self, result: Any, /) -> None:
        """Wake the task that awaits it, or will, and give it this. Only if it is not done."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait for it; cancellation gets through."""


class Bell(Protocol):
    """How an owner task is woken: by a ring, at a deadline, or by cancellation, which it survives.

    `interrupted` turns true for ever once the event loop wants the owner to stop (the loop is
    shutting down): the owner then hurries, it does not leave.
    """

    interrupted: bool

    def ring(self) -> None:
        """Wake the owner. A ring while it does not wait is kept."""

    async def wait(self, deadline: float | None) -> None:
        """Wait for a ring, for the deadline, or for the first cancellation."""

    async def yield_once(self) -> None:
        """Wait until every other task that is ready has run once."""


class Body(Protocol):
    """The body of an `async with Scope(on_error="cancel")` block, which a failure interrupts."""

    def interrupt(self) -> None:
        """Cancel the body."""

    def leave(self, exc: BaseException | None) -> BaseException | None:
        """End the block; gives what is left of `exc` without the interruption."""


class Backend(Protocol):
    """One event loop."""

    name: str
    cancelled: type[BaseException]
    """The exception by which cancellation is delivered."""
    clock: Callable[[], float]
    """The event loop's own clock, so that a test that controls the loop's time controls ours."""
    waiter: Callable[[], Waiter]
    """Make a waiter for the running task."""
    task: Callable[[], object]
    """Return the running task, in a scope or not."""
    late_body: Callable[[Any], Body] | None
    """Make the body that a task is in, when it is to be interrupted; None if it has to be made at its start."""

    @property
    def loop(self) -> object | None:
        """What is the running asyncio loop if we are here for certain; else ask `here()`."""

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
        """Call `call`, in the loop, when the running task has ended; gives the way to forget it."""

    def own(
        self,
        fn: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        interrupt: Callable[[], None] | None = None,
    ) -> bool:
        """Start an owner task: no scope's, and of no caller; False if the loop is too far gone.

        With `interrupt`, it is not cancelled, not even before it has begun: that is called.
        """

    def cancellations(self) -> int:
        """Count the requests to cancel the running task; where there is no such count, 0."""

    def bell(self) -> Bell: ...

    def body(self) -> Body: ...

    def soon(self, fn: Callable[[], object]) -> bool:
        """Call `fn` in the loop's next turn, from the loop itself; False if the loop is gone.

        In a context of nobody's: it is not what the running code has left with the loop.
        """

    def about_to_run(self) -> set[TreeNode] | None:
        """Return the scopes whose code left callbacks that the loop has yet to call, and their parents.

        None if that cannot be told. There may be some whose callbacks were called in this turn.
        """

    def post(self, fn: Callable[..., object], *args: object) -> bool:
        """Call `fn` in the loop, from any thread; False if the loop is gone."""

    def fatal(self, error: BaseException, *, caught: bool) -> None:
        """See to it that a KeyboardInterrupt or SystemExit gets out of the loop.

        It is a job's, or one that we caught: `on_error` raised it.
        """

    def unasked(self, entries: list[tuple[Any, ReportEntry]]) -> list[tuple[Held, ReportEntry]]:
        """Return the adopted tasks whose failure nobody has asked for, and take it over."""

    def stop_all(self, node: TreeNode, table: dict[object, Held]) -> int:
        """Ask all that a node holds to end; hand on, and count, what other scopes wait for."""

    def look_at_parts(self, node: TreeNode) -> None:
        """Find the tasks below a node that services have started and now wait for (parts.py)."""

    def adopt(self) -> Callable[[], None]:
        """Begin to offer every new task to the scope it is born in; gives the way to stop."""
