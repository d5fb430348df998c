"""Whose a resource is: the scope that it was given, or the current one."""

from __future__ import annotations

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.core.scope import Scope
from quiesce.errors import UsageError


def owner_of(what: str, scope: Scope | None) -> Scope:
    """Return the owner of what is about to be made: nothing is made that nobody would own.

    *Raises*: `UsageError` if there is none; `ScopeClosed` if it takes nothing more.
    """
    owner = current_scope() if scope is None else scope
    if owner is None:
        message = (
            f"{what} needs a scope that owns it: open one around it with "
            "`async with Scope(...)`, or give scope=..."
        )
        raise UsageError(message)
    arguments.instance("scope", owner, Scope)
    owner._admit()
    return owner
