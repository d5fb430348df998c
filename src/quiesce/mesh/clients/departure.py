"""Whether a request has left, as httpcore tells it; for httpx, httpx2, and programs that use httpcore itself."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []

_LEAVES = ".send_request_headers.started"
_LIBRARIES = frozenset(("httpcore", "httpcore2", "httpx", "httpx2"))
# Raised before a byte of the request has left; of this attempt, if there were others.
_NOT_SENT = frozenset(
    (
        "ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL", "ProxyError",
        "LocalProtocolError",
    )
)  # fmt: skip


class Departure:
    """Hears from httpcore whether a request has left, however often it is tried below."""

    __slots__ = ("_other", "is_heard", "is_left")

    def __init__(self) -> None:
        """Begin without any news."""
        self._other: Any = None
        self.is_heard: bool = False
        self.is_left: bool = False

    def listen(self, request: Any, *, is_sync: bool = False) -> None:
        """Listen to a request that is about to be sent, perhaps not for the first time."""
        other = request.extensions.get("trace")
        self._other = other._other if isinstance(other, Departure) else other
        trace = self.hear_now if is_sync else self
        request.extensions = {**request.extensions, "trace": trace}

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Hear one step of a request of an async client; also of a proxy that is asked for a connection."""
        self._hear(name, info)
        if self._other is not None:
            await self._other(name, info)

    def hear_now(self, name: str, info: dict[str, Any]) -> None:
        """Hear one step of a request of a sync client."""
        self._hear(name, info)
        if self._other is not None:
            self._other(name, info)

    def _hear(self, name: str, info: dict[str, Any]) -> None:
        self.is_heard = True
        if name.endswith(_LEAVES) and info["request"].method != b"CONNECT":
            self.is_left = True

    def is_prevented(self, error: BaseException | None, *, is_sure: bool = False) -> bool:
        """Return whether an error says that not a byte has left.

        A transport that tries again raises what became of its last attempt. So none of them may have been heard
        to leave; unless it is sure that there was only one.
        """
        while error is not None and not _is_not_sent(error):
            error = error.__cause__
        return error is not None and not self.is_left and (self.is_heard or is_sure)


def _is_not_sent(error: BaseException) -> bool:
    return any(
        kind.__name__ in _NOT_SENT and kind.__module__.partition(".")[0] in _LIBRARIES
        for kind in type(error).__mro__
    )
