"""SIGTERM, held back from the server until the app is drained.

At SIGTERM a server stops accepting connections, cuts WebSockets, and gives open requests a time limit of its
own. So at startup our handler replaces the server's. When the drain is over, the server is told to stop, in a
way that depends on the server:

- uvicorn: its handler belongs to an object with `should_exit`, which is documented. (If the signal were
  raised again, uvicorn would end its process by the signal, with exit code -15 even after a clean drain.)
- hypercorn, granian and gunicorn's ASGI worker give their handler to the event loop. asyncio's own loop
  shows the handler, so it is restored and the signal is raised again. uvloop does not show it, so SIGINT is
  raised: hypercorn and granian treat it in the same way, and gunicorn's worker then skips the lifespan's
  shutdown.
- hypercorn on trio does not handle SIGTERM. SIGINT is raised, and hypercorn handles the KeyboardInterrupt.
- Any other server's handler is restored, and the signal is raised again.
"""

from __future__ import annotations

import inspect
import signal
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.forked_signals import kept_from_children
from quiesce.core.signals import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.scope import Scope

__all__: list[str] = []

_SIGNAL = signal.SIGTERM


class HeldSignal:
    """The SIGTERM of one event loop, held back from the server until `let_go()`."""

    def __init__(self, scope: Scope, on_signal: Callable[[], None]) -> None:
        self._backend = scope.backend
        self._scope = scope
        self._on_signal = on_signal
        self._before: Any = None
        self._by_loop = False
        # The handler that the event loop had: its function and arguments.
        self._in_loop: tuple[Any, ...] | None = None
        self._receiver = ExitStack()
        self._arrived = self._heard = 0  # signals that came, and that the loop has delivered
        self._limited: Any = None  # the uvicorn that was given a limit
        self.held: bool = False

    def take(self) -> bool:
        """Begin to hold the signal. Return False where that is impossible, as outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._before = signal.getsignal(_SIGNAL)
        self._receiver.enter_context(kept_from_children(_SIGNAL))
        if self._backend.name == "trio":
            signals = self._receiver.enter_context(anyio.open_signal_receiver(_SIGNAL))
            self._scope.spawn(self._listen, signals, name="SIGTERM", service=True)
        else:
            loop: Any = self._backend.loop
            self._in_loop = _handler_in(loop)
            try:
                self._by_loop = loop.remove_signal_handler(_SIGNAL)
                loop.add_signal_handler(_SIGNAL, self._told)
                # In place of the loop's own function, which does nothing.
                signal.signal(_SIGNAL, self._note)
                signal.siginterrupt(_SIGNAL, False)  # noqa: FBT003 - its only form
            except (NotImplementedError, RuntimeError, ValueError):  # on Windows
                self._receiver.close()
                return False
        self.held = True
        return True

    async def _listen(self, signals: Any) -> None:
        async for _ in signals:
            self._told()

    def _note(self, _: int, __: object) -> None:
        """Count a signal when it comes. The loop calls `_told` later, or never if it has stopped."""
        self._arrived += 1

    def _told(self) -> None:
        if self._backend.name != "trio" and self._heard >= self._arrived:
            return  # the signal came to a forked child, which shares the loop's socket
        self._heard += 1
        pass_on(self._before)  # a node of the mesh ends its open calls, for which the server waits
        self._on_signal()

    def let_go(self, seconds: float) -> bool:
        """Notify the server to stop. Return False if it has no handler, so that only its parent process can end it.

        A uvicorn without a limit of its own would wait for ever for a client that does not read its answer. It waits for
        `seconds`.
        """
        if not self.held:
            return True
        own = inspect.unwrap(self._before) if callable(self._before) else None
        server: Any = getattr(own, "__self__", None)
        if hasattr(server, "should_exit"):
            config: Any = getattr(server, "config", None)
            if getattr(config, "timeout_graceful_shutdown", 0) is None:
                config.timeout_graceful_shutdown = seconds
                self._limited = server
            server.should_exit = True
        elif self._in_loop is None and (
            self._by_loop or (self._before is signal.SIG_DFL and _has_handler(signal.SIGINT))
        ):
            signal.raise_signal(signal.SIGINT)
        elif callable(self._before):
            self.give_back()
            signal.raise_signal(_SIGNAL)
        else:
            # A server that ignores the signal is left alone.
            return self._before is not signal.SIG_DFL
        return True

    def count_unread(self) -> int:
        """Return how many connections the server has given up, because it was given a limit."""
        state = getattr(self._limited, "server_state", None)
        return len(getattr(state, "connections", ()))

    def end(self) -> None:
        """End this process by the signal, as if it had no handler."""
        self.give_back()
        signal.raise_signal(_SIGNAL)

    def give_back(self) -> None:
        """Restore the earlier handler. A handler that was given to uvloop cannot be restored.

        If a signal has come that the loop has not delivered yet, the restored handler gets it.
        """
        if not self.held:
            return
        if self._by_loop and self._in_loop is None:
            self._receiver.close()  # children that are forked from now on have uvloop's handler
            return
        self.held = False
        self._restore()
        if self._arrived > self._heard:
            signal.raise_signal(_SIGNAL)

    def _restore(self) -> None:
        self._receiver.close()
        if self._backend.name == "trio":
            return
        loop: Any = self._backend.loop
        with suppress(RuntimeError):  # the loop is closed, and has removed its handlers
            loop.remove_signal_handler(_SIGNAL)
            if self._in_loop is not None:
                loop.add_signal_handler(_SIGNAL, *self._in_loop)
                return
        if self._before is not None:  # None: a handler not set by Python, which cannot be restored
            signal.signal(_SIGNAL, self._before)


def _has_handler(number: signal.Signals) -> bool:
    return callable(signal.getsignal(number))


def _handler_in(loop: Any) -> tuple[Any, ...] | None:
    """Return an asyncio loop's handler for the signal. asyncio has no public function for this."""
    handle: Any = getattr(loop, "_signal_handlers", {}).get(_SIGNAL)
    function = getattr(handle, "_callback", None)
    return None if function is None else (function, *(getattr(handle, "_args", None) or ()))
