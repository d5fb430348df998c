"""The line that started something: the nearest caller that is neither an event loop nor a test runner."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from quiesce.core.callsites import line_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

# Packages that start things because somebody asked them to: their callers are named instead.
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
_FRAMES_MAX = 100  # a stack deeper than this is cut; nobody calls an event loop from so far


class StartPlace(NamedTuple):
    """A place in a program, resolved to a line when somebody asks."""

    code: CodeType
    offset: int

    def __str__(self) -> str:
        """Return `file:line`."""
        return f"{self.code.co_filename}:{line_of(self.code, self.offset)}"


asked: ContextVar[StartPlace | None] = ContextVar("quiesce_testing_asked", default=None)
"""Who asked a worker thread to do what it does: its own stack does not tell."""


_modules: dict[str, bool | None] = {}
"""Whether a module is machinery; None if nobody's code is above it."""


def is_machinery(module: str) -> bool:
    """Return whether a module is part of an event loop, a test runner or the like."""
    return module.partition(".")[0] in MACHINERY


def calling(frame: FrameType | None) -> StartPlace | None:
    """Find who asked for what happens in `frame`: the nearest caller outside the machinery."""
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
                break  # it calls tests, and nobody calls it
            return StartPlace(frame.f_code, frame.f_lasti)
        frame = frame.f_back
        frames_left -= 1
    return asked.get()


def innermost_caller(frame: FrameType | None) -> StartPlace | None:
    """Return the nearest caller outside quiesce, for what only an event loop has asked for."""
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("quiesce."):
            return StartPlace(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def started_by(frame: FrameType | None) -> StartPlace | None:
    """Find who asked for what happens in `frame`, or else in what part of the machinery it is."""
    return calling(frame) or innermost_caller(frame)


def of_origin(origin: Sequence[tuple[str, int, str]] | None) -> str | None:
    """Return the line in which a coroutine was made, as Python has recorded it; nearest first."""
    if not origin:
        return None
    roots = _folders()
    for file, line, _ in origin:
        if not file.startswith(roots):
            return f"{file}:{line}"
    return f"{origin[0][0]}:{origin[0][1]}"


def _folders() -> tuple[str, ...]:
    """List the folders of the machinery that is loaded."""
    files = [getattr(sys.modules.get(name), "__file__", None) or "" for name in MACHINERY]
    return tuple(
        file.removesuffix("__init__.py") if file.endswith("__init__.py") else file
        for file in files
        if file
    )
