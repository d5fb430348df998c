"""`escapes()` lists each place where work leaves a hop, with what a verdict makes of it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, current_scope
from quiesce.core.python_private import running_loop
from quiesce.errors import ArgumentError, UsageError
from quiesce.mesh import Memory, Node
from quiesce.testing import EscapeError, escapes
from tests.stress import turns
from tests.unit.testing.leaving import here, later, on_asyncio, places, real_time

if TYPE_CHECKING:
    from collections.abc import Iterator

WAITS = "import sys; sys.stdin.read()"
THIS = __file__


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Make what threads wait for; it is set in the end, whatever happens."""
    made = threading.Event()
    yield made
    made.set()


# What is covered.


async def test_a_handler_that_leaves_nothing_is_clean() -> None:
    """And what it returns is there."""

    async def handler(number: int) -> int:
        await turns(3)
        return number + 1

    found = await escapes(handler, 4)
    assert found.result == 5
    assert list(found) == []
    assert str(found) == "no work leaves: 1 hop was seen"
    found.raise_if_any()


@on_asyncio
async def test_a_task_that_is_left_is_covered() -> None:
    """With its name, its function and its line."""
    tasks = []

    async def invoice() -> None:
        await turns(5)

    async with escapes() as found:
        tasks.append(asyncio.create_task(invoice()))
        assert len(found) == 0
    (one,) = found
    assert (one.fate, one.route) == ("covered", "task")
    assert one.name.endswith("invoice")
    assert one.function.endswith("test_a_task_that_is_left_is_covered")
    assert one.where.startswith(f"{THIS}:")
    assert found.covered == (one,)
    assert one.instead == ""
    found.raise_if_any()


async def test_a_job_in_another_scope_is_covered() -> None:
    """Whichever scope owns it."""
    async with Scope("app") as app:
        async with escapes() as found:
            app.spawn(turns, 5)
        assert places(found) == [("covered", "job")]


@on_asyncio
async def test_a_timer_is_covered() -> None:
    """Until it was called."""
    async with escapes() as found:
        asyncio.get_running_loop().call_later(0.01, int)
    assert places(found) == [("covered", "timer")]


