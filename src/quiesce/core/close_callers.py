"""How tasks ask for a close and wait for it: from outside the scope, from inside, or when cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.job import Job
from quiesce.core.tree import ScopeState, current

if TYPE_CHECKING:
    from quiesce.core.closing import Closing
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope


def begin_close(scope: Scope, grace: float, cleanup: float) -> tuple[Closing, bool]:
    """Begin to close a scope, or shorten the deadlines of its close, in one step (invariant 4).

    Return the close, and whether the scope owns the running task. Such a task becomes a closer,
    because the close cannot wait for a task that waits for the close.
    """
    scope.check_opened()
    scope.check_here("close")
    owner, key = scope.find_owner_of_running_task()
    inside = owner is not None and owner.is_within(scope)
    closing = scope.plan_close(grace=grace, cleanup=cleanup)
    if inside and owner is not None:
        owner.retire_closer(key)
    return closing, inside


async def join_close(scope: Scope, closing: Closing, *, early: bool, patient: bool) -> Report:
    """Wait for a close. An `early` caller is a closer; a `patient` caller waits for a drain."""
    closing.patience += patient
    task = scope.backend.task()
    closing.waiters.add(task)
    try:
        await closing.carry_out_if_nobody_does()
        await (closing.quiet if early else closing.done).wait()
    except scope.backend.cancelled:
        if patient:
            closing.desert()
        await _outlast(scope, closing, early=early)
        raise
    finally:
        closing.waiters.discard(task)
    return closing.result(early=early)


async def _outlast(scope: Scope, closing: Closing, *, early: bool) -> None:
    """Wait for the close, in a caller that was cancelled, unless the close waits for that caller."""
    owner, key = scope.find_owner_of_running_task()
    helper = early and not isinstance(key, Job)  # an adopted task, such as one of `gather`
    if not helper and (early or (owner is not None and owner.phase is ScopeState.CLOSING)):
        # This close, or that of an ancestor, waits for the caller to end.
        await closing.quiet.wait_shielded()
        return
    node = current.get()
    if not helper and (node is None or not node.is_within(scope)):
        await closing.done.wait_shielded()
    # Otherwise the caller is a helper task (of `gather`, of a task group), and does not wait. If a job waits
    # for the helper, the close waits for that job. If the block's body does, the block's end waits for the close.
