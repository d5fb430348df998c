"""A pool of real processes: one start for all who wait, no race that leaves one alive."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Process, Program, RunnerPool, Scope
from quiesce.errors import ProcessLost, RunnerReleased, StartFailed
from quiesce.processes import process_spawn
from tests.stress import turns
from tests.unit.processes.small_programs import BARREN, POLITE, READY, STUBBORN, Census, counted

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.real_time

GRACE = 0.3
SECONDS_MAX = 10.0  # a guard; what is waited for takes milliseconds


async def until(true: Callable[[], bool]) -> None:
    """Let everything run until something is so."""
    with anyio.fail_after(SECONDS_MAX):
        while not true():
            await turns(1)


async def never(_: object) -> None:
    """Never say that a process is ready."""
    await anyio.sleep_forever()


class Lessee:
    """Somebody who leases a process, and keeps it until told otherwise."""

    def __init__(self, pool: RunnerPool[Any, Process], key: str = "a") -> None:
        self.pool = pool
        self.key = key
        self.pid: int | None = None
        self.done = anyio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        """Lease; an error is kept."""
        try:
            async with self.pool.lease(self.key) as process:
                self.pid = process.pid
                await self.done.wait()
        except Exception as error:
            self.error = error


async def test_five_stubborn_runners_end_in_one_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked before the first is killed, and all are killed when one grace is over."""
    sent: list[tuple[int, float]] = []
    signal_group = process_spawn.signal_group

    def noting(group: int, number: int) -> None:
        sent.append((number, time.monotonic()))
        signal_group(group, number)

    with counted() as census:
        async with Scope("a"):
            pool = RunnerPool(Program(STUBBORN, ready=READY), grace=GRACE)
            for key in range(5):
                async with pool.lease(key):
                    pass
            monkeypatch.setattr(process_spawn, "signal_group", noting)
            report = await pool.drain()
            monkeypatch.undo()
            assert report.ok
            assert not census.left()
    numbers = [number for number, _ in sent if number in {signal.SIGTERM, signal.SIGKILL}]
    assert numbers[:10] == [signal.SIGTERM] * 5 + [signal.SIGKILL] * 5
    assert 0.9 * GRACE < sent[9][1] - sent[0][1] < 2 * GRACE  # a loop's clock may be coarse


async def test_a_crash_is_seen_and_the_next_lease_gets_a_fresh_process() -> None:
    """The process is killed by somebody else, in the middle of a lease."""
    with counted():
        async with Scope("a"):
            pool = RunnerPool(Program(POLITE, ready=READY))
            async with pool.lease("a") as first:
                os.kill(first.pid, signal.SIGKILL)
                with anyio.fail_after(SECONDS_MAX):
                    assert await first.wait() == -signal.SIGKILL
                async with pool.lease("a") as second:
                    assert second.pid != first.pid
                    assert second.returncode is None
            assert (pool.stats.crashed, pool.stats.started) == (1, 2)


async def test_a_release_interrupts_a_start_that_would_never_be_ready() -> None:
    """It returns at once, long before the start's own deadline, and nothing is alive then."""
    with counted() as census:
        async with Scope("a") as scope:
            pool = RunnerPool(Program(["sleep", "60"], ready=READY, ready_within=60))
            lessees = [Lessee(pool), Lessee(pool)]
            for lessee in lessees:
                scope.spawn(lessee)
            await until(lambda: bool(census.pids))
            with anyio.fail_after(SECONDS_MAX):
                assert await pool.release("a")
            assert len(census.pids) == 1
            assert not census.left()
            await until(lambda: all(lessee.error for lessee in lessees))
            assert all(isinstance(lessee.error, RunnerReleased) for lessee in lessees)


async def test_a_cancelled_first_waiter_costs_the_others_nothing() -> None:
    """They get the one process that was started, which becomes ready after he has left."""
    answer = anyio.Event()

    async def ready(_: object) -> None:
        await answer.wait()

    with counted() as census:
        async with Scope("a") as scope:
            pool = RunnerPool(Program(POLITE, ready=ready))
            first = scope.spawn(Lessee(pool))
            await until(lambda: bool(census.pids))
            others = [Lessee(pool), Lessee(pool)]
            for other in others:
                scope.spawn(other)
            await until(lambda: pool.stats.waiting == 3)
            first.cancel()
            await until(lambda: pool.stats.waiting == 2)
            answer.set()
            await until(lambda: pool.stats.leases == 2)
            await turns(3)
            assert [other.pid for other in others] == census.pids * 2
            for other in others:
                other.done.set()


