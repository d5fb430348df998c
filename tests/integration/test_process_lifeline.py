"""The owner of processes is killed: nobody survives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope
from quiesce.processes import watchdog
from quiesce.processes.process import start_process
from quiesce.processes.readiness.probe import Line

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).parent / "owner_programs.py"
SECONDS_MAX = 10.0


def session_and_mark(pid: int) -> tuple[int, bytes]:
    """Return the session of a process that runs, and its mark."""
    folder = Path("/proc") / str(pid)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError
    words = (folder / "environ").read_bytes().split(b"\0")
    marks = [word for word in words if word.startswith(watchdog.MARK.encode())]
    return int(fields[3]), marks[0] if marks else b""


def running() -> dict[int, tuple[int, bytes]]:
    """List what runs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(folder.name)] = session_and_mark(int(folder.name))
    return found


def eventually(fact: Callable[[], bool]) -> bool:
    """Wait for something that another process does."""
    until = time.monotonic() + SECONDS_MAX
    while not fact() and time.monotonic() < until:
        time.sleep(0.01)
    return fact()


def survivors(family: dict[int, tuple[int, bytes]]) -> list[int]:
    """List which of the processes, with the same session and mark, still run."""
    now = running()
    return [pid for pid, known in family.items() if now.get(pid) == known]


def end(pids: list[int]) -> None:
    """Kill processes of others, and wait until they are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not running().keys() & set(pids))


def family_of(pids: list[int]) -> dict[int, tuple[int, bytes]]:
    """List all that the processes have started, also what has left their groups."""
    everything = running()
    marks = {everything[pid][1] for pid in pids if pid in everything}
    return {pid: known for pid, known in everything.items() if known[1] in marks - {b""}}


def sessions(family: dict[int, tuple[int, bytes]]) -> set[int]:
    """List the sessions that a family is in."""
    return {session for session, _ in family.values()}


@pytest.mark.sampled(1, "way")
@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize(
    "way",
    [
        "in_the_first_fork",
        "before_ready",
        "after_ready",
        "during_drain",
        "during_drain_of_many",
        "after_a_fork",
    ],
)
def test_nobody_survives_an_owner_that_is_killed(way: str, backend: str) -> None:
    """Neither in the groups, nor what has left them."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), way, backend], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        helper, *pids = map(int, owner.stdout.readline().split())
        families = 1 if way != "during_drain_of_many" else 3
        # The shell and its three, of which one has a session of its own.
        assert eventually(lambda: len(family_of(pids)) >= 4 * families)
        assert eventually(lambda: len(sessions(family_of(pids))) >= 2 * families)
        family = family_of(pids)
        owner.kill()
    assert owner.returncode == -signal.SIGKILL
    try:
        assert eventually(lambda: survivors(family) == []), survivors(family)
    finally:
        end([*survivors(family), *([helper] if helper else [])])


KINDS = {"leader", "group", "unmarked", "session", "stranger"}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no mark")
@pytest.mark.parametrize(
    ("means", "surviving"),
    [
        ("all", {"stranger"}),
        ("table alone", {"session", "stranger"}),
        ("mark alone", {"unmarked", "stranger"}),
        ("nobody", KINDS),
        ("another watcher", {"stranger"}),
    ],
)
def test_who_ends_whom(means: str, surviving: set[str]) -> None:
    """The table ends what is in the group, the mark what has it, and neither what has left both."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), "by_kinds", "asyncio", means],
        stdout=subprocess.PIPE, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        words = owner.stdout.readline().split()
        kinds = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        watcher = kinds.pop("watcher")
        assert set(kinds) == KINDS
        assert eventually(lambda: in_order(kinds))
        everything = running()
        owner.kill()
    family = {pid: everything[pid] for pid in kinds.values()}
    try:
        assert eventually(lambda: watcher not in running())  # it has done what it could
        assert eventually(
            lambda: survivors(family) == [kinds[kind] for kind in kinds if kind in surviving]
        )
    finally:
        end(survivors(family))


def in_order(kinds: dict[str, int]) -> bool:
    """Return whether each has become what it is to be: in the group or not, with the mark or not."""
    now = running()
    found = {kind: now.get(pid) for kind, pid in kinds.items()}
    return all(
        each is not None
        and (each[0] == kinds["leader"]) == (kind in {"leader", "group", "unmarked"})
        and bool(each[1]) == (kind in {"leader", "group", "session"})
        for kind, each in found.items()
    )


def test_nobody_survives_an_owner_that_leaves_without_closing() -> None:
    """The pipe breaks however the owner ends."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "without_closing", "asyncio"],
        stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    _, pid = map(int, done.stdout.split())
    assert eventually(lambda: not any(known[0] == pid for known in running().values()))


@pytest.mark.real_time
async def test_a_watcher_that_was_killed_is_replaced() -> None:
    """The next process that is started finds out, and its watcher knows of all."""
    async with Scope("a"):
        unmarked = ["env", "-i", "sh", "-c", "echo ready; exec sleep 60"]
        first = await start_process(unmarked, ready=Line("ready"), grace=1)
        before = watchdog.watcher.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it was killed
        second = await start_process(["sh", "-c", "echo ready; sleep 60"], ready=Line("ready"))
        after = watchdog.watcher.pid
        assert after is not None
        assert after != before
        table = watchdog.watcher.table
        assert table is not None
        assert first.pid in table
        assert second.pid in table
        assert first.details["lifeline"] == "watcher and mark"
        assert watchdog.watcher.pipe is not None
        os.close(watchdog.watcher.pipe)  # as if this program were gone
        watchdog.watcher.pipe = None
        with anyio.fail_after(SECONDS_MAX):
            assert await first.wait() == -signal.SIGKILL
            assert await second.wait() == -signal.SIGKILL
    os.waitpid(after, 0)  # noqa: ASYNC222 - it has gone
    watchdog.watcher.pid = None


@pytest.mark.real_time
async def test_without_a_watcher_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be started, processes can, and the frontier tells the difference."""
    watcher = watchdog.Watcher()
    with monkeypatch.context() as patch:  # until here: the true one is nobody's to miss
        patch.setattr(watchdog, "watcher", watcher)
        patch.setattr(sys, "executable", "")
        async with Scope("a") as scope:
            process = await start_process(["sleep", "60"])
            (entry,) = scope.frontier()
            assert entry.details["lifeline"] == "none"
            await process.stop()
    watcher.forget_everything()
