"""Small child programs, started with nothing but `subprocess`, for the tests of readiness."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import uvloop

from quiesce.processes.descriptors import readable
from quiesce.processes.readiness.probe import Launch, Ready, ready_of
from tests.loops import children

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from quiesce.processes.readiness.listener import Listener

PROGRAMS = Path(__file__).parents[2] / "integration" / "child_programs.py"
uvloop.new_event_loop().close()  # the first one opens a pipe, for good
LIMIT_SECONDS = 10  # a guard: nothing here takes a tenth of it


class Started:
    """A child process, as a probe sees it."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """Look after it."""
        self.popen = popen
        self._heard = b""

    @property
    def pid(self) -> int:
        """Its id."""
        return self.popen.pid

    @property
    def returncode(self) -> int | None:
        """How it has ended."""
        return self.popen.poll()

    @property
    def lines(self) -> Started:
        """What it writes."""
        return self

    async def line_matching(self, pattern: re.Pattern[str], /) -> str:
        """Read its standard output up to a line."""
        assert self.popen.stdout is not None
        while True:
            line, end, rest = self._heard.partition(b"\n")
            if end:
                self._heard = rest
                if pattern.search(line.decode()):
                    return line.decode()
                continue
            await readable(self.popen.stdout.fileno())
            data = os.read(self.popen.stdout.fileno(), 4096)
            assert data, "the child has ended"
            self._heard += data

    def go(self) -> None:
        """Return it the word it waits for."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(b"go\n")
        self.popen.stdin.flush()

    def end(self) -> None:
        """Kill it and all that it started, and wait for all of them."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.close()  # ends grandchildren in other sessions
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.popen.stdout.read()  # it ends with the last of those that have it open
        self.popen.stdout.close()


@contextmanager
def started(
    ready: object, *argv: str, listener: Listener | None = None
) -> Iterator[tuple[Started, Any]]:
    """Start a program with a probe, and end it; what the probe wanted cleaned up is cleaned up."""
    launch = Launch([sys.executable, "-S", "-E", str(PROGRAMS), *argv], dict(os.environ))
    probe: Ready = ready_of(ready)
    try:
        if listener is not None:
            listener.prepare(launch)
        probe.prepare(launch)
        with subprocess.Popen(
            launch.argv,
            env=launch.env,
            pass_fds=launch.pass_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as popen:
            child = Started(popen)
            try:
                yield child, probe
            finally:
                child.end()
    finally:
        for clean in launch.cleanup:
            clean()


async def obstacle(probe: Any, text: str) -> None:
    """Wait until the probe has met this."""
    while text not in (probe.obstacle or ""):
        await anyio.lowlevel.checkpoint()


async def ready_after(child: Started, probe: Any, *met: str) -> None:
    """Wait for readiness; give the child the word each time the probe has met an obstacle."""
    ended = anyio.Event()

    async def wait() -> None:
        await probe.wait(child)
        ended.set()

    with anyio.fail_after(LIMIT_SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for text in met:
                await obstacle(probe, text)
                assert not ended.is_set(), "ready before it was"
                child.go()
    assert probe.obstacle is None


async def never_ready(child: Started, probe: Any, *met: str) -> None:
    """See the probe meet these obstacles, with a word to the child before each, and stay there."""
    with anyio.fail_after(LIMIT_SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(probe.wait, child)
            for text in met:
                child.go()
                await obstacle(probe, text)
            group.cancel_scope.cancel()
    assert met[-1] in probe.obstacle


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def open_descriptors() -> set[str]:
    """List what this process has open, and what it is."""
    found = set()
    for path in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.add(f"{path.name} {path.readlink()}")
    return {entry for entry in found if "/fd" not in entry}


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Fail if descriptors, children, or files in a folder are left."""
    before, there = open_descriptors(), children()
    yield
    assert open_descriptors() - before == set()
    assert list(folder.iterdir()) == []
    assert children() - there == set()
