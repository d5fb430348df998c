"""What the code of a function does next: whether it comes back to a place, reads a variable, empties a container.

These answers come from the function's bytecode, without running it, and are remembered.
"""

from __future__ import annotations

import dis
import sys
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    Use = Literal["LOAD", "STORE"]

__all__: list[str] = []

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_NO_INTERRUPT = "JUMP_BACKWARD_NO_INTERRUPT"
_WAITING = frozenset({"YIELD_VALUE", "RESUME", _NO_INTERRUPT})
_NOT_ON = frozenset((
    "JUMP_BACKWARD", "JUMP_FORWARD", "RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE", _NO_INTERRUPT,
))  # fmt: skip
_VARIABLES = ("FAST", "DEREF", "CLOSURE", "NAME", "GLOBAL", "ATTR")
_EXPECTED = frozenset({"Empty", "EndOfStream", "QueueEmpty", "TimeoutError", "WouldBlock"})
_LOOKS = frozenset({
    None, "all", "any", "cancelled", "done", "empty", "full", "is_set", "isinstance", "len", "locked", "max", "min",
    "monotonic", "qsize", "suppress", "time", "timeout", "wait", "wait_for",
})  # fmt: skip
_DECIDING = frozenset({
    "CACHE", "CALL", "COMPARE_OP", "COPY", "LOAD_CONST", "PRECALL", "TO_BOOL", "UNARY_NOT",
})  # fmt: skip
_HANDLER = 8  # instructions at its beginning that are looked at
_AWAITED = 5  # instructions at most between an argument and the `await` of its call
_FILLING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_ADDING = 3  # instructions at most between an addition and the name that is set
_DELETING = 4  # instructions at most between a container and the removal of a part of it


class Flow:
    """The instructions of a function, and which may come after which."""

    def __init__(self, code: CodeType) -> None:
        """Read the bytecode."""
        made = dis.Bytecode(code)
        self.steps: list[dis.Instruction] = list(made)
        self._offsets: list[int] = [one.offset for one in self.steps]
        self._handlers: list[tuple[int, int, int]] = [
            (entry.start, entry.end, self.place(entry.target))
            for entry in getattr(made, "exception_entries", ())
        ]

    def place(self, offset: int) -> int:
        """Return the index of the instruction at an offset, which may be in the cache behind it."""
        return max(bisect_right(self._offsets, offset) - 1, 0)

    def begin(self, offset: int) -> int:
        """Return the index of the instruction at which code waits, or calls: of an `await`, the one that sends."""
        place = self.place(offset)
        at = place
        while at < len(self.steps) and self.steps[at].opname in _WAITING:
            if self._is_of_await(self.steps[at]):
                return self.place(self.steps[at].argval)
            at += 1
        return place

    def twins(self, place: int) -> list[int]:
        """Return the other instructions of the same code: Python writes the condition of a `while` down twice."""
        one = self.steps[place]
        if one.positions is None or one.positions.col_offset is None:
            return []
        return [
            at
            for at, step in enumerate(self.steps)
            if step.positions == one.positions and step.opcode == one.opcode and at != place
        ]

    def after(self, place: int, *, raising: bool | None) -> Iterator[int]:
        """Yield the instructions that may be next.

        Args:
            place: The instruction.
            raising: Whether it may raise. None: only what is raised in the ordinary course of things, like `QueueEmpty`.
        """
        one = self.steps[place]
        if one.opname not in _NOT_ON and place + 1 < len(self.steps):
            yield place + 1
        if one.opcode in _JUMPS and not self._is_of_await(one):
            yield self.place(one.argval)
        if raising is not False:
            for start, end, target in self._handlers:
                if start <= one.offset < end and (raising or self._is_expected(target)):
                    yield target

    def _is_of_await(self, one: dis.Instruction) -> bool:
        """Return whether an instruction goes on with what is awaited; since 3.13 handlers jump like that, too."""
        return one.opname == _NO_INTERRUPT and self.steps[self.place(one.argval)].opname == "SEND"

    def _is_expected(self, handler: int) -> bool:
        """Return whether a handler is for the end of a queue or of a time."""
        first = self.steps[handler : handler + _HANDLER]
        return any(one.argval in _EXPECTED for one in first if isinstance(one.argval, str))


@lru_cache(maxsize=1024)
def _flow(code: CodeType) -> Flow:
    return Flow(code)


@lru_cache(maxsize=4096)
def is_in_loop(code: CodeType, offset: int) -> bool:
    """Return whether the code comes back to an instruction, also by way of an exception."""
    return bool(_loop(code, offset))


@lru_cache(maxsize=4096)
def only_looks(code: CodeType, offset: int) -> bool:
    """Return whether the loop around a wait only looks whether to wait on: `while not free: await condition.wait()`."""
    steps = _flow(code).steps
    found = _loop(code, offset)
    awaits = [at for at in found if steps[at].opname == "GET_AWAITABLE" and steps[at].arg == 0]
    called = {_called(steps, at) for at in found}
    return bool(found) and len(awaits) <= 1 and called <= _LOOKS


