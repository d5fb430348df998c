"""Async context managers that one host job enters and leaves, so that any task may close them.

anyio's task groups and cancel scopes, trio's nurseries, and every SDK client built on them,
must be left by the task that entered them. Here that task is the host: a job for each context, in
a scope of its own. That scope adopts the tasks that the context starts, and they end after the
context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quiesce.core import callsites
from quiesce.core.hold import Hold
from quiesce.core.latch import Latch
from quiesce.errors import ScopeClosed, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import FrameType

    from quiesce.core.callsites import Callsite
    from quiesce.core.closing import Closing
    from quiesce.core.job import Job
    from quiesce.core.scope import Scope

T = TypeVar("T")


class Context(Generic[T]):
    """One entered context manager."""

    __slots__ = (
        "_ask",
        "_given_up",
        "_manager",
        "_reason",
        "entered",
        "error",
        "host",
        "node",
        "ready",
        "value",
    )

    host: Job[None]
    value: T

    def __init__(self, manager: AbstractAsyncContextManager[T, Any], node: Scope) -> None:
        self._manager = manager
        self._reason: BaseException | None = None
        self._ask = Latch(node._backend)
        self._given_up = False
        self.node: Scope = node
        self.ready: Latch = Latch(node._backend)  # entered, or entering failed
        self.entered: bool = False
        self.error: BaseException | None = None

    def matches(self, thing: object) -> bool:
        """Return whether `thing` is the manager, or the value that entering it returned."""
        return thing is self._manager or (self.entered and thing is self.value)

    def ask_to_exit(self, reason: BaseException | None) -> None:
        """Ask the host to leave the context, with `reason` as the exception that ends it."""
        if not self._ask.is_open:
            self._reason = reason
            self._ask.open()

    def give_up(self) -> None:
        """Cancel the host before it has entered; only once.

        The caller of `enter()` and the scope's close may both ask for it. A second cancellation would
        hit the manager while it leaves.
        """
        if not self._given_up:
            self._given_up = True
            self.host.cancel()

    async def run(self) -> None:
        """Enter, wait until asked to exit, leave. The body of the host job."""
        try:
            async with self._manager as self.value:
                self.entered = True
                self.ready.open()
                await self._ask.wait()
                if self._reason is not None:
                    await self._raise_reason()
        except BaseException as error:
            if self.entered:
                if self._reason is not None and _is_only(error, self._reason):
                    return  # the manager raised the scope's own exception again
                raise
            self.error = error  # the caller of enter() raises it
            self.ready.open()
            if not isinstance(error, Exception):
                raise

    async def _raise_reason(self) -> None:
        """End the context with the exception that ended the scope's block."""
        assert self._reason is not None  # noqa: S101 - checked by the caller
        raise self._reason


def _is_only(error: BaseException, reason: BaseException) -> bool:
    """Return whether `error` is `reason`, or a group (from a task group) of nothing else."""
    return error is reason or _leaves(error) <= _leaves(reason)


def _leaves(error: BaseException) -> set[int]:
    """Return the identities of the errors in a group: a nursery puts them into new groups."""
    if isinstance(error, BaseExceptionGroup):
        return set().union(*(_leaves(inner) for inner in error.exceptions))
    return {id(error)}


async def enter(scope: Scope, manager: AbstractAsyncContextManager[T, Any], frame: FrameType) -> T:
    """Enter `manager` in a host job; see `Scope.enter`."""
    place = callsites.starting_code(frame, scope._backend.current())
    context = _start(scope, manager, place)
    name = context.node.name
    hold = Hold(scope, "entering", name, {}, place.f_code, place.f_lasti, context.give_up)
    scope._insert(hold, hold)
    try:
        await context.ready.wait()
    except scope._backend.cancelled:
        await _abandon(scope, context)
        raise
    finally:
        hold.release()
    if context.entered:
        return context.value
    await leave_context(scope, context)
    if context.error is not None and not isinstance(context.error, scope._backend.cancelled):
        raise context.error
    message = f"scope {scope.name!r} was closed while {name} was being entered"
    raise ScopeClosed(message)


def _start(
    scope: Scope, manager: AbstractAsyncContextManager[T, Any], frame: FrameType | Callsite
) -> Context[T]:
    made_by = getattr(manager, "func", None)  # a function under contextlib.asynccontextmanager
    name: str = getattr(made_by, "__qualname__", type(manager).__qualname__)
    node = _scope_for(scope, name, frame)
    context = Context(manager, node)
    node._context = context
    context.host = node._backend.start(
        node, context.run(), f"context {name}", frame.f_code, frame.f_lasti
    )
    node._services[context.host] = context.host  # type: ignore[assignment]  # a job is Held
    context.host._when_done(context.ready.open)
    scope._contexts.append(context)
    return context


def _scope_for(scope: Scope, name: str, frame: FrameType | Callsite) -> Scope:
    """Open the scope of a context. It is not work, and closes after its parent's services."""
    from quiesce.core.scope import Scope as Plain  # noqa: PLC0415 - which imports this module

    node = Plain(name, cleanup=scope._cleanup)  # plain, even if `scope` is a subclass
    node._counts = False
    node._open(scope, frame)
    del scope._children[node]
    node._adopter = node if scope._adopter is not None else None
    node._service_pattern = scope._service_pattern
    return node


async def _abandon(scope: Scope, context: Context[Any]) -> None:
    """Leave a context whose caller was cancelled while entering it."""
    context.give_up()
    closing = close_context(scope, context, scope._backend.clock() + scope._cleanup)
    await closing.done.wait_shielded()


async def leave_context(scope: Scope, context: Context[Any]) -> None:
    """Leave a context and wait until it is left. If cancelled, pass that on only then."""
    closing = close_context(scope, context, scope._backend.clock() + scope._cleanup)
    await closing.done.outlast()


async def leave_early(scope: Scope, entered: object) -> None:
    """Leave the context that `entered` belongs to; see `Scope.exit`."""
    for context in scope._contexts:
        if context.matches(entered):
            break
    else:
        message = f"scope {scope.name!r} has not entered {entered!r}, or has left it already"
        raise UsageError(message)
    await leave_context(scope, context)
    outcome = context.host.outcome
    if outcome is not None and outcome.error is not None:
        raise outcome.error


def close_context(scope: Scope, context: Context[Any], join_by: float) -> Closing:
    """Begin to leave a context by closing its own scope as a child of `scope`."""
    if context.node._closing is None:
        scope._children[context.node] = None
        context.node._reason = scope._reason
    return context.node._close_with_parent(join_by)
