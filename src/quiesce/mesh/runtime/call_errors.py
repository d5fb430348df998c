"""Why the last call to each address has failed, for messages."""

from __future__ import annotations

from quiesce.core.tree import logger

__all__: list[str] = []

_ADDRESSES_MAX = 1000


class CallErrors:
    """The failed calls of one node.

    Args:
        name: The name of the node.
        every: How many seconds pass between calls to an address that is not a node.
    """

    def __init__(self, name: str, *, every: float) -> None:
        """Begin without failures."""
        self._name = name
        self._every = every
        self._warned: dict[str, None] = {}
        self.by_address: dict[str, str] = {}
        """Why the last call to an address has failed."""

    def succeeded(self, to: str) -> None:
        """Record that a call has succeeded."""
        self._warned.pop(to, None)
        self.by_address.pop(to, None)

    def failed(self, to: str, why: str) -> str:
        """Keep the reason of a failed call for messages; return "", because the failure may pass."""
        if len(self.by_address) >= _ADDRESSES_MAX:
            self.by_address.clear()
        self.by_address[to] = why.removeprefix(f"{to} was not reached: ").removeprefix(f"{to} ")
        return ""

    def wrong(self, to: str, why: str) -> str:
        """Log a warning about an address, once until a call to it succeeds; return the reason."""
        self.failed(to, why)
        if to not in self._warned:
            if len(self._warned) >= _ADDRESSES_MAX:
                self._warned.clear()
            self._warned[to] = None
            logger.warning("node %r: %s Retrying every %g s.", self._name, why, self._every)
        return why
