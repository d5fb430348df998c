"""The SDK's tracing, left out while no tracer is set up.

Where OpenTelemetry is installed, the SDK makes a span of nearly every call of its own, also if no
tracer was ever set up: a quarter of what a request takes, or more. With a tracer, nothing is left out.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__all__: list[str] = []

try:
    _trace: Any = import_module("opentelemetry.trace")
except ImportError:
    _trace = None  # it is an extra of the SDK
_TRACING = "a2a.utils.telemetry"


def is_traced() -> bool:
    """Return whether a tracer is set up: then the spans go somewhere."""
    if _trace is None:
        return False
    unset = (_trace.ProxyTracerProvider, _trace.NoOpTracerProvider)
    return not isinstance(_trace.get_tracer_provider(), unset)


@cache
def untraced(kind: Any) -> Any:
    """Return a class like another, whose methods are as they were before the SDK has wrapped them."""
    methods = {}
    for name in dir(kind):
        method: Any = getattr(kind, name, None)
        if getattr(method, "__globals__", {}).get("__name__") == _TRACING:
            methods[name] = method.__wrapped__
    names = {"__module__": kind.__module__, "__slots__": ()}
    return type(kind.__name__, (kind,), names | methods) if methods else kind


def hush(thing: Any) -> None:
    """Make no spans of what is done with an object of the SDK, if no tracer is set up."""
    if not is_traced():
        kind: Any = type(thing)
        quiet = untraced(kind)
        if quiet is not kind:
            thing.__class__ = quiet
