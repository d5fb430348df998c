"""Each probe with a real process: ready, too early an end, the deadline, a stranger, cancellation."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import NotReady, ProcessLost, SpawnFailed
from quiesce.processes.process import Process, start_process
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Fd, Line
from tests.sweeping import Plan, sweep
from tests.unit.processes import small_programs as processes
from tests.unit.processes.ready_children import PROGRAMS, free_port, open_descriptors
from tests.unit.processes.small_programs import Census, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real_time

OK = r"HTTP/1.1 200 OK\r\n\r\n"
SILENT = ["sleep", "60"]
SOON = 0.1  # the deadline of what is never ready
SWEPT = [("asyncio", "native"), ("uvloop", "anyio"), ("trio", "anyio")]


async def greeted(process: Process) -> None:
    """Wait for a line of the child, as a user's own function."""
    await process.lines.line_matching("done")


@dataclass
class Subject:
    """A probe, the program that makes it ready, and what is in its way until then."""

    ready: Any
    argv: list[str]
    obstacle: str
    listen: Listener | None = None
    where: str | tuple[str, int] | None = None
    """Where the child is to listen."""
    options: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        """Put together what start_process is given."""
        self.options = {"ready": self.ready, "listen": self.listen}


def subject_of(kind: str, folder: Path) -> Subject:
    """Make the probe of one kind, for a child that has its files in a folder."""
    path = str(folder / "socket")
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    if kind.startswith("Listener"):
        listener = Listener.unix(path) if kind == "Listener.unix" else Listener.tcp()
        unix = path if kind == "Listener.unix" else None
        probe = Http("http://child/" if unix else f"http://127.0.0.1:{listener.port}/", unix=unix)
        return Subject(probe, ["http", "LISTEN_FD", OK], "does not answer", listener)
    subjects = {
        "UnixSocket": Subject(UnixSocket(path), ["unix", path], "No such file", where=path),
        "Tcp": Subject(
            Tcp("127.0.0.1", port),
            ["tcp", "127.0.0.1", str(port)],
            "refused",
            where=("127.0.0.1", port),
        ),
        "Http": Subject(Http(url), ["http", str(port), OK], "refused", where=("127.0.0.1", port)),
        "Http on a unix socket": Subject(
            Http(url, unix=path), ["http", path, OK], "No such file", where=path
        ),
        "Line": Subject(Line("done"), ["line"], "no line with 'done'"),
        "Fd": Subject(Fd(), ["fd", "READY_FD", "ok\\n"], "no line to descriptor READY_FD"),
        "function": Subject(greeted, ["line"], "greeted has not returned"),
    }
    return subjects[kind]


KINDS = (
    "UnixSocket",
    "Tcp",
    "Http",
    "Http on a unix socket",
    "Line",
    "Fd",
    "Listener.unix",
    "Listener.tcp",
    "function",
)
# One for each way in which a probe waits; that of Line is swept in test_process_sweep.py.
SWEPT_KINDS = ("UnixSocket", "Tcp", "Fd", "Listener.unix", "function")
TOLD_APART = ("UnixSocket", "Tcp", "Http", "Http on a unix socket")


@pytest.fixture(autouse=True)
def census(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Census]:
    """Fail if a process is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with counted() as found:
        yield found


@contextmanager
def go() -> Iterator[int]:
    """Return a standard input with the word that the child programs wait for, which does not end."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"go\n")
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


async def watched() -> set[str]:
    """List what is open, once there is a watcher for the case that this program is killed."""
    await (await start_process(["true"])).wait()
    return open_descriptors()


