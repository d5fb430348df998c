"""Listeners for SIGTERM and SIGINT, beside the handlers that a server installs.

On a signal, a server first waits for its open requests, and only then ends the app's lifespan. Some of those
requests would go on for long, unless the app gets the signal as early as the server.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce.core import process_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Post = Callable[[Callable[[], object]], object]

__all__: list[str] = []

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def heard(
    post: Post,
    call: Callable[[], object],
    numbers: Iterable[signal.Signals] = _SIGNALS,
    *,
    sets_exit_code: bool = False,
    is_busy: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Call `call` on each of the signals, inside the block; the signal's own handler is called as well.

    A signal without a Python handler is not listened to. Outside of the main thread nothing is: only that gets signals.

    Args:
        post: Called with `call` from the signal handler; must call it in the event loop, soon.
        call: The listener.
        numbers: The signals.
        sets_exit_code: Whether the exit code must be 1 if `process_exit.lost()` was called before the block ends.
            uvicorn kills itself with each SIGTERM that its handler has seen, which leaves no exit code. So SIGTERM
            sets uvicorn's `should_exit`, and its handler gets the signal only when the block ends and no work was lost.
        is_busy: Whether the listener has work that may go on: libraries that end their streams when the server stops
            (sse-starlette looks at uvicorn's `should_exit`) do so only when no listener has.
    """
    entry = _Listener(post, call, sets_exit_code, is_busy)
    handlers: list[_Handler] = []
    if threading.current_thread() is threading.main_thread():
        handlers = [one for one in map(_handler_of, numbers) if one is not None]
    for handler in handlers:
        handler.entries.append(entry)
    try:
        yield
    finally:
        for handler in handlers:
            handler.entries.remove(entry)
            handler.pay()
            handler.give_back()


def pass_on(handler: Any) -> None:
    """Notify the listeners of a replaced signal handler."""
    if isinstance(handler, _Handler):
        handler.tell()


class _Listener(NamedTuple):
    """What is called on a signal; see `heard`."""

    post: Post
    call: Callable[[], object]
    sets_exit_code: bool
    is_busy: Callable[[], bool]


class _ServerView:
    """uvicorn's server, as code sees it that looks for it behind our handler: it stops when no listener has work."""

    def __init__(self, handler: _Handler, server: Any) -> None:
        self._handler = handler
        self._server = server

    @property
    def should_exit(self) -> bool:
        """Whether the server stops, and no listener has work that may go on."""
        return bool(self._server.should_exit) and not any(
            entry.is_busy() for entry in self._handler.entries
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class _Handler:
    """A signal's handler in front of the one that was installed before; one for all listeners.

    It has `__wrapped__`, as decorators do, and `__self__`, as methods do, for code that looks for the server's own
    handler, or for the server itself.
    """

    def __init__(self, number: signal.Signals, found: Any) -> None:
        self._number = number
        self.__wrapped__: Any = found
        self.entries: list[_Listener] = []
        self._is_owed = False  # the server's own handler has not seen the signal yet

    @property
    def __self__(self) -> Any:
        server = self.__wrapped__.__self__
        return _ServerView(self, server) if hasattr(server, "should_exit") else server

    def __call__(self, number: int, frame: Any) -> None:
        self.tell()
        server: Any = getattr(self.__wrapped__, "__self__", None)
        has_switch = number == signal.SIGTERM and hasattr(server, "should_exit")
        if has_switch and any(entry.sets_exit_code for entry in self.entries):
            self._is_owed = server.should_exit = True
        else:
            self.__wrapped__(number, frame)

    def pay(self) -> None:
        """Pass a signal that was held back to the server's own handler, unless work was lost."""
        if self._is_owed and not any(entry.sets_exit_code for entry in self.entries):
            self._is_owed = False
            if not process_exit.is_lost():
                self.__wrapped__(self._number, None)

    def tell(self) -> None:
        """Notify all listeners."""
        for entry in self.entries:
            entry.post(entry.call)

    def give_back(self) -> None:
        """Restore the earlier handler if no listener is left, unless other code has replaced ours."""
        found: Any = signal.getsignal(self._number)
        if not self.entries and found is self:
            signal.signal(self._number, self.__wrapped__)


def _handler_of(number: signal.Signals) -> _Handler | None:
    found: Any = signal.getsignal(number)
    if callable(found) and not isinstance(found, _Handler):
        signal.signal(number, _Handler(number, found))
        found = signal.getsignal(number)
    return found if isinstance(found, _Handler) else None
