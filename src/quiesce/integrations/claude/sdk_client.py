"""`ClaudeSDKClient`: a conversation that may be opened, used and closed by different tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio
import claude_agent_sdk

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.core.owner import owner_of
from quiesce.core.python_private import get_frame
from quiesce.errors import ScopeClosed
from quiesce.integrations.claude import sdk_private
from quiesce.integrations.claude.conversation import Conversation, OwnedTransport, active
from quiesce.integrations.claude.sdk_query import GRACE_SECONDS
from quiesce.streams.pump import Pump
from quiesce.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from claude_agent_sdk import ClaudeAgentOptions, Message, Transport

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope

__all__ = ["ClaudeSDKClient"]

_SHARE = 0.95  # the part of a close's time that the SDK's own disconnect may take


class ClaudeSDKClient:
    """The SDK's client, owned by a scope: any task may connect, use and disconnect it.

    ```python
    async with ClaudeSDKClient(options) as client:
        await client.query("What is there to do?")
        async for message in client.receive_response():
            print(message)
    ```

    The methods are those of `claude_agent_sdk.ClaudeSDKClient` in the installed version. The
    difference: `receive_messages()` and `receive_response()` return iterators that any task may leave,
    drop and take up again; one task at a time may read.

    Args:
        options: The SDK's options.
        transport: A transport of your own in place of the CLI.
        scope: The scope that owns the conversation; by default the current scope of `connect()`.
        grace: How many seconds the CLI has to finish after the end of its input, before SIGTERM and
            then SIGKILL.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        transport: Transport | None = None,
        *,
        scope: Scope | None = None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """Store the options; nothing is started before `connect()`."""
        given: Any = claude_agent_sdk.ClaudeAgentOptions() if options is None else options
        self.options: ClaudeAgentOptions = given
        self.sdk_client: Any = claude_agent_sdk.ClaudeSDKClient(
            given, None if transport is None else OwnedTransport(transport)
        )
        self._scope = scope
        self._grace = arguments.seconds("grace", grace)
        self.client_life: ClientLife | None = None
        self._report: Report | None = None

    @property
    def report(self) -> Report | None:
        """The report of the last conversation: how its work has ended; None before that.

        A transport whose `close()` did not end in time is listed under `cancelled`.
        """
        return self._report

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI, and shake hands with it. An open conversation is closed first.

        *Cancel safety*: if cancelled, the CLI is gone before the cancellation is passed on.

        *Raises*: the errors of the SDK; `ScopeClosed` if the scope has begun to close; `UsageError`
        if no scope is open here.
        """
        await self.disconnect()
        owner = owner_of("a client", self._scope)
        sdk_private.check_backend(self.options, owner)
        session = self.client_life = ClientLife(
            self.sdk_client, self.options, owner, prompt, self._grace
        )
        try:
            await session.conversation.scope.enter(session)
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """End the conversation, and wait until everything of it is gone; see `report`.

        Any task may call it, even a hook or tool that the SDK has called.

        *Cancel safety*: if cancelled, the close continues; the cancellation is passed on when it is
        complete.

        *Raises*: the errors of the SDK, or of a transport of your own, while it disconnects.
        """
        session, self.client_life = self.client_life, None
        if session is None:
            return
        session.closed = True
        try:
            await session.conversation.aclose()
        finally:
            self._report = session.conversation.report
        if session.error is not None:
            raise session.error

    async def query(
        self, prompt: str | AsyncIterable[dict[str, Any]], session_id: str = "default"
    ) -> None:
        """Send a prompt; read the answer with `receive_response()`.

        *Cancel safety*: if cancelled, the prompt may have been sent, or a part of it.
        """
        await self.sdk_client.query(prompt, session_id)

    async def interrupt(self) -> None:
        """Ask the CLI to stop its current turn.

        *Cancel safety*: if cancelled, the CLI may have been asked.
        """
        await self.sdk_client.interrupt()

    def receive_messages(self) -> Messages:
        """Read all messages, of this turn and of the following turns."""
        return Messages(self, to_the_result=False)

    def receive_response(self) -> Messages:
        """Read the messages up to and including the next `ResultMessage`."""
        return Messages(self, to_the_result=True)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the SDK's client."""
        if name == "sdk_client":
            raise AttributeError(name)
        return getattr(self.sdk_client, name)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    def __del__(self) -> None:
        """Disconnect: the program has dropped the client.

        The garbage collector may call this in any thread and at any point, so it only posts the close.
        """
        session: ClientLife | None = getattr(self, "client_life", None)
        if session is not None:
            session.conversation.scope.backend.post(session.abandon)


class ClientLife:
    """One connection of the client; its own task enters and leaves it."""

    def __init__(
        self, sdk: Any, options: ClaudeAgentOptions, owner: Scope, prompt: Any, grace: float
    ) -> None:
        self.conversation: Conversation = Conversation(owner, "claude client", grace)
        self._owner = owner
        self._sdk = sdk
        self._options = options
        self._prompt = prompt
        self._node: Scope | None = None  # the scope of this task, in which the messages are read
        self._messages: Stream[Message] | None = None
        self.error: BaseException | None = None
        self.closed = False

    @property
    def messages(self) -> Stream[Message]:
        """All messages of the connection; each goes to the task that reads next."""
        if self._messages is None:
            owner = owner_of("the messages of a client", self._node)
            source, ready = self._sdk.receive_messages, self.conversation.is_ready
            pump: Pump[Message] = Pump(owner, source, 0, "claude messages", get_frame(), ready)
            self._messages = Stream(
                pump, resumable=True
            )  # a cancelled reader leaves the client open
        return self._messages

    def abandon(self) -> None:
        """Start the close in one step, in the event loop: the program has dropped the client."""
        try:
            self._owner.spawn(self.conversation.aclose, name="claude client disconnect")
        except ScopeClosed:
            return  # the client is closed with its scope

    async def __aenter__(self) -> Self:
        active.set(self.conversation)
        self._node = current_scope()
        self._sdk.options = self.conversation.options(self._options)
        try:
            await self._sdk.connect(self.conversation.prompt(self._prompt))
        except BaseException:
            await self._disconnect()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect the SDK's client; `disconnect()` raises its error."""
        await self._disconnect()

    async def _disconnect(self) -> None:
        """Disconnect, even if this task was cancelled; if time runs out, the scope ends the rest."""
        try:
            with anyio.move_on_after(self.conversation.time_left() * _SHARE, shield=True):
                await self._sdk.disconnect()
        except Exception as error:  # noqa: BLE001 - `disconnect()` raises it
            self.error = error
        finally:
            self.conversation.close_streams()  # even if a surrounding scope closes


class Messages:
    """The messages of a client, for `async for`; a reader may leave them and another continue."""

    def __init__(self, client: ClaudeSDKClient, *, to_the_result: bool) -> None:
        """Read the messages from now on; see `ClaudeSDKClient`."""
        self._client = client
        self._to_the_result = to_the_result
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message.

        *Cancel safety*: if cancelled, no message was taken.

        *Raises*: the errors of the SDK; `UsageError` if another task is reading.
        """
        session = self._client.client_life
        if self._over:
            raise StopAsyncIteration
        if session is None:
            message: Message = await anext(self._client.sdk_client.receive_messages())
            return message
        try:
            message = await anext(session.messages)
        except ScopeClosed:
            if session.closed:
                raise StopAsyncIteration from None
            raise
        if self._to_the_result and isinstance(message, claude_agent_sdk.ResultMessage):
            self._over = True
        return message

    async def aclose(self) -> None:
        """Stop reading; the next reader gets the following messages."""
        self._over = True