async def test_the_last_waiter_to_leave_ends_the_process() -> None:
    """Nothing of a start is left that nobody wants any more; it has the pool's grace."""
    begun = anyio.Event()

    async def almost(process: Process) -> None:
        await process.lines.line_matching("^ready$")  # from now on it ignores SIGTERM
        begun.set()
        await anyio.sleep_forever()

    with counted() as census:
        async with Scope("a") as scope:
            pool = RunnerPool(Program(STUBBORN, ready=almost), grace=GRACE / 10)
            jobs = [scope.spawn(Lessee(pool)) for _ in range(2)]
            await begun.wait()
            for job in jobs:
                job.cancel()
            with anyio.fail_after(SECONDS_MAX):
                await scope.idle()
            assert len(census.pids) == 1
            assert not census.left()
            assert pool.stats.started == pool.stats.failed == 0


async def test_a_failed_start_is_told_to_all_and_not_kept() -> None:
    """Each gets the exit code and the last output; the next lease starts another process."""
    argv = BARREN
    with counted() as census:
        async with Scope("a") as scope:
            pool: RunnerPool[str, Process] = RunnerPool(lambda _: Program(argv, ready=READY))
            lessees = [Lessee(pool), Lessee(pool)]
            for lessee in lessees:
                scope.spawn(lessee)
            await until(lambda: all(lessee.error for lessee in lessees))
            for lessee in lessees:
                assert isinstance(lessee.error, StartFailed)
                assert isinstance(lessee.error.__cause__, ProcessLost)
                assert lessee.error.__cause__.returncode == 3
                assert lessee.error.__cause__.lines == ("no luck",)
            assert len(census.pids) == 1
            assert not census.left()
            argv = POLITE
            async with pool.lease("a") as process:
                assert process.returncode is None


async def test_an_idle_process_is_ended_and_a_leased_one_is_not() -> None:
    """Of two with no idle time at all, the one that was given back goes."""
    with counted() as census:
        async with Scope("a"):
            pool = RunnerPool(Program(POLITE, ready=READY), idle_seconds=0)
            async with pool.lease("leased") as leased:
                async with pool.lease("idle") as idle:
                    assert idle.returncode is None
                with anyio.fail_after(SECONDS_MAX):
                    assert await idle.wait() == -signal.SIGTERM
                assert leased.returncode is None
                assert pool.stats.reaped == 1
            with anyio.fail_after(SECONDS_MAX):
                await leased.wait()
            assert not census.left()


async def test_the_end_of_the_scope_ends_processes_in_every_stage() -> None:
    """Leased, idle, starting and being stopped: when the block has ended, none is alive."""

    def program(key: str) -> Program:
        return Program(STUBBORN, ready=never if key == "starting" else READY)

    census: Census
    with counted() as census:
        scope = await Scope.open("a")
        other = await Scope.open("lessees")
        pool = RunnerPool(program, grace=GRACE, scope=scope)
        lessees = [Lessee(pool, "leased"), Lessee(pool, "starting")]
        for key in ("idle", "stopping", "leased"):
            async with pool.lease(key):
                pass
        for lessee in lessees:
            other.spawn(lessee)
        other.spawn(pool.release, "stopping")
        await until(lambda: len(census.pids) == 4 and pool.stats.stopping == 1)
        report = await scope.aclose()
        assert not census.left()
        assert not report.stuck
        lessees[0].done.set()
        await other.aclose()


async def test_a_failed_start_shows_what_the_runner_wrote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reason is mostly there; and nobody else has to be told that it has ended."""
    program = Program(["sh", "-c", "echo no config; exit 3"], ready=READY)
    async with Scope("a"):
        pool = RunnerPool(program)
        with pytest.raises(StartFailed, match=r"exit code 3\n.*no config"):
            async with pool.lease("x"):
                pass
    assert caplog.records == []
