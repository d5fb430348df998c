"""`guard`: what is left at the end of a block is found, on every backend, and named."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

from quiesce import Scope
from quiesce.core.python_private import get_frame, running_loop
from quiesce.errors import ArgumentError, LeakError, UsageError
from quiesce.testing import Finding, guard
from quiesce.testing.leaks import running_threads
from tests.foreign_private import is_waited_for, python_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

BACKEND = pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])


async def numbers() -> AsyncIterator[int]:
    """Return two numbers."""
    yield 1
    yield 2


async def forever() -> None:
    """Wait for nothing."""
    await anyio.sleep_forever()


async def soon() -> None:
    """End after some turns of the event loop."""
    for _ in range(3):
        await checkpoint()


def here(offset: int) -> str:
    """Return a line near this one's caller, as a finding names it."""
    frame = get_frame(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


async def leaks(block: Callable[[], Any]) -> list[Finding]:
    """Run a function in a guarded block, and give what it left."""
    with pytest.raises(LeakError) as caught:
        async with guard():
            await block()
    return list(caught.value.findings)


# --- async with, in a running loop ----------------------------------------------------------------


async def test_nothing_left_is_nothing_found() -> None:
    """A block that ends what it has started passes."""
    async with guard():
        async with anyio.create_task_group() as group:
            group.start_soon(soon)
        async for _ in numbers():
            pass
        async with Scope("tidy") as scope:
            scope.spawn(soon)


async def test_a_task_that_stays_and_one_that_goes_are_told_apart() -> None:
    """A task that runs on is still there, one that ends in a moment is gone moments later."""
    async with anyio.create_task_group() as group:

        async def block() -> None:
            group.start_soon(forever, name="stays")
            group.start_soon(soon, name="goes")

        where = [here(-3), here(-2)]
        found = sorted(await leaks(block), key=lambda finding: finding.name, reverse=True)
        group.cancel_scope.cancel()
    assert [(f.label, f.late, f.where) for f in found] == [
        ("task:stays", False, where[0]),
        ("task:goes", True, where[1]),
    ]


async def test_tasks_of_others_are_not_the_blocks() -> None:
    """What another task has started before, or starts meanwhile, is not blamed on the block."""
    go = anyio.Event()

    async def other(group: Any) -> None:
        await go.wait()
        group.start_soon(forever)

    async with anyio.create_task_group() as group:
        group.start_soon(forever)
        if running_loop() is not None:  # trio does not tell who started a task
            group.start_soon(other, group)
        async with guard():
            go.set()
            await checkpoint()
            await checkpoint()
        group.cancel_scope.cancel()


async def test_a_generator_that_is_not_closed_is_found() -> None:
    """A generator that somebody has begun to read, and keeps, is found."""
    kept = []

    async def block() -> None:
        kept.append(numbers())
        await anext(kept[0])

    found = await leaks(block)
    await kept[0].aclose()  # type: ignore[attr-defined]  # it is a generator
    assert [f.label for f in found] == ["generator:numbers"]
    assert str(found[0].where).startswith(__file__)


@pytest.mark.quiesce(allow=["generator:numbers"])
@pytest.mark.filterwarnings("ignore:Async generator")  # trio says so as well
async def test_a_generator_that_was_collected_is_found() -> None:
    """A generator that the collector had to close is found, and is gone by then."""

    async def block() -> None:
        async for _ in numbers():
            break
        gc.collect()

    found = await leaks(block)
    assert [(f.label, f.late) for f in found] == [("generator:numbers", True)]


async def test_an_open_scope_is_found() -> None:
    """A scope that was opened and not closed is found, with the line that opened it."""
    kept = []

    async def block() -> None:
        kept.append(await Scope.open("left"))

    found = await leaks(block)
    await kept[0].aclose()
    scopes = [f for f in found if f.kind == "scope"]
    assert [f.name for f in scopes] == ["left"]
    assert str(scopes[0].where).startswith(__file__)


async def test_the_error_of_the_block_goes_on() -> None:
    """If the block raises, that is raised, with what was left as a note."""
    async with anyio.create_task_group() as group:
        with pytest.raises(KeyError) as caught:  # noqa: PT012 - the block is what is guarded
            async with guard():
                group.start_soon(forever, name="left")
                raise KeyError
        group.cancel_scope.cancel()
    (note,) = caught.value.__notes__
    assert note.startswith("quiesce guard: 1 thing left behind:\n  task 'left', started at ")


async def test_a_cancelled_block_stays_cancelled() -> None:
    """Cancellation passes through the guard at once."""
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with guard():
                group.start_soon(forever)
                scope.cancel()
                await checkpoint()
        assert scope.cancelled_caught
        group.cancel_scope.cancel()


async def test_what_is_allowed_may_stay() -> None:
    """A pattern of kind and name lets things stay, and others not."""
    async with anyio.create_task_group() as group:
        async with guard(allow=["task:known*"]):
            group.start_soon(forever, name="known one")
        with pytest.raises(LeakError) as caught:
            async with guard(allow=["task:known*"]):
                group.start_soon(forever, name="other")
        group.cancel_scope.cancel()
    assert [f.label for f in caught.value.findings] == ["task:other"]


async def test_only_some_kinds_are_looked_for() -> None:
    """A guard for files does not see tasks."""
    async with anyio.create_task_group() as group:
        async with guard(kinds=["file"]):
            group.start_soon(forever)
        group.cancel_scope.cancel()


async def test_guards_may_be_nested() -> None:
    """An inner guard reports what its block left, and so does the outer one."""
    async with anyio.create_task_group() as group:
        with pytest.raises(LeakError) as outer:  # noqa: PT012 - the block is what is guarded
            async with guard():
                with pytest.raises(LeakError) as inner:
                    async with guard():
                        group.start_soon(forever, name="in both")
                group.start_soon(forever, name="in one")
        group.cancel_scope.cancel()
    assert [f.name for f in inner.value.findings] == ["in both"]
    assert {f.name for f in outer.value.findings} == {"in both", "in one"}


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_plain_with_does_not_wait() -> None:
    """Inside a running loop `with` cannot let it turn: all is still there."""
    with pytest.raises(LeakError) as caught, guard():
        task = asyncio.create_task(soon())
    await task
    assert [(f.label, f.late) for f in caught.value.findings] == [("task:soon", False)]


# --- with, around everything ----------------------------------------------------------------------


def run(backend: str, main: Callable[[], Any]) -> None:
    """Run a coroutine function to its end."""
    if backend == "trio":
        trio.run(main)
    else:
        anyio.run(main, backend_options={"use_uvloop": backend == "uvloop"})


def found_in(backend: str, main: Callable[[], Any]) -> list[Finding]:
    """Run it in a guarded block, and give what it left."""
    with pytest.raises(LeakError) as caught, guard(settle=0.01):
        run(backend, main)
    return list(caught.value.findings)


@BACKEND
def test_a_clean_program_passes(backend: str) -> None:
    """A program with tasks, generators and threads that all end passes."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(soon)
        async for _ in numbers():
            pass
        await anyio.to_thread.run_sync(gc.isenabled)

    with guard():
        run(backend, main)


@pytest.mark.quiesce(allow=["task:stays", "task:goes", "coroutine:soon"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.filterwarnings("ignore:coroutine 'soon' was never awaited")
def test_tasks_that_the_loop_ends_are_found(backend: str) -> None:
    """A task that is alive when the program returns is found; one that is about to end is late."""

    async def main() -> None:
        asyncio.create_task(forever(), name="stays")  # noqa: RUF006 - the point of the test
        asyncio.create_task(soon(), name="goes")  # noqa: RUF006 - likewise
        soon()  # type: ignore[unused-coroutine]  # the point of the test

    found = {f.label: f for f in found_in(backend, main)}
    assert found.keys() == {"task:stays", "task:goes", "coroutine:soon"}
    assert not found["task:stays"].late
    assert found["task:goes"].late
    assert all(str(f.where).startswith(__file__) for f in found.values())


@pytest.mark.quiesce(allow=["task:*.stuck", "task failure:*.fail"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_what_was_collected_is_found(backend: str) -> None:
    """A task that was collected while it ran is found, and a failure that nobody asked for."""

    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    async def fail() -> None:
        raise ValueError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        asyncio.create_task(stuck())  # noqa: RUF006 - the point of the test
        asyncio.create_task(fail())  # noqa: RUF006 - likewise
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()

    found = {f.kind: f for f in found_in(backend, main)}
    assert found.keys() == {"task", "task failure"}
    assert found["task"].details == "collected while it ran"
    assert found["task failure"].details == "never retrieved: ValueError()"
    assert all(str(f.where).startswith(__file__) for f in found.values())


@pytest.mark.quiesce(allow=["task:left"])
def test_another_class_of_tasks_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may exchange asyncio's class of tasks while it runs."""

    async def main() -> None:
        monkeypatch.setattr(asyncio, "Task", python_task)
        asyncio.create_task(forever(), name="left")  # noqa: RUF006 - the point of the test
        monkeypatch.undo()

    assert [f.label for f in found_in("asyncio", main)] == ["task:left"]


@pytest.mark.quiesce(allow=["generator:numbers"])
@BACKEND
def test_a_generator_that_the_loop_closes_is_found(backend: str) -> None:
    """A generator that is half-read when the program returns is found, though the loop closes it."""
    kept = []

    async def main() -> None:
        kept.append(numbers())
        await anext(kept[0])

    (found,) = found_in(backend, main)
    assert (found.label, found.late) == ("generator:numbers", False)
    assert str(found.where).startswith(__file__)


@pytest.mark.quiesce(allow=["file:pidfd"])  # of a loop that was closed too early, on Python 3.12
# With this warning as an error, uvloop's loop.close() hangs, guarded or not.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
@BACKEND
def test_a_process_that_is_left_is_found(backend: str) -> None:
    """A process that runs on is found, with the line that started it, whoever spawns it."""
    kept: list[Any] = []
    theirs, ours = os.pipe()  # not the event loop's, which would close it

    async def main() -> None:
        if backend == "trio":
            kept.append(await trio.lowlevel.open_process(["cat"], stdin=theirs))
        else:
            kept.append(await asyncio.create_subprocess_exec("cat", stdin=theirs))

    try:
        found = [f for f in found_in(backend, main) if f.kind == "process"]
    finally:
        os.close(theirs)
        os.close(ours)
        bury(kept.pop().pid)
        for thread in threading.enumerate():
            if "waitpid" in thread.name:  # of asyncio on Python 3.11
                thread.join()
        gc.collect()  # its warnings are this test's
    assert [f.name for f in found] == ["cat"]
    assert str(found[0].where).startswith(__file__)


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_child_without_a_mark_is_found() -> None:
    """A child is found as such, also if it did not get our environment."""
    with pytest.raises(LeakError) as caught, guard(settle=0):
        child = subprocess.Popen(["cat"], env={}, stdin=subprocess.PIPE)  # noqa: S607 - anywhere
    child.communicate()
    found = {finding.label: finding for finding in caught.value.findings}
    assert found.keys() == {"process:cat", "file:pipe"}
    assert str(found["process:cat"].where).startswith(__file__)


def bury(pid: int) -> None:
    """End a process of the test's, whatever its state."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


@pytest.fixture
def thread() -> Iterator[Callable[[], None]]:
    """Return what starts a thread that ends with the test."""
    stop = threading.Event()
    threads = []

    def start() -> None:
        threads.append(threading.Thread(target=stop.wait, name="worker"))
        threads[-1].start()

    yield start
    stop.set()
    threads[0].join()


def test_a_thread_is_found(thread: Callable[[], None]) -> None:
    """A thread that runs on is found."""
    with pytest.raises(LeakError) as caught, guard(settle=0):
        thread()
    (found,) = caught.value.findings
    assert found.label == "thread:worker"
    assert str(found.where).startswith(__file__)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_abandoned_worker_is_found(backend: str) -> None:
    """A worker thread that is left busy is found, also in code of Python's own; idle ones are not."""
    stop = threading.Event()
    before = running_threads.present_threads().keys()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(anyio.to_thread.run_sync, stop.wait, abandon_on_cancel=True))
            while not is_waited_for(stop):
                await anyio.to_thread.run_sync(gc.isenabled)
            group.cancel_scope.cancel()

    try:
        found = found_in(backend, main)
    finally:
        stop.set()
        while running_threads.present_threads().keys() - before:
            pass  # it ends in a moment
    assert [f.kind for f in found] == ["thread"]


