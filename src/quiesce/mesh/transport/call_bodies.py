"""The bodies of calls of other nodes, as an HTTP server reads them: never without a bound.

A server that is told to end waits for its open requests. A client may begin one and never send the rest of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from quiesce.errors import PeerLost
from quiesce.mesh.protocol import codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

__all__: list[str] = []

READ_SECONDS = 10.0
"""How long a body may take: nodes that call give up after as long."""
LAST_SECONDS = 1.0
"""How long it may take once the server was told to end."""


class BodyLate(PeerLost):
    """The rest of a body did not come in time: the connection cannot be used again."""


class CallBodies:
    """The bodies that one node reads, while it is open."""

    def __init__(self) -> None:
        self._reads: set[anyio.CancelScope] = set()
        self._is_over = False

    async def read(self, receive: Receive, *, is_ending: bool) -> bytes | None:
        """Read a body; None if it is too large.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if the caller is gone, or the body does not come in time.
        """
        with anyio.move_on_after(LAST_SECONDS if is_ending else READ_SECONDS) as limit:
            self._reads.add(limit)
            try:
                if not self._is_over:
                    return await _read(receive)
            finally:
                self._reads.discard(limit)
        message = "the body did not come in time: send the call again"
        raise BodyLate(message)

    async def end_soon(self) -> None:
        """End the reads that are open now, in a moment: the server was told to end."""
        reads = list(self._reads)
        await anyio.sleep(LAST_SECONDS)
        for limit in reads:
            if limit in self._reads:
                limit.cancel()

    def end(self) -> None:
        """End all reads, and every later one: the node is closed."""
        self._is_over = True
        for limit in self._reads:
            limit.cancel()


async def _read(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone = "the caller closed its connection before all of its call had come"
            raise PeerLost(gone)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > codec.BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return b"".join(parts)
