"""Checks of the arguments of public functions: each error names the wrong value and says what to pass."""

from __future__ import annotations

import fnmatch
import inspect
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

T = TypeVar("T")


def check_text(what: str, value: object) -> str:
    """Check that an argument is a string, and return it."""
    if not isinstance(value, str):
        message = f"{what} must be a string, not {value!r}"
        raise ArgumentError(message)
    return value


def name(what: str, value: object) -> str:
    """Check a name that must not be empty, and return it."""
    if not check_text(what, value):
        message = f"{what} must not be empty"
        raise ArgumentError(message)
    return str(value)


def seconds(what: str, value: object, *, some: bool = False) -> float:
    """Check a number of seconds, and return it as a float; with `some`, 0 is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        message = f"{what} must be a number of seconds, 0 or more, not {value!r}"
        raise ArgumentError(message)
    if some and value == 0:
        message = f"{what} must be more than 0 seconds"
        raise ArgumentError(message)
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def size(what: str, value: object) -> int | None:
    """Check a limit of at least 1, and return it; None means no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{what} must be a whole number of at least 1, or None, not {value!r}"
        raise ArgumentError(message)
    return value


def instance(what: str, value: object, kind: type[T]) -> T:
    """Check the type of an argument, and return the argument."""
    if not isinstance(value, kind):
        message = f"{what} must be a {kind.__name__}, not {value!r}"
        raise ArgumentError(message)
    return value


def one_of(what: str, value: Any, choices: tuple[str, ...]) -> Any:
    """Check that an argument is one of the choices, and return it."""
    if value not in choices:
        message = f"{what} must be one of {', '.join(map(repr, choices))}, not {value!r}"
        raise ArgumentError(message)
    return value


def policy(value: Any) -> Any:
    """Check the argument `on_error`, and return it."""
    if callable(value):
        return value
    return one_of("on_error (unless it is a function)", value, ("collect", "cancel"))


def patterns(what: str, value: Iterable[str]) -> tuple[str, ...]:
    """Check a list of patterns, and return it as a tuple; refuse a single string, a common mistake."""
    if isinstance(value, str):
        message = f"{what} must be a list of patterns: write [{value!r}], not {value!r}"
        raise ArgumentError(message)
    return tuple(check_text(what, item) for item in value)


def one_pattern(given: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return one regular expression that matches if any of the patterns does; None without patterns."""
    return re.compile("|".join(map(fnmatch.translate, given))) if given else None


def check_callable(fn: object, verb: str = "spawn", wanted: str = "one") -> None:
    """Raise if `fn` cannot be called. A common mistake is to pass a coroutine."""
    if inspect.iscoroutine(fn):
        name = fn.__qualname__
        fn.close()  # prevents Python's warning that the coroutine was never awaited
        message = f"pass the function and its arguments, {verb}({name}, …), not {verb}({name}(…))"
        raise ArgumentError(message)
    if not callable(fn):
        message = f"{fn!r} is not a function: {verb} needs {wanted}"
        raise ArgumentError(message)


def coroutine(fn: Callable[..., Any], given: Any) -> Coroutine[Any, Any, Any]:
    """Return a coroutine that awaits the result of the function; raise if that is not awaitable."""
    if inspect.isawaitable(given):
        return _awaited(given)
    name = name_of(fn)
    kind = type(given).__name__
    if hasattr(given, "__aiter__"):
        message = f"{name} is an async generator: a job needs an async function without `yield`"
    else:
        message = f"{name} returned {kind}, which is not awaitable: a job needs an async function"
    raise ArgumentError(message)


def name_of(fn: object) -> str:
    """Return the name of a function."""
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else repr(fn)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def context_manager(manager: object) -> None:
    """Raise if `manager` is not an async context manager."""
    if hasattr(type(manager), "__aenter__") and hasattr(type(manager), "__aexit__"):
        return
    if inspect.iscoroutine(manager):
        manager.close()
    sync = hasattr(type(manager), "__enter__")
    hint = ", but a sync one: use `with`" if sync else ""
    message = f"{manager!r} is not an async context manager{hint}"
    raise ArgumentError(message)
