"""What a job's failure does to its scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core.tree import ScopeState, TreeNode, logger

if TYPE_CHECKING:
    from quiesce.core.scope import Scope


REPORTED = Exception("the failure is in a report")
"""What an `on_error` function of quiesce returns if it has put the failure into a report: it is counted there."""


def has_function(scope: Scope, error: BaseException) -> bool:
    """Return whether the scope's `on_error` is a function that handles this failure."""
    return callable(scope._on_error) and isinstance(error, Exception)


def apply(scope: Scope, held: Any, error: BaseException) -> None:
    """Apply the scope's `on_error`. A KeyboardInterrupt or SystemExit always ends the program."""
    caught = False
    if has_function(scope, error):
        own = _call(scope, held, error)
        if own is None or own is REPORTED:
            scope._handled += own is None
            return
        caught = is_fatal(own)
        error = own if caught else error
    TreeNode._job_failed(scope, held, error)
    fatal = is_fatal(error)
    if scope._state is not ScopeState.CLOSED and (fatal or scope._on_error == "cancel"):
        scope._close(grace=0.0, cleanup=scope._cleanup)
        if scope._body is not None:
            scope._body.interrupt()
    if fatal:
        node: TreeNode | None = scope
        raised = False
        while node is not None:
            node._fatal = error
            raised = raised or getattr(node, "_token", None) is not None  # its block raises it
            node = node._parent
        if not raised:
            logger.critical("a job of scope %r ends the program", scope.name, exc_info=error)
        scope._backend.fatal(error, caught=caught)


def apply_later(scope: Scope, held: Any, error: BaseException) -> bool:
    """Schedule `on_error` for a failure that the collector found; return False if that is not possible.

    The collector may run in any thread, and in the middle of a change of the tree. So the function
    is called in the loop's next turn, or by the closing if that is earlier.
    """
    if scope._state is ScopeState.CLOSED or not has_function(scope, error):
        return False
    scope._unheard.append((held, error))  # keeps the task alive; its finalizer has run already
    told = scope._backend.post(hear, scope)
    if not told:  # the event loop is gone
        scope._unheard.clear()
    return told


def hear(scope: Scope) -> None:
    """Call `on_error` for each failure that was scheduled."""
    while scope._unheard:
        apply(scope, *scope._unheard.pop(0))


def take_over(scope: Scope) -> None:
    """Handle or report the failures of adopted tasks that no task has received: the scope is closing."""
    hear(scope)
    found = scope._backend.unasked(scope._unasked)
    scope._unasked.clear()
    for held, described in found:
        if described.error is not None and has_function(scope, described.error):
            apply(scope, held, described.error)
        else:
            scope._failed.append(described)
            if described.error is not None:
                scope._fail(described.error)


def _call(scope: Scope, held: Any, error: BaseException) -> BaseException | None:
    """Call the function; return the exception that it raised itself, or REPORTED, or None: it has handled the error."""
    try:
        told = scope._on_error(held, error)
    except BaseException as own:  # noqa: BLE001 - the user's; it is logged, or ends the program
        logger.exception("on_error of scope %r failed on %r", scope.name, error)
        return own
    return told if told is REPORTED else None


def is_fatal(error: BaseException) -> bool:
    """Return whether an error is, or a group contains, a KeyboardInterrupt or SystemExit."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_fatal(inner) for inner in error.exceptions)
    return isinstance(error, KeyboardInterrupt | SystemExit)
