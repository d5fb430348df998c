"""Replaces functions of other libraries for a while, then restores them.

The mesh, the ACP adapter and the detectors of `quiesce.testing` use this.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from quiesce.core.python_private import mark_coroutine_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_MISSING = object()


def unseen(function: Any) -> Any:
    """Hide a function from `warnings`, so that a warning names the same line as without the function.

    `warnings` skips frames of Python's own importer, and recognises them by their file name.
    """
    name = f"<importlib._bootstrap: {__name__}>"
    function.__code__ = function.__code__.replace(co_filename=name)
    function.unseen = True
    return function


class Patch:
    """One attribute of a class, module or object, replaced until `remove()`.

    `make` gets the original and returns the replacement. Other code may replace the attribute again, and still have its
    replacement in place at `remove()`. That replacement then stays, and this one, below it, only calls the original.

    A *bare* patch sets the result of `make` directly, without the layer that can switch to the original. Use it for
    functions that are called often, or that look at their caller's frame. If other code has replaced the attribute at
    `remove()`, a bare patch stays active below that replacement.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        make: Callable[..., Any],
        *more: Any,
        bare: bool = False,
    ) -> None:
        self._owner = owner
        self._name = name
        self._before = _own_attribute(owner, name)
        original = getattr(owner, name)
        made = make(original, *more)
        self._active = [True]
        self._new = made if bare else _switchable(made, original, self._active)
        if not isinstance(made, type):
            functools.update_wrapper(self._new, original)
            _keep_kind(self._new, original)
        setattr(owner, name, self._new)

    def remove(self) -> None:
        """Restore the original; if other code has replaced the attribute since, pass calls on to it."""
        self._active.clear()
        if _own_attribute(self._owner, self._name) is not self._new:
            return
        if self._before is _MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)


def _own_attribute(owner: Any, name: str) -> Any:
    """Return an owner's own attribute, not one that it inherits from its class.

    Do not read the `__dict__` of an object here. CPython would then keep all attributes of the object in a dictionary, and
    would find each of them more slowly. An event loop would pay for that in each of its turns.
    """
    if isinstance(owner, type | ModuleType):
        return vars(owner).get(name, _MISSING)
    found = getattr(owner, name, _MISSING)
    inherited: Any = getattr(type(owner), name, None)
    is_inherited = hasattr(inherited, "__get__") and found == inherited.__get__(owner)
    return _MISSING if is_inherited else found


def _switchable(made: Any, original: Any, active: list[bool]) -> Any:
    """Return a function that calls `made` while `active` is not empty, and `original` afterwards."""

    def passing(*args: Any, **kwargs: Any) -> Any:
        return (made if active else original)(*args, **kwargs)

    return unseen(passing) if getattr(made, "unseen", False) else passing


def _keep_kind(new: Any, original: Any) -> None:
    """Mark a replacement as a coroutine function if its original is one.

    Before Python 3.12 only `asyncio.iscoroutinefunction` sees the mark.
    """
    if not inspect.iscoroutinefunction(original) or inspect.iscoroutinefunction(new):
        return
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is None:
        mark_coroutine_function(new)
    else:
        mark(new)
