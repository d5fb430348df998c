"""What the code of a function does after the timeout of a wait: whether it only waits again.

A worker that takes items with a timeout and only waits again does not get a job by the timeout. Other code may look for
jobs then.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from quiesce.mesh.routes.bytecode_flow import EXPECTED, LOOKS, NO_INTERRUPT, called_at, flow_of

if TYPE_CHECKING:
    import dis
    from types import CodeType

    from quiesce.mesh.routes.bytecode_flow import Flow

__all__: list[str] = []

_IDLE = LOOKS | {
    "CancelScope", "clear", "fail_after", "fail_at", "get", "get_nowait", "get_running_loop", "move_on_after",
    "move_on_at", "receive", "receive_nowait", "timeout_at",
}  # fmt: skip
"""Functions that code may call on its way back to a wait and still do nothing."""
_BROAD = frozenset({"BaseException", "Exception", "OSError"})
_UNEXPECTED = frozenset({
    "CancelledError", "Cancelled", "ClosedResourceError", "GeneratorExit", "KeyError", "KeyboardInterrupt",
    "QueueShutDown", "RuntimeError", "ShutDown", "SystemExit", "ValueError", "anyio", "asyncio", "queue", "trio",
})  # fmt: skip

Ways = frozenset[Literal["false", "raises", "returns"]]
"""How a call may end at its timeout: with a false value, with an exception, or with another value."""


class Round(NamedTuple):
    """What code does after the timeout of its wait."""

    goes_round: bool
    """Whether the code comes back to the wait."""
    works: bool
    """Whether it calls a function on the way back."""
    works_before: bool
    """Whether it calls a function before it leaves its own."""
    ways: Ways
    """How it leaves its function."""


@lru_cache(maxsize=4096)
def after_timeout(code: CodeType, offset: int, ways: Ways) -> Round:
    """Return what the code does when the wait at an offset ends by a timeout, in any of these ways."""
    flow = flow_of(code)
    begin = flow.begin(offset)
    ends = {begin, *flow.twins(begin)}
    before: dict[int, set[int]] = {}
    left: dict[int, Literal["raises", "returns"]] = {}
    ahead = _when_over(flow, begin, ways)
    if not ahead:
        return Round(goes_round=False, works=False, works_before=False, ways=ways & {"raises"})
    seen = set(ahead)
    while ahead:
        place = ahead.pop()
        if place in ends:
            continue
        found, how = _after_error(flow, place)
        if how is not None:
            left[place] = how
        for one in found:
            before.setdefault(one, set()).add(place)
            ahead += [one] if one not in seen else []
            seen.add(one)
    wait = flow.steps[begin]
    # Calls around the wait, in the same expression, get its result. They are not calls on the way back.
    around = {
        _begin_of(one) for one in flow.steps if "CALL" in one.opname and _is_within(wait, one)
    }

    def calls(goals: set[int]) -> bool:
        on_way, back = set(goals), list(goals)
        while back:
            new = before.get(back.pop(), set()) - on_way
            on_way |= new
            back += new
        return any(
            called_at(flow.steps, one) not in _IDLE
            and not _is_within(flow.steps[one], wait)
            and _begin_of(flow.steps[one]) not in around
            for one in on_way
        )

    reached = ends & seen
    return Round(bool(reached), calls(reached), calls(set(left)), frozenset(left.values()))


def _when_over(flow: Flow, begin: int, ways: Ways) -> list[int]:
    """Return the instructions that may come first after the timeout of a wait."""
    found = list(flow.after(begin, raising=False)) if "returns" in ways else []
    if "raises" in ways:
        found += flow.handlers(begin)
    if "false" in ways:
        at, value = begin + 1, False
        while flow.steps[at].opname in {"TO_BOOL", "UNARY_NOT"}:
            value ^= flow.steps[at].opname == "UNARY_NOT"
            at += 1
        name = flow.steps[at].opname
        if "JUMP" in name and name.endswith(("IF_FALSE", "IF_TRUE")):
            jumps = name.endswith("IF_TRUE") is value
            found.append(flow.place(flow.steps[at].argval) if jumps else at + 1)
        else:
            found += flow.after(begin, raising=False)
    return found


def _after_error(flow: Flow, place: int) -> tuple[list[int], Literal["raises", "returns"] | None]:
    """Return the instructions that may follow during a timeout, and how the function may be left here."""
    one = flow.steps[place]
    if one.opname == "CHECK_EXC_MATCH":
        matches = _matches(_names_before(flow.steps, place))
        jump = flow.place(flow.steps[place + 1].argval)
        return ([place + 2] if matches else [] if matches is None else [jump]) or [
            place + 2,
            jump,
        ], None
    if one.opname == "WITH_EXCEPT_START":
        jump = place + 1
        while "_JUMP_" not in flow.steps[jump].opname or "IF_" not in flow.steps[jump].opname:
            jump += 1
        ends_here = [flow.place(flow.steps[jump].argval)]
        suppresses = _suppresses(flow, place)
        return (ends_here if suppresses else [jump + 1]) + (
            ends_here if suppresses is None else []
        ), None
    if one.opname in {"RERAISE", "RAISE_VARARGS"}:
        found = flow.handlers(place)
        return found, None if found else "raises"
    if one.opname.startswith("RETURN_") and one.opname != "RETURN_GENERATOR":
        return [], "returns"
    is_await = flow.steps[place + 2 : place + 3] and flow.steps[place + 2].opname == NO_INTERRUPT
    how: Literal["returns"] | None = (
        "returns" if one.opname == "YIELD_VALUE" and not is_await else None
    )
    return list(flow.after(place, raising=False)), how


def _matches(names: set[str]) -> bool | None:
    """Return whether an `except` with these names catches a timeout; None if unknown."""
    if not names.isdisjoint(EXPECTED | _BROAD):
        return True
    return False if names <= _UNEXPECTED else None


def _names_before(steps: list[dis.Instruction], place: int) -> set[str]:
    """Return the names that are loaded right before an instruction."""
    found: set[str] = set()
    at = place - 1
    while at >= 0 and steps[at].opname.startswith(("LOAD_", "BUILD_TUPLE")):
        found |= {steps[at].argval} if isinstance(steps[at].argval, str) else set()
        at -= 1
    return found


def _suppresses(flow: Flow, handler: int) -> bool | None:
    """Return whether the `with` block of a handler suppresses a timeout; None if unknown."""
    at = flow.begin_of_with(handler - 1)  # its first instruction keeps the exception
    if at is None:
        return None
    if "CALL" not in flow.steps[at].opname:
        return False  # `with lock:`
    inside = (one for one in flow.steps[: at + 1] if _is_within(one, flow.steps[at]))
    names = {one.argval for one in inside if isinstance(one.argval, str)}
    if not names.isdisjoint({"move_on_after", "move_on_at", "CancelScope"}):
        return True
    if "suppress" in names:
        return _matches(names - {"suppress", "contextlib"})
    return None if names.isdisjoint({"fail_after", "fail_at", "timeout", "timeout_at"}) else False


def _begin_of(one: dis.Instruction) -> Any:
    return None if one.positions is None else one.positions[::2]


def _is_within(one: dis.Instruction, other: dis.Instruction) -> bool:
    """Return whether the source of an instruction is a part of another's source."""
    if one.positions is None or other.positions is None:
        return False
    inner: Any = one.positions
    outer: Any = other.positions
    if None in (*inner, *outer):
        return False
    return bool(outer[::2] <= inner[::2] and inner[1::2] <= outer[1::2])