def variable_of(pid: int, name: bytes) -> bytes | None:
    """Look into the environment of a process; there is none in some moments of its start."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    values = (word.removeprefix(name + b"=") for word in words if word.startswith(name + b"="))
    return next(values, None)


def check_nothing_left(folder: Path, before: set[str], census: Census) -> None:
    """See that the process, its files and our descriptors are gone."""
    assert census.left() == []
    assert list(folder.iterdir()) == []
    assert open_descriptors() - before == set()


@pytest.mark.parametrize("kind", KINDS)
async def test_it_becomes_ready(kind: str, tmp_path: Path, census: Census) -> None:
    """A real child makes it ready, and when it is stopped nothing is left."""
    async with Scope("a"):
        before = await watched()
        subject = subject_of(kind, tmp_path)
        with go() as stdin:
            argv = [sys.executable, "-S", "-E", str(PROGRAMS), *subject.argv]
            process = await start_process(argv, stdin=stdin, **subject.options)
            assert process.state == "ready"
            await process.stop()
        check_nothing_left(tmp_path, before, census)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exit_before_it_is_ready(kind: str, tmp_path: Path, census: Census) -> None:
    """The error has the exit code and the last lines, and nothing is left."""
    async with Scope("a"):
        before = await watched()
        subject = subject_of(kind, tmp_path)
        with pytest.raises(ProcessLost, match="exited before it was ready") as caught:
            await start_process(processes.BARREN, ready_within=60, **subject.options)
        check_nothing_left(tmp_path, before, census)
    assert caught.value.returncode == 3
    assert caught.value.lines == ("no luck",)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_child_that_is_never_ready(kind: str, tmp_path: Path, census: Census) -> None:
    """At the deadline the error names what was in the way, and nothing is left."""
    async with Scope("a"):
        before = await watched()
        subject = subject_of(kind, tmp_path)
        with pytest.raises(NotReady, match=f"not ready in {SOON:g} s: .*{subject.obstacle}"):
            await start_process(SILENT, ready_within=SOON, **subject.options)
        check_nothing_left(tmp_path, before, census)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_time_at_all(kind: str, tmp_path: Path, census: Census) -> None:
    """With a deadline of 0 it is not ready, and the error still says what was waited for."""
    async with Scope("a"):
        before = await watched()
        subject = subject_of(kind, tmp_path)
        with pytest.raises(NotReady, match=r"not ready in 0 s: .+"):
            await start_process(SILENT, ready_within=0, **subject.options)
        check_nothing_left(tmp_path, before, census)


@pytest.mark.parametrize("kind", TOLD_APART)
async def test_a_stranger_at_the_address(kind: str, tmp_path: Path, census: Census) -> None:
    """A process, here the test itself, listens where the child is to: the start is refused."""
    async with Scope("a"):
        before = await watched()
        subject = subject_of(kind, tmp_path)
        assert subject.where is not None
        family = socket.AF_UNIX if isinstance(subject.where, str) else socket.AF_INET
        with socket.socket(family) as stranger:
            stranger.bind(subject.where)
            stranger.listen()
            with pytest.raises(SpawnFailed, match=r"a process already listens at"):
                await start_process(SILENT, ready_within=SOON, **subject.options)
            if family == socket.AF_UNIX:
                (tmp_path / "socket").unlink()  # not the child's, so it was left to us
        check_nothing_left(tmp_path, before, census)


@pytest.mark.parametrize("kind", SWEPT_KINDS)
@pytest.mark.parametrize(("backend", "way"), SWEPT)
def test_cancelled_at_each_suspension(
    backend: str, way: str, kind: str, tmp_path: Path, census: Census
) -> None:
    """Wherever a start that waits for it is cancelled, nothing is left when that comes out."""

    async def starting() -> None:
        async with Scope("a"):
            before = await watched()
            subject = subject_of(kind, tmp_path)
            try:
                with pytest.raises(NotReady):
                    await start_process(SILENT, ready_within=0.01, **subject.options)
                await anyio.lowlevel.checkpoint()
            finally:
                check_nothing_left(tmp_path, before, census)

    assert sweep(backend, starting, Plan(way, "suspensions", "once"), real_time=True) == []
