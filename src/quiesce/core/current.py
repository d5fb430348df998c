"""The scope that the running code is in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from quiesce.core.node import State, current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.core.scope import Scope

__all__ = ["current_scope", "detached"]


def current_scope() -> Scope | None:
    """Give the innermost open scope around the running code, or None."""
    node = current.get()
    while node is not None and node._state is State.CLOSED:
        node = node._parent
    return cast("Scope | None", node)


@contextmanager
def detached() -> Iterator[None]:
    """Step out of every scope: tasks created inside are adopted by none.

    For what lives as long as the process, like a connection pool's housekeeper that is started
    by whoever comes first.
    """
    token = current.set(None)
    try:
        yield
    finally:
        current.reset(token)