def _called(steps: list[dis.Instruction], place: int) -> object:
    """Return the name of the function that the code is about to call; None if an instruction does not load one."""
    one = steps[place]
    if one.opname == "PUSH_NULL":
        place += -1 if sys.version_info >= (3, 13) else 1
    elif one.opname != "LOAD_METHOD" and "NULL" not in one.argrepr:
        return None
    while steps[place + 1].opname == "LOAD_ATTR":  # `asyncio.wait_for`
        place += 1
    return steps[place].argval


def _loop(code: CodeType, offset: int) -> set[int]:
    """Return the instructions by way of which the code comes back to one."""
    flow = _flow(code)
    begin = flow.begin(offset)
    found: set[int] = set()
    for one in (begin, *flow.twins(begin)):
        before: dict[int, list[int]] = {}
        ahead, seen = [one], {one}
        while ahead:
            place = ahead.pop()
            for after in flow.after(place, raising=True):
                before.setdefault(after, []).append(place)
                ahead += [after] if after not in seen else []
                seen.add(after)
        back = [one]
        while back:
            new = set(before.get(back.pop(), ())) - found
            found |= new
            back += new
    return found


@lru_cache(maxsize=4096)
def comes_to(code: CodeType, offset: int, other: int) -> bool:
    """Return whether the code may come from an instruction to another, also by way of an exception."""
    flow = _flow(code)
    goal = flow.begin(other)
    ends = (goal, *flow.twins(goal))
    seen: set[int] = set()
    ahead = [flow.begin(offset)]
    while ahead:
        found = list(flow.after(ahead.pop(), raising=True))
        if any(one in found for one in ends):
            return True
        ahead += [one for one in found if one not in seen]
        seen.update(found)
    return False


def _uses(step: dis.Instruction) -> list[tuple[Use, Any]]:
    """Return what an instruction does to variables: since 3.13, one may do two things."""
    if not any(kind in step.opname for kind in _VARIABLES):
        return []
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    words = [word for word in step.opname.split("_") if word in {"LOAD", "STORE"}]
    kinds: list[Use] = ["LOAD" if word == "LOAD" else "STORE" for word in words]
    return list(zip(kinds, names, strict=False))


@lru_cache(maxsize=4096)
def reads_local_later(code: CodeType, offset: int, name: str) -> bool:
    """Return whether the code may read a local variable after an instruction, before it sets it anew.

    What it does if something fails does not count: `except Exception: log(item)` reads it in every loop.
    """
    if name in code.co_cellvars or name in code.co_freevars:
        return True  # other functions read it, too
    flow = _flow(code)
    begin = flow.begin(offset)
    seen = {begin}
    ahead = list(flow.after(begin, raising=None))
    while ahead:
        place = ahead.pop()
        if place in seen:
            continue
        seen.add(place)
        used = next((use for use, of in _uses(flow.steps[place]) if of == name), None)
        if used == "LOAD":
            return True
        if used is None:
            ahead += flow.after(place, raising=None)
    return False


@lru_cache(maxsize=4096)
def is_emptied(code: CodeType, name: str, methods: frozenset[str], *, in_loop: bool) -> bool:
    """Return whether the code takes things out of the container of a name, or puts another in its place.

    Args:
        code: The function.
        name: A variable or an attribute.
        methods: What takes things out of a container of that kind, like `clear`.
        in_loop: Whether the function is the worker's own: what it does again and again counts, and what it gives away.
    """
    steps = _flow(code).steps
    found = [
        step.offset
        for place, step in enumerate(steps)
        for use, of in _uses(step)
        if of == name
        and (in_loop or _is_own(code, steps, place))
        and (
            (use == "STORE" and not _is_added_to(steps, place))
            or _is_called(steps, place, methods)
            or _is_cut(steps, place)
            or (in_loop and _is_given_away(steps, place))
        )
    ]
    returns = [
        step.offset
        for place, step in enumerate(steps)
        if steps[place + 1 : place + 2]
        and steps[place + 1].opname == "RETURN_VALUE"
        and ("LOAD", name) in _uses(step)[-1:]
    ]
    return (in_loop and bool(returns)) or any(
        not in_loop or is_in_loop(code, offset) for offset in found
    )


@lru_cache(maxsize=4096)
def is_register(code: CodeType, name: str, methods: frozenset[str], *, by_key: bool) -> bool:
    """Return whether the code takes a certain thing out of the container of a name; with `by_key`, by its key."""
    steps = _flow(code).steps
    return any(
        of == name
        and use == "LOAD"
        and (_is_called(steps, place, methods) or (by_key and _is_cut(steps, place)))
        for place, step in enumerate(steps)
        for use, of in _uses(step)[-1:]
    )


