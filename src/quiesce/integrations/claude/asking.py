"""`query()`: one question, and the messages that answer it, as a stream."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import claude_agent_sdk

from quiesce.core import arguments
from quiesce.core.node import current
from quiesce.integrations.claude import private
from quiesce.integrations.claude.conversation import Conversation, OwnedTransport, active
from quiesce.resources.owner import owner_of
from quiesce.resources.pump import Pump
from quiesce.resources.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    from claude_agent_sdk import ClaudeAgentOptions, Message, Transport

    from quiesce.core.scope import Scope

__all__ = ["query"]

GRACE_SECONDS = 5.0  # what the SDK gives the CLI, too


def query(
    *,
    prompt: str | AsyncIterable[dict[str, Any]],
    options: ClaudeAgentOptions | None = None,
    transport: Transport | None = None,
    scope: Scope | None = None,
    grace: float = GRACE_SECONDS,
) -> Stream[Message]:
    """Ask Claude; gives a stream of the messages, as `claude_agent_sdk.query` gives a generator.

    ```python
    async for message in query(prompt="What is there to do?"):
        if isinstance(message, ResultMessage):
            break  # the CLI is ended by its own task, and the scope waits for it
    ```

    Nothing is started before the first read. The stream may be left, closed or dropped at any
    point, by any task; the CLI, and all of its process group, is gone when `aclose()` returns, or
    at the end of the scope.

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
    source = partial(_messages, owner, prompt, options, transport, seconds)
    return Stream(Pump(owner, source, 0, "claude query", sys._getframe(1)))


async def _messages(
    owner: Scope, prompt: Any, options: Any, transport: Any, grace: float
) -> AsyncIterator[Message]:
    """Read the SDK's generator, in a conversation of its own; in the stream's task."""
    conversation = Conversation(owner, "claude query", grace)
    active.set(conversation)
    current.set(conversation.scope)
    try:
        given = claude_agent_sdk.ClaudeAgentOptions() if options is None else options
        private.check(given, owner)
        messages: Any = claude_agent_sdk.query(
            prompt=conversation.prompt(prompt),
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
