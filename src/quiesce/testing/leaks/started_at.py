"""Find the line that started something: the nearest caller outside event loops and test runners."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from quiesce.core.callsites import line_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

# Packages that start things on behalf of other code: their callers are named instead.
MACHINERY = frozenset(
    {
        "_pytest",
        "anyio",
        "asyncio",
        "blockbuster",
        "concurrent",
        "contextlib",
        "contextvars",
        "execnet",
        "functools",
        "multiprocessing",
        "outcome",
        "pluggy",
        "pytest",
        "pytest_asyncio",
        "pytest_trio",
        "quiesce",
        "runpy",
        "socket",
        "subprocess",
        "threading",
        "trio",
        "unittest",
        "uvloop",
        "warnings",
        "xdist",
    }
)
_FRAMES_MAX = 100  # how many frames to search; no test is further away from its event loop


class StartPlace(NamedTuple):
    """A place in a program; its line number is looked up only when needed."""

    code: CodeType
    offset: int

    def __str__(self) -> str:
        """Return `file:line`."""
        return f"{self.code.co_filename}:{line_of(self.code, self.offset)}"


asked: ContextVar[StartPlace | None] = ContextVar("quiesce_testing_asked", default=None)
"""The code that asked a worker thread for its work; the thread's own stack does not show it."""


_modules: dict[str, bool | None] = {}
"""Whether a module is machinery; None if no user code is above it on a stack."""


def is_machinery(module: str) -> bool:
    """Return whether a module is part of an event loop, a test runner or the like."""
    return module.partition(".")[0] in MACHINERY


def calling(frame: FrameType | None) -> StartPlace | None:
    """Return the nearest caller of `frame` outside the machinery; None if there is none."""
    frames_left = _FRAMES_MAX
    while frame is not None and frames_left:
        module = frame.f_globals.get("__name__", "")
        try:
            known = _modules[module]
        except KeyError:
            known = None if module.startswith("_pytest.") else is_machinery(module)
            _modules[module] = known
        if not known:
            if known is None:
                break  # this module calls tests, so no user code is above it
            return StartPlace(frame.f_code, frame.f_lasti)
        frame = frame.f_back
        frames_left -= 1
    return asked.get()


def innermost_caller(frame: FrameType | None) -> StartPlace | None:
    """Return the nearest caller outside quiesce, for starts that only an event loop asked for."""
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("quiesce."):
            return StartPlace(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def started_by(frame: FrameType | None) -> StartPlace | None:
    """Return the nearest caller of `frame` outside the machinery, or else the nearest outside quiesce."""
    return calling(frame) or innermost_caller(frame)


def of_origin(origin: Sequence[tuple[str, int, str]] | None) -> str | None:
    """Return the line in which a coroutine was made, from Python's record; nearest frame first."""
    if not origin:
        return None
    roots = _folders()
    for file, line, _ in origin:
        if not file.startswith(roots):
            return f"{file}:{line}"
    return f"{origin[0][0]}:{origin[0][1]}"


def _folders() -> tuple[str, ...]:
    """List the folders of the machinery's loaded packages."""
    files = [getattr(sys.modules.get(name), "__file__", None) or "" for name in MACHINERY]
    return tuple(
        file.removesuffix("__init__.py") if file.endswith("__init__.py") else file
        for file in files
        if file
    )
