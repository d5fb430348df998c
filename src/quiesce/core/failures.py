"""How a scope handles the failure of a job: its `on_error` policy, and fatal exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core.tree import ScopeState, TreeNode, logger

if TYPE_CHECKING:
    from quiesce.core.scope import Scope


REPORTED = Exception("the failure is in a report")
"""An `on_error` function of quiesce returns this if a report has the failure, so that it is not counted again."""


def has_function(scope: Scope, error: BaseException) -> bool:
    """Return whether the scope's `on_error` is a function that handles this failure."""
    return callable(scope.error_policy) and isinstance(error, Exception)


def apply(scope: Scope, held: Any, error: BaseException) -> None:
    """Apply the scope's `on_error`. A KeyboardInterrupt or SystemExit always ends the program."""
    caught = False
    if has_function(scope, error):
        own = _call(scope, held, error)
        if own is None or own is REPORTED:
            scope.handled_count += own is None
            return
        caught = is_fatal(own)
        error = own if caught else error
    TreeNode.note_failed(scope, held, error)
    fatal = is_fatal(error)
    if scope.phase is not ScopeState.CLOSED and (fatal or scope.error_policy == "cancel"):
        scope.plan_close(grace=0.0, cleanup=scope.cleanup_seconds)
        if scope.block_body is not None:
            scope.block_body.interrupt()
    if fatal:
        node: TreeNode | None = scope
        raised = False
        while node is not None:
            node.fatal_error = error
            raised = raised or getattr(node, "_token", None) is not None  # its block raises it
            node = node.parent
        if not raised:
            logger.critical("a job of scope %r ends the program", scope.name, exc_info=error)
        scope.backend.fatal(error, caught=caught)


def apply_later(scope: Scope, held: Any, error: BaseException) -> bool:
    """Schedule `on_error` for a failure that the collector found; return False if that is not possible.

    The garbage collector may run in any thread, and in the middle of a change of the tree. So the
    function is called in the loop's next turn, or earlier by the closing of the scope.
    """
    if scope.phase is ScopeState.CLOSED or not has_function(scope, error):
        return False
    scope.unheard_failures.append(
        (held, error)
    )  # keeps the task alive; its finalizer has run already
    posted = scope.backend.post(hear, scope)
    if not posted:  # the event loop has ended
        scope.unheard_failures.clear()
    return posted


def hear(scope: Scope) -> None:
    """Call `on_error` for each failure that was scheduled."""
    while scope.unheard_failures:
        apply(scope, *scope.unheard_failures.pop(0))


def take_over(scope: Scope) -> None:
    """Handle or report the failures of adopted tasks that no task has received. The closing calls this."""
    hear(scope)
    found = scope.backend.unasked(scope.unasked_failures)
    scope.unasked_failures.clear()
    for held, described in found:
        if described.error is not None and has_function(scope, described.error):
            apply(scope, held, described.error)
        else:
            scope.failed_entries.append(described)
            if described.error is not None:
                scope.work_failed(described.error)


def _call(scope: Scope, held: Any, error: BaseException) -> BaseException | None:
    """Call `on_error`; return the exception that it raised, or REPORTED, or None if it has handled the error."""
    try:
        returned = scope.error_policy(held, error)
    except BaseException as own:  # noqa: BLE001 - the user's; it is logged, or ends the program
        logger.exception("on_error of scope %r raised when called with %r", scope.name, error)
        return own
    return returned if returned is REPORTED else None


def is_fatal(error: BaseException) -> bool:
    """Return whether an error is, or a group contains, a KeyboardInterrupt or SystemExit."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_fatal(inner) for inner in error.exceptions)
    return isinstance(error, KeyboardInterrupt | SystemExit)
