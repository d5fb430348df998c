"""Where a task was started, and what it waits on, as file and line.

Every spawn records its place, so recording must be cheap: only a code object and an instruction
offset are kept. They become `file:line` when that is read.
"""

from __future__ import annotations

import gc
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

__all__: list[str] = []

_PLUMBING = ("asyncio", "trio", "anyio", "quiesce")
_CHAIN_MAX = 200  # deeper await chains are cut


class Frame(NamedTuple):
    """One place in a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return `file:line in function`."""
        return f"{self.file}:{self.line} in {self.function}"


class Callsite(NamedTuple):
    """The part of a frame that is kept when the frame itself may be gone."""

    f_code: CodeType
    f_lasti: int


def starting_code(frame: FrameType, task: object) -> FrameType | Callsite:
    """Return the calling frame; if that is the event loop's, the place where the task was started.

    The loop is the caller if the coroutine is the outermost one of its task.
    """
    if frame.f_globals.get("__name__", "").partition(".")[0] in _PLUMBING:
        code = getattr(task, "_code_started", None)
        if code is not None:
            return Callsite(code, getattr(task, "_offset_started", 0))
    return frame


def line_of(code: CodeType, offset: int) -> int:
    """Return the line of the instruction at `offset`."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def describe(code: CodeType | None, offset: int) -> str | None:
    """Return `file:line` for a recorded place."""
    return None if code is None else f"{code.co_filename}:{line_of(code, offset)}"


def await_chain(awaitable: object) -> list[Frame]:
    """Return the frames that a suspended coroutine is waiting in, outermost first."""
    return [
        Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        for frame, _ in _walk(awaitable)
    ]


def waiting_on(chain: list[Frame]) -> str | None:
    """Return the innermost await of a chain, for people to read.

    That is the innermost frame outside the event loops' own code, and the function it called
    there: `app.py:7 in fetch, in asyncio sleep` says more than a line inside asyncio.
    """
    for place, frame in reversed(list(enumerate(chain))):
        if _plumbing_of(frame.file) is None:
            inner = chain[place + 1] if place + 1 < len(chain) else None
            return (
                str(frame)
                if inner is None
                else f"{frame}, in {_plumbing_of(inner.file)} {inner.function}"
            )
    return str(chain[-1]) if chain else None


@lru_cache(maxsize=1024)
def _plumbing_of(file: str) -> str | None:
    """Return the event loop's library that a file belongs to, among the loaded ones."""
    for name in _PLUMBING:
        module = sys.modules.get(name)
        package = getattr(module, "__file__", None)
        if package is not None and Path(package).parent in Path(file).parents:
            return name
    return None


def is_own(where: str | None) -> bool:
    """Return whether a place, as `describe()` gives it, is in the code of quiesce itself."""
    return where is not None and _plumbing_of(where.rpartition(":")[0]) == "quiesce"


def innermost(awaitable: object) -> FrameType | None:
    """Return the innermost frame that a suspended coroutine is waiting in."""
    chain = _walk(awaitable)
    return chain[-1][0] if chain else None


def is_plumbing(awaitable: object) -> bool:
    """Return whether a suspended coroutine runs only the event loops' own code."""
    chain = await_chain(awaitable)
    return bool(chain) and all(_plumbing_of(frame.file) is not None for frame in chain)


def links(awaitable: object) -> list[object]:
    """Return the coroutines and generators of an await chain, outermost first."""
    return [link for _, link in _walk(awaitable)]


def _walk(awaitable: object) -> list[tuple[FrameType, object]]:
    found: list[tuple[FrameType, object]] = []
    while awaitable is not None and len(found) < _CHAIN_MAX:
        frame: FrameType | None
        inner: object
        match awaitable:
            case CoroutineType():
                frame, inner = awaitable.cr_frame, awaitable.cr_await
            case GeneratorType():
                frame, inner = awaitable.gi_frame, awaitable.gi_yieldfrom
            case AsyncGeneratorType():
                frame, inner = awaitable.ag_frame, awaitable.ag_await
            case _:
                frame, inner = None, _generator_behind(awaitable)
        if frame is not None:
            found.append((frame, awaitable))
        elif inner is None:
            break
        awaitable = inner
    return found


def _generator_behind(awaitable: object) -> AsyncGeneratorType[Any, Any] | None:
    """Return the async generator that an `anext()`, `asend()` or `aclose()` runs.

    These objects hide it, but the collector sees it. Without it a stream's reader would seem to
    wait on nothing.
    """
    if type(awaitable).__name__ in {"async_generator_asend", "async_generator_athrow"}:
        for referent in gc.get_referents(awaitable):
            if isinstance(referent, AsyncGeneratorType):
                return referent
    return None


def code_of(awaitable: object) -> CodeType | None:
    """Return the code of a coroutine, or of the async generator that is being closed."""
    if isinstance(awaitable, CoroutineType):
        return awaitable.cr_code
    generator = _generator_behind(awaitable)
    return None if generator is None else generator.ag_code


def thread_chain(ident: int | None) -> list[Frame]:
    """Return the frames that a thread is in, outermost first."""
    frame = sys._current_frames().get(ident) if ident is not None else None
    found: list[Frame] = []
    while frame is not None and len(found) < _CHAIN_MAX:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return found[::-1]


_NAMELESS = re.compile(r"Task-\d+|None")  # asyncio's default; "None": a factory's, on 3.13.0


def task_name(task: Any, coro: object) -> str:
    """Return the name of a task; instead of a default name like `Task-7`, that of its function."""
    name = task.get_name()
    return str(getattr(coro, "__qualname__", name)) if _NAMELESS.fullmatch(name) else name
