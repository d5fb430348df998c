"""Late imports: a package imports the module of a public name when a program first uses the name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__: list[str] = []


def import_name(package: dict[str, Any], sources: Mapping[str, str], name: str) -> object:
    """Import a name from its module in `sources`, store it in the package, and return it."""
    if name not in sources:
        message = f"module {package['__name__']!r} has no attribute {name!r}"
        raise AttributeError(message)
    found: object = getattr(import_module(sources[name]), name)
    package[name] = found
    return found
