"""Removes the SDK's tracing calls while no tracer is configured.

If OpenTelemetry is installed, the SDK makes a span for nearly every call, even without a tracer. The
spans take a quarter of a request's time, or more. If a tracer is configured, every span is made.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__all__: list[str] = []

try:
    _trace: Any = import_module("opentelemetry.trace")
except ImportError:
    _trace = None  # OpenTelemetry is an optional extra of the SDK
_TRACING = "a2a.utils.telemetry"


def is_traced() -> bool:
    """Return whether a tracer is configured, so that spans are exported."""
    if _trace is None:
        return False
    unset = (_trace.ProxyTracerProvider, _trace.NoOpTracerProvider)
    return not isinstance(_trace.get_tracer_provider(), unset)


@cache
def untraced(kind: Any) -> Any:
    """Return a subclass of an SDK class whose methods are the originals, without the SDK's tracing wrappers."""
    methods = {}
    for name in dir(kind):
        method: Any = getattr(kind, name, None)
        if getattr(method, "__globals__", {}).get("__name__") == _TRACING:
            methods[name] = method.__wrapped__
    names = {"__module__": kind.__module__, "__slots__": ()}
    return type(kind.__name__, (kind,), names | methods) if methods else kind


def stop_tracing(sdk_object: Any) -> None:
    """Remove the tracing wrappers from the methods of an SDK object, unless a tracer is configured."""
    if not is_traced():
        kind: Any = type(sdk_object)
        quiet = untraced(kind)
        if quiet is not kind:
            sdk_object.__class__ = quiet
