"""What the guard must not blame on a test: each was a false alarm on somebody else's suite."""

from __future__ import annotations

import asyncio
import os
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_process
import pytest

from quiesce.testing import LeakError, guard

if TYPE_CHECKING:
    from collections.abc import Iterator


class Handler(socketserver.BaseRequestHandler):
    """Answers, and takes a moment more to be done."""

    def handle(self) -> None:
        """Answer."""
        self.request.sendall(b"x")
        threading.Event().wait(0.03)


@pytest.fixture(scope="module", params=[socketserver.TCPServer, socketserver.ThreadingTCPServer])
def server(request: Any) -> Iterator[socketserver.TCPServer]:
    """Serve in a thread of its own, for several tests."""
    with request.param(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_what_a_server_of_wider_scope_is_about_to_end_is_not_the_tests(
    server: socketserver.TCPServer,
) -> None:
    """Httpcore 1.0.9, tests/test_api.py, with pytest-httpbin."""
    port = int(server.server_address[1])
    with guard(), socket.create_connection(("127.0.0.1", port)) as client:
        assert client.recv(1) == b"x"


def test_a_socket_that_another_thread_keeps_is_left() -> None:
    """The exemption is for what is gone moments later only."""
    kept: list[socket.socket] = []
    go, done = threading.Event(), threading.Event()

    def body() -> None:
        go.wait()
        kept.append(socket.socket())
        done.set()

    thread = threading.Thread(target=body)
    thread.start()
    with pytest.raises(LeakError, match="file 'socket'"), guard():  # noqa: PT012 - one block
        go.set()
        done.wait()
        thread.join()
    kept.pop().close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_idle_processes_of_anyio_are_not_left(backend: str) -> None:
    """Anyio 4.16.0, tests/test_to_process.py: they stay for the next call, until the loop ends."""
    with guard():
        anyio.run(anyio.to_process.run_sync, os.getpid, backend=backend)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_an_interrupt_has_cut_short_is_not_left(
    error: type[BaseException],
) -> None:
    """Anyio 4.16.0, tests/test_taskgroups.py: the loop was left while its main task waited."""

    async def interrupt() -> None:
        raise error

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(interrupt())
            group.create_task(asyncio.sleep(5))
            await asyncio.sleep(5)

    with guard(), pytest.raises(error):
        asyncio.run(main())


@pytest.mark.quiesce(allow=["task:sleep"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_a_main_task_that_exits_has_left_is_left(error: type[BaseException]) -> None:
    """The main task has ended by itself: what it started is there still."""

    async def main() -> None:
        asyncio.create_task(asyncio.sleep(5))  # noqa: RUF006 - that is the leak
        await asyncio.sleep(0)
        raise error

    with pytest.raises(LeakError, match="task 'sleep'"), guard(), pytest.raises(error):
        asyncio.run(main())
