"""`query()`: one question, and the messages that answer it, as a stream."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import claude_agent_sdk

from quiesce.core import arguments
from quiesce.core.owner import owner_of
from quiesce.core.python_private import get_frame
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

GRACE_SECONDS = 5.0  # the SDK's own value


def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: Transport | None = None,
    scope: Scope | None = None,
    grace: float = GRACE_SECONDS,
) -> Query:
    """Ask Claude; return a stream of the messages, as `claude_agent_sdk.query` returns a generator.

    ```python
    async for message in query(prompt="What is there to do?"):
        if isinstance(message, ResultMessage):
            break  # the CLI is ended by its own task, and the scope waits for it
    ```

    Nothing starts before the first read. Any task may leave, close or drop the stream at any point.
    The CLI and all of its process group are gone when `aclose()` returns, or at the end of the scope;
    `report` then says how they ended. If a reader is cancelled, the CLI is gone before the cancellation
    is passed on; as with the SDK alone, that takes at most `grace` and a moment.

    Args:
        prompt: The question: a text, or an async iterable of messages.
        options: The SDK's options.
        transport: A transport of your own in place of the CLI; it is closed even if its `connect`
            was cancelled, and given up if its `close` does not end.
        scope: The owning scope; the current scope by default.
        grace: How many seconds the CLI has to finish after the end of its input, before SIGTERM and
            then SIGKILL.

    *Raises*: `ScopeClosed` if the scope has begun to close; `UsageError` if no scope is open here.
    Errors of the SDK, such as a CLI that is not found or that fails, are raised by the read that
    meets them.
    """
    owner = owner_of("a query", scope)
    seconds = arguments.seconds("grace", grace)
    question = Question(owner, prompt, options, transport, seconds)
    source, ready = question.messages, question.is_ready
    pump: Pump[Message] = Pump(owner, source, 0, "claude query", get_frame(1), ready)
    return Query(pump, question)


class Query(Stream["Message"]):
    """The messages that answer a question; made by `query()`."""

    __slots__ = ("_question",)

    def __init__(self, pump: Pump[Message], question: Question) -> None:
        """Wrap a pump; use `query()` instead."""
        super().__init__(pump)
        self._question = question

    @property
    def report(self) -> Report | None:
        """How the CLI, the SDK's tasks and your callbacks have ended; None before all have ended."""
        return self._question.report

    async def _abandoned(self) -> None:
        """Close because the reader was cancelled; wait for the end, as the SDK's own generator does."""
        await super()._abandoned()
        end = self._pump.ended_latch
        with anyio.move_on_after(self._question.seconds, shield=True) as bound:
            while not end.is_open and not bound.cancel_called:
                with suppress(self._pump.backend.cancelled):  # the caller raises it again
                    await end.wait()


class Question:
    """A prompt with its options and, from the first read on, the conversation that answers it."""

    def __init__(
        self, owner: Scope, prompt: Any, options: Any, transport: Any, grace: float
    ) -> None:
        """Store the arguments; nothing is started."""
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
        """How long the end may take: of the SDK's generator, then of the conversation."""
        return 0.0 if self._conversation is None else 2 * self._conversation.time_left()

    def is_ready(self) -> bool:
        """Return whether the SDK would yield a message without waiting."""
        return self._conversation is not None and self._conversation.is_ready()

    async def messages(self) -> AsyncIterator[Message]:
        """Read the SDK's generator in its own conversation; runs in the stream's task."""
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
