"""Work in threads and timers that a handler has left behind, and that fails: the hop has failed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import detached
from quiesce.mesh import Settled, Unknown
from tests.stress import turns
from tests.unit.mesh.meshing import World
from tests.unit.mesh.routes.test_ways import cascade_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
pytestmark = pytest.mark.real_time


class Fuse:
    """Fails in a thread as soon as it is lit."""

    def __init__(self) -> None:
        self.lit = threading.Event()

    def boom(self) -> None:
        """Fail."""
        self.lit.wait(30)
        raise ValueError("boom")


@pytest.fixture
def fuse() -> Iterator[Fuse]:
    """Make one that is lit in the end, whatever happens."""
    made = Fuse()
    yield made
    made.lit.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Make an executor of one thread."""
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException] | None]:
    """List the failures that `threading` reports."""
    found: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type))
    return found


async def verdict(put: Callable[[], object], *ends: Callable[[], object]) -> Any:
    """Return the verdict on a message whose handler calls a function, when plain code has called others."""
    async with World() as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        for end in ends:
            with detached():
                end()
        return await cascade.settled(5, require="participants")


def has_failed(found: Any) -> bool:
    """Return whether one hop has failed, and say that the cascade is settled."""
    assert isinstance(found, Settled)
    assert found.ok is (found.receipt.failed == 0)
    return bool(found.receipt.failed == 1)


