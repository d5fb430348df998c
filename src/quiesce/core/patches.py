"""Functions of others that are wrapped for a while, and given back as they were."""

from __future__ import annotations

import functools
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
    """One attribute of a class or module, wrapped until `remove()`.

    `make` gets what was there, and gives what to call instead. If somebody wraps it once more
    and does not unwrap it in time, theirs stays: ours, below it, then only passes calls on.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Wrap it."""
        self._owner = owner
        self._name = name
        self._before = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        watched = make(original)
        active = self._active = [True]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return (watched if active else original)(*args, **kwargs)

        if getattr(watched, "unseen", False):
            unseen(wrapper)
        self._wrapper = wrapper
        setattr(owner, name, wrapper)

    def remove(self) -> None:
        """Give back what was there, or pass calls on where that is no longer possible."""
        self._active.clear()
        if vars(self._owner).get(self._name) is not self._wrapper:
            return
        if self._before is _MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)
