"""One connection to a server, from its handshake to its end. A session replaces a lost connection by a new one.

One owner task enters and leaves the connection as a context manager (`Scope.enter`), because the SDK's
session and its HTTP client contain task groups. Any task may make calls.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.tree import logger
from quiesce.errors import NotReady, ScopeClosed
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.server_lost import ServerLost, why
from quiesce.processes.process_spawn import exit_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from quiesce.processes.process import Process

__all__: list[str] = []

_EXIT_SECONDS = (
    1.0  # how long a server may take to exit after the end of its output, to report its code
)


class SessionCall:
    """One call that is in flight."""

    __slots__ = ("cancel_scope", "cut", "failure", "label", "lost", "request", "result", "told")

    def __init__(self, label: str) -> None:
        self.label: str = label
        self.cancel_scope: anyio.CancelScope = anyio.CancelScope()
        self.request: Any = None  # the id of the last request that the call has sent
        self.result: Any = None  # the result of the first request; the SDK may send a second one
        self.failure: Exception | None = None  # the error of that second request
        self.told: bool = False  # whether the server was told that no caller waits for the answer
        self.cut: bool = False
        self.lost: ServerLost | None = None

    def stop(self) -> None:
        """End the call because the session closes."""
        self.cut = True
        self.cancel_scope.cancel()

    def lose(self, lost: ServerLost) -> None:
        """End the call because its answer cannot come any more."""
        self.lost = lost
        self.cancel_scope.cancel()

    def verdict(self, session: str) -> Exception:
        """Return the error for the caller of an ended call."""
        if self.lost is not None:
            return self.lost
        return ScopeClosed(f"MCP session {session!r} was closed while {self.label} was in flight")


_calls: ContextVar[SessionCall | None] = ContextVar("quiesce.mcp_call", default=None)


def no_call() -> None:
    """Forget the current call, in a task that may outlive it: its messages are not part of the call."""
    _calls.set(None)


class ServerConnection:
    """A session of the SDK with its transport, and the calls in flight on it."""

    def __init__(self, name: str, on_lost: Callable[[ServerConnection], None]) -> None:
        self.name: str = name
        self.session: Any = None  # the SDK's own session
        self.greeting: Any = None
        """The server's answer to the handshake."""
        self.greeted: bool = False
        self.process: Process | None = None
        self.failure: BaseException | None = None
        self.ended: bool = False
        self.leaving: bool = False
        self.deaf: Callable[[], bool] = lambda: False
        self._left = anyio.Event()
        self.post: Callable[[Any], None] = lambda _: None
        self.farewells: list[Callable[[], object]] = []
        """Functions to call when the connection ends."""
        self._on_lost = on_lost
        self._calls: set[SessionCall] = set()

    @property
    def lost(self) -> bool:
        """Whether the server sends or reads no more messages."""
        return self.ended or self.deaf()

    # Coming and going.

    async def shake_hands(self, handshake: Callable[[Any], Awaitable[Any]], within: float) -> None:
        """Initialize the session.

        *Raises*: `NotReady` at the deadline; `ServerLost` if the server is gone before; the error of
        the handshake.
        """
        no_call()
        late = f"MCP server {self.name!r} has not answered the handshake in {within:g} s"
        try:
            with anyio.fail_after(within):
                self.greeting = await handshake(self.session)
                self.greeted = True
        except TimeoutError as error:
            raise NotReady(late, self._tail()) from error
        except Exception as error:
            if versions.says_timeout(error):
                raise NotReady(late, self._tail()) from error
            if versions.says_gone(error) and self.process is not None:
                raise await self.server_lost("the handshake") from error
            raise

    def end(self) -> None:
        """Record that the server sends no more messages. Idempotent."""
        if not self.ended and not self.leaving:
            self.ended = True
            self._on_lost(self)

    def leave(self) -> None:
        """End the calls that have no answer. The SDK may leave them waiting."""
        if not self.leaving:
            self.end()
        for call in list(self._calls):
            call.lose(self.loss(call.label))
        for tell in self.farewells:
            tell()
        self._left.set()

    # Calls.

    def hear(self, session: Any) -> None:
        """Use a session of the SDK, and record the result of each call when it arrives.

        The SDK's `call_tool` may still raise afterwards. To validate the result it lists the tools, and that may fail.
        """
        send_request = session.send_request

        async def send_and_record(*args: Any, **options: Any) -> Any:
            call = _calls.get()
            try:
                result = await send_request(*args, **options)
            except Exception as error:
                if call is not None and call.result is not None:
                    call.failure = error
                raise
            if call is not None and call.result is None:
                call.result = result
            return result

        session.send_request = send_and_record
        self.session = session

    async def call(
        self, call: SessionCall, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        """Call a method of the SDK's session."""
        token = _calls.set(call)
        self._calls.add(call)
        try:
            return await getattr(self.session, method)(*args, **options)
        except Exception as error:
            if error is call.failure:
                logger.warning(
                    "%s: the server did not list its tools (%s), so the result was not validated",
                    call.label,
                    error,
                )
                return call.result
            if versions.says_timeout(error):
                self._abandon(call, "timed out")
            elif versions.says_gone(error) and (self.lost or self.process is None):
                raise await self.server_lost(call.label) from error
            raise
        except BaseException:
            self._abandon(call, "cancelled")
            raise
        finally:
            self._calls.discard(call)
            _calls.reset(token)

    def sees(self, item: Any) -> str | None:
        """Record a message that the caller's task is about to send; return its method."""
        message = versions.body(item)
        method: str | None = getattr(message, "method", None)
        call = _calls.get()
        if call is None or method is None:
            return method
        if method == versions.CANCELLED:  # 2.x sends this by itself
            call.told = True
        elif getattr(message, "id", None) is not None:
            call.request, call.told = message.id, False
        return method

    def _abandon(self, call: SessionCall, reason: str) -> None:
        """Notify the server that no caller waits for the answer, in one step, which cannot be cancelled."""
        if call.request is None or call.told or self.lost:
            return
        call.told = True
        with suppress(anyio.ClosedResourceError, ScopeClosed):
            self.post(versions.cancellation(call.request, reason))

    # The loss.

    async def server_lost(self, what: str) -> ServerLost:
        """Return the error for `what` that has no answer. Wait a moment, to say how the server has ended."""
        if self.process is None:
            self.end()  # the owner task then leaves the connection, and learns the reason
            with anyio.move_on_after(_EXIT_SECONDS):
                await self._left.wait()
        await self.exited()
        self.end()
        return self.loss(what)

    async def exited(self) -> None:
        """Wait a moment for the exit of a process whose pipes have ended."""
        if self.process is not None:
            with anyio.move_on_after(_EXIT_SECONDS):
                await self.process.wait()

    def loss(self, what: str) -> ServerLost:
        """Return the error for `what` that has no answer, without waiting."""
        process = self.process
        if process is None:
            how = "" if self.failure is None else f" ({why(self.failure)})"
        elif process.returncode is None:
            how = " (it has closed its pipes, but still runs)"
        else:
            how = f" ({exit_text(process.returncode)})"
        return ServerLost(
            f"MCP server {self.name!r} is gone{how}: {what} has no answer",
            server=self.name,
            returncode=None if process is None else process.returncode,
            lines=self._tail(),
        )

    def _tail(self) -> tuple[str, ...]:
        return () if self.process is None else self.process.stderr.tail()