async def test_a_call_in_an_executor_that_fails(
    fuse: Fuse, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Python says nothing of it; we do."""
    assert has_failed(await verdict(lambda: pool.submit(fuse.boom), fuse.lit.set))
    assert "Fuse.boom" in caplog.text
    assert "ValueError: boom" in caplog.text


@on_asyncio
@pytest.mark.quiesce(allow=["task failure:Future"])
@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_call_in_the_executor_of_the_loop_that_fails(fuse: Fuse, *, is_kept: bool) -> None:
    """The event loop reports it as ever, when its future is dropped."""
    loop = asyncio.get_running_loop()
    kept: list[Any] = []
    reports: list[Any] = []
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"]))

    def put() -> None:
        future = loop.run_in_executor(None, fuse.boom)
        if is_kept:
            kept.append(future)

    assert has_failed(await verdict(put, fuse.lit.set))
    kept.clear()
    await loop.shutdown_default_executor()  # its thread keeps the future until it has ended
    await turns(3)
    assert [type(one) for one in reports] == [ValueError]


@on_asyncio
@pytest.mark.parametrize("way", ["await", "gather", "callback"])
async def test_a_failure_that_a_task_receives_is_not_the_hops(fuse: Fuse, way: str) -> None:
    """The code that awaits it sees to it."""
    loop = asyncio.get_running_loop()
    tasks: list[Any] = []
    seen: list[Any] = []

    async def wait() -> None:
        future = loop.run_in_executor(None, fuse.boom)
        if way == "await":
            with pytest.raises(ValueError, match="boom"):
                await future
        else:
            seen.extend(await asyncio.gather(future, return_exceptions=True))

    def put() -> None:
        if way == "callback":
            future = loop.run_in_executor(None, fuse.boom)
            future.add_done_callback(lambda done: seen.append(done.exception()))
        else:
            tasks.append(asyncio.create_task(wait()))

    assert not has_failed(await verdict(put, fuse.lit.set))
    await loop.shutdown_default_executor()


@pytest.mark.parametrize("way", ["result", "exception", "callback", "waiting", "map"])
async def test_a_failure_that_code_reads_is_not_the_hops(
    fuse: Fuse, pool: ThreadPoolExecutor, way: str
) -> None:
    """Before the hop has ended."""
    seen: list[Any] = []
    threads: list[threading.Thread] = []

    def read(future: Future[None]) -> None:
        seen.append(future.exception())

    def put() -> None:
        if way == "map":
            fuse.lit.set()
            with pytest.raises(ValueError, match="boom"):
                list(pool.map(lambda _: fuse.boom(), [1]))
            return
        future = pool.submit(fuse.boom)
        if way == "callback":
            future.add_done_callback(read)
            return
        with detached():  # another thread waits for it, which is not of the hop
            threads.append(threading.Thread(target=read, args=(future,)))
            if way == "waiting":
                threads[0].start()
                return
        fuse.lit.set()
        if way == "result":
            with pytest.raises(ValueError, match="boom"):
                future.result(30)
        else:
            seen.append(future.exception(30))

    assert not has_failed(await verdict(put, fuse.lit.set))
    for thread in threads:
        if thread.ident is not None:  # it has been started
            thread.join(30)


async def test_a_wait_that_is_over_has_read_nothing(fuse: Fuse, pool: ThreadPoolExecutor) -> None:
    """It has raised `TimeoutError`, and the call fails after that."""

    def put() -> None:
        with pytest.raises(TimeoutError):
            pool.submit(fuse.boom).result(0)

    assert has_failed(await verdict(put, fuse.lit.set))


@pytest.mark.parametrize("is_daemon", [False, True])
async def test_a_thread_that_fails(fuse: Fuse, told: list[Any], *, is_daemon: bool) -> None:
    """Python reports it as ever."""
    threads: list[threading.Thread] = []

    def put() -> None:
        threads.append(threading.Thread(target=fuse.boom, daemon=is_daemon))
        threads[0].start()
        if is_daemon:
            fuse.lit.set()
            threads[0].join()

    assert has_failed(await verdict(put, fuse.lit.set))
    threads[0].join()
    assert told == [ValueError]


async def test_a_thread_that_exits_has_not_failed(told: list[Any]) -> None:
    """`SystemExit` is a way to end a thread."""
    threads: list[threading.Thread] = []

    def leave() -> None:
        raise SystemExit(3)

    def put() -> None:
        threads.append(threading.Thread(target=leave))
        threads[0].start()

    assert not has_failed(await verdict(put))
    threads[0].join()
    assert told == [SystemExit]  # of which Python's own function says nothing


async def test_a_timer_of_threads_that_fails(fuse: Fuse, told: list[Any]) -> None:
    """It is a thread as well."""
    threads: list[threading.Thread] = []

    def put() -> None:
        threads.append(threading.Timer(0, fuse.boom))
        threads[0].start()

    assert has_failed(await verdict(put, fuse.lit.set))
    threads[0].join()
    assert told == [ValueError]


@on_asyncio
async def test_a_callback_for_later_that_fails(fuse: Fuse) -> None:
    """The event loop reports it, by the name of the callback."""
    loop = asyncio.get_running_loop()
    reports: list[Any] = []
    loop.set_exception_handler(lambda _, context: reports.append(context))
    fuse.lit.set()
    assert has_failed(await verdict(lambda: loop.call_later(0.001, fuse.boom)))
    (report,) = reports
    assert type(report["exception"]) is ValueError
    assert "Fuse.boom" in report["message"]


async def test_a_drain_names_a_call_that_fails(fuse: Fuse, pool: ThreadPoolExecutor) -> None:
    """It is work that was lost."""
    async with World() as world:
        await world.add("a")
        node = await world.add("b")
        cascade = await cascade_of(world, lambda: pool.submit(fuse.boom))
        assert isinstance(await cascade.settled(within=0), Unknown)
        fuse.lit.set()
        report = await node.drain(5, cleanup=1)
        assert [(one.kind, one.name) for one in report.failed] == [("thread", "Fuse.boom")]
        assert has_failed(await cascade.settled(5, require="participants"))


# Work that other code cancels.


@on_asyncio
async def test_a_timer_that_plain_code_cancels_is_cancelled() -> None:
    """The verdict has the line."""
    handles: list[asyncio.TimerHandle] = []

    def put() -> None:
        handles.append(asyncio.get_running_loop().call_later(3600, print, "never"))

    found = await verdict(put, lambda: handles[0].cancel())  # noqa: PLW0108 - as it is then
    assert found.receipt.cancelled == 1
    assert not found.ok
    assert "print was cancelled at" in str(found)
    assert "test_left_failing.py:" in str(found)


@on_asyncio
async def test_a_timer_that_was_called_can_be_cancelled() -> None:
    """Its work is done."""
    handles: list[asyncio.TimerHandle] = []
    called = asyncio.Event()

    def put() -> None:
        handles.append(asyncio.get_running_loop().call_later(0.001, called.set))

    async with World() as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        await called.wait()
        with detached():
            handles[0].cancel()
        assert (await cascade.settled(5, require="participants")).ok


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_pending_call_that_code_cancels(
    fuse: Fuse, pool: ThreadPoolExecutor, *, is_own: bool
) -> None:
    """It is cancelled, unless the code of the hop does that."""
    pool.submit(fuse.lit.wait, 30)
    futures: list[Any] = []

    def put() -> None:
        futures.append(pool.submit(print, "never"))
        if is_own:
            futures[0].cancel()

    found = await verdict(put, lambda: futures[0].cancel())  # noqa: PLW0108 - as it is then
    fuse.lit.set()
    assert found.receipt.cancelled == (not is_own)
    assert found.ok is is_own
    assert is_own or "test_left_failing.py:" in str(found)


@pytest.mark.parametrize("is_daemon", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
async def test_a_timer_between_threads_that_code_cancels(*, is_own: bool, is_daemon: bool) -> None:
    """It is cancelled, or, if it is a daemon, untracked; unless the code of the hop does that."""
    timers: list[threading.Timer] = []

    def put() -> None:
        timers.append(threading.Timer(3600, print, ["never"]))
        timers[0].daemon = is_daemon
        timers[0].start()
        if is_own:
            timers[0].cancel()
            timers[0].join()

    found = await verdict(put, lambda: timers[0].cancel())  # noqa: PLW0108 - as it is then
    timers[0].join()
    assert found.receipt.cancelled == (not is_own and not is_daemon)
    assert found.receipt.untracked == (not is_own and is_daemon)
    assert found.ok is is_own


async def test_a_timer_between_threads_that_another_hop_puts_off_is_untracked() -> None:
    """The other hop may do it for both: a debounce."""
    timers: list[threading.Timer] = []

    def put() -> None:
        for one in timers:
            one.cancel()
        timers.append(threading.Timer(3600, print, ["never"]))
        timers[-1].start()

    async with World() as world:
        await world.add("a"), await world.add("b")
        first = await cascade_of(world, put)
        await cascade_of(world, put)
        found = await first.settled(5)
        assert found.receipt.untracked == 1
        assert "which may do it in its place" in str(found)
        timers[-1].cancel()
        for one in timers:
            one.join()


async def test_a_timer_between_threads_that_is_due_is_called_and_done() -> None:
    """It cannot be cancelled then."""
    timers: list[threading.Timer] = []
    called = threading.Event()

    def put() -> None:
        timers.append(threading.Timer(0, called.set))
        timers[0].start()

    def end() -> None:
        timers[0].join()
        timers[0].cancel()

    found = await verdict(put, end)
    assert called.is_set()
    assert found.ok
