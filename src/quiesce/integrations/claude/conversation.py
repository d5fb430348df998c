"""One conversation with the CLI: who owns what it starts, and how all of it ends.

What holds:

1. Two scopes below the caller's have everything: one the SDK's tasks and the transport, the other
   the user's own functions that the SDK calls (hooks, `can_use_tool`). They are closed side by side.
2. A transport is connected and closed by one task of its own, so neither a cancelled caller nor a
   close from another task can come in between; a cancelled `connect` is followed by `close`.
3. Closing the SDK's transport ends the CLI's input, lets it finish for `grace` seconds, then stops
   its process group: SIGTERM, SIGKILL. When that returns, nothing of the group is left.
4. The user's functions run as jobs. If the SDK forgets one, the close still waits for it, and what
   does not end within the bound is in the report, and in the log.
5. Every wait is bounded by the conversation's `seconds`, or by the deadline of a scope around it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce.core import close_callers
from quiesce.core.current import current_scope
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
_TERMINATE_SECONDS = 1.0  # at most, from SIGTERM to SIGKILL
_STEPS_SECONDS = 1.0  # for what the SDK itself does to disconnect
_RESERVE_SHARE = 0.25  # of a close that has less time than all of this
_LAST_SHARE = 0.1  # of the reserve, to be told what was given up

active: ContextVar[Conversation | None] = ContextVar("quiesce.claude.conversation", default=None)
"""The conversation in whose tasks the running code is; None in all code but the SDK's."""

connecting: ContextVar[CliConnection | None] = ContextVar("quiesce.claude.connection", default=None)
"""The connection that is being made: the processes that are opened meanwhile are its own."""


