"""Record which code starts tasks, threads, processes and the like, by wrapping a few functions.

This is the only module of the guard that wraps other libraries' functions. It does so only while a
census is active (`start()` and `stop()` are counted). It records:

- tasks: when, by which line and by which other task they were created; tasks that are alive when
  their event loop is about to end them; tasks that were collected while they ran; exceptions that
  were never retrieved; coroutines that were never awaited
- async generators: which line began to read them; generators that were collected half-read
- threads, processes, sockets, unix socket files, event loops: which line started or made them

Every record has a number that only grows. A census remembers the number at its beginning and
ignores records with smaller numbers.
"""

from __future__ import annotations

import asyncio
import asyncio.runners
import itertools
import os
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from quiesce.core.backends.asyncio.tasks import TaskJob
from quiesce.core.patches import Patch, unseen
from quiesce.core.python_private import get_frame, running_loop
from quiesce.streams.nested_generators import Nested
from quiesce.testing.leaks import child_processes_left, loop_endings
from quiesce.testing.leaks.births import Birth, Event, GeneratorReading, is_runner
from quiesce.testing.leaks.started_at import asked, calling, of_origin, started_by
from quiesce.testing.trio_private import starters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import AsyncGeneratorType

    from quiesce.testing.leaks.census import Census
    from quiesce.testing.leaks.findings import Finding
    from quiesce.testing.leaks.started_at import StartPlace

# Python records one line for each coroutine, in case it is never awaited: 0.1 us each.
_ORIGIN_DEPTH = 1


class StartWatch:
    """The records made while at least one census is active."""

    def __init__(self) -> None:
        self.loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self.births: WeakKeyDictionary[object, Birth] = WeakKeyDictionary()
        """The starts of sockets, event loops, executors and trio's tasks."""
        self.readings: dict[int, GeneratorReading] = {}
        """Async generators by address: only the address is left when a generator is collected."""
        self.processes: dict[int, Birth] = {}
        self.spawns: list[Birth] = []
        """The starts of processes whose number is not known."""
        self.socket_files: dict[str, Birth] = {}
        self.events: list[Event] = []
        self.homes: WeakSet[Any] = WeakSet()
        """Tasks in which a census began; tasks that they start are not counted as their children."""
        self.censuses: list[Census] = []
        self.unknown: set[str] = set()
        """The functions that could not be wrapped and so are not watched."""
        self._numbers: Iterator[int] = itertools.count(1)
        self._patches: list[Patch] = []
        self._patched: set[str] = set()
        self._depth_before = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        """Return a number that is larger than those of all records so far."""
        return next(self._numbers)

    def start(self, census: Census) -> None:
        """Start watching for one more census."""
        with self._lock:
            if not self.censuses:
                self._depth_before = sys.get_coroutine_origin_tracking_depth()
                sys.set_coroutine_origin_tracking_depth(max(self._depth_before, _ORIGIN_DEPTH))
                self._patch("the standard library", _wrap_standard)
            self.censuses.append(census)
            self.patch_what_is_loaded()

    def stop(self, census: Census) -> None:
        """Stop watching for a census; the last one removes all wrappers."""
        with self._lock:
            if census not in self.censuses:
                return
            self.censuses.remove(census)
            if self.censuses:
                return
            while self._patches:
                self._patches.pop().remove()
            self._patched.clear()
            sys.set_coroutine_origin_tracking_depth(self._depth_before)
            unwrap_running()
            for notes in (self.readings, self.processes, self.socket_files, self.births):
                notes.clear()
            self.events.clear()
            self.spawns.clear()

    def patch_what_is_loaded(self) -> None:
        """Wrap the libraries that have been imported since the last call."""
        for name, wrap in (("uvloop", _wrap_uvloop), ("trio", _wrap_trio)):
            if name in sys.modules and name not in self._patched:
                self._patch(name, wrap)

    def knows(self, module: str) -> bool:
        """Return whether a module is watched."""
        return module in self._patched

    def note(self, finding: Finding, born: int | None = None) -> None:
        """Record an event that can be seen only once, for the censuses that are active now."""
        seen = self.now()
        self.events.append(Event(finding, seen if born is None else born, seen))

    def settle_seconds(self, findings: list[Finding], births: list[Birth | None]) -> float:
        """Return how long a loop that ends shall continue: the longest time that a concerned census wants."""
        concerned = [census for census in self.censuses if census.settle]
        return max(
            (c.settle for c in concerned if c.concerns(findings, births)),
            default=0.0,
        )

    def _patch(self, name: str, wrap: Callable[[], list[tuple[Any, str, Any]]]) -> None:
        self._patched.add(name)
        wanted = wrap()
        there = [wrapped for wrapped in wanted if wrapped[2] and hasattr(*wrapped[:2])]
        self._patches.extend(Patch(*wrapped) for wrapped in there)
        missing = [wrapped for wrapped in wanted if wrapped not in there]
        self.unknown.update(f"{owner.__name__}.{name}" for owner, name, _ in missing)


