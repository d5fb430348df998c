"""Reads the bodies of other nodes' calls, within limits of time and size.

A server that is told to end waits for its open requests. Without a time limit, a client that never sends the rest of its
request would keep the server from ending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from quiesce.errors import PeerLost
from quiesce.mesh.protocol import codec

if TYPE_CHECKING:
    from quiesce.core.asgi_types import Receive


__all__: list[str] = []

READ_SECONDS = 10.0
"""How long the body of a call may take. A calling node gives up after the same time."""
LAST_SECONDS = 1.0
"""How long a body may take once the server was told to end."""


class BodyLate(PeerLost):
    """The rest of a body did not arrive in time. The connection cannot be used again."""


class CallBodies:
    """The reads of call bodies for one open node."""

    def __init__(self) -> None:
        self._reads: set[anyio.CancelScope] = set()
        self._is_over = False

    async def read(self, receive: Receive, *, is_ending: bool) -> bytes | None:
        """Read and return a body. Return None if it is too large.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if the caller disconnects, or the body does not arrive in time.
        """
        with anyio.move_on_after(LAST_SECONDS if is_ending else READ_SECONDS) as limit:
            self._reads.add(limit)
            try:
                if not self._is_over:
                    return await _read(receive)
            finally:
                self._reads.discard(limit)
        message = "the body of the call did not arrive in time: send the call again"
        raise BodyLate(message)

    async def end_soon(self) -> None:
        """End the reads that are open now after a last second, because the server was told to end."""
        reads = list(self._reads)
        await anyio.sleep(LAST_SECONDS)
        for limit in reads:
            if limit in self._reads:
                limit.cancel()

    def end(self) -> None:
        """End all open and later reads, because the node is closed."""
        self._is_over = True
        for limit in self._reads:
            limit.cancel()


async def _read(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone = "the caller closed its connection before it had sent the whole call"
            raise PeerLost(gone)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > codec.BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return b"".join(parts)
