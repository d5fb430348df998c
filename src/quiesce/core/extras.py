"""The install command for an optional part of quiesce, for all error messages.

quiesce is not on PyPI yet, so `pip install 'quiesce[a2a]'` would fail, or install another project's package.
"""

from __future__ import annotations

__all__: list[str] = []


def how_to_install(*extras: str, upgrade: bool = False) -> str:
    """Return a sentence with the command that installs one of the extras, and where to run it."""
    option = "--upgrade " if upgrade else ""
    commands = " or ".join(f"pip install {option}'.[{extra}]'" for extra in extras)
    return f"run {commands} in a checkout of quiesce"
