"""Async context managers that one host job enters and leaves, so that any task may close them.

anyio's task groups and cancel scopes, trio's nurseries, and every SDK client built on them,
must be left by the task that entered them. Here that task is a host job, one for each context, in
a scope made for the context. That scope adopts the tasks that the context starts, and closes after
the context is left.
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
        self._ask = Latch(node.backend)
        self._given_up = False
        self.node: Scope = node
        self.ready: Latch = Latch(node.backend)  # opened when entering has succeeded or failed
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
        """Cancel the host before it has entered the context. Only the first call has an effect.

        The caller of `enter()` and the scope's close may both call this. A second cancellation would
        interrupt the manager's cleanup.
        """
        if not self._given_up:
            self._given_up = True
            self.host.cancel()

    async def run(self) -> None:
        """Enter the context, wait for `ask_to_exit()`, and leave. The body of the host job."""
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
    """Return whether `error` is `reason`, or a group (from a task group) that has only `reason`."""
    return error is reason or _leaves(error) <= _leaves(reason)


def _leaves(error: BaseException) -> set[int]:
    """Return the ids of the errors in a group, at any depth; a nursery may have put the errors into a new group."""
    if isinstance(error, BaseExceptionGroup):
        return set().union(*(_leaves(inner) for inner in error.exceptions))
    return {id(error)}


async def enter(scope: Scope, manager: AbstractAsyncContextManager[T, Any], frame: FrameType) -> T:
    """Enter `manager` in a host job; see `Scope.enter`."""
    place = callsites.starting_code(frame, scope.backend.current())
    context = _start(scope, manager, place)
    name = context.node.name
    hold = Hold(scope, "entering", name, {}, place.f_code, place.f_lasti, context.give_up)
    scope.insert_hold(hold, hold)
    try:
        await context.ready.wait()
    except scope.backend.cancelled:
        await _abandon(scope, context)
        raise
    finally:
        hold.release()
    if context.entered:
        return context.value
    await leave_context(scope, context)
    if context.error is not None and not isinstance(context.error, scope.backend.cancelled):
        raise context.error
    message = f"scope {scope.name!r} was closed while it entered {name}, so {name} was not entered"
    raise ScopeClosed(message)


def _start(
    scope: Scope, manager: AbstractAsyncContextManager[T, Any], frame: FrameType | Callsite
) -> Context[T]:
    made_by = getattr(manager, "func", None)  # a function under contextlib.asynccontextmanager
    name: str = getattr(made_by, "__qualname__", type(manager).__qualname__)
    node = _scope_for(scope, name, frame)
    context = Context(manager, node)
    node.own_context = context
    context.host = node.backend.start(
        node, context.run(), f"context {name}", frame.f_code, frame.f_lasti
    )
    node.services[context.host] = context.host  # type: ignore[assignment]  # a job is Held
    context.host.call_when_done(context.ready.open)
    scope.contexts.append(context)
    return context


def _scope_for(scope: Scope, name: str, frame: FrameType | Callsite) -> Scope:
    """Open the scope of a context. That scope does not count as work, and closes after the parent's services."""
    from quiesce.core.scope import Scope as Plain  # noqa: PLC0415 - which imports this module

    node = Plain(name, cleanup=scope.cleanup_seconds)  # plain, even if `scope` is a subclass
    node.counts_as_work = False
    node.open_under(scope, frame)
    del scope.children[node]
    node.adopter = node if scope.adopter is not None else None
    node.service_pattern = scope.service_pattern
    return node


async def _abandon(scope: Scope, context: Context[Any]) -> None:
    """Leave a context whose caller was cancelled while entering it."""
    context.give_up()
    closing = close_context(scope, context, scope.backend.clock() + scope.cleanup_seconds)
    await closing.done.wait_shielded()


async def leave_context(scope: Scope, context: Context[Any]) -> None:
    """Leave a context and wait until it is left. If cancelled, raise the cancellation only then."""
    closing = close_context(scope, context, scope.backend.clock() + scope.cleanup_seconds)
    await closing.done.outlast()


async def leave_early(scope: Scope, entered: object) -> None:
    """Leave the context that `entered` belongs to; see `Scope.exit`."""
    for context in scope.contexts:
        if context.matches(entered):
            break
    else:
        message = (
            f"scope {scope.name!r} has not entered {entered!r}, or has left it already: "
            "pass the manager or the value that enter() returned"
        )
        raise UsageError(message)
    await leave_context(scope, context)
    outcome = context.host.outcome
    if outcome is not None and outcome.error is not None:
        raise outcome.error


def close_context(scope: Scope, context: Context[Any], join_by: float) -> Closing:
    """Begin to leave a context by closing its own scope as a child of `scope`."""
    if context.node.close_plan is None:
        scope.children[context.node] = None
        context.node.close_reason = scope.close_reason
    return context.node.close_with_parent(join_by)
