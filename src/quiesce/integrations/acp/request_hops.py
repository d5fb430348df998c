"""The agent's side of the mesh: a request that carries an edge is handled as a hop.

Rules:

1. Everything that the agent starts while it handles such a request belongs to the hop. The session
   waits for it as without a mesh: when the peer is gone, the work has its grace and is then cancelled.
2. Every answer to such a request (a result, an error or a refusal) has the state of its edge.
3. Mesh calls are answered until the session has ended, even in a drain, and do not delay its end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from acp import RequestError

from quiesce.core.tree import ScopeState, logger
from quiesce.errors import (
    CascadeCancelled,
    EdgeRefused,
    PeerLost,
    QuiesceError,
    RemoteProtocolError,
    ScopeClosed,
)
from quiesce.integrations.acp.requests import (
    _CANCEL_METHOD,
    _ID_TYPES,
    REFUSED,
    REQUEST_CANCELLED,
    Requests,
)
from quiesce.mesh.runtime.hop_parts import claimed
from quiesce.mesh.transport import links

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.integrations.acp.send_buffer import SendBuffer
    from quiesce.integrations.acp.witness import Witness
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_INITIALIZE, _CAPABILITIES = "initialize", "agentCapabilities"
_CALLS = {f"_{method}": method for method in links.PATHS}


class MeshRequests(Requests):
    """The peer's requests; some of them are part of a cascade."""

    def __init__(
        self, scope: Scope, outbox: SendBuffer, witness: Witness | None, node: Node
    ) -> None:
        """Handle requests as `Requests` does, and edges as hops of this node."""
        super().__init__(scope, outbox, witness)
        self._mesh = node
        self._hops: dict[
            object, Hop
        ] = {}  # the hops of requests without an answer yet, by request id
        self._edge_answers: dict[object, str] = {}  # for answers that are not sent yet
        self._calls: dict[object, Job[None]] = {}
        scope.spawn(self._until_the_end, name="mesh", service=True)

    async def _until_the_end(self) -> None:
        try:
            await self._loop.create_future()
        finally:
            for call in list(self._calls.values()):
                call.cancel()

    def take(self, message: dict[str, Any]) -> bool:
        """Start to handle a message; see `Requests`."""
        method = message.get("method")
        if method == _CANCEL_METHOD:
            self._cancel_call(message.get("params"))
        elif isinstance(method, str) and method in _CALLS:
            if isinstance(message.get("id"), str | int):
                self._take_call(message["id"], _CALLS[method], message.get("params"))
            return True
        return super().take(message)

    # Messages that hand over an edge.

    def _take_request(self, message: dict[str, Any], method: object) -> None:
        number = message["id"]
        if self._scope.phase is not ScopeState.OPEN and isinstance(number, _ID_TYPES):
            header = links.handed(message.get("params"))
            if header is not None and links.shares_store(self._mesh):
                if isinstance(method, str):
                    self._refuse_later(number, method, header)
                    return
            elif header is not None:
                edge_answer = links.refuse_at_once(self._mesh, header)
                if edge_answer is not None:
                    self._edge_answers[number] = edge_answer
        super()._take_request(message, method)

    def _refuse_later(self, number: object, method: str, header: str) -> None:
        """Refuse a message when the store of the replicas has the refusal; a drain waits for that."""
        if number in self.by_id or self._scope.phase is ScopeState.CLOSED:
            self.refuse_closing(number)
        else:
            self.by_id[number] = self._start(self._refuse_edge(number, header), method, number)

    async def _refuse_edge(self, number: object, header: str) -> None:
        edge_answer = await links.refuse_message(self._mesh, header)
        if edge_answer is not None:
            self._edge_answers[number] = edge_answer
        self.refuse_closing(number)

    def _route(self, method: str, params: Any, *, notified: bool) -> Awaitable[Any]:
        header = None if notified else links.handed(params)
        if header is None:
            return super()._route(method, params, notified=notified)
        return self._handle_edge(method, links.without_meta(params, links.REQUEST_KEY), header)

    async def _handle_edge(self, method: str, params: Any, header: str) -> Any:
        """Call the agent inside a hop."""
        task: Any = asyncio.current_task()
        try:
            part = await claimed(self._mesh.handle(header))
        except EdgeRefused as refused:
            self._edge_answers[task.request_id] = refused.header
            raise RequestError(REFUSED, str(refused)) from refused
        except RemoteProtocolError as error:
            # The request would otherwise run outside the cascade that it names.
            raise RequestError.invalid_params({"details": str(error)}) from error
        except QuiesceError as error:
            raise RequestError(REFUSED, str(error)) from error
        self._hops[task.request_id] = hop = part.hop
        with suppress(ScopeClosed):  # then a drain waits for the request itself
            hop.held_by(self._scope)
        part.enter()
        result, failure = None, None
        try:
            result = await super()._route(method, params, notified=False)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure = error
        left = part.leave(failure)
        await hop.turned()  # even if cancelled: the answer still has to be sent
        if links.shares_store(self._mesh):
            await self._make_lasting_answer(task.request_id, hop)
        if isinstance(left, CascadeCancelled):
            raise RequestError(REQUEST_CANCELLED, str(left)) from None
        if left is not None:
            raise left
        return result

    async def _make_lasting_answer(self, number: object, hop: Hop) -> None:
        """Make the state of an edge for its answer, and wait until all that it says has lasted."""
        opened = hop.opened
        self._hops.pop(number, None)
        told = opened.answer(hop)
        # If the task is cancelled meanwhile, the answer is sent at once, and the sender asks.
        self._edge_answers[number] = opened.answer_to_ask(hop)
        self._edge_answers[number] = await opened.written_answer(hop, told)

    def _send(self, answer: dict[str, Any], number: object) -> None:
        edge_answer = self._answer_of(number)
        if edge_answer is not None:
            answer = _with_answer(answer, edge_answer)
        task = self.by_id.get(number)
        if task is not None and task.method_name == _INITIALIZE and "result" in answer:
            answer = {**answer, "result": _offering(answer["result"])}
        super()._send(answer, number)
        self._edge_answers.pop(number, None)

    def _answer_of(self, number: object) -> str | None:
        """Return the state of an edge for the answer (2). Only the first call for a request returns it."""
        hop = self._hops.pop(number, None)
        if hop is not None:
            try:
                told = hop.opened.answer(hop)
                if links.shares_store(self._mesh):  # what it says may not have lasted
                    told = hop.opened.answer_to_ask(hop)
                self._edge_answers[number] = told
            except Exception:  # noqa: BLE001 - the journal may fail; the sender will ask
                logger.exception(
                    "the answer for %s could not be made; its sender will ask again", hop.name
                )
        return self._edge_answers.get(number)

    # Calls (3).

    def _take_call(self, number: str | int, method: str, params: Any) -> None:
        try:
            self._check_number(number)
            self._calls[number] = links.start_answer(
                self._mesh, method, self._call, number, method, params
            )
        except QuiesceError as error:
            self._refuse_call(number, error)

    def _check_number(self, number: str | int) -> None:
        if number in self._calls or number in self.by_id:
            message = f"a request with the id {number!r} is already in flight: use another id"
            raise RemoteProtocolError(message)

    async def _call(self, number: str | int, method: str, params: Any) -> None:
        try:
            result = await links.serve_link(self._mesh, method, params)
            self._outbox.post({"jsonrpc": "2.0", "id": number, "result": result}, quiet=True)
        except (PeerLost, RemoteProtocolError) as error:
            self._refuse_call(number, error)
        except Exception as error:  # noqa: BLE001 - the journal may fail
            logger.exception("a mesh call failed")
            self._refuse_call(number, PeerLost(type(error).__name__))
        finally:
            self._calls.pop(number, None)

    def _refuse_call(self, number: str | int, error: QuiesceError) -> None:
        details = {"details": str(error)}
        is_theirs = isinstance(error, RemoteProtocolError)
        refusal = (RequestError.invalid_params if is_theirs else RequestError.internal_error)(
            details
        )
        answer = {"jsonrpc": "2.0", "id": number, "error": refusal.to_error_obj()}
        self._outbox.post(answer, quiet=True)

    def _cancel_call(self, params: Any) -> None:
        number = params.get("requestId") if isinstance(params, dict) else None
        call = self._calls.get(number) if isinstance(number, str | int) else None
        if call is not None:
            call.cancel()


def _with_answer(answer: dict[str, Any], edge_answer: str) -> dict[str, Any]:
    """Return an answer with the state of its edge, if the answer can carry it."""
    if "error" in answer:
        error = dict(answer["error"])
        error["data"] = links.with_answer(error.get("data"), edge_answer)
        return {**answer, "error": error}
    result = answer["result"]
    if result is None or isinstance(result, dict):
        return {**answer, "result": links.with_meta(result, links.RESPONSE_KEY, edge_answer)}
    return answer


def _offering(result: Any) -> Any:
    """Return the result of a handshake with the note that the agent takes part in the mesh."""
    if not isinstance(result, dict):
        return result
    found = result.get(_CAPABILITIES)
    offer = {"version": 0}
    return {**result, _CAPABILITIES: links.with_meta(found, links.REQUEST_KEY, offer)}