@on_asyncio
async def test_an_item_in_a_queue_is_covered_and_not_a_wake_up() -> None:
    """The worker that it wakes works for the hop: no detector says otherwise."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def work() -> None:
        while True:
            await queue.get()
            await turns(5)

    worker = asyncio.create_task(work())
    await turns()
    async with escapes() as found:
        queue.put_nowait(1)
    assert places(found) == [("covered", "item")]
    worker.cancel()
    await turns()


async def test_a_part_that_was_passed_on_is_covered() -> None:
    """From the step in which it was made."""
    jobs: deque[Any] = deque()

    async def work() -> None:
        async with jobs.popleft():
            await turns(3)

    async with Scope("app") as app:
        async with escapes() as found:
            jobs.append(here().working("invoice"))
            later(lambda: app.spawn(work))
        (one,) = found
        assert (one.fate, one.name) == ("covered", "invoice")


async def test_a_handler_that_still_runs_has_not_left() -> None:
    """A part of the hop has ended, and the handler goes on."""
    async with escapes() as found:
        async with here().working("first"):
            pass
        await turns(1)
    assert list(found) == []


@real_time
async def test_a_call_in_an_executor_is_covered(gate: threading.Event) -> None:
    """Although its queue is a `SimpleQueue`."""
    with ThreadPoolExecutor(1) as pool:
        async with escapes() as found:
            pool.submit(gate.wait)
            later(gate.set)
    assert places(found) == [("covered", "thread")]


@real_time
async def test_a_thread_is_covered(gate: threading.Event) -> None:
    """As the interpreter waits for it."""
    thread = threading.Thread(target=gate.wait)
    async with escapes() as found:
        thread.start()
        later(gate.set)
    thread.join()
    assert places(found) == [("covered", "thread")]


@real_time
async def test_a_child_process_is_covered() -> None:
    """Until it has exited."""
    async with escapes(within=60) as found:
        child = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)  # noqa: ASYNC220 - as programs do
        assert child.stdin is not None
        later(child.stdin.close)
    child.wait()
    assert places(found) == [("covered", "process")]


# What is untracked, held or declared.


@real_time
async def test_a_daemon_thread_is_untracked_and_an_error(gate: threading.Event) -> None:
    """It says where, what the verdict is, and what to write."""
    thread = threading.Thread(target=gate.wait, daemon=True)
    async with escapes() as found:
        thread.start()
    gate.set()
    thread.join()
    (one,) = found.untracked
    assert (one.fate, one.route, one.name) == ("untracked", "daemon thread", "Event.wait")
    assert one.function.endswith("test_a_daemon_thread_is_untracked_and_an_error")
    with pytest.raises(EscapeError) as caught:
        found.raise_if_any()
    assert caught.value.escapes == (one,)
    text = str(caught.value)
    assert f"daemon thread 'Event.wait' at {one.where} in " in text
    assert "the verdict is Unknown, and names it" in text
    assert "write: daemon=False; or `with quiesce.detached():`" in text


async def test_what_only_the_handler_knows_of_is_untracked() -> None:
    """By `Hop.untracked()`, however it is worded."""
    async with escapes() as found:
        here().untracked("carrier pigeon", "at the window")
    (one,) = found
    assert (one.fate, one.route, one.where) == ("untracked", "carrier pigeon", "at the window")


async def test_what_is_opaque_is_no_error() -> None:
    """It was declared."""
    async with escapes() as found:
        here().opaque("celery")
    assert [(one.fate, one.route) for one in found] == [("opaque", "celery")]
    found.raise_if_any()


async def test_what_does_not_end_is_held() -> None:
    """There would be no verdict: it is an error, and a service would be none."""

    async def loop_for_ever() -> None:
        await anyio.sleep_forever()

    async with escapes(within=0.01) as found:
        here().spawn(loop_for_ever)
    assert places(found) == [("held", "job")]
    with pytest.raises(EscapeError, match=r"services=\[…\]"):
        found.raise_if_any()
    node = Node("n", transport=Memory(), services=["*loop_for_ever"])
    async with escapes(within=0.01, node=node) as found:
        here().spawn(loop_for_ever, service=True)
    assert list(found) == []


async def test_untracked_work_after_the_end_is_listed() -> None:
    """It is noticed late, and noticed all the same."""
    async with escapes() as found:
        async with escapes():
            hop = here()
        hop.untracked("pigeon", "app.py:1 in late")
    assert [(one.fate, one.where) for one in found] == [("untracked", "app.py:1")]


# The blocks.


async def test_an_error_of_the_block_goes_on_and_nothing_is_waited_for() -> None:
    """What was found until then is there."""
    error = ValueError("x")
    begun = anyio.current_time()
    block = escapes(within=60)
    kept: list[Any] = []

    async def failing() -> None:
        async with block as found:
            kept.append(found)
            here().spawn(anyio.sleep, 50)
            raise error

    with pytest.raises(ValueError, match="x") as caught:
        await failing()
    assert caught.value is error
    assert anyio.current_time() - begun < 40
    assert places(kept[0]) == [("held", "job")]


async def test_a_cancelled_block_waits_no_longer() -> None:
    """And leaves nothing behind: see what the test's own loop is asked at its end."""
    begun = anyio.current_time()
    node = Node("n", transport=Memory())
    with anyio.move_on_after(0.02) as scope:
        async with escapes(within=60, node=node):
            here().spawn(anyio.sleep, 50)
    assert scope.cancelled_caught
    assert node.own_scope is None
    assert anyio.current_time() - begun < 40
    assert current_scope() is None


async def test_a_block_is_for_one_use() -> None:
    """And a handler is given, not called."""
    block = escapes()
    async with block:
        pass
    with pytest.raises(UsageError, match="entered before"):
        await block.__aenter__()
    with pytest.raises(UsageError, match="no handler"):
        await escapes()
    with pytest.raises(ArgumentError, match="escapes"):
        escapes(turns())  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="no app"):
        await (await escapes(turns)).request("GET", "/")


def test_a_block_that_is_never_entered_warns() -> None:
    """It looks at nothing: without a word, a test would seem to have passed."""
    with pytest.warns(RuntimeWarning, match=r"async with escapes\(app\) as found:") as told:
        escapes(turns)
    assert [one.filename for one in told] == [__file__]


async def test_a_block_that_was_entered_does_not_warn() -> None:
    """Nor does one that was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with escapes():
            pass
        await escapes(turns)
        with pytest.raises(ArgumentError):
            escapes("app")  # type: ignore[arg-type]  # on purpose
        gc.collect()


async def test_everything_is_restored() -> None:
    """Also after two blocks, one around the other."""
    notify, profile = threading.Condition.notify, sys.getprofile()
    async with escapes():
        async with escapes():
            assert threading.Condition.notify is not notify
        assert threading.Condition.notify is not notify
        assert sys.getprofile() is not None
    assert threading.Condition.notify is notify
    assert sys.getprofile() is profile
    loop = running_loop()
    assert loop is None or "call_soon" not in vars(loop)


async def test_a_block_inside_another_finds_its_own() -> None:
    """The outer one has both."""
    async with Scope("app") as app:
        async with escapes() as outer:
            async with escapes() as inner:
                app.spawn(turns, 5, name="second")
            app.spawn(turns, 5, name="first")
        assert [one.name for one in inner] == ["second"]
        assert sorted(one.name for one in outer) == ["first", "second"]
