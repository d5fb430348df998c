"""A default name for a server: its program or, if an interpreter runs a script, the script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_LAUNCHERS = re.compile(
    r"(python|pypy)[\d.]*|node|npx|npm|bunx?|deno|uvx?|pipx|ruby|perl|(ba|z)?sh"
)
_VERBS = {"dlx", "exec", "run", "tool", "x"}
_WITH_VALUE = {"--directory", "--from", "--project", "--python", "--with", "-p", "-W", "-X"}
_INLINE = {"-c", "-e", "--eval"}  # what follows is source code, not a name


def program_name(command: str, args: Sequence[str]) -> str:
    """Return the name of a program: `python -m weather.server` is `weather.server`."""
    program = _last_part(command)
    if _LAUNCHERS.fullmatch(program.removesuffix(".exe")) is None:
        return program
    words = iter(args)
    for word in words:
        if word in _INLINE:
            break
        if word == "-m":
            return next(words, program)
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-") and word not in _VERBS:
            return _last_part(word) or program
    return program


def _last_part(path: str) -> str:
    """Return the last part of a path. The name of an npm package with a scope (`@org/name`) stays whole."""
    return path if path.startswith("@") else re.split(r"[/\\]", path)[-1]
