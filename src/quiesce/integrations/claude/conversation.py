"""One conversation with the CLI: what owns the things it starts, and how all of them end.

Rules:

1. Two scopes inside the caller's own everything: one the SDK's tasks and the transport, the other the
   user's functions that the SDK calls (hooks, `can_use_tool`). They are closed at the same time.
2. A transport is connected and closed by its own task, so a cancelled caller or a close from another
   task cannot interfere; a cancelled `connect` is followed by `close`.
3. Closing the SDK's transport closes the CLI's input, lets the CLI finish for `grace` seconds, then
   stops its process group: SIGTERM, SIGKILL. When that returns, the whole group is gone.
4. The user's functions run as jobs. If the SDK forgets a job, the close still waits for it. A job that
   does not end in time is in the report and in the log.
5. Every wait is limited by the conversation's `seconds`, or by the deadline of a surrounding scope.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce.core import close_callers
from quiesce.core.current import current_scope
from quiesce.core.python_private import get_frame
from quiesce.core.report import ReportEntry
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import JobCancelled, ScopeClosed, UsageError
from quiesce.integrations.claude import cli_process
from quiesce.streams.stream import stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from quiesce.core.job import Job
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode
    from quiesce.integrations.claude.handover import ReceivingEnd

__all__: list[str] = []

CLI = "claude"
_TERMINATE_SECONDS = 1.0  # the longest time from SIGTERM to SIGKILL
_STEPS_SECONDS = 1.0  # for the steps of the SDK itself to disconnect
_RESERVE_SHARE = 0.25  # the part of a short close that is kept for the steps after the CLI's grace
_LAST_SHARE = 0.1  # the part of that reserve that is kept to report a transport that was given up

active: ContextVar[Conversation | None] = ContextVar("quiesce.claude.conversation", default=None)
"""The conversation whose tasks run this code; None in all code except the SDK's."""

connecting: ContextVar[CliConnection | None] = ContextVar("quiesce.claude.connection", default=None)
"""The connection that is being made: it owns the processes that are opened meanwhile."""


