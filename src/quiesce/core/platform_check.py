"""Checks that this platform has the system calls that child processes need. Windows lacks them."""

from __future__ import annotations

import os

from quiesce.errors import UsageError

__all__: list[str] = []

_CALLS = ("fork", "killpg", "waitid")


def check_posix(what: str) -> None:
    """Raise `UsageError` for a feature if the platform lacks a system call that it needs."""
    missing = [f"os.{name}" for name in _CALLS if not hasattr(os, name)]
    if missing:
        message = (
            f"{what} does not work on this platform: Python has no {', '.join(missing)} here."
            " Run this program on Linux (on Windows: in WSL)"
        )
        raise UsageError(message)
