"""What cannot be started is refused by a typed error that names it, and nothing is left."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce import ArgumentError, Scope, UsageError
from quiesce.errors import NotReady, SpawnFailed
from quiesce.processes import process_spawn
from quiesce.processes.fork_queue import of
from quiesce.processes.process import start_process
from quiesce.processes.readiness.connect import UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Fd, Line
from tests.unit.processes.ready_children import open_descriptors
from tests.unit.processes.small_programs import Census, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.real_time

CLOSED = 99_999
NOBODY = 65_534


@pytest.fixture(autouse=True)
def census() -> Iterator[Census]:
    """Fail if a process is left."""
    with counted() as found:
        yield found


def written(folder: Path, name: str, text: str, mode: int) -> str:
    """Make a file."""
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# What else is wrong with arguments, of whatever type, is in test_process_ready.py.
CASES: dict[str, tuple[Callable[[Path], dict[str, Any]], type[Exception], str]] = {
    "program that is no program": (
        lambda at: {"argv": [written(at, "tool", "#!/bin/sh\n", 0o600)]},
        SpawnFailed,
        r"cannot start '.*tool': .*Permission denied",
    ),
    "program for another machine": (
        lambda at: {"argv": [written(at, "tool", "\1\2\3", 0o700)]},
        SpawnFailed,
        r"cannot start '.*tool': .*Exec format",
    ),
    "program whose interpreter is missing": (
        lambda at: {"argv": [written(at, "tool", "#!/no/such/interpreter\n", 0o700)]},
        SpawnFailed,
        r"cannot start '.*tool': .*No such file",
    ),
    "program without a name": (lambda _: {"argv": [""]}, SpawnFailed, "cannot start ''"),
    "argument that cannot be encoded": (
        lambda _: {"argv": ["true", "\ud800"]},
        SpawnFailed,
        "surrogates not allowed",
    ),
    "too many words": (
        lambda _: {"argv": ["true", "x" * 3_000_000]},
        SpawnFailed,
        "Argument list too long",
    ),
    "folder that is a file": (
        lambda at: {"cwd": written(at, "file", "", 0o600)},
        SpawnFailed,
        "Not a directory.*file",
    ),
    "folder that is empty": (lambda _: {"cwd": ""}, SpawnFailed, "No such file"),
    "folder with a NUL": (lambda _: {"cwd": "a\0b"}, ArgumentError, "cwd .*a NUL"),
    "folder of another type": (lambda _: {"cwd": 7}, ArgumentError, "cwd .*not 7"),
    "NUL in a value of env": (lambda _: {"env": {"A": "a\0b"}}, ArgumentError, "NUL, not 'a"),
    "NUL in a name of env": (lambda _: {"env": {"A\0B": ""}}, ArgumentError, "NUL, not 'A"),
    "env without a name": (lambda _: {"env": {"": ""}}, ArgumentError, "must not be empty"),
    "env of bytes": (lambda _: {"env": {b"A": b"B"}}, ArgumentError, "not b'A'"),
    "env of another type": (lambda _: {"env": 7}, ArgumentError, "env must be a mapping.*not 7"),
    "env as a list": (lambda _: {"env": ["A=1"]}, ArgumentError, "env must be a mapping"),
    "closed descriptor to pass": (
        lambda _: {"pass_fds": [CLOSED]},
        ArgumentError,
        f"pass_fds: {CLOSED} is not an open",
    ),
    "text as descriptor": (lambda _: {"pass_fds": ["a"]}, ArgumentError, "pass_fds: 'a' is no"),
    "lone descriptor": (lambda _: {"pass_fds": 2}, ArgumentError, "pass_fds must be a list"),
    "closed standard input": (lambda _: {"stdin": CLOSED}, ArgumentError, f"stdin: {CLOSED}"),
    "huge standard input": (lambda _: {"stdin": 2**40}, ArgumentError, "stdin: 1099511627776"),
    "negative standard input": (lambda _: {"stdin": -1}, ArgumentError, "stdin must be.*not -1"),
    "logs into a folder": (lambda at: {"logs": at}, SpawnFailed, "logs to .*Is a directory"),
    "logs with a NUL": (lambda _: {"logs": Path("a\0b")}, SpawnFailed, "cannot write logs to 'a"),
    "negative time": (lambda _: {"ready_within": -1}, ArgumentError, "ready_within .*not -1"),
    "no number as time": (lambda _: {"ready_within": math.nan}, ArgumentError, "within .*nan"),
    "no number as grace": (lambda _: {"grace": math.nan}, ArgumentError, "grace .*not nan"),
    "lines that nobody reads": (
        lambda _: {"ready": Line("x"), "logs": "discard"},
        ArgumentError,
        r"Line\(…\) must read the output, but logs='discard'",
    ),
    "listener of another type": (
        lambda at: {"listen": str(at)},
        ArgumentError,
        "listen must be a Listener",
    ),
}


@contextmanager
def nothing_left(scope: Scope, census: Census) -> Iterator[None]:
    """Fail if a process was started, or a descriptor is left open."""
    before = open_descriptors()
    census.pids.clear()
    yield
    assert not scope.frontier()
    assert census.pids == []
    assert open_descriptors() - before == set()


async def watched(scope: Scope) -> Scope:
    """Start the watcher, for the case that this program is killed."""
    await (await start_process(["true"], scope=scope)).wait()
    return scope


@pytest.mark.parametrize("case", CASES)
async def test_it_is_named_and_nothing_is_left(case: str, tmp_path: Path, census: Census) -> None:
    """The error is one of ours, and says what is wrong; no process, no open file."""
    make, error, message = CASES[case]
    async with Scope("a") as scope:
        options: dict[str, Any] = {"argv": ["true"], **make(tmp_path)}
        with nothing_left(await watched(scope), census), pytest.raises(error, match=message):
            await start_process(**options)


async def test_a_folder_that_may_not_be_entered(tmp_path: Path, census: Census) -> None:
    """It is named by the error."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    async with Scope("a") as scope:
        await watched(scope)
        as_root = os.geteuid() == 0
        try:
            if as_root:  # who may enter any folder
                os.seteuid(NOBODY)
            with nothing_left(scope, census), pytest.raises(SpawnFailed, match=r"denied.*closed"):
                await start_process(["true"], cwd=folder)
        finally:
            if as_root:
                os.seteuid(0)


