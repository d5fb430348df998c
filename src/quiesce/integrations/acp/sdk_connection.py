"""The SDK's own connection objects, changed to send through quiesce.

Since 0.12 the SDK accepts any object with `send`, `receive` and `close`. Before that it requires
asyncio's streams and checks their types. There, the reader is a stream whose lines come from a wire,
and the sender, which may be passed in, is the wire itself.

Two private names of the SDK are used, and only in this module: `_conn`, the `Connection` object through
which a connection's methods send, and its `_handler`, the router. On that one object, the methods that
send requests and notifications are replaced. With public names alone, each request would pass through
both implementations and take half as long again.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Protocol

from acp.connection import Connection
from acp.core import AgentSideConnection, ClientSideConnection

from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.sdk import unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.integrations.acp.client_wire import ClientWire
    from quiesce.integrations.acp.requests import Router

__all__: list[str] = []

DISTRIBUTION = "agent-client-protocol"
LOOPS = ("acp.Connection.receive", "acp.Sender.loop", "acp.Dispatcher.loop")
"""The names of the tasks that a connection of the SDK starts: they are services."""
PARAMETERS = inspect.signature(Connection.__init__).parameters
TAKES_MESSAGES: bool = PARAMETERS["reader"].default is None
"""Whether the SDK is 0.12 or newer, and takes a message transport in place of two streams."""
_OURS = {"queue", "dispatcher_factory", "sender_factory", "state_store"}
_FIXED = {"self", "handler", "writer", "reader", "listening"}
_FOREVER_BYTES = 1 << 62


class Sending(Protocol):
    """An object that sends in place of the SDK's `Connection`."""

    async def request(self, method: str, params: Any = None) -> Any:
        """Send a request, and wait for its answer."""

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""


def check_asyncio() -> None:
    """Raise an error unless an asyncio event loop runs here.

    *Raises*: `UsageError` if there is no asyncio event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        message = f"{DISTRIBUTION} needs asyncio, but no asyncio event loop is running here: use asyncio or uvloop"
        raise UsageError(message) from None


def check_options(function: str, options: Iterable[str]) -> None:
    """Refuse arguments that the installed SDK does not have, or that would bypass quiesce.

    *Raises*: `ArgumentError`.
    """
    known = sorted(PARAMETERS.keys() - _FIXED - _OURS)
    for name in options:
        if name in _OURS and name in PARAMETERS:
            message = f"{function}() sets {name} itself: leave it out"
        elif name not in known:
            message = (
                f"{function}() has no argument {name!r} with the installed {DISTRIBUTION};"
                f" it passes on: {', '.join(known)}"
            )
        else:
            continue
        raise ArgumentError(message)


def bind_agent(agent: Any, sending: Sending, *, unstable: bool) -> tuple[Any, Router]:
    """Create the SDK's connection for an agent; return it with the router that calls the agent.

    The connection does not read or write: it only has the methods that an agent calls.

    *Raises*: `SdkUnknown` if the SDK's methods do not send in the known way.
    """
    inert, make = _Inert(), AgentSideConnection
    options: dict[str, Any] = {"listening": False, "use_unstable_protocol": unstable}
    if TAKES_MESSAGES:
        made = make(agent, inert, **options)
    else:
        options |= dict.fromkeys(("dispatcher_factory", "sender_factory"), lambda *_: inert)
        made = make(agent, _writer(), asyncio.StreamReader(), **options)
    router: Router = _replace_sending(made, sending)._handler  # noqa: SLF001 - see the top of this module
    return made, router


def bind_client(client: Any, wire: ClientWire, options: dict[str, Any]) -> ClientSideConnection:
    """Create the SDK's connection for a client; it handles the messages that come over the wire.

    The connection starts its tasks in this step, in the current context.

    *Raises*: `SdkUnknown` if the SDK's methods do not send in the known way.
    """
    make: Any = ClientSideConnection
    if TAKES_MESSAGES:
        made = make(client, wire, **options)
    else:
        made = make(client, _writer(), _WireReader(wire), sender_factory=lambda *_: wire, **options)
    assert isinstance(made, ClientSideConnection)  # noqa: S101 - for the type checker
    _replace_sending(made, wire)
    return made


def _replace_sending(made: Any, sending: Sending) -> Any:
    """Replace the methods by which a connection of the SDK sends; return its `Connection` object."""
    theirs: Any = getattr(made, "_conn", None)
    if not isinstance(theirs, Connection) or not hasattr(theirs, "_handler"):
        unknown(DISTRIBUTION, f"`_conn` by which a {type(made).__name__} sends")
    theirs.send_request = sending.request  # type: ignore[method-assign]  # on this one object
    theirs.send_notification = sending.notify  # type: ignore[method-assign]  # likewise
    return theirs


class _Inert:
    """A transport, or before 0.12 a dispatcher and a sender, that carries no messages."""

    def start(self) -> None:
        """Do nothing."""

    async def send(self, message: object) -> None:
        """Do nothing."""

    async def receive(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class _WireReader(asyncio.StreamReader):
    """A stream whose lines are the messages of a wire."""

    def __init__(self, wire: ClientWire) -> None:
        super().__init__(limit=_FOREVER_BYTES)
        self._wire = wire

    async def readline(self) -> bytes:
        """Return the next message as a line; b"" at the end."""
        return await self._wire.receive_line()

    async def readuntil(self, separator: Any = b"\n") -> bytes:  # noqa: ARG002 - always a line
        """Return the next message as a line."""
        line = await self.readline()
        if not line:
            raise asyncio.IncompleteReadError(b"", None)
        return line


class _Nowhere(asyncio.WriteTransport):
    """A transport that is not used; the SDK checks that there is one."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing."""


def _writer() -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    return asyncio.StreamWriter(_Nowhere(), asyncio.Protocol(), None, loop)
