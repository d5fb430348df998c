"""Those who call for a close: from outside, from inside, and cancelled while they wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.job import Job
from quiesce.core.tree import ScopeState, current

if TYPE_CHECKING:
    from quiesce.core.closing import Closing
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope


def begin_close(scope: Scope, grace: float, cleanup: float) -> tuple[Closing, bool]:
    """Begin to close, or to close sooner, in one step (invariant 4).

    Tells also whether the running task is the scope's own: then it is a closer from here on,
    for the close cannot wait for one who waits for the close.
    """
    scope._check_opened()
    scope._check_here("close")
    owner, key = scope._owner_of_running_task()
    inside = owner is not None and owner._is_within(scope)
    closing = scope._close(grace=grace, cleanup=cleanup)
    if inside and owner is not None:
        owner._retire(key)
    return closing, inside


async def join_close(scope: Scope, closing: Closing, *, early: bool, patient: bool) -> Report:
    """Wait for a close; `early` ones do not wait for themselves, `patient` ones give it grace."""
    closing.patience += patient
    task = scope._backend.task()
    closing.waiters.add(task)
    try:
        await closing.carry_out_if_nobody_does()
        await (closing.quiet if early else closing.done).wait()
    except scope._backend.cancelled:
        if patient:
            closing.desert()
        await _outlast(scope, closing, early=early)
        raise
    finally:
        closing.waiters.discard(task)
    return closing.result(early=early)


async def _outlast(scope: Scope, closing: Closing, *, early: bool) -> None:
    """Wait for the close, for a caller that was cancelled: as far as it can be waited for."""
    owner, key = scope._owner_of_running_task()
    helper = early and not isinstance(key, Job)  # an adopted one; its job may wait for it
    if not helper and (early or (owner is not None and owner._state is ScopeState.CLOSING)):
        # The caller's own end is waited for, by this close or by that of a scope around it.
        await closing.quiet.wait_shielded()
        return
    node = current.get()
    if not helper and (node is None or not node._is_within(scope)):
        await closing.done.wait_shielded()
    # Else a helper (of `gather`, of a task group) of a job, which the close waits for, or of the
    # block's body, whose end waits for the close.
