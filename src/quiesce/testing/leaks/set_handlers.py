"""Find signal handlers and event loops' exception handlers that are set."""

from __future__ import annotations

import importlib
import signal
from typing import TYPE_CHECKING, Any

from quiesce.testing.leaks.findings import Finding

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Iterable

# The function without the lookup in an enum, which takes ten times as long.
_getsignal: Any = importlib.import_module("_signal").getsignal
_SIGNALS = sorted(map(int, signal.valid_signals()))
_RUNNERS = frozenset({"pytest_timeout"})
Key = tuple[object, int]
"""The handler's owner (a signal's number or an event loop's address), and the handler's address."""


def present_handlers(
    loops: Iterable[asyncio.AbstractEventLoop], before: Collection[object] = ()
) -> dict[Key, Any]:
    """Return the handlers of these loops, and of signals that have a handler or had one `before`."""
    found: dict[Key, Any] = {}
    for number, handler in zip(_SIGNALS, map(_getsignal, _SIGNALS), strict=True):
        if handler or number in before:  # the default is 0
            found[number, id(handler)] = handler
    for loop in loops:
        handler = loop.get_exception_handler()
        found[("loop", id(loop)), id(handler)] = handler
    return found


def is_runners_handler(*handlers: Any) -> bool:
    """Return whether one of these handlers belongs to a test runner, which may change it any time."""
    return any(getattr(handler, "__module__", None) in _RUNNERS for handler in handlers)


def handler_finding(owner: object, handler: Any, before: Any) -> Finding:
    """Describe a handler that was not restored."""
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    details = f"now {_describe(handler)}, before {_describe(before)}"
    if code is not None:
        details += f"; see {code.co_filename}:{code.co_firstlineno}"
    return Finding("handler", _name(owner), None, details)


def _name(owner: object) -> str:
    if not isinstance(owner, int):
        return "event loop's exceptions"
    try:
        return signal.Signals(owner).name
    except ValueError:  # a real-time signal: only the first and the last have names
        return f"signal {owner}"


def _describe(handler: Any) -> str:
    if isinstance(handler, int):
        return signal.Handlers(handler).name
    return "none" if handler is None else str(getattr(handler, "__qualname__", None) or handler)