class Conversation:
    """What owns one use of the SDK, from its first step until nothing of it is left."""

    def __init__(self, owner: Scope, name: str, grace: float) -> None:
        """Open the scopes; in one step, so there is nothing to cancel."""
        self.grace = grace
        self.terminate_seconds: float = min(grace, _TERMINATE_SECONDS)
        self.seconds: float = grace + self.terminate_seconds + _STEPS_SECONDS
        asyncio = owner._backend.name != "trio"
        self.scope: Scope = owner.child(
            name, adopt=asyncio, services=("*",), on_error=_handled, cleanup=self.seconds
        )
        self.callbacks: Scope = owner.child(
            f"{name} callbacks", on_error=_handled, cleanup=self.seconds
        )
        self.streams: list[Any] = []  # of the SDK's, which some versions do not close
        self.receiving: ReceivingEnd | None = None  # the messages, as soon as the SDK has begun
        self.report: Report | None = None
        self._given_up: list[ReportEntry] = []  # transports whose close took too long
        self._ending_since: float | None = None

    # What is started.

    def start(self, body: Coroutine[Any, Any, Any], name: str) -> Job[Any] | None:
        """Start a task of the SDK; None, and it never runs, if the conversation is over."""
        here = current_scope()
        scope = here if here is not None and here._is_within(self.scope) else self.scope
        return _start(scope, body, name, service=True)

    def owned(self, fn: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
        """Wrap a function of the user's, so that the callbacks' scope has it while it runs."""

        async def call(*args: Any, **options: Any) -> Any:
            job = _start(self.callbacks, _plainly(fn, args, options), name, service=False)
            if job is None:
                message = f"the conversation is over: {name} was not called"
                raise ScopeClosed(message)
            try:
                return await job
            except JobCancelled:
                # As with the SDK alone: no answer, and whoever cancelled it ends this task, too.
                await anyio.sleep_forever()
            except self.scope._backend.cancelled:
                if (
                    self.callbacks._state is not ScopeState.CLOSING
                ):  # or it was asked to stop already
                    job.cancel()
                raise

        return call

    def is_ready(self) -> bool:
        """Return whether the SDK would give a message without waiting."""
        return self.receiving is not None and self.receiving.is_ready()

    # What the SDK is given.

    def options(self, given: Any) -> Any:
        """Return the options with every function of the user's wrapped."""
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
        """Return a prompt that is closed along with the conversation, if it is an async iterable."""
        if given is None or isinstance(given, str) or not hasattr(given, "__aiter__"):
            return given
        return stream(given, scope=self.scope, name="claude prompt")

    # The end.

    def time_left(self) -> float:
        """Return how long the end may take: less, if a scope around the running code has less time."""
        left = self.seconds
        node: TreeNode | None = current_scope()
        while node is not None:
            if node._closing is not None:
                left = min(left, max(0.0, node._closing.join_by - node._backend.clock()))
            node = node._parent
        return left

    async def aclose(self) -> Report:
        """End everything, and wait until it has ended, within the bound.

        *Cancel safety*: the close goes on, and is waited for, before the cancellation is passed
        on.
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
            finally:  # also for a caller that was cancelled: then both scopes are closed
                self._conclude(sdk, told)
        assert self.report is not None  # noqa: S101 - there are both reports
        return self.report

    def begin_to_end(self) -> None:
        """Note the time of the first step of the end, for the report: the SDK may take that step."""
        if self._ending_since is None:
            self._ending_since = self.scope._backend.clock()

    def _conclude(self, sdk: Report | None, callbacks: Report | None) -> None:
        """Make one report of both scopes; in one step."""
        self.close_streams()
        sdk = self.scope.report if sdk is None else sdk
        callbacks = self.callbacks.report if callbacks is None else callbacks
        if sdk is None or callbacks is None:
            return
        assert self._ending_since is not None  # noqa: S101 - see aclose()
        self.report = replace(
            sdk,
            seconds=self.scope._backend.clock() - self._ending_since,
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
        """Note in the report that a transport has not closed in time."""
        details = {"close": f"given up after {seconds:.1f} s"}
        lost = ReportEntry("transport", transport, self.scope.name, None, seconds, details)
        self._given_up.append(lost)


def _start(
    scope: Scope, body: Coroutine[Any, Any, Any], name: str, *, service: bool
) -> Job[Any] | None:
    """Start a job, also while the scope is being drained: what drains needs it to finish."""
    if scope._state not in {ScopeState.OPEN, ScopeState.DRAINING}:
        body.close()
        return None
    frame = sys._getframe(2)
    job = scope._start(scope, body, name, frame.f_code, frame.f_lasti)
    if service:
        scope._services[job] = job  # type: ignore[assignment]  # a job is Held
    else:
        scope._insert(job, job)  # type: ignore[arg-type]  # likewise
    return job


async def _plainly(fn: Callable[..., Awaitable[Any]], args: Any, options: Any) -> Any:
    """Call a function of the user's: a bare use of the SDK in it is none of ours."""
    active.set(None)
    connecting.set(None)
    return await fn(*args, **options)


def _handled(job: object, error: BaseException) -> None:
    """Take a failure that the SDK is told, which answers the CLI with it."""
    logger.debug("%r of a conversation with Claude failed", job, exc_info=error)


class CliConnection:
    """A transport's life: entered by connecting it, left by closing it, in one task of its own."""

    def __init__(
        self,
        conversation: Conversation,
        name: str,
        connect: Callable[[], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """Describe it; `enter()` connects."""
        self._conversation = conversation
        self._name = name
        self._connect = connect
        self._close = close
        self._scope: Scope | None = None
        self._readings: list[Any] = []
        self.processes: list[cli_process.CliProcess] = []

    async def enter(self) -> None:
        """Connect, in a scope of its own below that of the running code.

        *Cancel safety*: cancelled, the transport is closed, and its processes are gone, before the
        cancellation is passed on.

        *Raises*: what connecting raises.
        """
        here = current_scope()
        inside = here is not None and here._is_within(self._conversation.scope)
        self._scope = here if inside else self._conversation.scope
        assert self._scope is not None  # noqa: S101 - for mypy
        await self._scope.enter(self)

    async def exit(self) -> None:
        """Close, and wait until it has been closed, or was given up. Idempotent, from any task.

        *Cancel safety*: the closing goes on, and is waited for, before the cancellation is passed
        on.

        *Raises*: what closing raises.
        """
        if self._scope is not None:
            try:
                await self._scope.exit(self)
            except UsageError:
                return  # it was left before

    async def open_process(self, command: Any, **options: Any) -> cli_process.CliProcess:
        """Start a process of this connection; what the SDK calls as `anyio.open_process`."""
        scope = current_scope()
        assert scope is not None  # noqa: S101 - that of this context
        process = await cli_process.open_process(
            scope,
            command,
            name=f"{CLI} -v" if command[-1] == "-v" else CLI,  # older versions ask for its version
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
        """Close, also if this task was cancelled."""
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
                    with suppress(Exception):  # it runs still, or complains of the process's end
                        await reading.aclose()
        if bound.cancelled_caught:
            conversation.give_up(self._name, seconds)

    def reading(self, messages: Any) -> Any:
        """Return an iterator whose generator is closed here, and not by the garbage collector."""
        reading: Any = aiter(messages)
        self._readings.append(reading)
        return reading


class OwnedTransport:
    """A transport of the user's, connected and closed by a task of its own."""

    def __init__(self, inner: Any) -> None:
        """Wrap it; the conversation is that in which it is connected."""
        self._inner = inner
        self._connection: CliConnection | None = None

    async def connect(self) -> None:
        """Connect it; cancelled, it is closed before the cancellation is passed on."""
        conversation = active.get()
        assert conversation is not None  # noqa: S101 - only the adapter gives it to the SDK
        inner = self._inner
        name = type(inner).__qualname__
        connection = CliConnection(conversation, name, inner.connect, inner.close)
        self._connection = connection
        await connection.enter()

    def read_messages(self) -> Any:
        """Read its messages."""
        messages = self._inner.read_messages()
        return messages if self._connection is None else self._connection.reading(messages)

    async def close(self) -> None:
        """Close it, within the bound."""
        if self._connection is not None:
            await self._connection.exit()

    def __getattr__(self, name: str) -> Any:
        """Return what the transport has under this name."""
        return getattr(self._inner, name)
