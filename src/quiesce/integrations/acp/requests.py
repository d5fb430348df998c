"""The peer's requests to an agent: each request in handling is a task, and its own kind of hold.

Rules:

1. A request is held from the step that accepts it until its handler has ended.
2. Every accepted request is answered, or the connection ends. That includes requests whose handler was
   cancelled, by any code, and handlers whose result cannot be sent.
3. Once the scope drains, requests are refused with an answer. Notifications are still handled and
   responses still passed on, because the work in flight may need them to finish.

The SDK's own router calls the agent's methods, in all versions. Each request is a task of quiesce, not
of the SDK; that makes it possible to find the request, to cancel it and to answer for it.
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
"""The error code for a request that arrived while the agent was draining."""
_CANCEL_METHOD = "$/cancel_request"
_ID_TYPES = (str, int, float, type(None))
_OPEN = ScopeState.OPEN
_NO_ID = object()
# Without telemetry the spans are empty, but still take a twentieth of the time of a small request.
_TRACED = (
    getattr(telemetry, "TRACER", True) is not None
    or getattr(telemetry, "logfire_span", True) is not None
)


class IncomingRequest(TaskJob[None]):
    """The task that handles one request or one notification."""

    __slots__ = ("method_name", "request_id", "requests_table")

    method_name: str
    request_id: object
    requests_table: Requests

    @property
    def kind(self) -> str:
        return "notification" if self.request_id is _NO_ID else "request"

    @property
    def name(self) -> str:
        return self.method_name

    @property
    def details(self) -> Mapping[str, object]:
        return NOTHING if self.request_id is _NO_ID else {"id": self.request_id}


class Requests:
    """The peer's requests in handling, on one connection."""

    def __init__(self, scope: Scope, outbox: SendBuffer, witness: Witness | None) -> None:
        """Hold the requests in this scope, and answer through this outbox."""
        self._scope = scope
        self._outbox = outbox
        self._witness = witness
        self._router: Router | None = None
        self.by_id: dict[object, IncomingRequest] = {}
        self._loop = asyncio.get_running_loop()
        self._clock = scope.backend.clock

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
            self.answer_error(None, RequestError.invalid_request())
        elif self._scope.phase is not _OPEN:
            self.refuse_closing(number)
        elif number in self.by_id:
            details = {
                "details": f"a request with the id {number!r} is already in flight: use another id"
            }
            self.answer_error(number, RequestError.invalid_request(details))
        else:
            handling = self._handle(method, number, message.get("params"))
            self.by_id[number] = self._start(handling, method, number)

    def _start(self, handling: Any, method: str, number: object) -> IncomingRequest:
        """Start the task and its hold in one step."""
        task = IncomingRequest(handling, loop=self._loop)
        scope = self._scope
        task.owner_node = scope
        task.began_at = self._clock()
        task.started_code, task.started_offset = None, 0
        task.spawn_key = None
        task.method_name = method
        task.request_id = number
        task.requests_table = self
        task.add_done_callback(_ended)
        holds = scope.holds
        if not holds:
            scope.note_busy()
        holds[task] = task
        return task

    def _cancel(self, number: object) -> None:
        task = self.by_id.get(number) if isinstance(number, _ID_TYPES) else None
        if task is not None:
            task.cancel()

    # Handling: the code that runs in the task.

    async def _handle(self, method: str, number: object, params: Any) -> None:
        """Call the agent, and answer; results and errors are treated as in the SDK."""
        try:
            result = await self._route(method, params, notified=False)
            if isinstance(result, BaseModel):
                result = result.model_dump(
                    mode="json", by_alias=True, exclude_none=True, exclude_unset=True
                )
            self._send({"jsonrpc": "2.0", "id": number, "result": result}, number)
        except RequestError as error:
            self.answer_error(number, error)
        except ValidationError as error:
            self.answer_error(number, RequestError.invalid_params({"errors": error.errors()}))
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            logger.exception("the handler of %s failed", method)
            self.answer_error(number, RequestError.internal_error(_details(error)))
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
        """Call the agent through the SDK's router."""
        assert self._router is not None  # noqa: S101 - it is set before anything is read
        if _TRACED:
            return _traced(self._router, method, params, notified=notified)
        return self._router(method, params, notified)

    # Answering.

    def _send(self, answer: dict[str, Any], number: object) -> None:
        self._outbox.post(answer)
        self.by_id.pop(number, None)
        if self._witness is not None:
            self._witness.tell(OUTGOING, answer)

    def refuse_closing(self, number: object) -> None:
        """Answer that the agent is shutting down."""
        text = "The agent is shutting down and accepts no new requests"
        self.answer_error(number, RequestError(REFUSED, text))

    def answer_error(self, number: object, error: RequestError) -> None:
        """Answer with an error; leave its data out if that cannot be sent."""
        answer = {"jsonrpc": "2.0", "id": number, "error": error.to_error_obj()}
        try:
            self._send(answer, number)
        except (TypeError, ValueError, RecursionError):
            answer["error"] = RequestError(error.code, str(error)).to_error_obj()
            self._send(answer, number)


def _ended(task: IncomingRequest) -> None:
    """Record the end of a task; answer for the task if it has not answered itself."""
    table, number = task.requests_table, task.request_id
    if number in table.by_id and table.by_id[number] is task:
        del table.by_id[number]
        if task.cancelled():
            table.answer_error(number, RequestError(REQUEST_CANCELLED, "Request cancelled"))
        else:
            table.answer_error(number, RequestError.internal_error())
    _task_done(task)


async def _traced(router: Router, method: str, params: Any, *, notified: bool) -> Any:
    """Call the router inside a span of the SDK's telemetry."""
    what = "acp.notification" if notified else "acp.request"
    with telemetry.span_context(what, attributes={"method": method}):
        return await router(method, params, notified)


def _details(error: Exception) -> Any:
    """Return the details of an error, as the SDK does: parsed, if the error's text is JSON."""
    try:
        return json.loads(str(error))
    except Exception:  # noqa: BLE001 - even `str(error)` may raise
        return {"details": str(error)}
