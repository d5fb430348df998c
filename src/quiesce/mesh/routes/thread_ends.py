"""Calls a function at the end of a thread that quiesce did not start: Python drops a thread's local variables then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_ends = threading.local()


class _Guard:
    """An object in a thread-local variable that calls a function when the thread ends and drops it."""

    def __init__(self, call: Callable[[], object], other: _Guard | None) -> None:
        self._call = call
        self._other = other

    def __del__(self) -> None:
        self._call()


def call_at_thread_end(call: Callable[[], object]) -> None:
    """Call a function when the running thread has ended."""
    _ends.guard = _Guard(call, getattr(_ends, "guard", None))
