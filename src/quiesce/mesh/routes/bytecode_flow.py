"""What the code of a function does next: whether it returns to a place, reads a variable, or empties a container.

`batches`, `events` and their neighbours use this to decide whether a worker is done with an item. The answers come from
the function's bytecode, which is not run. Each answer is cached.
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
NO_INTERRUPT = "JUMP_BACKWARD_NO_INTERRUPT"
_WAITING = frozenset({"YIELD_VALUE", "RESUME", NO_INTERRUPT})
_NO_FALL_THROUGH = frozenset((
    "JUMP_BACKWARD", "JUMP_FORWARD", "RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE", NO_INTERRUPT,
))  # fmt: skip
_VARIABLES = ("FAST", "DEREF", "CLOSURE", "NAME", "GLOBAL", "ATTR")
EXPECTED = frozenset({"Empty", "EndOfStream", "QueueEmpty", "TimeoutError", "WouldBlock"})
LOOKS = frozenset({
    None, "all", "any", "cancelled", "done", "empty", "full", "is_set", "isinstance", "len", "locked", "max", "min",
    "monotonic", "qsize", "suppress", "time", "timeout", "wait", "wait_for",
})  # fmt: skip
_DECIDING = frozenset({
    "CACHE", "CALL", "COMPARE_OP", "COPY", "LOAD_CONST", "LOAD_SMALL_INT", "NOT_TAKEN", "PRECALL", "TO_BOOL",
    "UNARY_NOT",
})  # fmt: skip
_HANDLER = 8  # instructions at the start of an exception handler that are examined
_AWAITED = 5  # instructions at most between an argument and the `await` of its call
_FILLING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_ADDING = 3  # instructions at most between an addition and the name that is set
_DELETING = 4  # instructions at most between a container and the removal of a part of it


class Flow:
    """The instructions of a function, and which instruction may follow which."""

    def __init__(self, code: CodeType) -> None:
        made = dis.Bytecode(code)
        self.steps: list[dis.Instruction] = list(made)
        self._offsets: list[int] = [one.offset for one in self.steps]
        self._handlers: list[tuple[int, int, int]] = [
            (entry.start, entry.end, self.place(entry.target))
            for entry in getattr(made, "exception_entries", ())
        ]

    def place(self, offset: int) -> int:
        """Return the index of the instruction at an offset, or of the one whose inline cache holds the offset."""
        return max(bisect_right(self._offsets, offset) - 1, 0)

    def begin(self, offset: int) -> int:
        """Return the index of the instruction at which code waits or calls; for an `await`, that is its `SEND`."""
        place = self.place(offset)
        at = place
        while at < len(self.steps) and self.steps[at].opname in _WAITING:
            if self._is_of_await(self.steps[at]):
                return self.place(self.steps[at].argval)
            at += 1
        return place

    def twins(self, place: int) -> list[int]:
        """Return the other instructions of the same source text: Python compiles the condition of a `while` twice."""
        one = self.steps[place]
        if one.positions is None or one.positions.col_offset is None:
            return []
        return [
            at
            for at, step in enumerate(self.steps)
            if step.positions == one.positions and step.opcode == one.opcode and at != place
        ]

    def after(self, place: int, *, raising: bool | None) -> Iterator[int]:
        """Yield the instructions that may follow.

        Args:
            place: The instruction.
            raising: Whether the instruction may raise. None: it may raise only expected errors, like `QueueEmpty`.
        """
        one = self.steps[place]
        if one.opname not in _NO_FALL_THROUGH and place + 1 < len(self.steps):
            yield place + 1
        if one.opcode in _JUMPS and not self._is_of_await(one):
            yield self.place(one.argval)
        if raising is not False:
            for start, end, target in self._handlers:
                if start <= one.offset < end and (raising or self._is_expected(target)):
                    yield target

    def handlers(self, place: int) -> list[int]:
        """Return the handler of what an instruction raises, if the function has one."""
        offset = self.steps[place].offset
        return [target for start, end, target in self._handlers if start <= offset < end]

    def begin_of_with(self, handler: int) -> int | None:
        """Return the last instruction of the expression of the `with` block that a handler belongs to."""
        first = min((start for start, _, target in self._handlers if target == handler), default=0)
        for at in range(self.place(first), 0, -1):
            one = self.steps[at]
            if one.opname in {"BEFORE_ASYNC_WITH", "BEFORE_WITH"}:
                return at - 1
            if one.opname == "LOAD_SPECIAL" and "exit" in one.argrepr:
                return at - 2  # the one between copies it
        return None

    def _is_of_await(self, one: dis.Instruction) -> bool:
        """Return whether an instruction resumes an `await`. Since Python 3.13, handlers use the same jump."""
        return one.opname == NO_INTERRUPT and self.steps[self.place(one.argval)].opname == "SEND"

    def _is_expected(self, handler: int) -> bool:
        """Return whether a handler catches an empty or ended queue, or a timeout."""
        first = self.steps[handler : handler + _HANDLER]
        return any(one.argval in EXPECTED for one in first if isinstance(one.argval, str))


@lru_cache(maxsize=1024)
def flow_of(code: CodeType) -> Flow:
    """Return the instructions of a function."""
    return Flow(code)


@lru_cache(maxsize=4096)
def is_in_loop(code: CodeType, offset: int) -> bool:
    """Return whether the code can return to an instruction, also after an exception."""
    return bool(_loop(code, offset))


@lru_cache(maxsize=4096)
def only_looks(code: CodeType, offset: int, also: str = "") -> bool:
    """Return whether the loop around a wait only checks a condition: `while not free: await condition.wait()`.

    `also` is the name of one more function that the loop may call.
    """
    steps = flow_of(code).steps
    found = _loop(code, offset)
    awaits = [at for at in found if steps[at].opname == "GET_AWAITABLE" and steps[at].arg == 0]
    called = {called_at(steps, at) for at in found}
    return bool(found) and len(awaits) <= 1 and called <= LOOKS | {also}


def called_at(steps: list[dis.Instruction], place: int) -> object:
    """Return the name of the function that an instruction loads for a call; None if it does not load one."""
    one = steps[place]
    if one.opname == "PUSH_NULL":
        place += -1 if sys.version_info >= (3, 13) else 1
    elif one.opname != "LOAD_METHOD" and "NULL" not in one.argrepr:
        return None
    while steps[place + 1].opname == "LOAD_ATTR":  # `asyncio.wait_for`
        place += 1
    return steps[place].argval


def _loop(code: CodeType, offset: int) -> set[int]:
    """Return the instructions on the paths from an instruction back to itself."""
    flow = flow_of(code)
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
    """Return whether the code can get from one instruction to another, also after an exception."""
    flow = flow_of(code)
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
    """Return the variables that an instruction loads and stores. Since Python 3.13, one instruction may do both."""
    if not any(kind in step.opname for kind in _VARIABLES):
        return []
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    words = [word for word in step.opname.split("_") if word in {"LOAD", "STORE"}]
    kinds: list[Use] = ["LOAD" if word == "LOAD" else "STORE" for word in words]
    return list(zip(kinds, names, strict=False))


@lru_cache(maxsize=4096)
def reads_local_later(code: CodeType, offset: int, name: str) -> bool:
    """Return whether the code may read a local variable after an instruction, before it assigns the variable again.

    Reads in handlers of unexpected errors do not count: `except Exception: log(item)` would match every loop.
    """
    if name in code.co_cellvars or name in code.co_freevars:
        return True  # other functions may read the variable
    flow = flow_of(code)
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
    """Return whether the code empties the container of a name, or replaces it by another.

    Args:
        code: The function.
        name: The variable or attribute that holds the container.
        methods: The methods that empty a container of that kind, like `clear`.
        in_loop: Whether the function is the worker's own. Then only what it does in a loop counts, and passing the
            container on counts as well.
    """
    steps = flow_of(code).steps
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
    """Return whether the code removes a single entry from the container of a name; with `by_key`, by its key."""
    steps = flow_of(code).steps
    return any(
        of == name
        and use == "LOAD"
        and (_is_called(steps, place, methods) or (by_key and _is_cut(steps, place)))
        for place, step in enumerate(steps)
        for use, of in _uses(step)[-1:]
    )


def _is_own(code: CodeType, steps: list[dis.Instruction], place: int) -> bool:
    """Return whether an attribute belongs to `self`, and not to another object."""
    if "ATTR" not in steps[place].opname or not code.co_argcount:
        return True
    return place > 0 and ("LOAD", code.co_varnames[0]) in _uses(steps[place - 1])[-1:]


def _is_called(steps: list[dis.Instruction], place: int, methods: frozenset[str]) -> bool:
    return place + 1 < len(steps) and steps[place + 1].argval in methods


def _is_added_to(steps: list[dis.Instruction], place: int) -> bool:
    """Return whether a name is assigned its old value plus something: `found += more`."""
    before = steps[max(place - _ADDING, 0) : place]
    return any(one.opname == "BINARY_OP" and one.argrepr == "+=" for one in before)


def _is_given_away(steps: list[dis.Instruction], place: int) -> bool:
    """Return whether a function returns or yields a value, or awaits a call with it as an argument."""
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
    """Return whether the code branches on the result of a call, or loops over it."""
    flow = flow_of(code)
    for step in flow.steps[flow.place(offset) + 1 :]:
        if "_JUMP_" in step.opname or step.opname == "GET_ITER":
            return True
        if step.opname not in _DECIDING:
            return False
    return False


@lru_cache(maxsize=4096)
def is_copy(code: CodeType, name: str) -> bool:
    """Return whether a variable is only ever assigned the value of another variable, or a constant."""
    found: list[bool] = []
    is_loaded = False
    for step in flow_of(code).steps:
        uses = _uses(step)
        for use, of in uses:
            if use == "STORE" and of == name:
                found.append(is_loaded)
            is_loaded = use == "LOAD"
        if not uses:
            is_loaded = step.opname in {"LOAD_CONST", "LOAD_SMALL_INT"}
    return bool(found) and all(found)


@lru_cache(maxsize=4096)
def goes_into_comprehension(code: CodeType, offset: int) -> bool:
    """Return whether the value of an instruction becomes an element of a comprehension."""
    flow = flow_of(code)
    for step in flow.steps[flow.begin(offset) + 1 :]:
        if step.opname in {"LIST_APPEND", "SET_ADD", "MAP_ADD"}:
            return True
        if step.opname.startswith(("STORE", "POP_TOP", "RETURN", "LOAD")):
            return False
    return False


@lru_cache(maxsize=4096)
def assigned_next(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables to which the value of an instruction, or each of its parts, is assigned."""
    flow = flow_of(code)
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
    """Return the objects on which the code calls a method, as names: `("jobs",)`, `("self", "jobs")`."""
    steps = flow_of(code).steps
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
    """Return whether the code of a frame calls a method on an object."""
    for first, *rest in filter(None, called_on(frame.f_code, method)):
        found: Any = frame.f_locals.get(first, frame.f_globals.get(first))
        for name in rest:
            found = getattr(found, name, None)
        if found is thing:
            return True
    return False
