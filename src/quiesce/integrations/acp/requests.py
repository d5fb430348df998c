"""What the peer asks for: each request that is being handled is a task, and a hold of its own kind.

What holds:

1. A request is held from the step that takes it in until its handler has ended.
2. Every request that was taken in is answered, or the connection ends: also if its handler was
   cancelled, by whomever, or its result is nothing that can be sent.
3. Once the scope drains, requests are refused with an answer; notifications are still handled,
   and responses still passed on: the work in flight may need them to finish.

The agent's methods are called by the SDK's own router, in all versions; that each request is a task
of ours, not of the SDK, is what makes it possible to find it, to cancel it and to answer for it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from acp import RequestError, telemetry
from pydantic import BaseModel, ValidationError

from quiesce.core.backends.asyncio.tasks import TaskJob, _task_done
from quiesce.core.hold import NOTHING
from quiesce.core.tree import ScopeState, logger
from quiesce.integrations.acp.witness import INCOMING, OUTGOING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from quiesce.core.scope import Scope
    from quiesce.integrations.acp.send_buffer import SendBuffer
    from quiesce.integrations.acp.witness import Witness

    Router = Callable[[str, Any, bool], Awaitable[Any]]

__all__: list[str] = []

REQUEST_CANCELLED = -32800
"""The protocol's error code for a request that was cancelled."""
REFUSED = -32001
"""The error code for a request that came when the agent was already draining."""
_CANCEL_METHOD = "$/cancel_request"
_ID_TYPES = (str, int, float, type(None))
_OPEN = ScopeState.OPEN
_NO_ID = object()
# Without telemetry its spans are empty, and still cost a twentieth of a small request.
_TRACED = (
    getattr(telemetry, "TRACER", True) is not None
    or getattr(telemetry, "logfire_span", True) is not None
)


class IncomingRequest(TaskJob[None]):
    """The task that handles one request, or one notification."""

    __slots__ = ("_method", "_number", "_table")

    _method: str
    _number: object
    _table: Requests

    @property
    def kind(self) -> str:
        """What sort of hold it is."""
        return "notification" if self._number is _NO_ID else "request"

    @property
    def name(self) -> str:
        """The method that was asked for."""
        return self._method

    @property
    def details(self) -> Mapping[str, object]:
        """The id that the peer has given it."""
        return NOTHING if self._number is _NO_ID else {"id": self._number}


