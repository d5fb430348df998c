"""Which functions a handler may call, found by the names in their code, which is not run.

`joined_work` uses this: a handler may leave its job to a task that another handler has started, if it may call the
function that has started the task. Names are looked up in the globals and the closure of each function, in the class of
its object, and in the classes of the objects that those names stand for. What a function gets as an argument is unknown.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from quiesce.core import libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []

_FUNCTIONS_MAX = 300  # functions that are examined for one handler


def may_call(handler: Any, code: CodeType) -> bool:
    """Return whether a handler may call a function; False if the handler is not a function of Python."""
    while type(handler) is partial:
        handler = handler.func
    owner: Any = None
    if type(handler) is MethodType:
        handler, owner = handler.__func__, type(handler.__self__)
    return type(handler) is FunctionType and code in _reached(handler, owner)


@lru_cache(maxsize=256)
def _reached(handler: FunctionType, owner: Any) -> frozenset[CodeType]:
    """Return the code of the functions of the program that a handler may call, with that of the functions in them."""
    found: set[CodeType] = set()
    ahead: list[tuple[FunctionType, Any]] = [(handler, owner)]
    seen: set[FunctionType] = set()
    while ahead and len(seen) < _FUNCTIONS_MAX:
        function, own = ahead.pop()
        if function in seen or _is_of_library(function):
            continue
        seen.add(function)
        codes = list(_with_inner(function.__code__))
        found.update(codes)
        names = {name for code in codes for name in code.co_names}
        ahead += _called(function, own, names)
    return frozenset(found)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _with_inner(one)


def _is_of_library(function: FunctionType) -> bool:
    package = libraries.package_of(function.__module__)
    return package in libraries.WITH_LOOPS or package in sys.stdlib_module_names


def _called(
    function: FunctionType, owner: Any, names: set[str]
) -> Iterator[tuple[FunctionType, Any]]:
    """Yield the functions that a function may call by these names, each with its class or object."""
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            values.append(cell.cell_contents)
    for one in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        values.append(one)
        values.append(inspect.getattr_static(one, "dependency", None))  # of FastAPI
    for value in (*values, owner):
        yield from _functions_of(value, names)


def _functions_of(value: Any, names: set[str]) -> Iterator[tuple[FunctionType, Any]]:
    """Yield the functions that a value stands for: itself, or its attributes with these names.

    The value is the program's, and may be any object: none of its own code is run.
    """
    kind = type(value)
    if kind is FunctionType:
        yield value, None
    elif kind is MethodType:
        if type(value.__func__) is FunctionType:
            yield value.__func__, value.__self__
    elif value is not None:
        is_module = issubclass(kind, ModuleType)
        place = value if is_module or issubclass(kind, type) else kind
        for name in (*names, "__init__", "__call__"):
            found = inspect.getattr_static(place, name, None)
            if type(found) in {staticmethod, classmethod}:
                found = found.__func__
            if type(found) is FunctionType:
                yield found, None if is_module else value
