"""`query()`: one question, and the messages that answer it, as a stream."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import claude_agent_sdk

from quiesce.core import arguments
from quiesce.core.owner import owner_of
from quiesce.core.tree import current
from quiesce.integrations.claude import sdk_private
from quiesce.integrations.claude.conversation import Conversation, OwnedTransport, active
from quiesce.streams.pump import Pump
from quiesce.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    from claude_agent_sdk import ClaudeAgentOptions, Message, Transport

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope

__all__ = ["Query", "query"]

GRACE_SECONDS = 5.0  # what the SDK gives the CLI, too


def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: Transport | None = None,
    scope: Scope | None = None,
    grace: float = GRACE_SECONDS,
) -> Query:
    """Ask Claude; returns a stream of the messages, as `claude_agent_sdk.query` returns a generator.

    ```python
    async for message in query(prompt="What is there to do?"):
        if isinstance(message, ResultMessage):
            break  # the CLI is ended by its own task, and the scope waits for it
    ```

    Nothing is started before the first read. The stream may be left, closed or dropped at any
    point, by any task; the CLI, and all of its process group, is gone when `aclose()` returns, or
    at the end of the scope. `report` then tells how it ended. If a reader is cancelled, the CLI is gone
    before the cancellation is passed on; that takes `grace` and a moment at most, as with the SDK alone.

    Args:
        prompt: What to ask: a text, or an async iterable of messages.
        options: The SDK's options.
        transport: A transport of your own in place of the CLI; it is closed also if its `connect`
            was cancelled, and given up if its `close` does not end.
        scope: Whose work it is; the current scope by default.
        grace: How many seconds the CLI has to finish when its input has ended, before it is sent
            SIGTERM, and then SIGKILL.

    *Raises*: `ScopeClosed` if the scope's closing has begun; `UsageError` if no scope is open here.
    What the SDK raises, a CLI that is not found or one that fails, comes out of the first read that
    meets it.
    """
    owner = owner_of("a query", scope)
    seconds = arguments.seconds("grace", grace)
    question = Question(owner, prompt, options, transport, seconds)
    source, ready = question.messages, question.is_ready
    pump: Pump[Message] = Pump(owner, source, 0, "claude query", sys._getframe(1), ready)
    return Query(pump, question)


class Query(Stream["Message"]):
    """The messages that answer a question; made by `query()`."""

    __slots__ = ("_question",)

    def __init__(self, pump: Pump[Message], question: Question) -> None:
        """Make a handle of a question; use `query()`."""
        super().__init__(pump)
        self._question = question

    @property
    def report(self) -> Report | None:
        """What became of the CLI, the SDK's tasks and your callbacks; None before all of it has ended."""
        return self._question.report

    async def _abandoned(self) -> None:
        """Close, as the reader was cancelled, and wait for the end as the SDK's own generator does."""
        await super()._abandoned()
        end = self._pump._end
        with anyio.move_on_after(self._question.seconds, shield=True) as bound:
            while not end.is_open and not bound.cancel_called:
                with suppress(self._pump._backend.cancelled):  # it is raised again afterwards
                    await end.wait()


class Question:
    """What is asked, and, from the first read on, the conversation that answers it."""

    def __init__(
        self, owner: Scope, prompt: Any, options: Any, transport: Any, grace: float
    ) -> None:
        """Begin nothing."""
        self._owner = owner
        self._prompt = prompt
        self._options = options
        self._transport = transport
        self._grace = grace
        self._conversation: Conversation | None = None

    @property
    def report(self) -> Report | None:
        """The report of the conversation; None before its end."""
        return None if self._conversation is None else self._conversation.report

    @property
    def seconds(self) -> float:
        """How long the end may take: that of the SDK's generator, then that of the conversation."""
        return 0.0 if self._conversation is None else 2 * self._conversation.time_left()

    def is_ready(self) -> bool:
        """Return whether the SDK would give a message without waiting."""
        return self._conversation is not None and self._conversation.is_ready()

    async def messages(self) -> AsyncIterator[Message]:
        """Read the SDK's generator, in a conversation of its own; in the stream's task."""
        conversation = Conversation(self._owner, "claude query", self._grace)
        self._conversation = conversation
        active.set(conversation)
        current.set(conversation.scope)
        try:
            given = self._options
            if given is None:
                given = claude_agent_sdk.ClaudeAgentOptions()
            sdk_private.check_backend(given, self._owner)
            transport = self._transport
            messages: Any = claude_agent_sdk.query(
                prompt=conversation.prompt(self._prompt),
                options=conversation.options(given),
                transport=None if transport is None else OwnedTransport(transport),
            )
            try:
                async for message in messages:
                    yield message
            finally:
                await messages.aclose()
        finally:
            await conversation.aclose()
