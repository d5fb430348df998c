"""Probes that the child speaks to: a line, a descriptor, an async function."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.errors import ArgumentError, UsageError
from quiesce.processes.readiness.probe import Fd, Launch, Line, ready_of
from tests.unit.processes.ready_children import (
    Started,
    never_ready,
    nothing_left,
    ready_after,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


@pytest.mark.parametrize("pattern", [r"port \d+", re.compile("PORT", re.IGNORECASE)])
async def test_a_line_says_ready(pattern: str | re.Pattern[str]) -> None:
    """The first line in which the pattern is found makes it ready."""
    with started(Line(pattern), "line", "starting", "on port 80, go") as (child, probe):
        await ready_after(child, probe, "it has written no line with")


@pytest.mark.parametrize("words", [["ready\\n"], ["half ", "a line\\n"], ["x"]])
async def test_a_descriptor_says_ready(words: list[str]) -> None:
    """A line, in however many pieces, or a byte before the end, makes it ready."""
    with started(Fd(), "fd", "READY_FD", *words) as (child, probe):
        met = ["no line"] * (1 + len(words) - words[-1].endswith("n"))
        await ready_after(child, probe, *met)


async def test_a_descriptor_that_is_closed_without_a_word_says_nothing() -> None:
    """The end of the pipe alone is no readiness: it also ends when the child dies."""
    with started(Fd(), "fd", "READY_FD") as (child, probe):
        await never_ready(child, probe, "without writing to it")


async def test_a_descriptor_can_be_named_on_the_command_line() -> None:
    """The number takes the place of the placeholder, and the variable is the one asked for."""
    ready = Fd("CHILD_READY", placeholder="{fd}")
    with started(ready, "fd", "{fd}", "ok\\n") as (child, probe):
        await ready_after(child, probe, "CHILD_READY")
    with started(Fd("CHILD_READY"), "fd", "CHILD_READY", "ok\\n") as (child, probe):
        await ready_after(child, probe, "CHILD_READY")


async def test_an_async_function_says_ready() -> None:
    """It gets the process, and is asked again for as long as it gives False."""
    asked: list[Any] = []

    async def is_up(process: Started) -> bool:
        asked.append(process)
        await anyio.lowlevel.checkpoint()
        return len(asked) == 3

    with started(is_up, "line") as (child, probe):
        await ready_after(child, probe, "is_up returned False")
    assert asked == [child] * 3


async def test_an_async_function_that_never_returns_is_named() -> None:
    """That it has not returned is what stands in the way."""

    async def is_up(process: Started) -> None:
        await anyio.sleep_forever()

    with started(is_up, "line") as (child, probe):
        await never_ready(child, probe, "is_up has not returned")


async def test_what_an_async_function_raises_gets_out() -> None:
    """Its errors are the caller's, and so is a function that is not async."""

    async def broken(process: Started) -> None:
        raise LookupError(process.pid)

    def plain(process: Started) -> int:
        return 1

    with started(broken, "line") as (child, probe):
        with pytest.raises(LookupError, match=str(child.pid)):
            await probe.wait(child)
        with pytest.raises(ArgumentError, match="is not awaitable"):
            await ready_of(plain).wait(child)


async def test_one_description_serves_many_launches() -> None:
    """Each launch has its own pipe; a probe that is used twice by hand is refused."""
    shared = Fd()
    program = ["fd", "READY_FD", "ok\\n"]
    with started(shared, *program) as (child, probe), started(shared, *program) as (other, its):
        await ready_after(other, its, "it has")
        await ready_after(child, probe, "it has")
    with pytest.raises(UsageError, match="already belongs to another process"):
        probe.prepare(Launch([]))
    with pytest.raises(UsageError, match="before wait"):
        await Fd().wait(child)


async def test_cleaning_up_at_any_time_is_safe() -> None:
    """Before a wait it closes all and the wait goes on; during one it leaves things alone."""
    with started(Line("x"), "line") as (child, _):
        launch = Launch([])
        probe = Fd()
        probe.prepare(launch)
        for clean in launch.cleanup * 2:
            clean()
        with anyio.move_on_after(0.01) as scope:
            await probe.wait(child)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            launch = Launch([])
            probe = Fd()
            probe.prepare(launch)
            told = os.dup(launch.pass_fds[0])
            group.start_soon(probe.wait, child)
            await anyio.wait_all_tasks_blocked()
            launch.cleanup[0]()
            os.write(told, b"ready\n")
    os.close(told)


def test_a_launch_that_failed_leaves_nothing() -> None:
    """What was prepared is gone after the clean-up, without any wait."""
    launch = Launch([], {})
    ready_of(Fd()).prepare(launch)
    for clean in launch.cleanup:
        clean()


def test_only_the_child_inherits_the_descriptor() -> None:
    """Another program that is started meanwhile does not hold the pipe open."""
    launch = Launch([], {})
    probe = Fd()
    probe.prepare(launch)
    assert launch.env == {"READY_FD": str(launch.pass_fds[0])}
    assert not os.get_inheritable(launch.pass_fds[0])
    launch.cleanup[0]()
