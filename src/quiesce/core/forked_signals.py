"""Restores the earlier signal handlers in forked children, so that a child's signals do not reach its parent.

An event loop gets signals through a socket, and a forked child inherits the socket. So a signal to the child would
wake the parent's loop, which would handle the signal as its own, and the child would not end. For example,
`multiprocessing.Pool` ends its children with SIGTERM.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []

_before: dict[int, Any] = {}
"""The handler that each signal had before quiesce handled the signal."""
_is_registered: list[bool] = []


@contextmanager
def kept_from_children(*numbers: int) -> Iterator[None]:
    """Remember the present handlers of these signals; restore them in each child that is forked inside the block."""
    if not _is_registered and hasattr(os, "register_at_fork"):  # not on Windows
        _is_registered.append(True)
        os.register_at_fork(after_in_child=_give_back)
    new = {number: signal.getsignal(number) for number in numbers if number not in _before}
    _before.update(new)
    try:
        yield
    finally:
        for number in new:
            _before.pop(number, None)


def _give_back() -> None:
    """Restore the handlers. Runs in the child."""
    if not _before:
        return
    with suppress(ValueError):  # raised if the child was forked outside of the main thread
        signal.set_wakeup_fd(-1, warn_on_full_buffer=False)
        for number, handler in _before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()
