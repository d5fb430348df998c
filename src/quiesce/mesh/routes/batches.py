"""Batches: whether a worker collects several items from a queue before it works on them.

When a worker asks for another item, it has finished the previous item or has put that item (or a result of it) aside.
The worker is assumed to collect a batch in three cases:

- Its code still reads the variable to which the item was assigned. A copy of that variable does not count.
- The item goes straight into a comprehension: `[await q.get() for _ in range(3)]`.
- A container within the worker's reach has grown since the worker took the item, and all of these hold:
    1. The worker's code repeatedly empties or replaces the container. A container that is only ever filled is a
       log of finished work. A container from which single entries are removed is a register of work in progress.
    2. If the container is an attribute, the worker's code (or a function that this code calls) uses that attribute.
       Otherwise other code may have filled the container.
    3. The worker's code still reads the container. A variable that is about to be reassigned holds the previous batch.
    4. The container holds something other than tasks and futures. A hop follows tasks and futures separately.

A worker's reach is the variables of the functions that run in the worker, the attributes of those objects, and the
attributes of those attributes. Objects of libraries are left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from enum import Enum
from itertools import islice
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce.core.libraries import HOUSEKEEPERS, PLUMBING, package_of
from quiesce.mesh.routes import bytecode_flow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    Sizes = dict[int, tuple[Any, int]]

__all__: list[str] = []

FRAMES_MAX = 6
_PARTS_MAX = 64  # parts of one container that are examined
_CONTAINERS_MAX = 256
# For each kind of container: the methods that empty it, and the methods that remove one given part.
_METHODS: list[tuple[type, frozenset[str], frozenset[str]]] = [
    (dict, frozenset({"clear", "popitem"}), frozenset({"pop"})),
    (set, frozenset({"clear", "pop"}), frozenset({"discard", "remove"})),
    (object, frozenset({"clear", "pop", "popleft"}), frozenset({"remove"})),
]
# Unrelated variables can hold the same object of these types, so identity does not show that an item was assigned.
_INTERNED = (
    int, str, bytes, float, complex, tuple, frozenset, type, FunctionType, BuiltinFunctionType, ModuleType, Enum,
    NoneType, EllipsisType,
)  # fmt: skip
_ENDS = frozenset({
    "__aexit__", "__del__", "__exit__", "__init__", "aclose", "close", "disconnect", "reset", "shutdown", "stop",
})  # fmt: skip
_NOT_LOOKED_INTO = HOUSEKEEPERS | {"builtins", "collections", "typing", "pydantic", "enum"}


class ContainerPlace(NamedTuple):
    """A container within a worker's reach, and the variable or attribute that holds it."""

    container: Any
    name: str
    owner: FrameType | type


def reach(frame: FrameType | None, root: FrameType | None) -> list[FrameType]:
    """Return the frames of a worker's own code, from the innermost one out to `root`."""
    found: list[FrameType] = []
    while frame is not None and len(found) < FRAMES_MAX:
        if package_of(frame.f_globals.get("__name__")) not in PLUMBING:
            found.append(frame)
        if frame is root:
            break
        frame = frame.f_back
    return found


def sizes(frames: list[FrameType]) -> Sizes:
    """Return the size of each container within reach, by the container's id."""
    return {
        id(place.container): (place.container, _size(place.container)) for place in _places(frames)
    }


class Variables(NamedTuple):
    """The variables of a taker that were assigned an item, and the variables that had the same value before."""

    assigned: frozenset[tuple[CodeType, str]] | None
    """The variables to which the item was assigned; None if the item's identity is enough to find them."""
    before: frozenset[tuple[CodeType, str]]
    """The variables that had the same value before the take, and that the code still reads."""


UNKNOWN = Variables(None, frozenset())


def variables(frames: list[FrameType], item: object) -> Variables:
    """Return the variables to which a taker assigns the item that it takes now."""
    assigned = {
        (frame.f_code, name)
        for frame in frames
        for name in bytecode_flow.assigned_next(frame.f_code, frame.f_lasti)
    }
    before = {
        (frame.f_code, name)
        for frame in frames
        for name, value in frame.f_locals.items()
        if value is item
        and (frame.f_code, name) not in assigned
        and bytecode_flow.reads_local_later(frame.f_code, frame.f_lasti, name)
    }
    is_interned = issubclass(type(item), _INTERNED)
    return Variables(frozenset(assigned) if is_interned else None, frozenset(before))


def reads_item_later(frames: list[FrameType], item: object, known: Variables) -> bool:
    """Return whether the worker's code still reads a variable to which it assigned the item.

    A copy of such a variable does not count: `last = job` only remembers a finished item.
    """
    return any(
        value is item
        and (known.assigned is None or (frame.f_code, name) in known.assigned)
        and (frame.f_code, name) not in known.before
        and not bytecode_flow.is_copy(frame.f_code, name)
        and bytecode_flow.reads_local_later(frame.f_code, frame.f_lasti, name)
        for frame in frames
        for name, value in frame.f_locals.items()
    )


def makes_comprehension(frames: list[FrameType], item: object) -> bool:
    """Return whether the worker's code is evaluating a comprehension that will contain the item.

    If a variable already holds a list, set or dictionary with the item, the comprehension is finished.
    """
    values = [value for frame in frames for value in frame.f_locals.values()]
    is_made = any(
        any(part is item for part in _parts(value))
        for value in values
        if issubclass(type(value), list | set | dict)
    )
    return (
        not is_made
        and bool(frames)
        and bytecode_flow.goes_into_comprehension(frames[0].f_code, frames[0].f_lasti)
    )


