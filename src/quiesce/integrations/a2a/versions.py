"""What differs between a2a-sdk 0.3 and 1.x, in one place. No private name of either is used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from quiesce.integrations import sdk

VERSION = sdk.require("a2a-sdk", extra="a2a", oldest="0.3.22")

from a2a import types  # noqa: E402 - the version first: its error says what to install
from a2a.auth.user import User  # noqa: E402 - the same
from a2a.server.context import ServerCallContext  # noqa: E402 - the same
from a2a.server.request_handlers import DefaultRequestHandler, RequestHandler  # noqa: E402 - same
from a2a.utils import errors  # noqa: E402 - the same

try:
    from a2a.server.cluster import task_store as _shared
except ImportError:  # not in all
    _shared = None
VersionedStore: Any = getattr(_shared, "VersionedTaskStore", None)
"""The class of the stores that several servers share, if this version has them."""
_CONCURRENT: Any = getattr(_shared, "ConcurrentTaskModificationError", None)

FIRST = VERSION >= (1,)
"""Whether it is 1.x: messages of protobuf, one active task with its own loops for each task."""

Default: Any = DefaultRequestHandler
Handler: Any = RequestHandler

_TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 - the name of the header

if FIRST:
    from google.protobuf.json_format import MessageToDict

_STATE: Any = types.TaskState


def _state(name: str) -> Any:
    return _STATE.Value(f"TASK_STATE_{name.upper()}") if FIRST else getattr(_STATE, name)


TERMINAL: frozenset[Any] = frozenset(map(_state, ("completed", "canceled", "failed", "rejected")))
PARKED: frozenset[Any] = frozenset(map(_state, ("input_required", "auth_required")))
ENDS: frozenset[Any] = TERMINAL | PARKED
_TELLING = (types.Task, types.TaskStatusUpdateEvent)


def state_name(state: Any) -> str:
    """Name a state as people do: `working`, `input-required`."""
    return _wording(state).removeprefix("TASK_STATE_").replace("_", "-").lower()


def status_key(status: Any) -> bytes:
    """Return what tells one status from another."""
    key: bytes = (
        status.SerializeToString(deterministic=True)
        if FIRST
        else status.__pydantic_serializer__.to_json(status)  # model_dump_json(), as bytes
    )
    return key


def status_mark(status: Any) -> str:
    """Return what tells one status from another, also after a store that rounds its times."""
    message = status.message
    return f"{state_name(status.state)} {message.message_id if message else ''}"


def is_artifact(event: Any) -> bool:
    """Return whether an event is about a part of what a task makes."""
    return isinstance(event, types.TaskArtifactUpdateEvent)


def has_status(event: Any) -> bool:
    """Return whether an event tells of a state."""
    return isinstance(event, _TELLING)


def copied(task: Any) -> Any:
    """Return a copy of a task, or of anything else of the protocol."""
    if FIRST:
        copy = type(task)()
        copy.CopyFrom(task)
        return copy
    return task.model_copy(deep=True)


def new_status(state: str, task_id: str, context_id: str, why: str) -> Any:
    """Return a status, `"failed"` or `"canceled"`, that says why a task is in it."""
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
    """Return the event that tells of a status."""
    options = {} if FIRST else {"final": status.state in TERMINAL}
    return types.TaskStatusUpdateEvent(
        task_id=task_id, context_id=context_id, status=status, **options
    )


def failed_task(task: Any, why: str) -> Any:
    """Return a copy of a task that has failed, and says why."""
    copy = copied(task)
    status = new_status("failed", task.id, task.context_id, why)
    if FIRST:
        copy.status.CopyFrom(status)
    else:
        copy.status = status
    return copy


def payload(event: Any) -> bytes:
    """Return the body of a push, as the SDK's own sender has it."""
    if not FIRST:
        return json.dumps(event.model_dump(mode="json", exclude_none=True)).encode()
    kinds = {
        types.Task: "task",
        types.TaskStatusUpdateEvent: "status_update",
        types.TaskArtifactUpdateEvent: "artifact_update",
    }
    response = types.StreamResponse(**{kinds[type(event)]: event})
    return json.dumps(MessageToDict(response)).encode()


def told_of(task: Any, *, new: bool) -> Any:
    """Return what a push tells of a task whose status has changed: all of it, or the status."""
    if new or not FIRST:
        return task
    return status_event(task.id, task.context_id, task.status)


async def configs(store: Any, task_id: str, context: Any) -> list[Any]:
    """Return the push configurations of a task, those of all its owners."""
    if hasattr(store, "get_info_for_dispatch"):
        found = await store.get_info_for_dispatch(task_id)
    elif FIRST:
        found = await store.get_info(task_id, context)
    else:
        found = await store.get_info(task_id)
    return [one for one in found or () if one.url]  # 1.0 stores one for a message without any


def push_headers(config: Any) -> dict[str, str]:
    """Return the headers by which a push is known to its receiver, as its configuration says."""
    headers = {_TOKEN_HEADER: config.token} if config.token else {}
    found = config.authentication
    if found is not None and found.credentials:
        scheme = found.scheme if FIRST else next(iter(found.schemes), "")
        if scheme:
            headers["Authorization"] = f"{scheme} {found.credentials}"
    return headers


class _Owner(User):  # type: ignore[misc]  # no types here
    """The user to whom a task belongs, as far as it is known after a restart."""

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
    """Return the context of a call by a user who is known by name only."""
    options: dict[str, Any] = {"tenant": tenant} if FIRST else {}
    if user:
        options["user"] = _Owner(user)
    return ServerCallContext(**options)


def error(kind: str, why: str) -> Exception:
    """Return an error of the protocol, by the name of its class: `"InternalError"`."""
    made: Exception = (
        getattr(errors, kind)(message=why)
        if FIRST
        else errors.ServerError(error=getattr(types, kind)(message=why))
    )
    return made


def refusal(why: str) -> Exception:
    """Return the error that says that a request is not taken."""
    return error("InternalError", why)


def is_terminal_error(task: Any) -> Exception:
    """Return the error for a message to a task that has ended, as the SDK words it."""
    kind = "UnsupportedOperationError" if VERSION >= (1, 2) else "InvalidParamsError"
    return error(kind, f"Task {task.id} is in terminal state: {_wording(task.status.state)}")


def not_cancelable(task_id: str, state: Any) -> Exception:
    """Return the error for a wish to cancel a task that has ended."""
    why = f"Task {task_id} cannot be canceled: it is {state_name(state)}"
    return error("TaskNotCancelableError", why)


def _wording(state: Any) -> str:
    return str(_STATE.Name(state) if FIRST else state.value)


def new_task(context: Any) -> Any:
    """Return the task of a request, as it is at its beginning."""
    return types.Task(
        id=context.task_id,
        context_id=context.context_id,
        status=types.TaskStatus(state=_state("submitted")),
        history=[context.message] if context.message else [],
    )


def part_of(coro: Any) -> str:
    """Name the class of 1.x whose method a coroutine is."""
    return str(getattr(coro, "__qualname__", "")).partition(".")[0]


def parks(event: Any) -> bool:
    """Return whether an event says that a task waits for its client."""
    return has_status(event) and event.status.state in PARKED


def is_concurrent(raised: BaseException) -> bool:
    """Return whether a shared store says that a task has changed meanwhile."""
    return _CONCURRENT is not None and isinstance(raised, _CONCURRENT)


def concurrent(task_id: str) -> Exception:
    """Return the error of a shared store for a task that has changed meanwhile."""
    made: Exception = _CONCURRENT(task_id)
    return made
