"""`Quiesce` and SIGTERM: held back until the drain is over, then each server is told in its words."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.core import process_exit
from quiesce.core.signals import heard
from quiesce.integrations.asgi import Quiesce
from quiesce.integrations.asgi.held_signal import HeldSignal
from tests.stress import turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    ask,
    events,
    forever,
    living,
    lost,
    plain,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGTERM, SIGINT = signal.SIGTERM, signal.SIGINT


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the tests' own exit code, and their signal handlers."""
    before = {number: signal.getsignal(number) for number in (SIGTERM, SIGINT)}
    signal.signal(SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(process_exit, "_lost", False)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Server:
    """Something with handlers, that sees what reaches it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def handle(self, number: int, _: object) -> None:
        """Handle a signal."""
        self.seen.append(signal.Signals(number).name)


class Uvicorn(Server):
    """As uvicorn has it."""

    def __init__(self) -> None:
        super().__init__()
        self.should_exit = False


async def until(fact: Any) -> None:
    """Wait for what no event tells of, some real time at most."""
    with anyio.fail_after(5):
        while not fact():
            await turns(1)


async def stopped(server: Server, told: Any) -> list[str]:
    """Send SIGTERM with a request open that ends when it may; gives what has happened, in order."""
    order: list[str] = []
    go = anyio.Event()

    async def brief(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await plain(scope, receive, send)

    app = wrapped(brief, hold_signal=True, grace=5)
    call = Call(app)

    async def run() -> None:
        await call.run()
        order.append("response")

    async with living(app), anyio.create_task_group() as group:
        group.start_soon(run)
        await turns()
        signal.raise_signal(SIGTERM)
        await until(lambda: app.draining)
        assert server.seen == []
        assert (await ask(app, "/quiesce/ready")).status == 503
        assert (await ask(app, "/new")).status == 503
        assert not told()
        go.set()
        await until(told)
        order.append("server")
    return order


@pytest.mark.real_time
@pytest.mark.parametrize("others", [0, 2])
async def test_uvicorn_is_told_by_its_switch(others: int) -> None:
    """A handler of an object with `should_exit` is not called: the switch is set, also with a node around."""
    server = Uvicorn()
    signal.signal(SIGTERM, server.handle)
    calls: list[object] = []
    with ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(heard(calls.append, int))
        assert await stopped(server, lambda: server.should_exit) == ["response", "server"]
    assert (server.seen, calls) == ([], [int] * others)
    assert signal.getsignal(SIGTERM) == server.handle


class Bag:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.real_time
@pytest.mark.parametrize("own", [None, 7])
@pytest.mark.parametrize("open_connections", [0, 1])
async def test_uvicorn_does_not_wait_for_ever_for_a_client_that_does_not_read(
    own: int | None, open_connections: int
) -> None:
    """It is given a limit, unless it has one; what it then cuts is a loss."""
    server: Any = Uvicorn()
    server.config = Bag(timeout_graceful_shutdown=own)
    server.server_state = Bag(connections=set(range(open_connections)))
    signal.signal(SIGTERM, server.handle)
    assert await stopped(server, lambda: server.should_exit) == ["response", "server"]
    limit = server.config.timeout_graceful_shutdown
    assert limit == own if own is not None else 0 < limit <= 5 + 5  # grace and cleanup
    assert process_exit.is_lost() is (own is None and bool(open_connections))


@pytest.mark.real_time
@pytest.mark.parametrize("when", ["in the middle", "afterwards"])
async def test_a_signal_stops_the_server_also_if_a_drain_was_begun_by_hand(when: str) -> None:
    """A `drain()` leaves the server running; SIGTERM does not, and the exit code tells of the loss."""
    server = Uvicorn()
    signal.signal(SIGTERM, server.handle)
    app = wrapped(forever, hold_signal=True, grace=SHORT / 4)
    async with living(app), anyio.create_task_group() as group:
        group.start_soon(Call(app).run)
        await turns()
        if when == "in the middle":
            group.start_soon(app.drain)
            await turns()
        else:
            await app.drain()
            await turns()
            assert not server.should_exit
        signal.raise_signal(SIGTERM)
        await until(lambda: server.should_exit)
        assert app.report is not None
    assert process_exit.is_lost()
    assert lost(app) == {"cancelled": ["GET /"]}


@pytest.mark.real_time
async def test_another_server_gets_its_handler_back_and_the_signal() -> None:
    """A plain handler is put back, and called with SIGTERM, after the drain."""
    server = Server()
    signal.signal(SIGTERM, server.handle)
    assert await stopped(server, lambda: server.seen) == ["response", "server"]
    assert server.seen == ["SIGTERM"]


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "uvloop")
async def test_a_server_with_a_handler_in_the_loop_is_told(backend: str) -> None:
    """It gets its handler back, and the signal; on uvloop, which does not show it, SIGINT."""
    server = Server()
    loop = asyncio.get_running_loop()
    for number in (SIGTERM, SIGINT):
        loop.add_signal_handler(number, server.handle, number, None)
    assert await stopped(server, lambda: server.seen) == ["response", "server"]
    assert server.seen == ["SIGTERM" if backend == "asyncio" else "SIGINT"]
    if backend == "asyncio":  # also after the app's life
        signal.raise_signal(SIGTERM)
        await until(lambda: len(server.seen) == 2)


@pytest.mark.real_time
async def test_a_server_without_a_handler_is_told_by_sigint() -> None:
    """Where nobody handles SIGTERM (hypercorn on trio), SIGINT stops the server, after the drain."""
    server = Server()
    signal.signal(SIGINT, server.handle)
    assert await stopped(server, lambda: server.seen) == ["response", "server"]
    assert server.seen == ["SIGINT"]


@pytest.mark.real_time
@pytest.mark.parametrize("told", [True, False])
async def test_a_worker_that_only_its_parent_can_tell(
    monkeypatch: pytest.MonkeyPatch,
    told: bool,  # noqa: FBT001 - a parameter
) -> None:
    """A worker with no handler waits for its parent's word, then ends as one does by the signal."""
    ended: list[str] = []
    signal.signal(SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(
        HeldSignal, "end", lambda _: ended.append("by the signal")
    )  # or the tests end
    app = wrapped(plain, hold_signal=True, cleanup=SHORT)
    async with living(app) as life:
        signal.raise_signal(SIGTERM)
        await until(lambda: app.report)
        if told:
            life.shut_down()
        else:
            await until(lambda: ended)
    assert ended == ([] if told else ["by the signal"])


@pytest.mark.real_time
async def test_an_ignored_signal_stays_ignored_by_the_server() -> None:
    """A server that ignores SIGTERM is not stopped; its app is drained."""
    signal.signal(SIGTERM, signal.SIG_IGN)
    app = wrapped(plain, hold_signal=True)
    async with living(app):
        signal.raise_signal(SIGTERM)
        await until(lambda: app.report)
        await turns()
    assert signal.getsignal(SIGTERM) == signal.SIG_IGN


@pytest.mark.real_time
@pytest.mark.parametrize("notice", [0.0, 1000.0])
async def test_a_second_signal_cancels_what_is_left(notice: float) -> None:
    """It ends the notice as well as the drain, and what is cut is reported."""
    signal.signal(SIGTERM, Uvicorn().handle)
    app = wrapped(events, hold_signal=True, grace=1000, notice=notice)
    call = Call(app, "/long")
    async with living(app), anyio.create_task_group() as group:
        group.start_soon(call.run)
        await call.answering.wait()
        for _ in range(2):
            signal.raise_signal(SIGTERM)
            await until(lambda: app.draining)
            await turns()
        await call.over.wait()
    assert (call.complete, lost(app)) == (True, {"cancelled": ["GET /long"]})


@pytest.mark.real_time
async def test_a_third_signal_stops_the_server_at_once() -> None:
    """With an app that does not end, the server is told without waiting."""
    server = Uvicorn()
    signal.signal(SIGTERM, server.handle)
    began, gate = anyio.Event(), anyio.Event()

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        with anyio.CancelScope(shield=True):
            while not gate.is_set():
                with suppress(asyncio.CancelledError):  # passes the shield
                    await gate.wait()

    app = wrapped(stubborn, hold_signal=True, grace=1000, cleanup=1000)
    async with living(app), anyio.create_task_group() as group:
        group.start_soon(Call(app).run)
        await began.wait()
        for _ in range(2):
            signal.raise_signal(SIGTERM)
            await until(lambda: app.draining)
            await turns()
        assert not server.should_exit
        signal.raise_signal(SIGTERM)
        await until(lambda: server.should_exit)
        assert app.report is None
        gate.set()


@pytest.mark.real_time
async def test_a_shutdown_in_the_middle_of_a_drain_hurries_it() -> None:
    """A server that shuts down by itself (Ctrl-C) while SIGTERM is being obeyed does not wait."""
    signal.signal(SIGTERM, Uvicorn().handle)
    app = wrapped(forever, hold_signal=True, grace=1000)
    call = Call(app)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, living(app) as life:
            group.start_soon(call.run)
            await turns()
            signal.raise_signal(SIGTERM)
            await until(lambda: app.draining)
            await turns()
            life.shut_down()
    assert (call.status, lost(app)) == (500, {"cancelled": ["GET /"]})


@contextmanager
def counting_exits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """See what the process would exit with."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    yield codes


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("handler", "by_signal", "exit_code", "codes"),
    [
        (forever, True, True, [1]),
        (plain, True, True, []),
        (forever, True, False, []),
        (forever, False, True, []),
    ],
    ids=["lost", "nothing lost", "not wanted", "not stopped by a signal"],
)
async def test_the_exit_code_tells_of_a_loss(
    handler: Any,
    by_signal: bool,  # noqa: FBT001 - a parameter
    exit_code: bool,  # noqa: FBT001 - a parameter
    codes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process exits with 1 if SIGTERM has cost something, and as it would otherwise if not."""
    server = Uvicorn()
    signal.signal(SIGTERM, server.handle)
    app = wrapped(handler, hold_signal=True, grace=SHORT / 4, exit_code=exit_code)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(Call(app).run)
        await turns()
        if by_signal:
            signal.raise_signal(SIGTERM)
            await until(lambda: server.should_exit)
    with counting_exits(monkeypatch) as seen:
        process_exit.exit_process()
    assert seen == codes


@pytest.mark.parametrize("by_signal", [True, False])
async def test_the_exit_code_tells_that_the_apps_own_shutdown_was_cut(
    monkeypatch: pytest.MonkeyPatch, *, by_signal: bool
) -> None:
    """It may not have saved what it was to save."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await anyio.sleep_forever()

    server = Uvicorn()
    signal.signal(SIGTERM, server.handle)
    async with living(Quiesce(app, hold_signal=True, grace=SHORT / 4, cleanup=SHORT / 4)):
        if by_signal:
            signal.raise_signal(SIGTERM)
            await until(lambda: server.should_exit)
    with counting_exits(monkeypatch) as seen:
        process_exit.exit_process()
    assert seen == ([1] if by_signal else [])


@pytest.mark.real_time
@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
@pytest.mark.parametrize("handler", [forever, plain])
@pytest.mark.parametrize("exit_code", [True, False])
async def test_a_signal_that_the_server_gets_at_once_tells_of_a_loss_as_well(
    number: signal.Signals,
    handler: Any,
    exit_code: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Ctrl-C, and SIGTERM with `hold_signal=False`: uvicorn stops, and repeats SIGTERM only if nothing was lost."""
    server = Uvicorn()
    for one in (SIGTERM, SIGINT):
        signal.signal(one, server.handle)
    app = wrapped(handler, grace=SHORT / 4, exit_code=exit_code)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(Call(app).run)
        await turns()
        signal.raise_signal(number)
        await turns()
    is_lost = exit_code and handler is forever
    assert process_exit.is_lost() is is_lost
    is_silenced = is_lost and number == SIGTERM
    assert server.seen == ([] if is_silenced else [number.name])
    assert [signal.getsignal(one) for one in (SIGTERM, SIGINT)] == [server.handle] * 2


async def test_a_worker_of_a_server_tells_of_a_loss_without_a_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that multiprocessing has made is a server's worker: its exit code is ours to give."""
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    app = wrapped(forever)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(Call(app).run)
        await turns()
    assert process_exit.is_lost()


def test_elsewhere_than_in_the_main_thread_the_signal_is_the_servers() -> None:
    """A server in a thread has no signals; its app is drained when it shuts down."""
    server = Server()
    signal.signal(SIGTERM, server.handle)
    app = wrapped(events, hold_signal=True)
    found = []

    async def main() -> None:
        async with anyio.create_task_group() as group, living(app):
            call = Call(app)
            group.start_soon(call.run)
            await call.answering.wait()
        found.append(call.complete)

    thread = threading.Thread(target=anyio.run, args=(main,))
    thread.start()
    thread.join()
    assert (found, lost(app)) == ([True], {"cancelled": ["GET /"]})
    assert signal.getsignal(SIGTERM) == server.handle
