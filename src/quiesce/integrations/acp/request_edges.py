"""The client's side of the mesh: a request that a client sends inside a hop carries an edge.

Rules:

1. A `session/prompt` or extension request that is sent inside a hop of the connection's node is an
   edge of that hop, from before it is written until its end is known.
2. The client asks for receipts over the same connection. These calls are not the user's requests: they
   are not visible, and neither a drain nor a close waits for them.
3. When the connection ends, so does the link: see `quiesce.mesh.transport.links`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import acp

from quiesce.core.tree import ScopeState
from quiesce.errors import PeerLost
from quiesce.integrations.acp.client_wire import CANCEL_REQUEST, ClientWire
from quiesce.mesh.runtime.hop import hop_of_node
from quiesce.mesh.transport import links

if TYPE_CHECKING:
    from quiesce.core.scope import Scope
    from quiesce.integrations.acp.client_streams import ClientPeer
    from quiesce.integrations.acp.json_lines import Message
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_INITIALIZE, _PROMPT = "initialize", "session/prompt"
_IDS = "quiesce:"  # the ids of the SDK's requests are numbers
_LOST = "the agent is gone"


class MeshWire(ClientWire):
    """A wire whose requests hand over edges to a mesh agent."""

    def __init__(
        self, scope: Scope, peer: ClientPeer, *, node: Node, address: str | None, **options: Any
    ) -> None:
        """Wrap the peer object that carries the messages.

        Args:
            scope: the connection's own scope.
            peer: the object that carries the messages.
            node: the client's mesh node.
            address: the agent's address, if it has one; see `Link`.
            options: see `ClientWire`.
        """
        super().__init__(scope, peer, **options)
        self._peer = _WithoutCallAnswers(peer, self._take)
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._asks = 0
        self._node = node
        self._link = links.Link(node, "acp", address, self._ask)

    async def until_the_end(self) -> None:
        """Close the link along with the connection; the body of a service."""
        try:
            await self._loop.create_future()
        finally:
            for number in self._asked:
                self._withdraw(number)
            self._link.close()

    def lose(self, error: BaseException) -> None:
        """Record that the agent is gone, and close the link."""
        super().lose(error)
        self._link.close()

    # Handing over.

    async def request(self, method: str, params: Any = None, *, answered: bool = True) -> Any:
        """Send a request, as an edge of the current hop if there is one, and wait for its answer."""
        hop = hop_of_node(self._node) if answered and _hands_over(method) else None
        if hop is not None:
            return await self._hand_over(hop, method, params)
        result = await super().request(method, params, answered=answered)
        if method == _INITIALIZE:
            self._link.takes_part = _takes_part(result)
        return result

    async def _hand_over(self, hop: Hop, method: str, params: Any) -> Any:
        link = self._link
        with link.delegate(hop) as handing:
            await handing.written()
            try:
                self._check(answered=True)
            except BaseException:
                handing.not_sent()
                raise
            if params is not None and not isinstance(params, dict):
                link.opaque(handing)  # no room for an edge in the parameters: its end stays unknown
            elif link.takes_part is not False:
                params = links.with_meta(params, links.REQUEST_KEY, handing.header)
            try:
                result = await super().request(method, params)
            except acp.RequestError as error:
                link.answered(handing, _meta(error.data), failed=True)
                _strip(error)
                raise
            link.answered(handing, _meta(result))
            return links.without_meta(result, links.RESPONSE_KEY)

    # Calls (2).

    async def _ask(self, method: str, body: dict[str, Any]) -> Any:
        """Send a call to the agent, and return its answer.

        *Cancel safety*: if cancelled, the agent is notified.
        """
        if self._lost is not None or self._scope.phase is ScopeState.CLOSED:
            raise PeerLost(_LOST)
        self._asks += 1
        number = f"{_IDS}{self._asks}"
        answer = self._asked[number] = self._loop.create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": f"_{method}", "params": body}
        try:
            await self.send(message)
            return await answer
        except OSError as error:
            raise PeerLost(_LOST) from error
        except asyncio.CancelledError:
            # Cancelling this task cancels the future too.
            is_answered = answer.done() and not answer.cancelled()
            if not is_answered and not self._link.closed:
                self._withdraw(number)
            raise
        finally:
            del self._asked[number]

    def _withdraw(self, number: str) -> None:
        """Notify the agent that no caller waits for the answer to a call."""
        if self._lost is None:
            self._tell({"method": CANCEL_REQUEST, "params": {"requestId": number}})

    def _take(self, message: Message) -> bool:
        """Return whether a message is the answer to a call; if so, pass it on to the call."""
        number = message.get("id")
        if not isinstance(number, str) or "method" in message or not number.startswith(_IDS):
            return False
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            if "result" in message:
                answer.set_result(message["result"])
            else:
                answer.set_exception(PeerLost("the agent does not answer mesh calls"))
        return True


class _WithoutCallAnswers:
    """A peer object that leaves out the answers to calls."""

    def __init__(self, inner: ClientPeer, take: Any) -> None:
        self._inner = inner
        self._take = take
        self.send: Any = inner.send
        self.close: Any = inner.close

    async def receive(self) -> Message | None:
        while (message := await self._inner.receive()) is not None and self._take(message):
            pass
        return message


def _hands_over(method: str) -> bool:
    return method == _PROMPT or method.startswith("_")


def _meta(found: object) -> object:
    return found.get("_meta") if isinstance(found, dict) else None


def _strip(error: acp.RequestError) -> None:
    """Remove the mesh metadata from an error, so that the caller sees it as the agent raised it."""
    data = links.without_meta(error.data, links.RESPONSE_KEY)
    if data is not error.data:
        error.data = data or None


def _takes_part(result: object) -> bool:
    """Return whether the agent's handshake says that it takes part in the mesh."""
    capabilities = result.get("agentCapabilities") if isinstance(result, dict) else None
    meta = _meta(capabilities)
    return isinstance(meta, dict) and links.REQUEST_KEY in meta
