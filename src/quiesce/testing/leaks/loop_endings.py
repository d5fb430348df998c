"""Record the tasks and generators left when an event loop ends, and the event loop's complaints."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import suppress
from dataclasses import replace
from types import AsyncGeneratorType, CoroutineType
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites
from quiesce.core.backends.asyncio import backend as asyncio_backend
from quiesce.core.backends.asyncio.tasks import OwnedTask
from quiesce.testing.leaks.births import is_runner
from quiesce.testing.leaks.findings import Finding
from quiesce.testing.leaks.started_at import of_origin

if TYPE_CHECKING:
    from quiesce.testing.leaks.births import Birth, GeneratorReading
    from quiesce.testing.leaks.instrument import StartWatch

# A task of anyio that ends the idle processes of `to_process` when the event loop ends, as intended.
_KEPT = frozenset({"_shutdown_process_pool_on_exit"})
_INTERRUPTS = (KeyboardInterrupt, SystemExit)
_NUMBERED = re.compile(r"Task-\d+")


def is_work_of_test(task: asyncio.Task[Any]) -> bool:
    """Return whether a task is work of the test: neither a test runner's task nor a scope's owner.

    A scope that is left is found as a scope. A task that closes a collected generator belongs to the
    event loop; the generator is found as a generator.
    """
    coroutine = task.get_coro()
    if type(coroutine).__name__ == "async_generator_athrow" or coroutine_name(coroutine) in _KEPT:
        return False
    return task not in asyncio_backend.owners and not is_runner(task)


def birth_of(watch: StartWatch, thing: Any) -> Birth | None:
    """Return the record of a start."""
    birth: Birth | None = getattr(thing, "quiesce_birth", None)
    return watch.births.get(thing) if birth is None else birth


def task_finding(watch: StartWatch, task: asyncio.Task[Any], state: str = "") -> Finding:
    """Describe a task that was left."""
    coroutine = task.get_coro()
    name = task.get_name()
    if _NUMBERED.fullmatch(name):
        name = coroutine_name(coroutine)
    birth = birth_of(watch, task)
    where = None if birth is None else birth.where
    if where is None and isinstance(task, OwnedTask):
        where = task.where
    if where is None and isinstance(coroutine, CoroutineType):
        where = of_origin(coroutine.cr_origin)
    waits = callsites.waiting_on(callsites.await_chain(coroutine))
    details = "; ".join(filter(None, [state, f"waits at {waits}" if waits else ""]))
    return Finding("task", name, where, details, thread=None if birth is None else birth.thread)


def coroutine_name(coroutine: object) -> str:
    """Return the name of a coroutine's or generator's function."""
    return str(getattr(coroutine, "__qualname__", type(coroutine).__name__))


def generator_finding(
    generator: AsyncGeneratorType[Any, Any], reading: GeneratorReading, state: str = ""
) -> Finding:
    """Describe an async generator that was left half-read."""
    return Finding("generator", coroutine_name(generator), reading.where, state)


def tasks_left_on(watch: StartWatch, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """List the tasks of a loop that are the test's work and not reported yet, oldest first."""
    tasks = []
    for task in asyncio.all_tasks(loop):
        birth = birth_of(watch, task)
        if is_work_of_test(task) and not (birth is not None and birth.reported):
            tasks.append((0 if birth is None else birth.number, task))
    return [task for _, task in sorted(tasks, key=lambda pair: pair[0])]


def note_loop_end(watch: StartWatch, loop: asyncio.AbstractEventLoop, *, settle: bool) -> None:
    """Record the tasks of a loop that is about to be closed and to cancel them.

    With `settle` the loop continues for as long as the censuses allow, and tasks that end in that
    time are recorded as late.
    """
    tasks = tasks_left_on(watch, loop)
    readings = [r for r in watch.readings.values() if r.loop is not None and r.loop() is loop]
    half_read = [(g, r) for r in readings if (g := r.open()) is not None]
    births = [birth_of(watch, task) for task in tasks]
    if isinstance(sys.exception(), _INTERRUPTS) and any(b is not None and b.main for b in births):
        # The loop was left while its main task waited: no code had a chance to end the tasks.
        for known in filter(None, births):
            known.reported = True
        tasks = []
    if not tasks and not half_read:
        return
    state = "" if settle else "its event loop was closed"
    found = [(task, task_finding(watch, task, state)) for task in tasks]
    for generator, reading in half_read:
        note_outlived(watch, generator, reading)
    if settle and found:
        seconds = watch.settle_seconds([f for _, f in found], births)
        if seconds:
            wait_for(loop, tasks, seconds)
    for task, finding in found:
        birth = birth_of(watch, task)
        if birth is not None:
            birth.reported = True
        watch.note(
            replace(finding, late=task.done()), None if birth is None else births_number(birth)
        )


def births_number(birth: Birth) -> int:
    """Return the number that decides to which test a task belongs: its first ancestor's."""
    return min(birth.number, birth.root)


def wait_for(
    loop: asyncio.AbstractEventLoop, tasks: list[asyncio.Task[Any]], seconds: float
) -> None:
    """Run a stopped loop until these tasks have ended or the time is over."""
    waiting = asyncio.wait(tasks, timeout=seconds)
    try:
        with suppress(RuntimeError):  # the loop was stopped, or another one runs in this thread
            loop.run_until_complete(waiting)
    finally:
        waiting.close()


def note_complaint(watch: StartWatch, context: dict[str, Any]) -> None:
    """Record an event loop's complaint about a task or future that was collected too early."""
    message = str(context.get("message"))
    thing = context.get("task") or context.get("future")
    if thing is None:
        return
    birth = birth_of(watch, thing)
    if "destroyed but it is pending" in message:
        if (birth is not None and birth.reported) or not is_work_of_test(thing):
            return
        finding = task_finding(watch, thing, "collected while it ran")
        if birth is not None:  # if its clean-up woke the task, all_tasks() lists it (Python 3.14)
            birth.reported = True
    elif "never retrieved" in message:
        if birth is not None and birth.main and birth.reported:
            return  # the caller that ran the loop got the interrupt
        exception = context.get("exception")
        name = (
            coroutine_name(thing.get_coro()) if hasattr(thing, "get_coro") else type(thing).__name__
        )
        where = None if birth is None else birth.where
        finding = Finding("task failure", name, where, f"never retrieved: {exception!r}")
    else:
        return
    watch.note(finding, None if birth is None else births_number(birth))


def note_never_awaited(watch: StartWatch, coroutine: Any, where: str | None) -> None:
    """Record a coroutine that was never awaited."""
    watch.note(Finding("coroutine", coroutine_name(coroutine), where, "never awaited"))


def note_outlived(
    watch: StartWatch, generator: AsyncGeneratorType[Any, Any], reading: GeneratorReading
) -> None:
    """Record a generator that its event loop has to close because the loop ends."""
    watch.readings.pop(id(generator), None)
    watch.note(generator_finding(generator, reading, "when its event loop ended"), reading.number)


def note_collected(
    watch: StartWatch, generator: AsyncGeneratorType[Any, Any], reading: GeneratorReading
) -> None:
    """Record a generator that the garbage collector had to close."""
    state = "collected half-read: the event loop closed it, outside the reader's task"
    watch.note(replace(generator_finding(generator, reading, state), late=True), reading.number)
