"""One connection to a server, from its handshake to its end: what a session has, or has anew.

It is a context manager, entered and left by one owner task (`Scope.enter`), since the SDK's session
and its HTTP client are made of task groups. Any task may make calls.
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

_EXIT_SECONDS = 1.0  # from the end of a server's output to its exit, before it is called lost


class SessionCall:
    """One call, from the step that begins it."""

    __slots__ = ("cancel_scope", "cut", "failure", "label", "lost", "request", "result", "told")

    def __init__(self, label: str) -> None:
        """Start with nothing sent."""
        self.label: str = label
        self.cancel_scope: anyio.CancelScope = anyio.CancelScope()
        self.request: Any = None  # the id of the last request that was sent for it
        self.result: Any = None  # of the first request: the SDK may send a second one
        self.failure: Exception | None = None  # of that second one
        self.told: bool = False  # the server knows that no caller waits for the answer
        self.cut: bool = False
        self.lost: ServerLost | None = None

    def stop(self) -> None:
        """End it, as the close of a session does."""
        self.cut = True
        self.cancel_scope.cancel()

    def lose(self, lost: ServerLost) -> None:
        """End it: there will be no answer."""
        self.lost = lost
        self.cancel_scope.cancel()

    def verdict(self, session: str) -> Exception:
        """Say why it was ended."""
        if self.lost is not None:
            return self.lost
        return ScopeClosed(f"MCP session {session!r} was closed while {self.label} was in flight")


_calls: ContextVar[SessionCall | None] = ContextVar("quiesce.mcp_call", default=None)


def no_call() -> None:
    """Leave the current call: a task that outlives the call must not write in its name."""
    _calls.set(None)


class ServerConnection:
    """A session of the SDK, what it runs on, and the calls that are in flight on it."""

    def __init__(self, name: str, on_lost: Callable[[ServerConnection], None]) -> None:
        """Start without a connection."""
        self.name: str = name
        self.session: Any = None  # the SDK's
        self.greeting: Any = None
        """What the handshake gave."""
        self.greeted: bool = False
        self.process: Process | None = None
        self.failure: BaseException | None = None
        self.ended: bool = False
        self.leaving: bool = False
        self.deaf: Callable[[], bool] = lambda: False
        self._left = anyio.Event()
        self.post: Callable[[Any], None] = lambda _: None
        self.farewells: list[Callable[[], object]] = []
        """Functions that are called when it is left."""
        self._on_lost = on_lost
        self._calls: set[SessionCall] = set()

    @property
    def lost(self) -> bool:
        """Whether nothing comes from the server any more, or nothing gets to it."""
        return self.ended or self.deaf()

    # Coming and going.

    async def shake_hands(self, handshake: Callable[[Any], Awaitable[Any]], within: float) -> None:
        """Initialize the session.

        *Raises*: `NotReady` at the deadline; `ServerLost` if the server is gone before; what the
        handshake raises.
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
        """See that nothing comes from the server any more. Idempotent."""
        if not self.ended and not self.leaving:
            self.ended = True
            self._on_lost(self)

    def leave(self) -> None:
        """Release the calls without an answer, whatever the SDK does with them."""
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

        The SDK's `call_tool` may raise after that: it lists the tools, to validate the result by the tool's schema.
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
                    "%s: the server did not list its tools (%s): the result was not validated",
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
        """Note what is about to be sent, in the task of the caller; return its method."""
        message = versions.body(item)
        method: str | None = getattr(message, "method", None)
        call = _calls.get()
        if call is None or method is None:
            return method
        if method == versions.CANCELLED:  # 2.x does that by itself
            call.told = True
        elif getattr(message, "id", None) is not None:
            call.request, call.told = message.id, False
        return method

    def _abandon(self, call: SessionCall, reason: str) -> None:
        """Notify the server that no caller waits any longer; in one step, so that nothing can stop it."""
        if call.request is None or call.told or self.lost:
            return
        call.told = True
        with suppress(anyio.ClosedResourceError, ScopeClosed):
            self.post(versions.cancellation(call.request, reason))

    # The loss.

    async def server_lost(self, what: str) -> ServerLost:
        """Return the error for something that has no answer, with how the server has ended."""
        if self.process is None:
            self.end()  # the task that leaves it learns the reason
            with anyio.move_on_after(_EXIT_SECONDS):
                await self._left.wait()
        await self.exited()
        self.end()
        return self.loss(what)

    async def exited(self) -> None:
        """Wait for the exit of a process whose pipes have ended: it is what comes next, mostly."""
        if self.process is not None:
            with anyio.move_on_after(_EXIT_SECONDS):
                await self.process.wait()

    def loss(self, what: str) -> ServerLost:
        """Return the error for something that has no answer, with what is known now."""
        process = self.process
        if process is None:
            how = "" if self.failure is None else f" ({why(self.failure)})"
        elif process.returncode is None:
            how = " (it has closed its pipes, and runs)"
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
