"""The SDK's own connection object, made to send and receive over a wire of ours.

From 0.12 on the SDK takes anything with `send`, `receive` and `close`. Before that it wants asyncio's
streams and checks their types: there, the reader is one whose lines come from the wire, and the
sender, which may be given, is the wire itself.

One private name of the SDK is used, and only here: `_conn`, the `Connection` by which its methods send.
The wire's own requests and notifications are put in front of that one's, on that one object. To go
through both, with public names alone, takes half as long again for each request.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from acp.connection import Connection
from acp.core import ClientSideConnection

from quiesce.errors import ArgumentError
from quiesce.integrations.sdk import unknown

if TYPE_CHECKING:
    from quiesce.integrations.acp.client_wire import ClientWire

_FOREVER_BYTES = 1 << 62

takes_messages: bool = (
    inspect.signature(ClientSideConnection).parameters["output_stream"].default is None
)
"""Whether this version of the SDK takes a message transport in place of two streams."""


def bind(to_client: Any, wire: ClientWire, options: dict[str, Any]) -> ClientSideConnection:
    """Make the SDK's connection; it starts its tasks in this step, in the current context.

    Raises:
        ArgumentError: an option that would bypass the wire.
        SdkUnknown: the SDK's methods do not send by what is known.
    """
    for name in ("sender_factory", "queue", "dispatcher_factory"):
        if options.get(name) is not None:
            message = f"{name}= cannot be used here: quiesce sends and receives by itself"
            raise ArgumentError(message)
    options = {name: value for name, value in options.items() if value is not None}
    make: Any = ClientSideConnection
    if takes_messages:
        made = make(to_client, wire, **options)
    else:
        made = make(
            to_client, _writer(), _WireReader(wire),
            sender_factory=lambda *_: _Sender(wire), **options,
        )  # fmt: skip
    assert isinstance(made, ClientSideConnection)  # noqa: S101 - for the type checker
    sending = getattr(made, "_conn", None)
    if not isinstance(sending, Connection):
        unknown("agent-client-protocol", "`_conn` by which a ClientSideConnection sends")
    sending.send_request = wire.request  # type: ignore[method-assign]  # on this one object
    sending.send_notification = wire.notify  # type: ignore[method-assign]  # likewise
    return made


class _WireReader(asyncio.StreamReader):
    """A stream whose lines are the messages of a wire."""

    def __init__(self, wire: ClientWire) -> None:
        super().__init__(limit=_FOREVER_BYTES)
        self._wire = wire

    async def readline(self) -> bytes:
        """Return the next message as a line; nothing at the end."""
        return await self._wire.receive_line()

    async def readuntil(self, separator: Any = b"\n") -> bytes:  # noqa: ARG002 - always a line
        """Return the next message as a line."""
        line = await self.readline()
        if not line:
            raise asyncio.IncompleteReadError(b"", None)
        return line


class _Sender:
    """What the SDK sends by."""

    def __init__(self, wire: ClientWire) -> None:
        self._wire = wire

    async def send(self, payload: dict[str, Any]) -> None:
        await self._wire.send(payload)

    async def close(self) -> None:
        """Do nothing: the wire is its scope's."""


class _Nowhere(asyncio.WriteTransport):
    """A transport that is not used: the SDK checks that there is one."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing."""


def _writer() -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    return asyncio.StreamWriter(_Nowhere(), asyncio.Protocol(), None, loop)
