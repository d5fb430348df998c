"""Where something was started, and what it waits on: file and line, resolved when asked.

Recording must be cheap (it is on the path of every spawn), so only a code object and an
instruction offset are kept. Turning them into `file:line` is left to whoever reads.
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
_CHAIN_MAX = 200  # an await chain deeper than this is cut; nobody reads further


class Frame(NamedTuple):
    """One place in a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return `file:line in function`."""
        return f"{self.file}:{self.line} in {self.function}"


class Callsite(NamedTuple):
    """What is needed of a frame that may be gone by now."""

    f_code: CodeType
    f_lasti: int


def starting_code(frame: FrameType, task: object) -> FrameType | Callsite:
    """Return the code that calls: the frame, unless that is the event loop's.

    It is, for a coroutine that is the outermost one of a task; then whoever started that task.
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
    """List the frames that a suspended coroutine is waiting in, outermost first."""
    return [
        Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        for frame, _ in _walk(awaitable)
    ]


def waiting_on(chain: list[Frame]) -> str | None:
    """Name the innermost await of a chain for human eyes.

    That is the innermost one outside the event loops' own code, with what it called there:
    `app.py:7 in fetch, in asyncio sleep` says more than a line inside asyncio.
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
    """Name the event loop's library that a file belongs to; nobody runs in one not yet loaded."""
    for name in _PLUMBING:
        module = sys.modules.get(name)
        package = getattr(module, "__file__", None)
        if package is not None and Path(package).parent in Path(file).parents:
            return name
    return None


def innermost(awaitable: object) -> FrameType | None:
    """Return the innermost frame that a suspended coroutine is waiting in."""
    chain = _walk(awaitable)
    return chain[-1][0] if chain else None


def is_plumbing(awaitable: object) -> bool:
    """Return whether a suspended coroutine runs no code but the event loops' own."""
    chain = await_chain(awaitable)
    return bool(chain) and all(_plumbing_of(frame.file) is not None for frame in chain)


def links(awaitable: object) -> list[object]:
    """List the coroutines and generators of an await chain, outermost first."""
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
    """Find the async generator that `anext()`, `asend()` or `aclose()` works on.

    They hide it; the collector still sees it, and without it a stream's reader would seem to
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
    """List the frames that a thread is in, outermost first."""
    frame = sys._current_frames().get(ident) if ident is not None else None
    found: list[Frame] = []
    while frame is not None and len(found) < _CHAIN_MAX:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return found[::-1]


_NAMELESS = re.compile(r"Task-\d+|None")  # as asyncio calls them; 3.13.0 those of a factory


def task_name(task: Any, coro: object) -> str:
    """Return the name of a task; `Task-7` says less than the name of its function."""
    name = task.get_name()
    return str(getattr(coro, "__qualname__", name)) if _NAMELESS.fullmatch(name) else name
