"""Random lives of processes take the steps of the table, and no others."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import NotReady, ProcessLost, ProcessStuck, ScopeClosed
from quiesce.processes import process_owner
from quiesce.processes.process import start_process
from quiesce.processes.process_owner import PROCESS_LIFE, ProcessState
from tests import sampling
from tests.lives import steps_taken
from tests.stress import turns
from tests.unit.processes.small_programs import (
    BARREN,
    DYING_PARENT,
    GRACE,
    PARENT,
    POLITE,
    READY,
    STUBBORN,
    STUBBORN_PARENT,
    counted,
)

if TYPE_CHECKING:
    from quiesce.processes.process import Process

pytestmark = pytest.mark.real_time

PROGRAMS = (POLITE, STUBBORN, PARENT, STUBBORN_PARENT, DYING_PARENT, BARREN, ["true"])
ENDS = ("terminate", "kill", "stop", "signal", "close input", "wait", "nothing")
S = ProcessState


async def _end(process: Process, how: str, rng: random.Random) -> None:
    match how:
        case "terminate":
            process.terminate()
        case "kill":
            process.kill()
        case "stop":
            with anyio.move_on_after(rng.choice([0.0, GRACE, 10.0])):
                await process.stop(rng.choice([0.0, GRACE]))
        case "signal":
            process.send_signal(rng.choice([15, 9]))
        case "close input":
            process.close_stdin()
        case "wait":
            with anyio.move_on_after(rng.choice([0.0, GRACE])):
                await process.wait()
        case _:
            pass


async def _live(scope: Scope, rng: random.Random) -> None:
    """Start a program, and do two things to it; each wait may be cut short."""
    options: dict[str, Any] = {"ready": READY} if rng.random() < 0.6 else {}
    with (
        suppress(ProcessLost, ProcessStuck, NotReady, ScopeClosed),
        anyio.move_on_after(rng.choice([0.0, 0.002, 0.01, 10.0, 10.0, 10.0])),
    ):
        process = await start_process(
            rng.choice(PROGRAMS), scope=scope, grace=GRACE, ready_within=rng.choice([0.001, 10.0, 10.0]),
            service=rng.random() < 0.3, stdin="pipe", **options,
        )  # fmt: skip
        for _ in range(2):
            await _end(process, rng.choice(ENDS), rng)
            await turns(rng.randrange(4))


async def test_random_lives_take_no_step_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start, become ready, are stopped, killed, cancelled and closed, in any order."""
    all_taken: set[Any] = set()
    for number in range(sampling.fewer(20, 6)):
        seed = f"{sampling.Sample.seed or 0} {number}"
        rng = random.Random(seed)  # noqa: S311 - a seed gives the same again
        monkeypatch.setattr(process_owner, "_KILLED_SECONDS", rng.choice([0.0, 5.0]))
        print(f"seed {seed!r}")  # noqa: T201 - shown if it fails
        with counted(), steps_taken(PROCESS_LIFE) as taken:
            async with Scope("s") as scope:
                async with anyio.create_task_group() as group:
                    for _ in range(4):
                        group.start_soon(_live, scope, rng)
                    await turns(rng.choice([0, 3, 30]))
                    if rng.random() < 0.3:
                        await scope.aclose()  # in the midst
                await scope.aclose()
        all_taken |= taken
    assert {(S.STARTING, S.READY), (S.STOPPING, S.EXITED), (S.EXITED, S.GONE)} <= all_taken