def test_sockets_and_their_files_are_found(tmp_path: Path) -> None:
    """An open socket is found, and the file that it was bound to."""
    with pytest.raises(LeakError) as caught, guard(settle=0):  # noqa: PT012 - the block is what is guarded
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "left.sock"))
    sock.close()
    found = {f.label: f for f in caught.value.findings}
    assert found.keys() == {"file:socket", "socket:left.sock"}
    assert all(str(f.where).startswith(__file__) for f in found.values())


def test_handlers_that_are_not_restored_are_found() -> None:
    """A signal's handler that was changed is found, and one that was changed back is not."""
    before = signal.getsignal(signal.SIGUSR1)
    with guard():
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(LeakError) as caught, guard():
        signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGUSR1, before)
    assert [f.label for f in caught.value.findings] == ["handler:SIGUSR1"]


# --- how it is used -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow": "thread:*"}, "allow takes a list of patterns, as in"),
        ({"allow": ["threads"]}, "'threads' is not a pattern of the form kind:name"),
        ({"allow": ["threads:*"]}, "'threads:\\*' is not a pattern of the form kind:name"),
        ({"kinds": "task"}, "kinds takes some of"),
        ({"kinds": ["tasks"]}, "kinds takes some of"),
        ({"settle": -1}, "settle takes seconds"),
        ({"settle": float("inf")}, "settle takes seconds"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    """A wrong argument raises at once, and says what to do."""
    with pytest.raises(ArgumentError, match=message):
        guard(**options)


def test_one_guard_is_for_one_block() -> None:
    """A guard cannot be entered twice at once, nor left without being entered."""
    again = guard()
    with again, pytest.raises(UsageError, match="already in use"):
        again.__enter__()
    with again:
        pass
    with pytest.raises(UsageError, match="without being entered"):
        again.__exit__(None, None, None)


@pytest.mark.quiesce(allow=["task:Event.wait"])
def test_cancelled_while_it_settles_it_tells_what_was_left() -> None:
    """It may be what was left that has cancelled it."""

    async def main() -> None:
        async with guard():
            left = asyncio.create_task(asyncio.Event().wait())
            me = asyncio.current_task()
            assert me is not None
            asyncio.get_running_loop().call_soon(me.cancel)
        del left

    with pytest.raises(asyncio.CancelledError) as caught:
        asyncio.run(main())
    assert "task 'Event.wait'" in "".join(caught.value.__notes__)