def _is_own(code: CodeType, steps: list[dis.Instruction], place: int) -> bool:
    """Return whether an attribute is that of `self`, and not one of the same name of another object."""
    if "ATTR" not in steps[place].opname or not code.co_argcount:
        return True
    return place > 0 and ("LOAD", code.co_varnames[0]) in _uses(steps[place - 1])[-1:]


def _is_called(steps: list[dis.Instruction], place: int, methods: frozenset[str]) -> bool:
    return place + 1 < len(steps) and steps[place + 1].argval in methods


def _is_added_to(steps: list[dis.Instruction], place: int) -> bool:
    """Return whether a name is set to what it was, and something added: `found += more`."""
    before = steps[max(place - _ADDING, 0) : place]
    return any(one.opname == "BINARY_OP" and one.argrepr == "+=" for one in before)


def _is_given_away(steps: list[dis.Instruction], place: int) -> bool:
    """Return whether a function returns or yields a value, or awaits a call that gets it."""
    if _is_called(steps, place, _FILLING):  # `seen.append(await queue.get())`
        return False
    after = [one.opname for one in steps[place + 1 : place + 1 + _AWAITED]]
    if after[:1] in (["RETURN_VALUE"], ["YIELD_VALUE"]):
        return True
    before_await = after[: after.index("GET_AWAITABLE")] if "GET_AWAITABLE" in after else []
    return bool(before_await) and all(
        name.startswith(("LOAD", "CALL", "PRECALL", "KW_NAMES")) for name in before_await
    )


def _is_cut(steps: list[dis.Instruction], place: int) -> bool:
    after = steps[place + 1 : place + 1 + _DELETING]
    return any(one.opname in {"DELETE_SUBSCR", "STORE_SLICE"} for one in after)


@lru_cache(maxsize=4096)
def is_decided(code: CodeType, offset: int) -> bool:
    """Return whether the code decides by what a call returns: by a jump, or by how often it runs a loop."""
    flow = _flow(code)
    for step in flow.steps[flow.place(offset) + 1 :]:
        if "_JUMP_" in step.opname or step.opname == "GET_ITER":
            return True
        if step.opname not in _DECIDING:
            return False
    return False


@lru_cache(maxsize=4096)
def is_copy(code: CodeType, name: str) -> bool:
    """Return whether a variable is only ever set to what another one has, or to a constant."""
    found: list[bool] = []
    is_loaded = False
    for step in _flow(code).steps:
        uses = _uses(step)
        for use, of in uses:
            if use == "STORE" and of == name:
                found.append(is_loaded)
            is_loaded = use == "LOAD"
        if not uses:
            is_loaded = step.opname == "LOAD_CONST"
    return bool(found) and all(found)


@lru_cache(maxsize=4096)
def goes_into_comprehension(code: CodeType, offset: int) -> bool:
    """Return whether the value of an instruction goes into a list, a set or a dictionary that is being made."""
    flow = _flow(code)
    for step in flow.steps[flow.begin(offset) + 1 :]:
        if step.opname in {"LIST_APPEND", "SET_ADD", "MAP_ADD"}:
            return True
        if step.opname.startswith(("STORE", "POP_TOP", "RETURN", "LOAD")):
            return False
    return False


@lru_cache(maxsize=4096)
def assigned_next(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables to which the value of an instruction, or each of its parts, is assigned."""
    flow = _flow(code)
    found: set[str] = set()
    for step in flow.steps[flow.begin(offset) + 1 :]:
        uses = _uses(step) if "ATTR" not in step.opname else []
        stores = [of for use, of in uses if use == "STORE"]
        found.update(stores)
        if (found and not stores) or step.opname.startswith(("STORE_ATTR", "STORE_SUBSCR")):
            break
        if step.opname.startswith(("POP_TOP", "RETURN", "LOAD")):
            break
    return frozenset(found)


@lru_cache(maxsize=1024)
def called_on(code: CodeType, method: str) -> tuple[tuple[str, ...], ...]:
    """Return the names of what a method is called on in the code: `("jobs",)`, `("self", "jobs")`."""
    steps = _flow(code).steps
    found = []
    for place, step in enumerate(steps):
        if step.argval == method and place:
            path: list[str] = []
            before = place - 1
            while before >= 0 and steps[before].opname == "LOAD_ATTR":
                path.insert(0, steps[before].argval)
                before -= 1
            names = [of for use, of in _uses(steps[before]) if use == "LOAD"]
            found.append((*names[-1:], *path))
    return tuple(found)


def is_called_on(frame: FrameType, method: str, thing: object) -> bool:
    """Return whether the code of a frame calls a method of a thing."""
    for first, *rest in filter(None, called_on(frame.f_code, method)):
        found: Any = frame.f_locals.get(first, frame.f_globals.get(first))
        for name in rest:
            found = getattr(found, name, None)
        if found is thing:
            return True
    return False