class Requests:
    """What the peer has asked for and is being handled, on one connection."""

    def __init__(self, scope: Scope, outbox: SendBuffer, witness: Witness | None) -> None:
        """Hold the requests in this scope, and answer through this outbox."""
        self._scope = scope
        self._outbox = outbox
        self._witness = witness
        self._router: Router | None = None
        self._by_id: dict[object, IncomingRequest] = {}
        self._loop = asyncio.get_running_loop()
        self._clock = scope._backend.clock

    def serve(self, router: Router) -> None:
        """Set the router of the SDK that handles requests."""
        self._router = router

    def take(self, message: dict[str, Any]) -> bool:
        """Start to handle a message; return False if it is a response, which the SDK handles."""
        method = message.get("method")
        if method is None:
            return False
        if self._witness is not None:
            self._witness.tell(INCOMING, message)
        if "id" in message:
            self._take_request(message, method)
        elif method == _CANCEL_METHOD:
            params = message.get("params")
            self._cancel(params.get("requestId") if isinstance(params, dict) else None)
        elif isinstance(method, str):
            self._start(self._notified(method, message.get("params")), method, _NO_ID)
        return True

    def _take_request(self, message: dict[str, Any], method: object) -> None:
        number = message["id"]
        if not isinstance(number, _ID_TYPES) or not isinstance(method, str):
            self._answer(None, RequestError.invalid_request())
        elif self._scope._state is not _OPEN:
            text = "The agent is shutting down, and takes no new requests"
            self._answer(number, RequestError(REFUSED, text))
        elif number in self._by_id:
            details = {"details": f"a request with the id {number!r} is in flight"}
            self._answer(number, RequestError.invalid_request(details))
        else:
            handling = self._handle(method, number, message.get("params"))
            self._by_id[number] = self._start(handling, method, number)

    def _start(self, handling: Any, method: str, number: object) -> IncomingRequest:
        """Make the task and its hold, in one step."""
        task = IncomingRequest(handling, loop=self._loop)
        scope = self._scope
        task._node = scope
        task._since = self._clock()
        task._code_started, task._offset_started = None, 0
        task._key = None
        task._method = method
        task._number = number
        task._table = self
        task.add_done_callback(_ended)
        holds = scope._holds
        if not holds:
            scope._turned_busy()
        holds[task] = task
        return task

    def _cancel(self, number: object) -> None:
        task = self._by_id.get(number) if isinstance(number, _ID_TYPES) else None
        if task is not None:
            task.cancel()

    # The handling: what runs in the task.

    async def _handle(self, method: str, number: object, params: Any) -> None:
        """Call the agent, and answer; mirrors what the SDK does with results and errors."""
        try:
            result = await self._route(method, params, notified=False)
            if isinstance(result, BaseModel):
                result = result.model_dump(
                    mode="json", by_alias=True, exclude_none=True, exclude_unset=True
                )
            self._send({"jsonrpc": "2.0", "id": number, "result": result}, number)
        except RequestError as error:
            self._answer(number, error)
        except ValidationError as error:
            self._answer(number, RequestError.invalid_params({"errors": error.errors()}))
        except Exception as error:  # noqa: BLE001 - anything may come out of a handler
            logger.exception("the handler of %s failed", method)
            self._answer(number, RequestError.internal_error(_details(error)))
        outbox = self._outbox
        if outbox.size > outbox.size_max:
            await outbox.room()

    async def _notified(self, method: str, params: Any) -> None:
        try:
            await self._route(method, params, notified=True)
        except RequestError as error:
            logger.debug("the notification %s was not handled: %s", method, error)
        except Exception:  # noqa: BLE001 - likewise
            logger.exception("the handler of %s failed", method)

    def _route(self, method: str, params: Any, *, notified: bool) -> Awaitable[Any]:
        """Call the agent by the SDK's router."""
        assert self._router is not None  # noqa: S101 - nothing is read before
        if _TRACED:
            return _traced(self._router, method, params, notified=notified)
        return self._router(method, params, notified)

    # Answering.

    def _send(self, answer: dict[str, Any], number: object) -> None:
        self._outbox.post(answer)
        self._by_id.pop(number, None)
        if self._witness is not None:
            self._witness.tell(OUTGOING, answer)

    def _answer(self, number: object, error: RequestError) -> None:
        """Answer with an error; one that cannot be sent goes without its data."""
        answer = {"jsonrpc": "2.0", "id": number, "error": error.to_error_obj()}
        try:
            self._send(answer, number)
        except (TypeError, ValueError, RecursionError):
            answer["error"] = RequestError(error.code, str(error)).to_error_obj()
            self._send(answer, number)


def _ended(task: IncomingRequest) -> None:
    """See the end of a task; answer for it if it has not done so itself."""
    table, number = task._table, task._number
    if number in table._by_id and table._by_id[number] is task:
        del table._by_id[number]
        if task.cancelled():
            table._answer(number, RequestError(REQUEST_CANCELLED, "Request cancelled"))
        else:
            table._answer(number, RequestError.internal_error())
    _task_done(task)


async def _traced(router: Router, method: str, params: Any, *, notified: bool) -> Any:
    """Call the router inside of a span of the SDK's telemetry."""
    what = "acp.notification" if notified else "acp.request"
    with telemetry.span_context(what, attributes={"method": method}):
        return await router(method, params, notified)


def _details(error: Exception) -> Any:
    """Say what went wrong, as the SDK does: an error that speaks JSON is taken at its word."""
    try:
        return json.loads(str(error))
    except Exception:  # noqa: BLE001 - even its text may be out of order
        return {"details": str(error)}