watch: StartWatch = StartWatch()


def born(place_of: Any) -> Birth:
    """Return the record of a start; the caller of the frame `place_of` asked for the start."""
    return Birth(watch.now(), started_by(place_of))


# --- the wrapped functions ---------------------------------------------------------------------


def _wrap_standard() -> list[tuple[Any, str, Any]]:
    watch.loops.update(_loops_in_use())
    return [
        *_loop_wraps(asyncio.BaseEventLoop),
        (TaskJob, "__init__", _job_init),
        (asyncio.runners, "_cancel_all_tasks", _cancel_all_tasks),
        (sys, "set_asyncgen_hooks", _set_asyncgen_hooks),
        (warnings, "_warn_unawaited_coroutine", _warn_unawaited_coroutine),
        (threading.Thread, "start", _thread_start),
        (subprocess.Popen, "__init__", _popen),
        (socket.socket, "__init__", _made),
        (socket.socket, "bind", _bind),
    ]


def _loop_wraps(loop_class: Any) -> list[tuple[Any, str, Any]]:
    return [
        (loop_class, "__init__", _loop_init),
        (loop_class, "create_task", _create_task),
        (loop_class, "close", _loop_close),
        (loop_class, "call_exception_handler", _call_exception_handler),
        (loop_class, "run_in_executor", _run_in_executor),
    ]


def _wrap_uvloop() -> list[tuple[Any, str, Any]]:
    uvloop = sys.modules["uvloop"]
    loop_class: Any = getattr(uvloop, "Loop", None)
    if loop_class is None:
        return []  # another thread is importing it at this moment
    loop_class().close()  # the first loop opens two files that stay open for all loops
    return [
        *_loop_wraps(loop_class),
        (loop_class, "_asyncgen_firstiter_hook", _uvloop_firstiter),
        (loop_class, "_asyncgen_finalizer_hook", _uvloop_finalizer),
        (loop_class, "subprocess_exec", _uvloop_spawn),
        (loop_class, "subprocess_shell", _uvloop_spawn),
    ]


def _wrap_trio() -> list[tuple[Any, str, Any]]:
    trio = sys.modules["trio"]
    found = starters(trio)
    if found is None:
        return [(trio, "_core", None)]  # listed in `watch.unknown`
    runner, generators = found
    return [
        (runner, "spawn_impl", _trio_spawn),
        (generators, "finalize_remaining", _trio_finalize),
        (trio.to_thread, "run_sync", _trio_run_sync),
    ]


def _loops_in_use() -> list[asyncio.AbstractEventLoop]:
    """List the event loops that existed before the watching began, as far as they can be found."""
    running = running_loop()
    policy = policy_loop()
    return [loop for loop in (running, policy) if loop is not None and not loop.is_closed()]


