"""The places where tasks were started and where they wait, as file and line; for reports and frontiers.

Every spawn records its place, so recording must be cheap: it keeps only a code object and an
instruction offset. They become `file:line` when code reads the place.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from functools import lru_cache
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

from quiesce.core.python_private import thread_frames

__all__: list[str] = []

_PLUMBING = ("asyncio", "trio", "anyio", "quiesce")
# Functions in threads wait in code of these libraries, or in threading.py.
_WAITING = (*_PLUMBING, "concurrent.futures")
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
    """The code object and offset of a frame; usable when the frame itself is gone."""

    f_code: CodeType
    f_lasti: int


def starting_code(frame: FrameType, task: object) -> FrameType | Callsite:
    """Return the calling frame, or the place where the task was started if the caller is the event loop.

    The event loop is the caller of the outermost coroutine of a task.
    """
    if frame.f_globals.get("__name__", "").partition(".")[0] in _PLUMBING:
        code = getattr(task, "started_code", None)
        if code is not None:
            return Callsite(code, getattr(task, "started_offset", 0))
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
        for frame, _ in walk_awaits(awaitable)
    ]


def waiting_on(chain: list[Frame]) -> str | None:
    """Return the innermost await of a chain, for people to read.

    The text names the innermost frame outside of the code of event loops and threads, and the library
    function that this frame called: `app.py:7 in fetch, in asyncio sleep`.
    """
    for place, frame in reversed(list(enumerate(chain))):
        if plumbing_of(frame.file) is None:
            inner = chain[place + 1] if place + 1 < len(chain) else None
            return (
                str(frame)
                if inner is None
                else f"{frame}, in {plumbing_of(inner.file)} {inner.function}"
            )
    return str(chain[-1]) if chain else None


@lru_cache(maxsize=1024)
def plumbing_of(file: str) -> str | None:
    """Return which loaded library of event loops or threads a file belongs to, or None."""
    if file == threading.__file__:
        return threading.__name__
    for name in _WAITING:
        module = sys.modules.get(name)
        package = getattr(module, "__file__", None)
        if package is not None and file.startswith(package.rpartition(os.sep)[0] + os.sep):
            return name
    return None


def is_plumbing_file(file: str) -> bool:
    """Return whether a file belongs to an event loop's library or to quiesce."""
    return plumbing_of(file) is not None


def is_own(where: str | None) -> bool:
    """Return whether a place, in the form that `describe()` returns, is in quiesce itself."""
    return where is not None and plumbing_of(where.rpartition(":")[0]) == "quiesce"


def innermost(awaitable: object) -> FrameType | None:
    """Return the innermost frame of a suspended coroutine."""
    chain = walk_awaits(awaitable)
    return chain[-1][0] if chain else None


def is_plumbing(awaitable: object) -> bool:
    """Return whether all frames of a suspended coroutine belong to event loops' libraries."""
    chain = await_chain(awaitable)
    return bool(chain) and all(plumbing_of(frame.file) is not None for frame in chain)


def links(awaitable: object) -> list[object]:
    """Return the coroutines and generators of an await chain, outermost first."""
    return [link for _, link in walk_awaits(awaitable)]


def walk_awaits(awaitable: object) -> list[tuple[FrameType, object]]:
    """Return the frames of an await chain, outermost first, each with its coroutine or generator."""
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
    """Return the async generator that an `anext()`, `asend()` or `aclose()` object runs.

    These objects have no attribute for the generator, but the garbage collector lists it as a
    referent. Without the generator, the await chain of a stream's reader would end too early.
    """
    if type(awaitable).__name__ in {"async_generator_asend", "async_generator_athrow"}:
        for referent in gc.get_referents(awaitable):
            if isinstance(referent, AsyncGeneratorType):
                return referent
    return None


def code_of(awaitable: object) -> CodeType | None:
    """Return the code of a coroutine, or of the async generator behind an `aclose()` object."""
    if isinstance(awaitable, CoroutineType):
        return awaitable.cr_code
    generator = _generator_behind(awaitable)
    return None if generator is None else generator.ag_code


def thread_chain(ident: int | None) -> list[Frame]:
    """Return the frames of a thread, outermost first."""
    frame = thread_frames().get(ident) if ident is not None else None
    found: list[Frame] = []
    while frame is not None and len(found) < _CHAIN_MAX:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return found[::-1]


# asyncio's default names; CPython 3.13.0 names the tasks of a task factory "None".
_NAMELESS = re.compile(r"Task-\d+|None")


def task_name(task: Any, coro: object) -> str:
    """Return the name of a task, or the name of its function if the task has a default name like `Task-7`."""
    name = task.get_name()
    return str(getattr(coro, "__qualname__", name)) if _NAMELESS.fullmatch(name) else name
