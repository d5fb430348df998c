"""The differences between a2a-sdk 0.3 and 1.x, in one place.

The other modules of this adapter import the SDK's types and errors from here. This module uses only
public names of the SDK.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from quiesce.integrations import sdk

VERSION = sdk.require("a2a-sdk", extra="a2a", oldest="0.3.22")

from a2a import types  # noqa: E402 - the version check comes first: its error says what to install
from a2a.auth.user import User  # noqa: E402 - the same
from a2a.server.context import ServerCallContext  # noqa: E402 - the same
from a2a.server.request_handlers import DefaultRequestHandler, RequestHandler  # noqa: E402 - same
from a2a.utils import errors  # noqa: E402 - the same

try:
    from a2a.server.cluster import task_store as _shared
except ImportError:  # some versions do not have this module
    _shared = None
VersionedStore: Any = getattr(_shared, "VersionedTaskStore", None)
"""The SDK's class of stores that several servers share; None if this version of the SDK has no such class."""
_CONCURRENT: Any = getattr(_shared, "ConcurrentTaskModificationError", None)

FIRST = VERSION >= (1,)
"""Whether the SDK is 1.x: its messages are protobuf, and it runs loops of its own for each task."""

Default: Any = DefaultRequestHandler
Handler: Any = RequestHandler

_TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 - the name of the header

if FIRST:
    from google.protobuf.json_format import MessageToDict

_STATE: Any = types.TaskState


def _state(name: str) -> Any:
    return _STATE.Value(f"TASK_STATE_{name.upper()}") if FIRST else getattr(_STATE, name)


COMPLETED: Any = _state("completed")
TERMINAL: frozenset[Any] = frozenset(map(_state, ("completed", "canceled", "failed", "rejected")))
PARKED: frozenset[Any] = frozenset(map(_state, ("input_required", "auth_required")))
ENDS: frozenset[Any] = TERMINAL | PARKED
_STATUS_EVENTS = (types.Task, types.TaskStatusUpdateEvent)


def state_name(state: Any) -> str:
    """Return the name of a state as people write it: `working`, `input-required`."""
    return _sdk_state_name(state).removeprefix("TASK_STATE_").replace("_", "-").lower()


def status_key(status: Any) -> bytes:
    """Return bytes that are equal for equal statuses."""
    key: bytes = (
        status.SerializeToString(deterministic=True)
        if FIRST
        else status.__pydantic_serializer__.to_json(status)  # the bytes of model_dump_json()
    )
    return key


def status_mark(status: Any) -> str:
    """Return a key of a status that ignores its timestamp, because some stores round timestamps."""
    message = status.message
    return f"{state_name(status.state)} {message.message_id if message else ''}"


def is_artifact(event: Any) -> bool:
    """Return whether an event carries an artifact of a task."""
    return isinstance(event, types.TaskArtifactUpdateEvent)


def has_status(event: Any) -> bool:
    """Return whether an event carries a task's status."""
    return isinstance(event, _STATUS_EVENTS)


def copied(task: Any) -> Any:
    """Return a deep copy of a task, or of any other protocol object."""
    if FIRST:
        copy = type(task)()
        copy.CopyFrom(task)
        return copy
    return task.model_copy(deep=True)


def new_status(state: str, task_id: str, context_id: str, why: str) -> Any:
    """Return a new status, `"failed"` or `"canceled"`, with a message that gives the reason."""
    message = types.Message(
        message_id=uuid4().hex,
        role=types.Role.Value("ROLE_AGENT") if FIRST else types.Role.agent,
        task_id=task_id,
        context_id=context_id,
        parts=[types.Part(text=why) if FIRST else types.Part(root=types.TextPart(text=why))],
    )
    status = types.TaskStatus(state=_state(state), message=message)
    if FIRST:
        status.timestamp.GetCurrentTime()
    else:
        status.timestamp = datetime.now(UTC).isoformat()
    return status


def status_event(task_id: str, context_id: str, status: Any) -> Any:
    """Return the event that carries a status."""
    options = {} if FIRST else {"final": status.state in TERMINAL}
    return types.TaskStatusUpdateEvent(
        task_id=task_id, context_id=context_id, status=status, **options
    )


def failed_task(task: Any, why: str) -> Any:
    """Return a copy of a task with the status FAILED and a message that gives the reason."""
    copy = copied(task)
    status = new_status("failed", task.id, task.context_id, why)
    if FIRST:
        copy.status.CopyFrom(status)
    else:
        copy.status = status
    return copy


