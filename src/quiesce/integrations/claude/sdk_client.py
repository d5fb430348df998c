"""`ClaudeSDKClient`: a conversation that may be opened, used and closed by different tasks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

import anyio
import claude_agent_sdk

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.core.owner import owner_of
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

_SHARE = 0.95  # of the time that a close has, for what the SDK does in it


class ClaudeSDKClient:
    """The SDK's client, owned by a scope: any task may connect, use and disconnect it.

    ```python
    async with ClaudeSDKClient(options) as client:
        await client.query("What is there to do?")
        async for message in client.receive_response():
            print(message)
    ```

    Its methods are those of `claude_agent_sdk.ClaudeSDKClient` in the version that is installed.
    What differs: `receive_messages()` and `receive_response()` give iterators that may be left,
    dropped and taken up again anywhere; one task at a time may read.

    Args:
        options: The SDK's options.
        transport: A transport of your own in place of the CLI.
        scope: Whose the conversation is; the scope that is current in `connect()` by default.
        grace: How many seconds the CLI has to finish when its input has ended, before it is sent
            SIGTERM, and then SIGKILL.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        transport: Transport | None = None,
        *,
        scope: Scope | None = None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """Describe a client; nothing is started before `connect()`."""
        given: Any = claude_agent_sdk.ClaudeAgentOptions() if options is None else options
        self.options: ClaudeAgentOptions = given
        self._sdk: Any = claude_agent_sdk.ClaudeSDKClient(
            given, None if transport is None else OwnedTransport(transport)
        )
        self._scope = scope
        self._grace = arguments.seconds("grace", grace)
        self._session: ClientLife | None = None
        self._report: Report | None = None

    @property
    def report(self) -> Report | None:
        """What became of all that the last conversation had in flight; None before its end.

        A transport whose `close()` did not end in time is listed under `cancelled`.
        """
        return self._report

    async def connect(self, prompt: str | AsyncIterable[dict[str, Any]] | None = None) -> None:
        """Start the CLI, and shake hands with it. A conversation that was open is closed first.

        *Cancel safety*: cancelled, the CLI is gone before the cancellation is passed on.

        *Raises*: what the SDK raises; `ScopeClosed` if the scope's closing has begun; `UsageError`
        if no scope is open here.
        """
        await self.disconnect()
        owner = owner_of("a client", self._scope)
        sdk_private.check_backend(self.options, owner)
        session = self._session = ClientLife(self._sdk, self.options, owner, prompt, self._grace)
        try:
            await session.conversation.scope.enter(session)
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """End the conversation, and wait until nothing of it is left; see `report`.

        Any task may call it, also one that the SDK has called: a hook, a tool.

        *Cancel safety*: the close goes on, and is waited for, before the cancellation is passed
        on.

        *Raises*: what the SDK raises while it disconnects, or a transport of the user's.
        """
        session, self._session = self._session, None
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
        """Send a prompt; the answer is read by `receive_response()`.

        *Cancel safety*: it may have been sent, or some of it.
        """
        await self._sdk.query(prompt, session_id)

    async def interrupt(self) -> None:
        """Ask the CLI to stop what it does.

        *Cancel safety*: it may have been asked.
        """
        await self._sdk.interrupt()

    def receive_messages(self) -> Messages:
        """Read all messages, of this turn and of those that follow."""
        return Messages(self, to_the_result=False)

    def receive_response(self) -> Messages:
        """Read the messages up to the next `ResultMessage`, and that."""
        return Messages(self, to_the_result=True)

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the SDK's client has."""
        if name == "_sdk":
            raise AttributeError(name)
        return getattr(self._sdk, name)

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self.disconnect()

    def __del__(self) -> None:
        """Disconnect: no code refers to it any longer.

        It may be collected in any thread, and in the middle of anything, so this only posts.
        """
        session: ClientLife | None = getattr(self, "_session", None)
        if session is not None:
            session.conversation.scope._backend.post(session.abandon)


class ClientLife:
    """One connection of the client, entered and left by a task of its own."""

    def __init__(
        self, sdk: Any, options: ClaudeAgentOptions, owner: Scope, prompt: Any, grace: float
    ) -> None:
        self.conversation: Conversation = Conversation(owner, "claude client", grace)
        self._owner = owner
        self._sdk = sdk
        self._options = options
        self._prompt = prompt
        self._node: Scope | None = None  # of this context: what is read there is no work
        self._messages: Stream[Message] | None = None
        self.error: BaseException | None = None
        self.closed = False

    @property
    def messages(self) -> Stream[Message]:
        """All messages: whoever reads takes the next one."""
        if self._messages is None:
            owner = owner_of("the messages of a client", self._node)
            source, ready = self._sdk.receive_messages, self.conversation.is_ready
            pump: Pump[Message] = Pump(owner, source, 0, "claude messages", sys._getframe(), ready)
            self._messages = Stream(
                pump, resumable=True
            )  # a cancelled reader leaves the client open
        return self._messages

    def abandon(self) -> None:
        """End the conversation, as nobody else will; in the event loop, in one step."""
        try:
            self._owner.spawn(self.conversation.aclose, name="claude client disconnect")
        except ScopeClosed:
            return  # it is being closed along with its scope

    async def __aenter__(self) -> Self:
        """Connect the SDK's client."""
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
        """Disconnect it; what that raises is for the caller of `disconnect()`."""
        await self._disconnect()

    async def _disconnect(self) -> None:
        """Disconnect, also if this task was cancelled; the scope ends what has no time for that."""
        try:
            with anyio.move_on_after(self.conversation.time_left() * _SHARE, shield=True):
                await self._sdk.disconnect()
        except Exception as error:  # noqa: BLE001 - raised by disconnect()
            self.error = error
        finally:
            self.conversation.close_streams()  # also if it is a scope around it that closes


class Messages:
    """Messages of a client, read by `async for`; it may be left at any point, and taken up again."""

    def __init__(self, client: ClaudeSDKClient, *, to_the_result: bool) -> None:
        """Read what comes next; see `ClaudeSDKClient`."""
        self._client = client
        self._to_the_result = to_the_result
        self._over = False

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message.

        *Cancel safety*: cancelled, it has taken nothing.

        *Raises*: what the SDK raises; `UsageError` if another task reads.
        """
        session = self._client._session
        if self._over:
            raise StopAsyncIteration
        if session is None:
            message: Message = await anext(self._client._sdk.receive_messages())
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
        """Read no more; what comes is for the next reader."""
        self._over = True
