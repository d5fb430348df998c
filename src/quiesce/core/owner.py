"""The choice of the scope that owns a new channel, process or other resource."""

from __future__ import annotations

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.core.scope import Scope
from quiesce.errors import UsageError


def owner_of(what: str, scope: Scope | None) -> Scope:
    """Return the scope that will own a new resource: the given scope, or else the current scope.

    *Raises*: `UsageError` if there is neither; `ScopeClosed` if the closing of the scope has begun.
    """
    owner = current_scope() if scope is None else scope
    if owner is None:
        message = (
            f"{what} needs a scope that owns it: open one around it with "
            "`async with Scope(...)`, or pass scope=..."
        )
        raise UsageError(message)
    arguments.instance("scope", owner, Scope)
    owner.check_may_start()
    return owner
