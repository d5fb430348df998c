"""Lock files that a process's forked children do not keep locked.

A forked child shares its parent's locks. A worker of a process pool outlives a parent that is killed, so the next
process could not take the lock. The child closes the files, and the parent still holds the locks.
"""

from __future__ import annotations

import os
from contextlib import suppress

__all__: list[str] = []

_open_files: set[int] = set()


def open_lock_file(path: str) -> int:
    """Open a file to lock, and create it if there is none; return its descriptor."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _open_files.add(number)
    return number


def close_lock_file(number: int) -> None:
    """Close the file, and release its lock. Do nothing in a forked child."""
    if number in _open_files:
        _open_files.remove(number)
        os.close(number)


def _close_all() -> None:
    """Close the parent's files. Runs in the child."""
    for number in _open_files:
        with suppress(OSError):
            os.close(number)
    _open_files.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_all)
