"""Listeners for SIGTERM and SIGINT, in addition to the handlers that a server installs.

On a signal, a server first waits for its open requests, and only then ends the app's lifespan. A long request would
delay the app's drain, so the app needs the signal as early as the server.
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
    """Call `call` when one of the signals arrives inside the block; the existing handler is called as well.

    Signals without a Python handler are ignored. Outside of the main thread the block does nothing, because only the
    main thread gets signals.

    Args:
        post: The signal handler calls `post(call)`, which must schedule `call` in the event loop.
        call: The listener.
        numbers: The signals.
        sets_exit_code: Whether the exit code must be 1 if `process_exit.lost()` was called before the block ends.
            uvicorn kills itself at its end with each SIGTERM that its handler received, so its process has no exit
            code. Therefore SIGTERM only sets uvicorn's `should_exit`, and uvicorn's handler gets the signal when the
            block ends, if no work was lost.
        is_busy: Whether the listener has work that may go on. sse-starlette ends its streams when uvicorn's
            `should_exit` is true; it sees a false value while a listener is busy.
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
    """Notify our listeners, if `handler` is ours and other code has replaced it."""
    if isinstance(handler, _Handler):
        handler.tell()


class _Listener(NamedTuple):
    """One listener; the fields are the arguments of `heard`."""

    post: Post
    call: Callable[[], object]
    sets_exit_code: bool
    is_busy: Callable[[], bool]


class _ServerView:
    """uvicorn's server for code that finds it through our handler; its `should_exit` waits for busy listeners."""

    def __init__(self, handler: _Handler, server: Any) -> None:
        self._handler = handler
        self._server = server

    @property
    def should_exit(self) -> bool:
        """Whether the server stops and no listener is busy."""
        return bool(self._server.should_exit) and not any(
            entry.is_busy() for entry in self._handler.entries
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class _Handler:
    """A signal handler that notifies all listeners, then calls the handler that was installed before.

    Some code looks for the server's own handler or for the server itself. For such code this class has `__wrapped__`,
    like a decorated function, and `__self__`, like a method.
    """

    def __init__(self, number: signal.Signals, found: Any) -> None:
        self._number = number
        self.__wrapped__: Any = found
        self.entries: list[_Listener] = []
        self._is_owed = False  # whether a signal was held back from the server's own handler

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
        """Pass the signal that was held back to the server's own handler, unless work was lost."""
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
