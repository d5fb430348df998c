"""How the SDK is made to speak through us, by the ways in that each version offers.

The SDK's connection is what the agent calls its client with. It is given the responses that come,
and what it sends goes to our outbox. From 0.12 on it takes any object that sends and receives
messages. Before, it wants asyncio's streams, and takes a queue, a dispatcher and a sender of one's
own. No private name is used.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from typing import TYPE_CHECKING, Any

from acp.agent.router import build_agent_router
from acp.connection import Connection
from acp.core import AgentSideConnection

from quiesce.errors import ArgumentError
from quiesce.integrations.sdk import unknown

if TYPE_CHECKING:
    from quiesce.integrations.acp.requests import Router
    from quiesce.integrations.acp.send_buffer import SendBuffer

__all__: list[str] = []

DISTRIBUTION = "agent-client-protocol"
_PARAMETERS = inspect.signature(Connection.__init__).parameters
_OURS = {"queue", "dispatcher_factory", "sender_factory"}
_FIXED = {"self", "handler", "writer", "reader", "listening"}
_ID_TYPES = (str, int, float, type(None))
HAS_FACTORIES = _PARAMETERS.keys() >= _OURS
"""Whether the SDK is one before 0.12."""
HAS_TRANSPORTS = "reader" in _PARAMETERS and _PARAMETERS["reader"].default is None
"""Whether the SDK is 0.12 or newer."""


def check_agent_options(options: dict[str, Any]) -> None:
    """Refuse arguments that the installed version of the SDK does not have.

    *Raises*: `ArgumentError`.
    """
    known = sorted(_PARAMETERS.keys() - _FIXED - _OURS)
    for name in options:
        if name in _OURS and HAS_FACTORIES:
            message = f"run_agent() has its own {name}: leave that to quiesce"
        elif name not in known:
            message = (
                f"run_agent() has no argument {name!r} with the installed {DISTRIBUTION};"
                f" it passes on: {', '.join(known)}"
            )
        else:
            continue
        raise ArgumentError(message)


class AgentPeer:
    """The peer as the SDK sees it: only responses come from it."""

    def __init__(self, outbox: SendBuffer) -> None:
        """Send to this outbox."""
        self._outbox = outbox
        self._responses: deque[dict[str, Any] | None] = deque()
        self._wanted: asyncio.Future[None] | None = None
        self._asked: set[object] = set()  # the requests that the peer has not answered
        self._ended = False
        self._store: Any = None

    def respond(self, message: dict[str, Any] | None) -> None:
        """Hand a response to the SDK; None: there will be no more."""
        if message is not None:
            number = message.get("id")
            if not isinstance(number, _ID_TYPES) or number not in self._asked:
                return  # nobody has asked that
            self._asked.discard(number)
        self._responses.append(message)
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    def hung_up(self) -> None:
        """Record that the peer sends no more; it may still read what it is told."""
        self._ended = True
        if self._asked:
            self.end()

    def end(self) -> None:
        """Notify the callers that wait for the peer's answers that none will come."""
        self._ended = True
        self.respond(None)
        if self._store is not None:  # 0.8 does not do it by itself
            self._store.reject_all_outgoing(ConnectionError("Connection closed"))

    # From 0.12: a transport.

    async def receive(self) -> dict[str, Any] | None:
        """Return the next response to the SDK; None at the end, also if the end is ours."""
        while not self._responses:
            self._wanted = asyncio.get_running_loop().create_future()
            try:
                await self._wanted
            except asyncio.CancelledError:
                return None  # then it rejects what it waits for
        return self._responses.popleft()

    async def send(self, message: dict[str, Any]) -> None:
        """Take a message from the SDK."""
        if "id" in message:  # a request: answers do not come from there
            if self._ended:
                error = "Connection closed"
                raise ConnectionError(error)
            self._asked.add(message["id"])
        self._outbox.post(message)
        await self._outbox.room()

    async def close(self) -> None:
        """Do nothing: the transport is the scope's."""

    # Before: a queue, a dispatcher and a sender; there is nothing to dispatch.

    def dispatcher(
        self, _queue: object, _supervisor: object, store: Any, *_runners: Any
    ) -> AgentPeer:
        """Run as the dispatcher."""
        self._store = store
        return self

    def sender(self, _writer: object, _supervisor: object) -> AgentPeer:
        """Run as the sender."""
        return self

    def start(self) -> None:
        """Do nothing: there is no loop to start."""

    async def stop(self) -> None:
        """Do nothing: there is no loop to stop."""


class _Lines(asyncio.StreamReader):
    """A reader whose lines are the responses, for an SDK that wants a reader."""

    def __init__(self, peer: AgentPeer) -> None:
        super().__init__()
        self._peer = peer

    async def readline(self) -> bytes:
        """Return the next response, or nothing at the end."""
        message = await self._peer.receive()
        return b"" if message is None else json.dumps(message).encode()

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """Return the next response; the end is told as asyncio does."""
        line = await self.readline()
        if not line:
            raise asyncio.IncompleteReadError(b"", None)
        return line + bytes(separator)


class _Nowhere(asyncio.StreamWriter):
    """A writer that nobody writes to, for an SDK that wants a writer."""

    def __init__(self) -> None:
        """Start without a transport."""

    def __del__(self) -> None:
        """Do nothing: there is nothing to close."""


def connect_agent_side(agent: Any, peer: AgentPeer, options: dict[str, Any]) -> tuple[Any, Router]:
    """Make the SDK's connection to this peer, and the router that calls the agent.

    *Raises*: `SdkUnknown` if the SDK offers none of the ways that are known.
    """
    made = []

    def make(connection: Any) -> Any:
        made.append(agent(connection) if callable(agent) else agent)
        return made[0]

    options = {key: value for key, value in options.items() if key != "receive_timeout"}
    if HAS_TRANSPORTS:
        connection = AgentSideConnection(make, peer, listening=False, **options)
    elif HAS_FACTORIES:
        connection = AgentSideConnection(
            make, _Nowhere(), _Lines(peer), listening=False, queue=peer,
            dispatcher_factory=peer.dispatcher, sender_factory=peer.sender, **options,
        )  # fmt: skip
    else:
        unknown(DISTRIBUTION, "way to give a connection a transport")
    unstable = options["use_unstable_protocol"]
    return connection, build_agent_router(made[0], use_unstable_protocol=unstable)