def policy_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that asyncio keeps for this thread, without creating one."""
    policy = getattr(asyncio.events, "_event_loop_policy", None)
    loop: asyncio.AbstractEventLoop | None = getattr(getattr(policy, "_local", None), "_loop", None)
    return loop


# --- tasks and event loops --------------------------------------------------------------------


def _loop_init(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch.loops.add(self)
        watch.births[self] = born(get_frame(2))

    return init


def _create_task(original: Any) -> Any:
    def create_task(self: Any, *args: Any, **kwargs: Any) -> Any:
        birth = _descent(self, calling(get_frame(2)))
        task = original(self, *args, **kwargs)
        if getattr(task, "quiesce_birth", None) is None:
            try:
                task.quiesce_birth = birth
            except AttributeError:  # a custom task class with slots
                watch.births[task] = birth
        return task

    return create_task


def _job_init(original: Any) -> Any:
    def init(self: Any, coroutine: Any, *, loop: Any, **kwargs: Any) -> None:
        original(self, coroutine, loop=loop, **kwargs)
        self.quiesce_birth = _descent(loop, None)  # the job itself knows its line

    return init


def _descent(loop: Any, place: StartPlace | None) -> Birth:
    """Return the record of a task that is being started, with the chain of tasks it comes from."""
    birth = Birth(watch.now(), place)
    running = running_loop()
    birth.main = running is None
    parent = asyncio.current_task(loop) if running is loop else None
    if parent is not None and parent not in watch.homes and not is_runner(parent):
        above = getattr(parent, "quiesce_birth", None)
        birth.root = 0 if above is None else above.root
    return birth


def _cancel_all_tasks(original: Any) -> Any:
    def cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop_endings.note_loop_end(watch, loop, settle=True)
        finally:  # a task that continues may raise SystemExit
            original(loop)

    return cancel_all_tasks


def _loop_close(original: Any) -> Any:
    def close(self: asyncio.AbstractEventLoop) -> None:
        if not self.is_closed() and not self.is_running():
            loop_endings.note_loop_end(watch, self, settle=False)
        original(self)
        watch.loops.discard(self)

    return close


def _call_exception_handler(original: Any) -> Any:
    def call_exception_handler(self: Any, context: dict[str, Any]) -> None:
        loop_endings.note_complaint(watch, context)
        original(self, context)

    return call_exception_handler


def _run_in_executor(original: Any) -> Any:
    def run_in_executor(self: Any, executor: Any, *args: Any, **kwargs: Any) -> Any:
        if executor is not None:
            return original(self, executor, *args, **kwargs)
        before = getattr(_starting, "loop", None)
        _starting.loop = self
        try:
            return original(self, executor, *args, **kwargs)
        finally:
            _starting.loop = before

    return run_in_executor


def _warn_unawaited_coroutine(original: Any) -> Any:
    def warn_unawaited_coroutine(coroutine: Any) -> None:
        if not _is_recorded_by_the_test():
            loop_endings.note_never_awaited(watch, coroutine, of_origin(coroutine.cr_origin))
        original(coroutine)

    return unseen(warn_unawaited_coroutine)


def _is_recorded_by_the_test() -> bool:
    """Return whether warnings are recorded now that were not recorded when the last census began."""
    show = getattr(warnings, "_showwarnmsg_impl", None)
    return bool(watch.censuses) and watch.censuses[-1].showing is not show


# --- async generators -------------------------------------------------------------------------


def _set_asyncgen_hooks(original: Any) -> Any:
    def set_asyncgen_hooks(firstiter: Any = ..., finalizer: Any = ...) -> None:
        hooks = {}
        if firstiter is not ...:
            hooks["firstiter"] = watched_firstiter(firstiter)
        if finalizer is not ...:
            hooks["finalizer"] = watched_finalizer(finalizer)
        original(**hooks)

    return set_asyncgen_hooks


class _Hook:
    """Another library's hook for async generators, and the function to call before it."""

    __slots__ = ("note", "theirs")

    def __init__(self, theirs: Any, note: Any) -> None:
        self.theirs = theirs
        self.note = note

    def __call__(self, generator: AsyncGeneratorType[Any, Any]) -> None:
        self.note(generator, get_frame(1))
        self.theirs(generator)


def watched_firstiter(hook: Any) -> Any:
    """Wrap the hook that an event loop sets for generators that are first read."""
    return hook if hook is None or isinstance(hook, _Hook) else _Hook(hook, _note_reading)


