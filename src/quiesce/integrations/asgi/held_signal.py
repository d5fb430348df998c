"""SIGTERM, held back from the server until the app is drained.

Every server stops accepting as soon as it hears of SIGTERM, cuts WebSockets, and gives open requests
its own time, not ours. So it does not hear of it: at startup its handler is replaced by ours, and when
the drain is over the server is told to stop, each in its own words:

- uvicorn: its handler belongs to an object with `should_exit`, its documented switch. (To repeat the
  signal would end the process by it, with -15, however well everything went.)
- hypercorn, granian and gunicorn's ASGI worker have given theirs to the event loop. asyncio's own loop
  shows it, so they get it back, and the signal once more. uvloop does not: there they are told by
  SIGINT, which the first two treat the same (the last one leaves its lifespan's shutdown out).
- hypercorn on trio has none for SIGTERM at all; SIGINT, there, is a KeyboardInterrupt that it handles.
- Others that have set a handler get it back, and the signal once more.
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
    """One event loop's SIGTERM: ours until it is let go."""

    def __init__(self, scope: Scope, on_signal: Callable[[], None]) -> None:
        self._backend = scope.backend
        self._scope = scope
        self._on_signal = on_signal
        self._before: Any = None
        self._by_loop = False
        self._in_loop: tuple[Any, ...] | None = (
            None  # the function that the loop had, and arguments
        )
        self._receiver = ExitStack()
        self._arrived = self._heard = 0  # signals: those that the loop knows, and has told us of
        self._limited: Any = None  # the uvicorn that was given a limit
        self.held: bool = False

    def take(self) -> bool:
        """Begin to hold it; False where that is impossible: only a main thread has signals."""
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
                signal.signal(_SIGNAL, self._note)  # in place of the loop's, which does nothing
                signal.siginterrupt(_SIGNAL, False)  # noqa: FBT003 - as it is called
            except (NotImplementedError, RuntimeError, ValueError):  # no such loop (Windows)
                self._receiver.close()
                return False
        self.held = True
        return True

    async def _listen(self, signals: Any) -> None:
        async for _ in signals:
            self._told()

    def _note(self, _: int, __: object) -> None:
        """Count a signal in the step in which it comes: the loop calls `_told` later, if at all."""
        self._arrived += 1

    def _told(self) -> None:
        if self._backend.name != "trio" and self._heard >= self._arrived:
            return  # it was not for this process: a forked child has the same socket
        self._heard += 1
        pass_on(self._before)  # to a node of the mesh, whose open calls hold up the server
        self._on_signal()

    def let_go(self, seconds: float) -> bool:
        """Notify the server that it is to stop; False if it has no handler: then only its parent can do so.

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
            return self._before is not signal.SIG_DFL  # ignored: then the server wants no news
        return True

    def count_unread(self) -> int:
        """Return how many connections the server has given up, because it was given a limit."""
        state = getattr(self._limited, "server_state", None)
        return len(getattr(state, "connections", ()))

    def end(self) -> None:
        """End by the signal, as a process does that does not handle it."""
        self.give_back()
        signal.raise_signal(_SIGNAL)

    def give_back(self) -> None:
        """Put the handler back that was there; not one of uvloop's, which cannot be had again.

        That handler also gets a signal that has come, and that the loop has not told us of: it never will.
        """
        if not self.held:
            return
        if self._by_loop and self._in_loop is None:
            self._receiver.close()  # a child that is forked from now on is as one of uvloop alone
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
        with suppress(RuntimeError):  # the loop is closed, and has done so itself
            loop.remove_signal_handler(_SIGNAL)
            if self._in_loop is not None:
                loop.add_signal_handler(_SIGNAL, *self._in_loop)
                return
        if self._before is not None:  # None: not one of Python's
            signal.signal(_SIGNAL, self._before)


def _has_handler(number: signal.Signals) -> bool:
    return callable(signal.getsignal(number))


def _handler_in(loop: Any) -> tuple[Any, ...] | None:
    """Return the handler that an asyncio loop has for the signal; asyncio has no public way to ask."""
    handle: Any = getattr(loop, "_signal_handlers", {}).get(_SIGNAL)
    function = getattr(handle, "_callback", None)
    return None if function is None else (function, *(getattr(handle, "_args", None) or ()))