def payload(event: Any) -> bytes:
    """Return the body of a push, in the format of the SDK's own sender."""
    if not FIRST:
        return json.dumps(event.model_dump(mode="json", exclude_none=True)).encode()
    kinds = {
        types.Task: "task",
        types.TaskStatusUpdateEvent: "status_update",
        types.TaskArtifactUpdateEvent: "artifact_update",
    }
    response = types.StreamResponse(**{kinds[type(event)]: event})
    return json.dumps(MessageToDict(response)).encode()


def event_to_push(task: Any, *, new: bool) -> Any:
    """Return the event to push for a task whose status has changed: the whole task, or only the status."""
    if new or not FIRST:
        return task
    return status_event(task.id, task.context_id, task.status)


async def configs(store: Any, task_id: str, context: Any) -> list[Any]:
    """Return the push configurations of a task, of all its owners."""
    if hasattr(store, "get_info_for_dispatch"):
        found = await store.get_info_for_dispatch(task_id)
    elif FIRST:
        found = await store.get_info(task_id, context)
    else:
        found = await store.get_info(task_id)
    # 1.0 stores a configuration without a URL for a message that asks for no pushes.
    return [config for config in found or () if config.url]


def push_headers(config: Any) -> dict[str, str]:
    """Return the token and credentials of a push configuration, as headers of the push."""
    headers = {_TOKEN_HEADER: config.token} if config.token else {}
    found = config.authentication
    if found is not None and found.credentials:
        scheme = found.scheme if FIRST else next(iter(found.schemes), "")
        if scheme:
            headers["Authorization"] = f"{scheme} {found.credentials}"
    return headers


class _Owner(User):  # type: ignore[misc]  # the SDK has no types here
    """The owner of a task that an earlier process accepted; only the user's name is known."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def user_name(self) -> str:
        return self._name

    @property
    def is_authenticated(self) -> bool:
        return True


def user_and_tenant(context: Any) -> tuple[str, str]:
    """Return the names of the user and the tenant of a call."""
    user = getattr(getattr(context, "user", None), "user_name", "") or ""
    return user, (getattr(context, "tenant", "") or "" if FIRST else "")  # 0.3 has no tenants


def context_of(user: str, tenant: str) -> Any:
    """Return a call context for a user of whom only the name is known."""
    options: dict[str, Any] = {"tenant": tenant} if FIRST else {}
    if user:
        options["user"] = _Owner(user)
    return ServerCallContext(**options)


def error(kind: str, why: str) -> Exception:
    """Return a protocol error, given the name of its class, such as `"InternalError"`."""
    made: Exception = (
        getattr(errors, kind)(message=why)
        if FIRST
        else errors.ServerError(error=getattr(types, kind)(message=why))
    )
    return made


def refusal(why: str) -> Exception:
    """Return the error for a request that the server refuses."""
    return error("InternalError", why)


def is_terminal_error(task: Any) -> Exception:
    """Return the error for a message to a task that has ended, with the SDK's wording."""
    kind = "UnsupportedOperationError" if VERSION >= (1, 2) else "InvalidParamsError"
    return error(kind, f"Task {task.id} is in terminal state: {_sdk_state_name(task.status.state)}")


def not_cancelable(task_id: str, state: Any) -> Exception:
    """Return the error for a request to cancel a task that has ended."""
    why = f"Task {task_id} cannot be canceled: it is {state_name(state)}"
    return error("TaskNotCancelableError", why)


def _sdk_state_name(state: Any) -> str:
    return str(_STATE.Name(state) if FIRST else state.value)


def new_task(context: Any) -> Any:
    """Return the task that a request starts, in its first state."""
    return types.Task(
        id=context.task_id,
        context_id=context.context_id,
        status=types.TaskStatus(state=_state("submitted")),
        history=[context.message] if context.message else [],
    )


def part_of(coro: Any) -> str:
    """Return the name of the class of 1.x that a coroutine is a method of."""
    return str(getattr(coro, "__qualname__", "")).partition(".")[0]


def parks(event: Any) -> bool:
    """Return whether an event puts a task into a state in which it waits for its client."""
    return has_status(event) and event.status.state in PARKED


def is_concurrent(raised: BaseException) -> bool:
    """Return whether an error of a shared store means that another server has changed the task."""
    return _CONCURRENT is not None and isinstance(raised, _CONCURRENT)


def concurrent(task_id: str) -> Exception:
    """Return the error by which a shared store reports that another server has changed a task."""
    made: Exception = _CONCURRENT(task_id)
    return made