def watched_finalizer(hook: Any) -> Any:
    """Wrap the hook that an event loop sets for generators that are collected.

    The hook of a quiesce stream stays as it is: the stream closes the generator in its reader's task.
    """
    if isinstance(getattr(hook, "__self__", None), Nested):
        return hook
    return hook if hook is None or isinstance(hook, _Hook) else _Hook(hook, _note_collected)


def _note_reading(generator: AsyncGeneratorType[Any, Any], frame: Any) -> None:
    if watch.censuses:
        watch.readings[id(generator)] = GeneratorReading(generator, watch.now(), started_by(frame))


def _note_collected(generator: AsyncGeneratorType[Any, Any], _frame: Any) -> None:
    reading = watch.readings.pop(id(generator), None)
    if reading is not None:
        loop_endings.note_collected(watch, generator, reading)


def _uvloop_firstiter(original: Any) -> Any:
    def firstiter(self: Any, generator: Any) -> None:
        _note_reading(generator, get_frame(2))
        original(self, generator)

    return firstiter


def _uvloop_finalizer(original: Any) -> Any:
    def finalizer(self: Any, generator: Any) -> None:
        _note_collected(generator, None)
        original(self, generator)

    return finalizer


def wrap_running() -> None:
    """Watch the generators of a loop that is already running in this thread."""
    hooks = sys.get_asyncgen_hooks()
    if hooks.firstiter is not None:
        sys.set_asyncgen_hooks(*hooks)


def unwrap_running() -> None:
    """Restore the hooks of the loop that runs in this thread."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(*(hook.theirs if isinstance(hook, _Hook) else hook for hook in hooks))


# --- threads, processes, sockets --------------------------------------------------------------

_starting = threading.local()


def _thread_start(original: Any) -> Any:
    def start(self: Any) -> None:
        self.quiesce_birth = born(get_frame(2))
        self._quiesce_loop = getattr(_starting, "loop", None)
        original(self)

    return start


def _popen(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        birth = born(get_frame(2))
        original(self, *args, **kwargs)
        child_processes_left.note_child(watch.processes, self.pid, birth)

    return init


def _uvloop_spawn(original: Any) -> Any:
    async def spawn(*args: Any, **kwargs: Any) -> Any:
        birth = born(get_frame(1))
        watch.spawns.append(birth)  # the process's number is known only if this is not cancelled
        transport, protocol = await original(*args, **kwargs)
        watch.spawns.remove(birth)
        child_processes_left.note_child(watch.processes, transport.get_pid(), birth)
        return transport, protocol

    return spawn


def _made(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch.births[self] = born(get_frame(2))

    return init


def _bind(original: Any) -> Any:
    def bind(self: socket.socket, address: Any) -> None:
        original(self, address)
        if self.family == getattr(socket, "AF_UNIX", None):
            path = os.fsdecode(address)
            if path and not path.startswith("\0"):
                watch.socket_files[str(Path(path).absolute())] = born(get_frame(2))

    return bind


# --- trio ---------------------------------------------------------------------------------------


def _trio_spawn(original: Any) -> Any:
    def spawn_impl(*args: Any, **kwargs: Any) -> Any:
        birth = Birth(watch.now(), calling(get_frame(2)))
        task = original(*args, **kwargs)
        watch.births[task] = birth
        return task

    return spawn_impl


def _trio_finalize(original: Any) -> Any:
    async def finalize_remaining(self: Any, *args: Any) -> None:
        for generator in list(self.alive):
            reading = watch.readings.get(id(generator))
            if reading is not None and not reading.over():
                loop_endings.note_outlived(watch, generator, reading)
        await original(self, *args)

    return finalize_remaining


def _trio_run_sync(original: Any) -> Any:
    async def run_sync(*args: Any, **kwargs: Any) -> Any:
        token = asked.set(calling(get_frame(1)))
        try:
            return await original(*args, **kwargs)
        finally:
            asked.reset(token)

    return run_sync
