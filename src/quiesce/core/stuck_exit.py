"""Ends a process in which nothing but stuck tasks is left: its event loop would wait for them for ever.

`asyncio.run` cancels all tasks at its end, and waits until each has ended. A task that swallows every cancellation would
keep the process alive after the drain and the server are over.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quiesce.core import process_exit
from quiesce.core.graveyard import graveyards

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.hold import Held

__all__: list[str] = []

_LOOK_SECONDS = 0.1  # between two looks at what is left
_watched: set[int] = set()  # event loops, by their id: a process has few, and they end with it


def exit_when_only_stuck_is_left(loop: Any, patience: float) -> None:
    """Exit with 1 as soon as an event loop has had nothing but stuck tasks for some time.

    A program that goes on after its server, in the same event loop, is not affected: its own task is left as well.

    Args:
        loop: An event loop of asyncio. If it has no stuck tasks, this does nothing.
        patience: For how many seconds nothing else may be left before the process exits.
    """
    if isinstance(loop, asyncio.AbstractEventLoop) and _stuck_in(loop) and id(loop) not in _watched:
        _watched.add(id(loop))
        watch = threading.Thread(
            target=watch_loop, args=(loop, patience, process_exit.exit_process),
            name="quiesce stuck", daemon=True,
        )  # fmt: skip
        watch.start()


def watch_loop(loop: asyncio.AbstractEventLoop, patience: float, leave: Callable[[], None]) -> None:
    """Look at what is left in an event loop, in a thread of its own, until the loop has ended."""
    since: float | None = None
    while not loop.is_closed():
        stuck = _stuck_in(loop)
        only_stuck = bool(stuck) and tasks_in(loop) <= stuck.keys()
        now = time.monotonic()
        since = (now if since is None else since) if only_stuck else None
        if since is not None and now - since >= patience:
            children = process_exit.child_processes()
            _say(list(stuck.values()), children)
            process_exit.end_processes(children)
            process_exit.lost()
            leave()
            return
        time.sleep(_LOOK_SECONDS)


def _stuck_in(loop: object) -> dict[object, Held]:
    """Return the stuck tasks of an event loop, each with its hold."""
    found: dict[object, Held] = {}
    for graveyard in list(graveyards):
        if graveyard.loop is loop:
            for held in list(graveyard.holds.values()):
                task = getattr(held, "task", held)
                if isinstance(task, asyncio.Future) and not task.done():
                    found[task] = held
    return found


def tasks_in(loop: asyncio.AbstractEventLoop) -> set[object]:
    with suppress(RuntimeError):  # the tasks change while they are listed: the next look has them
        return {task for task in asyncio.all_tasks(loop) if not task.done()}
    return {loop}


def _say(stuck: list[Held], children: list[Any]) -> None:
    names = "; ".join(f"{held.kind} {held.name}, started {held.where}" for held in stuck)
    text = (
        f"quiesce: the process exits with 1. Only stuck tasks are left, and the event loop would wait for them: {names}. "
        "Let the code of such a task end when it is cancelled"
    )
    if children:
        named = ", ".join(f"{one.name} (pid {one.pid})" for one in children)
        text += f". The children of multiprocessing are ended with it: {named}"
    # Write to the file descriptor, because the stream's buffer may be locked.
    with suppress(AttributeError, OSError, ValueError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="replace"))
