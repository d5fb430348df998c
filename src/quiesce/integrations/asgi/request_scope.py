"""The scope of one request: a light one, below that of all requests.

If the middleware is called in the midst of another scope (some other middleware has opened one for this
very request), that one holds it until all is over that the request has started.
"""

from __future__ import annotations

from quiesce.core.light_scope import LightScope
from quiesce.core.scope import Scope

__all__: list[str] = []


class RequestScope(LightScope):
    """The scope of a request; its parent is that of all requests."""

    __slots__ = ()

    async def closing(self) -> None:
        """Wait for the drain of the app: when the request ends, what it leaves goes on.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        requests = self._parent
        assert isinstance(requests, Scope)  # noqa: S101 - opened with one
        await requests.closing()