class Conversation:
    """The owner of one use of the SDK, from its first step until everything of it is gone."""

    def __init__(self, owner: Scope, name: str, grace: float) -> None:
        """Open the scopes in one step, which cannot be cancelled."""
        self.grace = grace
        self.terminate_seconds: float = min(grace, _TERMINATE_SECONDS)
        self.seconds: float = grace + self.terminate_seconds + _STEPS_SECONDS
        asyncio = owner.backend.name != "trio"
        self.scope: Scope = owner.child(
            name, adopt=asyncio, services=("*",), on_error=_log_failure, cleanup=self.seconds
        )
        self.callbacks: Scope = owner.child(
            f"{name} callbacks", on_error=_log_failure, cleanup=self.seconds
        )
        self.streams: list[Any] = []  # the SDK's streams, which some versions do not close
        self.receiving: ReceivingEnd | None = None  # the messages, once the SDK has begun
        self.report: Report | None = None
        self._given_up: list[ReportEntry] = []  # transports whose close took too long
        self._ending_since: float | None = None

    # Starting.

    def start(self, body: Coroutine[Any, Any, Any], name: str) -> Job[Any] | None:
        """Start a task of the SDK. If the conversation is over, close the coroutine and return None."""
        here = current_scope()
        scope = here if here is not None and here.is_within(self.scope) else self.scope
        return _start(scope, body, name, service=True)

    def owned(self, fn: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
        """Wrap one of the user's functions, so that the callbacks' scope owns it while it runs."""

        async def call(*args: Any, **options: Any) -> Any:
            job = _start(self.callbacks, _call_outside(fn, args, options), name, service=False)
            if job is None:
                message = f"the conversation is over: {name} was not called"
                raise ScopeClosed(message)
            try:
                return await job
            except JobCancelled:
                # As with the SDK alone: no answer, because the canceller also ends this task.
                await anyio.sleep_forever()
            except self.scope.backend.cancelled:
                if (
                    self.callbacks.phase is not ScopeState.CLOSING
                ):  # otherwise the close has already asked the job to stop
                    job.cancel()
                raise

        return call

    def is_ready(self) -> bool:
        """Return whether the SDK would yield a message without waiting."""
        return self.receiving is not None and self.receiving.is_ready()

    # Arguments for the SDK.

    def options(self, given: Any) -> Any:
        """Return the options with all of the user's functions wrapped."""
        changes: dict[str, Any] = {}
        if given.hooks:
            changes["hooks"] = {
                event: [self._matcher(event, matcher) for matcher in matchers]
                for event, matchers in given.hooks.items()
            }
        if given.can_use_tool is not None:
            changes["can_use_tool"] = self.owned(given.can_use_tool, "can_use_tool")
        return replace(given, **changes) if changes else given

    def _matcher(self, event: str, matcher: Any) -> Any:
        if not is_dataclass(matcher) or isinstance(matcher, type):
            return matcher
        hooks = [self.owned(hook, f"{event} hook") for hook in getattr(matcher, "hooks", ())]
        return replace(matcher, hooks=hooks)

    def prompt(self, given: Any) -> Any:
        """Return the prompt; an async iterable is wrapped, so that it closes with the conversation."""
        if given is None or isinstance(given, str) or not hasattr(given, "__aiter__"):
            return given
        return stream(given, scope=self.scope, name="claude prompt")

    # The end.

    def time_left(self) -> float:
        """Return how long the end may take: `seconds`, or what a surrounding scope has left."""
        left = self.seconds
        node: TreeNode | None = current_scope()
        while node is not None:
            if node.close_plan is not None:
                left = min(left, max(0.0, node.close_plan.join_by - node.backend.clock()))
            node = node.parent
        return left

    async def aclose(self) -> Report:
        """End everything, and wait until it has ended, within the time limit.

        *Cancel safety*: if cancelled, the close continues; the cancellation is passed on when it is
        complete.
        """
        self.begin_to_end()
        callbacks, early = close_callers.begin_close(self.callbacks, 0.0, self.seconds)
        sdk: Report | None = None
        told: Report | None = None
        try:
            sdk = await self.scope.aclose(cleanup=self.seconds)
        finally:
            try:
                told = await close_callers.join_close(
                    self.callbacks, callbacks, early=early, patient=False
                )
            finally:  # even if the caller was cancelled: both scopes are closed then
                self._conclude(sdk, told)
        assert self.report is not None  # noqa: S101 - both scopes have a report now
        return self.report

    def begin_to_end(self) -> None:
        """Record when the end began, for the report; the SDK may take the first step."""
        if self._ending_since is None:
            self._ending_since = self.scope.backend.clock()

    def _conclude(self, sdk: Report | None, callbacks: Report | None) -> None:
        """Combine the reports of both scopes, in one step."""
        self.close_streams()
        sdk = self.scope.report if sdk is None else sdk
        callbacks = self.callbacks.report if callbacks is None else callbacks
        if sdk is None or callbacks is None:
            return
        assert self._ending_since is not None  # noqa: S101 - see aclose()
        self.report = replace(
            sdk,
            seconds=self.scope.backend.clock() - self._ending_since,
            completed=sdk.completed + callbacks.completed,
            cancelled=(*sdk.cancelled, *self._given_up, *callbacks.cancelled),
            stuck=(*sdk.stuck, *callbacks.stuck),
            handled=sdk.handled + callbacks.handled,
        )
        if self.report.stuck or self._given_up or any(item.name == CLI for item in sdk.cancelled):
            logger.warning("a conversation with Claude was not ended cleanly:\n%s", self.report)

    def close_streams(self) -> None:
        """Close the SDK's memory streams, which some of its versions leave open. Idempotent."""
        for stream_end in self.streams:
            stream_end.close()

    def give_up(self, transport: str, seconds: float) -> None:
        """Add a transport that has not closed in time to the report."""
        details = {"close": f"given up after {seconds:.1f} s"}
        lost = ReportEntry("transport", transport, self.scope.name, None, seconds, details)
        self._given_up.append(lost)


def _start(
    scope: Scope, body: Coroutine[Any, Any, Any], name: str, *, service: bool
) -> Job[Any] | None:
    """Start a job, even while the scope is draining: the work in flight needs it to finish."""
    if scope.phase not in {ScopeState.OPEN, ScopeState.DRAINING}:
        body.close()
        return None
    frame = get_frame(2)
    job = scope.start_job(scope, body, name, frame.f_code, frame.f_lasti)
    if service:
        scope.services[job] = job  # type: ignore[assignment]  # a job is Held
    else:
        scope.insert_hold(job, job)  # type: ignore[arg-type]  # likewise
    return job


async def _call_outside(fn: Callable[..., Awaitable[Any]], args: Any, options: Any) -> Any:
    """Call one of the user's functions outside the conversation: its own use of the SDK is separate."""
    active.set(None)
    connecting.set(None)
    return await fn(*args, **options)


def _log_failure(job: object, error: BaseException) -> None:
    """Log a failure; the SDK gets it too, and answers the CLI with it."""
    logger.debug("%r of a conversation with Claude failed", job, exc_info=error)


class CliConnection:
    """The life of a transport: its own task enters it by connecting, and leaves it by closing."""

    def __init__(
        self,
        conversation: Conversation,
        name: str,
        connect: Callable[[], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """Store the functions; `enter()` connects."""
        self._conversation = conversation
        self._name = name
        self._connect = connect
        self._close = close
        self._scope: Scope | None = None
        self._readings: list[Any] = []
        self.processes: list[cli_process.CliProcess] = []

    async def enter(self) -> None:
        """Connect, in the current scope or the conversation's.

        *Cancel safety*: if cancelled, the transport is closed and its processes are gone before the
        cancellation is passed on.

        *Raises*: the errors of the transport's `connect`.
        """
        here = current_scope()
        inside = here is not None and here.is_within(self._conversation.scope)
        self._scope = here if inside else self._conversation.scope
        assert self._scope is not None  # noqa: S101 - for mypy
        await self._scope.enter(self)

    async def exit(self) -> None:
        """Close, and wait until the transport is closed or given up. Idempotent, from any task.

        *Cancel safety*: if cancelled, the closing continues; the cancellation is passed on when it is
        complete.

        *Raises*: the errors of the transport's `close`.
        """
        if self._scope is not None:
            try:
                await self._scope.exit(self)
            except UsageError:
                return  # it was closed before

    async def open_process(self, command: Any, **options: Any) -> cli_process.CliProcess:
        """Start a process of this connection; the SDK calls this as `anyio.open_process`."""
        scope = current_scope()
        assert scope is not None  # noqa: S101 - this context always has one
        process = await cli_process.open_process(
            scope,
            command,
            name=f"{CLI} -v"
            if command[-1] == "-v"
            else CLI,  # older SDKs ask the CLI for its version
            grace=self._conversation.terminate_seconds,
            stderr=options.get("stderr"),
            cwd=options.get("cwd"),
            env=options.get("env"),
            user=options.get("user"),
        )
        self.processes.append(process)
        return process

    async def __aenter__(self) -> Self:
        """Connect; if that fails or is cancelled, close at once."""
        active.set(self._conversation)
        connecting.set(self)
        try:
            await self._connect()
        except BaseException:
            await self._end(forgiving=True)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close, even if this task was cancelled."""
        await self._end(forgiving=False)

    async def _end(self, *, forgiving: bool) -> None:
        conversation = self._conversation
        conversation.begin_to_end()
        seconds = conversation.time_left()
        reserve = min(conversation.seconds - conversation.grace, seconds * _RESERVE_SHARE)
        with anyio.move_on_after(seconds - reserve * _LAST_SHARE, shield=True) as bound:
            for process in self.processes:
                await process.shut(min(conversation.grace, seconds - reserve))
            try:
                await self._close()
            except Exception:
                if not forgiving:
                    raise
                logger.debug("closing a transport that did not connect failed", exc_info=True)
            for reading in self._readings:
                if hasattr(reading, "aclose"):
                    with suppress(Exception):  # it still runs, or raises as the process has ended
                        await reading.aclose()
        if bound.cancelled_caught:
            conversation.give_up(self._name, seconds)

    def reading(self, messages: Any) -> Any:
        """Return an iterator over messages; the connection's end closes its generator."""
        reading: Any = aiter(messages)
        self._readings.append(reading)
        return reading


class OwnedTransport:
    """A transport of the user, connected and closed by its own task."""

    def __init__(self, inner: Any) -> None:
        """Wrap the transport; it belongs to the conversation that connects it."""
        self._inner = inner
        self._connection: CliConnection | None = None

    async def connect(self) -> None:
        """Connect the transport; if cancelled, close it before the cancellation is passed on."""
        conversation = active.get()
        assert conversation is not None  # noqa: S101 - only the adapter passes this object to the SDK
        inner = self._inner
        name = type(inner).__qualname__
        connection = CliConnection(conversation, name, inner.connect, inner.close)
        self._connection = connection
        await connection.enter()

    def read_messages(self) -> Any:
        messages = self._inner.read_messages()
        return messages if self._connection is None else self._connection.reading(messages)

    async def close(self) -> None:
        """Close the transport, within the time limit."""
        if self._connection is not None:
            await self._connection.exit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
