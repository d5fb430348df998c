"""A wait for readiness can be cancelled at every step, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce.processes.descriptors import readable, writable
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.probe import Fd, Launch, ready_of
from tests.loops import BACKENDS
from tests.sweeping import Plan, sweep
from tests.unit.processes.ready_children import nothing_left, open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

KINDS = ("UnixSocket", "Tcp", "Http", "Fd", "function")
PLANS = [
    Plan(kind, "suspensions", times) for kind in ("native", "anyio") for times in ("once", "on")
]


class Me:
    """This very process, in the place of a child."""

    lines: Any = None


class Server:
    """A server in this process, whose answer is there already, for a probe of one kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        """Make the probe, and what it connects to."""
        self.kind = kind
        self.path = folder / "socket"
        self.sockets: list[socket.socket] = []
        self.questions = 0
        self.launch = Launch([], {})
        if kind in {"Tcp", "Http"}:
            self.sockets.append(socket.create_server(("127.0.0.1", 0)))
            port = self.sockets[0].getsockname()[1]
            given: Any = Tcp("127.0.0.1", port, check_peer=False)
            if kind == "Http":
                given = Http(f"http://127.0.0.1:{port}/", check_peer=False)
        else:
            kinds: dict[str, object] = {
                "UnixSocket": UnixSocket(self.path),
                "Fd": Fd(),
                "function": self.asked,
            }
            given = kinds[kind]
        self.probe: Any = ready_of(given)
        self.probe.prepare(self.launch)

    async def asked(self, _: object) -> bool:
        """Return True the third time, by way of a suspension."""
        self.questions += 1
        await anyio.lowlevel.checkpoint()
        return self.questions == 3

    async def answer(self) -> None:
        """Answer one request."""
        await readable(self.sockets[0].fileno())
        connection, _ = self.sockets[0].accept()
        with connection:
            await readable(connection.fileno())
            connection.recv(4096)
            connection.send(b"HTTP/1.1 200 OK\r\n\r\n")

    def speak(self) -> None:
        """Make it ready."""
        if self.kind == "UnixSocket":
            self.sockets.append(socket.socket(socket.AF_UNIX))
            self.sockets[0].bind(str(self.path))
            self.sockets[0].listen()
        elif self.kind == "Fd":
            os.write(self.launch.pass_fds[0], b"\n")

    async def until_ready(self) -> None:
        """Wait, with a server for HTTP beside it."""
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                if self.kind == "Http":
                    group.start_soon(self.answer)
                await self.probe.wait(Me())

    def close(self) -> None:
        """Take all away."""
        for sock in self.sockets:
            sock.close()
        for clean in self.launch.cleanup:
            clean()


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_can_be_cancelled_at_every_suspension(
    kind: str, backend: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled anywhere, once or again and again, it ends as cancelled and closes what it had."""
    if backend == "trio" and plan.kind == "native":
        pytest.skip("trio has cancel scopes only")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def subject() -> None:
        server = Server(kind, tmp_path)
        before = open_descriptors()
        try:
            server.speak()
            before |= open_descriptors()
            await server.until_ready()
        finally:
            left = open_descriptors() - before
            server.close()
        assert not left

    with nothing_left(tmp_path):
        assert sweep(backend, subject, plan, real_time=True) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.real_time
async def test_a_wait_that_is_cancelled_before_it_begins_does_not_return(
    kind: str, tmp_path: Path
) -> None:
    """Cancellation is noticed even if the child is ready and there is nothing to wait for."""
    with nothing_left(tmp_path):
        server = Server(kind, tmp_path)
        server.speak()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await server.probe.wait(Me())
        server.close()
    assert scope.cancelled_caught


@pytest.mark.parametrize("wait", [readable, writable])
@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.real_time
async def test_a_cancelled_wait_forgets_the_descriptor(
    wait: Callable[[int], Coroutine[Any, Any, None]],
) -> None:
    """The event loop does not look at a descriptor that nobody waits for."""
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while wait is writable:
                one.send(bytes(65536))
        with anyio.move_on_after(0.01) as scope:
            await wait(one.fileno())
        assert scope.cancelled_caught
        assert not loop.remove_reader(one.fileno())
        assert not loop.remove_writer(one.fileno())


@pytest.mark.parametrize("kind", ["UnixSocket", "Fd"])
@pytest.mark.real_time
async def test_a_deadline_ends_a_wait(kind: str, tmp_path: Path) -> None:
    """A child that never gets ready costs its caller no more than the deadline."""
    with nothing_left(tmp_path):
        server = Server(kind, tmp_path)
        before = open_descriptors()
        with anyio.move_on_after(0.02) as scope:
            await server.probe.wait(Me())
        assert scope.cancelled_caught
        assert server.probe.obstacle
        assert open_descriptors() <= before
        server.close()
