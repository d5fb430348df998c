"""Functions of others that are replaced for a while, and restored as they were."""

from __future__ import annotations

import asyncio
import functools
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_MISSING = object()


def unseen(function: Any) -> Any:
    """Hide a function from `warnings`, which then names the line that it would have without it.

    `warnings` does not count frames of Python's own importer, and knows them by their file.
    """
    name = f"<importlib._bootstrap: {__name__}>"
    function.__code__ = function.__code__.replace(co_filename=name)
    function.unseen = True
    return function


class Patch:
    """One attribute of a class, module or object, replaced until `remove()`.

    `make` gets what was there, and returns what to call instead. If other code replaces it once more and does not
    restore it in time, theirs stays: ours, below it, then only passes calls on.

    A *bare* patch puts what `make` returns there as it is, without the layer that can pass calls on later: for functions
    that are called often, or that look at the frame of their caller. Below the replacement of other code it stays in use.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        make: Callable[..., Any],
        *more: Any,
        bare: bool = False,
    ) -> None:
        """Replace it."""
        self._owner = owner
        self._name = name
        self._before = _own(owner, name)
        original = getattr(owner, name)
        made = make(original, *more)
        self._active = [True]
        self._new = made if bare else _passing(made, original, self._active)
        if not isinstance(made, type):
            functools.update_wrapper(self._new, original)
            _keep_kind(self._new, original)
        setattr(owner, name, self._new)

    def remove(self) -> None:
        """Restore what was there, or pass calls on where that is no longer possible."""
        self._active.clear()
        if _own(self._owner, self._name) is not self._new:
            return
        if self._before is _MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)


def _own(owner: Any, name: str) -> Any:
    """Return what an owner itself has by a name, and not its class.

    Not by a look into the `__dict__` of an object: CPython then keeps all of its attributes in a dictionary, and every
    one of them is found more slowly from then on. An event loop pays for that in each of its turns.
    """
    if isinstance(owner, type | ModuleType):
        return vars(owner).get(name, _MISSING)
    found = getattr(owner, name, _MISSING)
    inherited: Any = getattr(type(owner), name, None)
    is_inherited = hasattr(inherited, "__get__") and found == inherited.__get__(owner)
    return _MISSING if is_inherited else found


def _passing(made: Any, original: Any, active: list[bool]) -> Any:
    """Return a function that calls `made` while `active` is not empty, and `original` afterwards."""

    def passing(*args: Any, **kwargs: Any) -> Any:
        return (made if active else original)(*args, **kwargs)

    return unseen(passing) if getattr(made, "unseen", False) else passing


def _keep_kind(new: Any, original: Any) -> None:
    """Mark a replacement as the coroutine function that its original is, where Python has a way to say it.

    Before 3.12 only `asyncio.iscoroutinefunction` can be told.
    """
    if not inspect.iscoroutinefunction(original) or inspect.iscoroutinefunction(new):
        return
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is None:
        new._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # until 3.11
    else:
        mark(new)
