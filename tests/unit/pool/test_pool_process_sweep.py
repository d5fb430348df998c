"""Cancellation at each step of a lease, a release, a drain and the idle time, with real processes.

`test_pool_sweep` does the same with pretended runners, in more ways; here the question is whether
anything of a process is left when the caller goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Process, Program, RunnerPool, Scope
from quiesce.errors import RunnerReleased, ScopeClosed
from tests.stress import turns
from tests.sweeping import Plan, sweep
from tests.unit.pool.pool_runners import joined, surely
from tests.unit.processes.small_programs import GRACE, POLITE, READY, STUBBORN, Census, counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Pool = RunnerPool[str, Process]
    Act = Callable[[Pool, Scope, Census], Awaitable[Any]]

KINDS = [
    ("asyncio", "native"),
    ("uvloop", "native"),
    ("asyncio", "anyio"),
    ("uvloop", "anyio"),
    ("trio", "anyio"),
]
SOME_KINDS = [KINDS[0], KINDS[3], KINDS[4]]
KINDS_WITH_TURNS = [KINDS[0], KINDS[2], KINDS[4]]


async def leasing(pool: Pool, scope: Scope, census: Census) -> None:
    """Lease a cold runner, then a warm one, beside somebody who waits for it too."""
    job = scope.spawn(use, pool)
    try:
        while not pool.stats.waiting and not pool.stats.started:
            await turns(1)
        for _ in range(2):
            async with pool.lease("a") as process:
                assert process.returncode is None
                await turns(1)
    finally:
        await surely(lambda: joined([job]))
        assert len(census.pids) == 1


async def releasing(pool: Pool, scope: Scope, census: Census) -> None:
    """Release a runner that is leased; when this ends, nothing of it is left."""
    async with pool.lease("a") as process:
        try:
            await pool.release("a")
        finally:
            assert process.returncode in {-9, -15}
            assert not census.left()


async def releasing_cold(pool: Pool, scope: Scope, census: Census) -> None:
    """Release while the start is under way; when this ends, nothing of it is left."""
    job = scope.spawn(use, pool)
    asked = False
    try:
        while not census.pids:
            await turns(1)
        asked = True
        await pool.release("a")
    finally:
        assert not asked or not census.left()
        await surely(lambda: joined([job]))


async def draining(pool: Pool, scope: Scope, census: Census) -> None:
    """Drain with a runner that is idle, one that is leased, and one that starts."""
    async with pool.lease("idle"):
        pass
    async with pool.lease("leased"):
        job = scope.spawn(use, pool)
        asked = False
        try:
            await turns(2)
            asked = True
            await pool.drain(grace=GRACE)
        finally:
            assert not asked or not census.left()
            await surely(lambda: joined([job]))


async def reaping(pool: Pool, scope: Scope, census: Census) -> None:
    """Lease and release while the idle time, of nothing, ends the runner every time."""
    for pause in (0, 2, 5):
        async with pool.lease("a") as process:
            await turns(1)
            assert process.returncode is None
        await turns(pause)
    await pool.release("a")
    assert not census.left()


async def reaping_drained(pool: Pool, scope: Scope, census: Census) -> None:
    """Drain in the very moment in which idle times end."""
    for key in "ab":
        async with pool.lease(key):
            pass
    try:
        await pool.drain()
    finally:
        assert not census.left()


async def use(pool: Pool) -> None:
    """Lease for a moment, if it is allowed."""
    try:
        async with pool.lease("a") as process:
            assert process.returncode is None
            await turns(1)
    except (RunnerReleased, ScopeClosed):
        pass


ACTS: dict[str, tuple[Act, dict[str, Any]]] = {
    "lease": (leasing, {}),
    "release": (releasing, {}),
    "release, cold": (releasing_cold, {}),
    "drain": (draining, {}),
    "reaper": (reaping, {"idle_seconds": 0}),
    "reaper and drain": (reaping_drained, {"idle_seconds": 0}),
}


def subject(name: str, argv: list[str], census: Census) -> Callable[[], Coroutine[Any, Any, None]]:
    """Make a subject: a pool, what is done to it, and a look at what is left."""
    act, options = ACTS[name]

    async def run() -> None:
        scope = await Scope.open("a")
        outside = await Scope.open("others")
        program = Program(argv, ready=READY)
        pool: Pool = RunnerPool(program, scope=scope, grace=GRACE, **options)

        async def close() -> None:
            report = await scope.aclose()
            assert not census.left()
            assert not report.stuck
            assert not report.failed
            assert ", 0 runners>" in repr(pool)
            await outside.aclose()

        try:
            await act(pool, outside, census)
        finally:
            await surely(close)

    return run


def swept(backend: str, plan: Plan, name: str, argv: list[str]) -> list[str]:
    """Sweep a subject."""
    with counted() as census:
        return sweep(backend, subject(name, argv, census), plan, real_time=True)


@pytest.mark.sampled(2, "name")
@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_at_each_suspension(backend: str, kind: str, name: str) -> None:
    """Wherever the caller is suspended, nothing is left when the cancellation comes out."""
    assert swept(backend, Plan(kind, "suspensions", "once"), name, POLITE) == []


@pytest.mark.sampled(2, "name")
@pytest.mark.parametrize("name", ["lease", "release", "release, cold", "reaper and drain"])
@pytest.mark.parametrize(("backend", "kind"), SOME_KINDS)
def test_cancelled_twice_at_each_suspension(backend: str, kind: str, name: str) -> None:
    """A second cancellation, at each later suspension, changes nothing."""
    assert swept(backend, Plan(kind, "suspensions", "twice"), name, POLITE) == []


@pytest.mark.sampled(2, "name")
@pytest.mark.parametrize("times", ["once", "on"])
@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize(("backend", "kind"), KINDS_WITH_TURNS)
def test_cancelled_at_each_turn_of_the_loop(backend: str, kind: str, name: str, times: str) -> None:
    """Whatever stage the process is in, nothing is left when the cancellation comes out."""
    assert swept(backend, Plan(kind, "turns", times), name, POLITE) == []


@pytest.mark.sampled(2, "name")
@pytest.mark.parametrize("name", ["release", "release, cold", "drain", "reaper and drain"])
@pytest.mark.parametrize(("backend", "kind"), SOME_KINDS)
def test_cancelled_while_stubborn_processes_are_killed(backend: str, kind: str, name: str) -> None:
    """The grace is waited for, and the kill, whoever is cancelled."""
    assert swept(backend, Plan(kind, "suspensions", "once"), name, STUBBORN) == []