async def test_a_descriptor_that_was_just_closed_is_not_anothers(census: Census) -> None:
    """Its number may be given to the next file that is opened, which is not for the child."""
    async with Scope("a") as scope:
        await watched(scope)  # which may open some
        reading, writing = os.pipe()
        os.close(reading)
        os.close(writing)
        with nothing_left(scope, census):
            cases: list[dict[str, Any]] = [{"stdin": reading}, {"pass_fds": [writing]}]
            for options in cases:
                with pytest.raises(ArgumentError, match="is not an open file descriptor"):
                    await start_process(["true"], **options)


async def test_a_probe_that_cannot_prepare(census: Census, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses to a probe is a start that has failed."""
    probe = Fd()

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with Scope("a") as scope:
        await watched(scope)
        with nothing_left(scope, census), monkeypatch.context() as patch:
            patch.setattr(os, "pipe", fail)
            with pytest.raises(SpawnFailed, match=re.escape(f"'true' with {probe!r}: [Errno 24]")):
                await start_process(["true"], ready=probe)


async def test_a_start_that_is_refused_takes_its_listener_along(
    tmp_path: Path, census: Census
) -> None:
    """It was the process's; one that is kept stays its owner's."""
    async with Scope("a") as scope:
        await watched(scope)
        with nothing_left(scope, census):
            listener = Listener.unix(tmp_path / "socket")
            with pytest.raises(ArgumentError):
                await start_process([], listen=listener)
            assert listener.closed
            with pytest.raises(UsageError, match="the listener is closed"):
                await start_process(["true"], listen=listener)
            with Listener.unix(tmp_path / "socket", keep=True) as kept:
                with pytest.raises(ArgumentError):
                    await start_process([], listen=kept)
                assert not kept.closed
    assert not (tmp_path / "socket").exists()


async def test_a_start_that_is_cancelled_before_its_turn_takes_its_listener_along(
    tmp_path: Path, census: Census, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never came to a fork, and leaves no socket file either."""
    async with Scope("a") as scope:
        await watched(scope)
        with nothing_left(scope, census), anyio.CancelScope() as cancelled:
            monkeypatch.setattr(of(scope.backend), "taken", True)  # it is somebody else's
            cancelled.cancel()
            await start_process(["true"], listen=Listener.unix(tmp_path / "socket"))
        assert cancelled.cancelled_caught
        monkeypatch.undo()
    assert not (tmp_path / "socket").exists()


async def test_a_socket_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """The obstacle of a probe names the path."""
    path = tmp_path / "no folder" / "socket"
    async with Scope("a"):
        with pytest.raises(NotReady, match=r"UnixSocket\('.*no folder/socket'\): No such file"):
            await start_process(["sleep", "60"], ready=UnixSocket(path), ready_within=0.1)


async def test_a_killed_child_that_does_not_die_does_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child that cannot be owned is killed; if that takes long, a thread waits for it."""
    reaped, waitpid = threading.Event(), os.waitpid
    asked = list[int]()

    def undead(pid: int, options: int) -> tuple[int, int]:
        asked.append(options)
        if options == os.WNOHANG:
            return 0, 0
        result = waitpid(pid, options)
        reaped.set()
        return result

    child = subprocess.Popen(["true"], process_group=0)  # noqa: ASYNC220, S607 - what is tried
    monkeypatch.setattr(os, "waitpid", undead)
    process_spawn.reap_killed(child.pid)
    assert await anyio.to_thread.run_sync(reaped.wait)
    assert set(asked[:-1]) == {os.WNOHANG}
    monkeypatch.undo()
    child.returncode = 0
