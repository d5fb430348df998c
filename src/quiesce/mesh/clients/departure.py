"""Whether a request has left this process, from httpcore's trace; for httpx, httpx2 and direct users of httpcore.

A request that has not left cannot have started work, so its edge is resolved as not sent.
"""

from __future__ import annotations

from typing import Any

__all__: list[str] = []

_LEAVES = ".send_request_headers.started"
_LIBRARIES = frozenset(("httpcore", "httpcore2", "httpx", "httpx2"))
# Errors that are raised before a byte of the request has left, in the attempt that raises the error.
_NOT_SENT = frozenset(
    (
        "ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL", "ProxyError",
        "LocalProtocolError",
    )
)  # fmt: skip


class Departure:
    """A trace function of httpcore that records whether a request has left, in any of its attempts."""

    __slots__ = ("is_heard", "is_left", "other_trace")

    def __init__(self) -> None:
        self.other_trace: Any = None
        self.is_heard: bool = False
        self.is_left: bool = False

    def listen(self, request: Any, *, is_sync: bool = False) -> None:
        """Set this trace on a request that is about to be sent, perhaps again."""
        other = request.extensions.get("trace")
        self.other_trace = other.other_trace if isinstance(other, Departure) else other
        trace = self.hear_now if is_sync else self
        request.extensions = {**request.extensions, "trace": trace}

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Record one step of a request of an async client. A proxy's CONNECT request comes here, too."""
        self._hear(name, info)
        if self.other_trace is not None:
            await self.other_trace(name, info)

    def hear_now(self, name: str, info: dict[str, Any]) -> None:
        """Record one step of a request of a sync client."""
        self._hear(name, info)
        if self.other_trace is not None:
            self.other_trace(name, info)

    def _hear(self, name: str, info: dict[str, Any]) -> None:
        self.is_heard = True
        if name.endswith(_LEAVES) and info["request"].method != b"CONNECT":
            self.is_left = True

    def is_prevented(self, error: BaseException | None, *, is_sure: bool = False) -> bool:
        """Return whether an error proves that not a byte of the request has left.

        A transport that retries raises the error of its last attempt only. So this also needs the trace of all attempts,
        unless the caller is sure that there was one attempt (`is_sure`).
        """
        while error is not None and not _is_not_sent(error):
            error = error.__cause__
        return error is not None and not self.is_left and (self.is_heard or is_sure)


def _is_not_sent(error: BaseException) -> bool:
    return any(
        kind.__name__ in _NOT_SENT and kind.__module__.partition(".")[0] in _LIBRARIES
        for kind in type(error).__mro__
    )
