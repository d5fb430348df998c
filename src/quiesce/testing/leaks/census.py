"""A census compares what exists now with what existed when it began; that finds leaks.

```
with Census() as census:
    ...
    findings = census.left()
```

`left()` looks once and does not wait. `settled()` looks, waits a little if something is left, and
looks again: a leftover that is gone by then is marked `late`.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from quiesce.core.python_private import running_loop
from quiesce.core.roots import roots
from quiesce.testing.leaks import (
    child_processes_left,
    loop_endings,
    open_files,
    running_threads,
    set_handlers,
    trio_tasks,
)
from quiesce.testing.leaks.births import current_task
from quiesce.testing.leaks.findings import KINDS, Finding, without_allowed
from quiesce.testing.leaks.instrument import policy_loop, watch, wrap_running

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Self

    from quiesce.testing.leaks.births import Birth, Event
    from quiesce.testing.leaks.findings import Kind

_POLL_SECONDS = 0.002
_YOUNG = 1  # the oldest collector generation that usually holds a test's objects

_NOTHING: WeakSet[Any] = WeakSet()

Left = dict[Any, Finding]
"""The findings of one look, by a key that identifies the leftover."""


class Census:
    """A record of what existed at one moment, used to find what has been left behind since.

    `allow` are patterns of tolerated leftovers (`"thread:*"`), `kinds` the kinds to look for.
    `settle` is how many seconds the tasks of a closing event loop may continue. Tasks that end in
    that time are reported as late. 0: they may not continue.
    """

    def __init__(
        self,
        *,
        kinds: Collection[Kind] = KINDS,
        allow: Sequence[str] = (),
        settle: float = 0.0,
    ) -> None:
        self.kinds: frozenset[Kind] = frozenset(kinds)
        self.allow: list[str] = list(allow)
        self.settle: float = settle
        self.showing: Any = getattr(warnings, "_showwarnmsg_impl", None)
        self.forgiven: list[tuple[int, int]] = []
        self.ended: float = math.inf
        watch.start(self)
        self._home = current_task()
        if self._home is not None:
            watch.homes.add(self._home)
            wrap_running()
        self._mark = watch.now()
        self._mark_before = (
            child_processes_left.mark_children(self._mark) if "process" in self.kinds else None
        )
        self._usage = child_processes_left.usage()
        self._loops = WeakSet(loop for loop in watch.loops if not loop.is_closed())
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        for loop in self._loops:
            self._tasks.update(_all_tasks(loop))
        self._signals: dict[object, Any] = {}
        self._base = self._present()
        self._signals = {owner: value for (owner, _), value in self._base["handler"].items()}
        self._knew_uvloop = watch.knows("uvloop")
        self.number: int = watch.now()
        """Starts with a larger number than this one belong to this census."""

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self in watch.censuses:
            self.ended = watch.now()
            if "process" in self.kinds:
                child_processes_left.unmark_children(self._mark_before)
            watch.stop(self)
            self._base = {kind: {} for kind in self._base}
            self._signals = {}
            self._tasks = self._loops = _NOTHING
            self._home = self.showing = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Looking.

    def left(self, *, collect: int | None = _YOUNG) -> list[Finding]:
        """List what exists now and did not exist when the census began.

        `collect` is the generation that the garbage collector collects first, with all younger
        ones; None: it collects nothing.
        """
        return list(self.look(collect=collect).values())

    def look(self, *, collect: int | None = _YOUNG) -> Left:
        """Find what is left, by a key that identifies the leftover."""
        if collect is not None:
            gc.collect(collect)
        watch.patch_what_is_loaded()
        found: Left = {
            ("event", event.seen): event.finding for event in watch.events if self._is_mine(event)
        }
        found |= self._left_tasks()
        found |= self._left_generators()
        found |= self._left_threads()
        found |= self._left_processes()
        found |= self._left_socket_files()
        found |= self._left_others()
        found |= self._left_files()
        mine = [finding for finding in found.values() if finding.kind in self.kinds]
        wanted = set(map(id, without_allowed(mine, self.allow)))
        return {key: finding for key, finding in found.items() if id(finding) in wanted}

    def settled(
        self, seconds: float | None = None, *, collect: int | None = _YOUNG
    ) -> list[Finding]:
        """List what is left; mark as `late` what is gone after at most `seconds`. Blocks meanwhile."""
        first = self.look(collect=collect)
        if not first:
            return []
        now: Left = first
        deadline = time.monotonic() + (self.settle if seconds is None else seconds)
        gc.collect()
        while any(may_go(key) for key in now) and time.monotonic() < deadline:
            if not self._turn_loops(_POLL_SECONDS):
                time.sleep(_POLL_SECONDS)
            now = self.look(collect=None)
        return self.without_others(census_verdict(first, self.look(collect=None)))

    def without_others(self, found: list[Finding]) -> list[Finding]:
        """Leave out leftovers that are gone by now and were made by threads older than the census.

        For example, the server of a fixture of wider scope ends its side of a connection a little later.
        """
        theirs = {t.ident for t in self._base["thread"] if t.is_alive()} - {get_ident()}
        return [f for f in found if not (f.late and f.thread in theirs)]

    def _turn_loops(self, seconds: float) -> bool:
        """Run the stopped loops that still have tasks, for a moment."""
        turned = False
        if running_loop() is not None:
            return turned
        for loop in list(watch.loops):
            if not loop.is_closed() and not loop.is_running():
                tasks = [task for task in _all_tasks(loop) if self._is_new_task(task)]
                if tasks:
                    loop_endings.wait_for(loop, tasks, seconds)
                    turned = True
        return turned

    def acknowledge(self) -> None:
        """Prevent a second report of the left tasks and generators when their loop ends."""
        for address, reading in list(watch.readings.items()):
            if self._is_new(reading.number):
                del watch.readings[address]
        for loop in list(watch.loops):
            for task in () if loop.is_closed() else loop_endings.tasks_left_on(watch, loop):
                birth = loop_endings.birth_of(watch, task)
                if birth is not None and self._is_new_task(task):
                    birth.reported = True

    # Starts and tasks that belong to this census or not.

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore what is started in this block: other code will end it."""
        begin = watch.now()
        before = self._present()
        files_before = set(watch.socket_files)
        try:
            yield
        finally:
            for loop in watch.loops:
                if self._is_since(watch.births.get(loop), begin):
                    self._loops.add(loop)
            after = self._present()
            for kind, things in after.items():
                for key in things.keys() - before[kind].keys():
                    self._base[kind][key] = things[key]
            for key, value in after["handler"].items():
                if key not in before["handler"]:
                    self._signals[key[0]] = value
            for path in watch.socket_files.keys() - files_before:
                del watch.socket_files[path]
            self.forgiven.append((begin, watch.now()))

    def concerns(self, findings: Sequence[Finding], births: Sequence[Birth | None]) -> bool:
        """Return whether one of these tasks belongs to this census and is not allowed."""
        mine = [
            finding
            for finding, birth in zip(findings, births, strict=True)
            if birth is None or self._is_new(loop_endings.births_number(birth))
        ]
        return "task" in self.kinds and bool(without_allowed(mine, self.allow))

    @staticmethod
    def _is_since(birth: Birth | None, number: int) -> bool:
        return birth is not None and birth.number > number

    def _is_new(self, number: int) -> bool:
        return number > self.number and not any(a <= number <= b for a, b in self.forgiven)

    def _is_mine(self, event: Event) -> bool:
        return event.seen > self.number and self._is_new(event.born)

    # One method for each kind.

    def _present(self) -> dict[str, dict[Any, Any]]:
        """Return everything that exists now, for the kinds that can be listed."""
        kinds = self.kinds
        return {
            "file": open_files.present_files() if "file" in kinds else {},
            "thread": running_threads.present_threads() if "thread" in kinds else {},
            "process": child_processes_left.present_children(watch.processes)
            if "process" in kinds
            else {},
            "scope": _open_scopes() if "scope" in kinds else {},
            "task": trio_tasks.present_trio_tasks() if "task" in kinds else {},
            "handler": set_handlers.present_handlers(self._loops, self._signals)
            if "handler" in kinds
            else {},
        }

    def _new(self, kind: str, present: Callable[..., dict[Any, Any]], *args: Any) -> dict[Any, Any]:
        if kind not in self.kinds:
            return {}
        base = self._base[kind]
        return {key: value for key, value in present(*args).items() if key not in base}

    def _is_new_task(self, task: asyncio.Task[Any]) -> bool:
        birth = loop_endings.birth_of(watch, task)
        if task is self._home or task in self._tasks or not loop_endings.is_work_of_test(task):
            return False
        if birth is None:
            return True
        return not birth.reported and self._is_new(loop_endings.births_number(birth))

    def _left_tasks(self) -> Left:
        found: Left = {}
        if "task" not in self.kinds:
            return found
        current = current_task()
        for loop in list(watch.loops):
            if loop.is_closed():
                continue
            for task in loop_endings.tasks_left_on(watch, loop):
                if task is not current and self._is_new_task(task):
                    found["task", id(task)] = loop_endings.task_finding(watch, task)
        for task in self._new("task", trio_tasks.present_trio_tasks):
            found["task", task] = trio_tasks.trio_task_finding(task, watch)
        return found

    def _left_generators(self) -> Left:
        found: Left = {}
        current = current_task()
        for address, reading in list(watch.readings.items()):
            if reading.over():
                del watch.readings[address]
            elif self._is_new(reading.number) and (generator := reading.open(current)) is not None:
                found["generator", address] = loop_endings.generator_finding(generator, reading)
        return found

    def _left_threads(self) -> Left:
        new = self._new("thread", running_threads.present_threads)
        return {("thread", thread): running_threads.thread_finding(thread) for thread in new}

    def _left_processes(self) -> Left:
        if "process" not in self.kinds:
            return {}
        new = self._new("process", child_processes_left.present_children, watch.processes)
        started = any(birth.number > self.number for birth in watch.processes.values())
        if new or started or child_processes_left.usage() != self._usage:
            base = self._base["process"]
            marked = child_processes_left.marked_since(self._mark)
            new |= {key: value for key, value in marked.items() if key not in base}
        births = watch.processes
        found = {
            ("process", process): child_processes_left.process_finding(process, births)
            for process in new
        }
        spawns = {b.where for b in (*births.values(), *watch.spawns) if self._is_new(b.number)}
        if len(spawns) == 1:  # only one line has started processes, so these come from there
            (where,) = spawns
            found = {k: v if v.where else replace(v, where=where) for k, v in found.items()}
        return found

    def _left_socket_files(self) -> Left:
        there = open_files.socket_files(watch.socket_files)
        for path in watch.socket_files.keys() - there.keys():
            watch.socket_files.pop(path, None)
        return {
            ("socket", path): open_files.socket_finding(path, birth)
            for path, birth in there.items()
            if self._is_new(birth.number)
        }

    def _left_others(self) -> Left:
        found: Left = {}
        for scope in self._new("scope", _open_scopes):
            found["scope", scope] = Finding("scope", scope.name, scope.where)
        changed = self._new("handler", set_handlers.present_handlers, self._loops, self._signals)
        for key, handler in changed.items():
            before = self._signals.get(key[0], 0 if isinstance(key[0], int) else None)
            if not set_handlers.is_runners_handler(handler, before):
                found["handler", key] = set_handlers.handler_finding(key[0], handler, before)
        return found

    def _left_files(self) -> Left:
        new = self._new("file", open_files.present_files)
        if not new:
            return {}
        open_loops = [loop for loop in watch.loops if not loop.is_closed()]
        unclosed = [loop for loop in open_loops if self._is_left_open(loop)]
        foreign = [loop for loop in open_loops if not isinstance(loop, asyncio.BaseEventLoop)]
        described = open_files.findings(
            open_files.without_kept(new, open_loops),
            watch,
            # Files of uvloop's loops cannot be recognized, nor the two files that its first use leaves.
            ownerless=not foreign and self._knew_uvloop == watch.knows("uvloop"),
            spares=len(foreign),
        )
        found: Left = {("file", file): finding for file, finding in described.items()}
        for loop in unclosed:
            birth = watch.births.get(loop)
            where = None if birth is None else birth.where
            found["loop", id(loop)] = Finding("file", "event loop", where, "not closed")
        return found

    def _is_left_open(self, loop: asyncio.AbstractEventLoop) -> bool:
        if loop in self._loops or loop is policy_loop() or loop.is_running():
            return False
        birth = watch.births.get(loop)
        return birth is not None and self._is_new(birth.number)


def census_verdict(first: Left, second: Left) -> list[Finding]:
    """Mark what has gone between two looks as late, and add what has appeared."""
    found = {
        key: finding if key in second or key[0] == "event" else replace(finding, late=True)
        for key, finding in first.items()
    }
    known = [replace(finding, late=False, details="") for finding in found.values()]
    for key, finding in second.items():
        # An object collected between the looks is reported once more, under another key.
        if key not in found and replace(finding, late=False, details="") not in known:
            found[key] = finding
    return list(found.values())


def _open_scopes() -> dict[Any, Any]:
    """Return the open scopes that are in no other scope."""
    return {root: root for root in roots}


def may_go(key: Any) -> bool:
    """Return whether a leftover may be gone after a while; events and the like stay."""
    return key[0] not in {"event", "handler", "socket", "scope"}


def _all_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks(loop)
