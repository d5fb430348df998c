"""Cancellation at each step of a process's life: nothing is leaked, hung or alive at return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import ProcessLost
from quiesce.processes.process import Process, start_process
from tests.sweeping import Plan, sweep
from tests.unit.processes import small_programs as processes
from tests.unit.processes.small_programs import GRACE, READY, Census, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Making = Callable[[Census, list[str]], Coroutine[Any, Any, None]]

KINDS = [
    ("asyncio", "native"),
    ("uvloop", "native"),
    ("asyncio", "anyio"),
    ("uvloop", "anyio"),
    ("trio", "anyio"),
]
KINDS_WITH_TURNS = [KINDS[0], KINDS[2], KINDS[4]]
PROGRAMS = {
    "polite": processes.POLITE,
    "stubborn": processes.STUBBORN,
    "parent": processes.PARENT,
    "stubborn parent": processes.STUBBORN_PARENT,
}


def check(census: Census, *started: Process) -> None:
    """See, in the step in which the caller goes on, that nothing is left."""
    left = census.left()
    assert not left, left
    assert all(process.returncode in {-9, -15} for process in started)


async def starting(census: Census, argv: list[str]) -> None:
    """Start a process, and stop it."""
    started: list[Process] = []
    scope = await Scope.open("a")
    try:
        started.append(await start_process(argv, scope=scope, ready=READY, grace=GRACE))
        await started[0].stop()
    finally:
        # A start that was cancelled has left nothing; a process that was given out is the scope's.
        if not started or started[0].state != "ready":
            check(census, *started)
        await scope.aclose(cleanup=1)
        check(census, *started)


async def in_a_block(census: Census, argv: list[str]) -> None:
    """Start two in a block, and leave it by its end."""
    try:
        async with Scope("a"):
            await start_process(argv, ready=READY, grace=GRACE, service=True)
            await start_process(argv, grace=GRACE, service=True)
    finally:
        check(census)


async def in_a_failing_block(census: Census, argv: list[str]) -> None:
    """Start one in a block, and leave it by an exception."""
    try:
        async with Scope("a"):
            await start_process(argv, ready=READY, grace=GRACE)
            message = "the body has failed"
            raise KeyError(message)
    except KeyError:
        pass
    finally:
        check(census)


async def waiting(census: Census, argv: list[str]) -> None:
    """Read what it writes, and wait for its end, which another brings about."""
    try:
        async with Scope("a") as scope:
            process = await start_process(argv, grace=GRACE)
            async for line in process.stdout:
                assert line == "ready"
                break
            scope.spawn(process.stop)
            assert await process.wait() in {-9, -15}
            check(census, process)
    finally:
        check(census)


SUBJECTS: list[Making] = [starting, in_a_block, in_a_failing_block, waiting]


def swept(backend: str, plan: Plan, subject: Making, argv: list[str]) -> list[str]:
    """Sweep a subject."""
    with counted() as census:
        return sweep(backend, lambda: subject(census, argv), plan, real_time=True)


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_once_at_each_suspension(
    backend: str, kind: str, subject: Making, program: str
) -> None:
    """Wherever the caller is suspended, nothing is left when the cancellation comes out."""
    assert swept(backend, Plan(kind, "suspensions", "once"), subject, PROGRAMS[program]) == []


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("program", ["polite", "stubborn parent"])
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_twice_at_each_suspension(
    backend: str, kind: str, subject: Making, program: str
) -> None:
    """A second cancellation, wherever it comes, hastens nothing away."""
    assert swept(backend, Plan(kind, "suspensions", "twice"), subject, PROGRAMS[program]) == []


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("times", ["once", "on"])
@pytest.mark.parametrize("program", ["polite", "stubborn parent"])
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize(("backend", "kind"), KINDS_WITH_TURNS)
def test_cancelled_at_each_turn_of_the_loop(
    backend: str, kind: str, subject: Making, program: str, times: str
) -> None:
    """Whatever stage the process is in, nothing is left when the cancellation comes out."""
    assert swept(backend, Plan(kind, "turns", times), subject, PROGRAMS[program]) == []


@pytest.mark.parametrize("times", ["once", "twice"])
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_while_it_exits_before_it_is_ready(backend: str, kind: str, times: str) -> None:
    """A start that fails by itself is buried likewise, whenever it is cancelled."""

    async def failing(census: Census, argv: list[str]) -> None:
        try:
            async with Scope("a"):
                with pytest.raises(ProcessLost) as caught:
                    await start_process(argv, ready=READY, grace=GRACE)
                assert caught.value.returncode == 3
                await anyio.lowlevel.checkpoint()
        finally:
            check(census)

    assert swept(backend, Plan(kind, "suspensions", times), failing, processes.BARREN) == []