def is_collecting(frames: list[FrameType], before: Sizes, items: list[object]) -> bool:
    """Return whether a container of the worker has grown into a batch since `before`.

    An item that is a container itself does not count.
    """
    return any(
        all(place.container is not item for item in items)
        and _size(place.container) > before.get(id(place.container), (None, 0))[1]
        and not _only_tasks(place.container)
        and _is_batch(place, frames)
        for place in _places(frames)
    )


def _places(frames: list[FrameType]) -> Iterator[ContainerPlace]:
    yield from islice(_all_places(frames), _CONTAINERS_MAX)


def _all_places(frames: list[FrameType]) -> Iterator[ContainerPlace]:
    for frame in frames:
        code, known, variables = frame.f_code, frame.f_globals, frame.f_locals
        found = {name: known[name] for name in code.co_names if name in known} | variables
        for name, value in found.items():
            if name in variables and not bytecode_flow.reads_local_later(code, frame.f_lasti, name):
                continue
            if issubclass(type(value), list | set | deque | dict):
                yield ContainerPlace(value, name, frame)
            else:
                yield from _attributes(value, depth=2)


def _attributes(value: Any, depth: int) -> Iterator[ContainerPlace]:
    kind = type(value)
    if issubclass(kind, type | ModuleType | FunctionType | MethodType):
        return
    if package_of(kind.__module__) in _NOT_LOOKED_INTO:
        return
    for name, part in attributes_of(value).items():
        if issubclass(type(part), list | set | deque | dict):
            yield ContainerPlace(part, name, kind)
        elif depth > 1:
            yield from _attributes(part, depth - 1)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's own attributes without running its code: the object may be a proxy."""
    found: dict[str, Any] = {}
    for each in type(value).__mro__:
        for name, slot in vars(each).items():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):
                    found[name] = slot.__get__(value)
    with suppress(Exception):  # a class may define `__dict__` as anything
        found |= object.__getattribute__(value, "__dict__")
    return found


def _size(container: Any) -> int:
    parts = _parts(container)
    inner = sum(len(part) for part in parts if issubclass(type(part), list | set | deque | dict))
    return len(container) + inner


def _parts(container: Any) -> list[Any]:
    try:
        return list(
            islice(container.values() if isinstance(container, dict) else container, _PARTS_MAX)
        )
    except RuntimeError:  # another thread has changed the container meanwhile
        return []


def _only_tasks(container: Any) -> bool:
    parts = _parts(container)
    return bool(parts) and all(
        issubclass(type(part), asyncio.Future | ThreadFuture) for part in parts
    )


def _is_batch(place: ContainerPlace, frames: list[FrameType]) -> bool:
    """Return whether the worker's code repeatedly fills a container and empties it or passes it on.

    A container from which other code removes single entries is a register of work in progress, not a batch.
    """
    name, owner = place.name, place.owner
    kind = type(place.container)
    emptying, register = next(found for of, *found in _METHODS if issubclass(kind, of))
    by_key = issubclass(kind, dict)
    own = [frame.f_code for frame in frames]
    if isinstance(owner, type):
        if not _may_use(name, frames):
            return False  # other users of the object have filled the container
        codes = [code for code in _methods(owner) if code.co_name not in _ENDS]
    elif name in owner.f_locals:
        own = [owner.f_code]
        near = [one.__code__ for one in owner.f_locals.values() if type(one) is FunctionType]
        codes = [*_nested(owner.f_code), *near]
    else:
        codes = [one.__code__ for one in owner.f_globals.values() if type(one) is FunctionType]
    if any(
        bytecode_flow.is_emptied(code, name, emptying | register, in_loop=True)
        or ("heappop" in code.co_names and issubclass(kind, list))
        for code in own
    ):
        return True
    groups = any(issubclass(type(part), list | set | deque) for part in _parts(place.container))
    taken_out = any(
        bytecode_flow.is_register(code, name, register, by_key=by_key) for code in codes
    )
    if by_key and groups:  # each group is a batch, and is removed as a whole
        return taken_out or any(
            bytecode_flow.is_emptied(code, name, emptying, in_loop=False) for code in codes
        )
    return not taken_out and any(
        bytecode_flow.is_emptied(code, name, emptying, in_loop=False) for code in codes
    )


def _may_use(name: str, frames: list[FrameType]) -> bool:
    """Return whether a worker's code, or a function that it calls by name, uses an attribute of this name."""
    known: dict[str, list[CodeType]] = {}
    for kind in {kind: None for frame in frames for kind in _kinds(frame)}:
        for code in _methods(kind):
            known.setdefault(code.co_name, []).append(code)
    for frame in frames:
        for function in frame.f_globals.values():
            if type(function) is FunctionType:
                known.setdefault(function.__name__, []).append(function.__code__)
    left, seen = [frame.f_code for frame in frames], set[CodeType]()
    while left:
        code = left.pop()
        if name in code.co_names:
            return True
        seen.add(code)
        called = (one for each in code.co_names for one in known.get(each, ()))
        left += [one for one in (*_nested(code), *called) if one not in seen]
    return False


def _kinds(frame: FrameType) -> Iterator[type]:
    """Yield the classes of a function's variables, and the classes of their attributes."""
    for value in frame.f_locals.values():
        for one in (value, *attributes_of(value).values()):
            kind = type(one)
            if package_of(kind.__module__) not in _NOT_LOOKED_INTO:
                yield kind


def _nested(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _nested(const)


def _methods(kind: type) -> Iterator[CodeType]:
    for each in kind.__mro__:
        for value in vars(each).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function.__code__
