"""Which functions a handler may call, found by the names in their code, which is not run.

`joined_work` uses this: a handler may leave its job to a task that another handler has started, if it may call the
function that has started the task. Names are looked up in the globals and the closure of each function, in the class of
its object, and in the classes of the objects that those names stand for. What a function gets as an argument is unknown.
"""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from quiesce.core import libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []

_FUNCTIONS_MAX = 300  # functions that are examined for one handler


def may_call(handler: Any, code: CodeType) -> bool:
    """Return whether a handler may call a function; False if the handler is not a function of Python."""
    while hasattr(handler, "func"):  # a partial
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    owner: Any = type(handler.__self__) if isinstance(handler, MethodType) else None
    return isinstance(function, FunctionType) and code in _reached(function, owner)


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
        try:
            values.append(cell.cell_contents)
        except ValueError:  # it is empty
            continue
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    values += [getattr(one, "dependency", one) for one in defaults]  # of FastAPI
    if owner is not None:
        values.append(owner)
    for value in values:
        yield from _functions_of(value, names)


def _functions_of(value: Any, names: set[str]) -> Iterator[tuple[FunctionType, Any]]:
    """Yield the functions that a value stands for: itself, or its attributes with these names."""
    if isinstance(value, FunctionType):
        yield inspect.unwrap(value), None
        return
    if isinstance(value, MethodType):
        if isinstance(value.__func__, FunctionType):
            yield value.__func__, value.__self__
        return
    kind = value if isinstance(value, type) else type(value)
    for name in (*names, "__init__", "__call__"):
        found = inspect.getattr_static(value if isinstance(value, ModuleType) else kind, name, None)
        found = getattr(found, "__func__", found)  # a static method or a class method
        if isinstance(found, FunctionType):
            yield inspect.unwrap(found), None if isinstance(value, ModuleType) else value
