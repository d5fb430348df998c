"""Tests of the middleware that every server has to pass, each with a process and real signals."""

from __future__ import annotations

import json
import os
import re
import signal

import anyio
import pytest

from tests.adapters.asgi import kit as asgi_kit
from tests.adapters.asgi.kit import serve

__all__ = [
    "test_a_drain_is_seen_once_with_and_without_logging",
    "test_a_drain_with_nothing_in_flight_is_over_at_once",
    "test_a_second_sigterm_cancels_what_is_left",
    "test_a_stream_may_end_by_itself",
    "test_a_websocket_is_refused_in_a_drain",
    "test_an_interrupted_download_looks_interrupted",
    "test_clients_that_leave_at_any_point_leave_nothing",
    "test_ctrl_c_loses_no_background_work",
    "test_every_signal_that_stops_the_server_tells_of_a_loss",
    "test_hops_of_a_node_alone_end_before_the_apps_own_shutdown",
    "test_the_exit_code_of_a_node_alone_tells_of_a_loss",
    "test_what_is_lost_is_in_the_log",
    "test_without_a_lifespan_nothing_is_lost_either",
]

SERVER = asgi_kit.installed()
KINDS = [kind for kind in asgi_kit.kinds(SERVER) if not kind.endswith("worker")]
every_kind = pytest.mark.parametrize("kind", KINDS)
one_kind = pytest.mark.parametrize("kind", KINDS[:1])
here = pytest.mark.backends("asyncio")


@here
@pytest.mark.real_time
@every_kind
async def test_a_drain_with_nothing_in_flight_is_over_at_once(kind: str) -> None:
    """An idle server exits with 0 right away, its app's own shutdown done."""
    async with serve(kind, "quiesce", grace=600) as server:
        assert (await server.get("/pid")).status == 200
        server.terminate()
        with anyio.fail_after(5):
            assert await server.exit_code() == 0
        assert server.notes == ["startup", "shutdown"]
        assert "nothing it owned was lost" in server.errors()


@here
@pytest.mark.real_time
@one_kind
@pytest.mark.parametrize("logs", [False, True])
async def test_a_drain_is_seen_once_with_and_without_logging(kind: str, *, logs: bool) -> None:
    """Its beginning and its end, on standard error: if there is none, the process was killed."""
    async with serve(kind, "quiesce", grace=600, logs=logs) as server:
        assert (await server.get("/pid")).status == 200
        server.terminate()
        await server.exit_code()
        told = server.errors()
    assert told.count("SIGTERM: draining, grace 600 s: nothing in flight") == 1
    assert len(re.findall("scope 'requests' closed in .* s, nothing it owned was lost", told)) == 1
    assert ("quiesce: SIGTERM" in told) is not logs


@here
@pytest.mark.real_time
@one_kind
async def test_a_second_sigterm_cancels_what_is_left(kind: str) -> None:
    """Whoever is in a hurry sends the signal again; the stream still gets its end."""
    async with serve(kind, "quiesce", grace=600) as server, server.connect() as client:
        pid = int((await server.get("/pid")).body)  # granian's worker, not its main process
        await client.ask("/endless")
        _, headers = await client.head()
        await server.noted("endless began")
        await server.draining()
        os.kill(pid, signal.SIGTERM)
        assert (await client.rest(headers))[1]
        assert await server.exit_code() == (0 if SERVER == "granian" else 1)


@here
@pytest.mark.real_time
@one_kind
async def test_ctrl_c_loses_no_background_work(kind: str) -> None:
    """SIGINT is the server's: it stops in its own way, and its lifespan's end drains the rest."""
    async with serve(kind, "quiesce", grace=5) as server:
        await server.get("/background")
        work = await server.begun("background")
        server.process.send_signal(signal.SIGINT)
        await server.noted("drain begins")
        await work.go_on()
        await server.exit_code()
        assert server.notes[-2:] == ["background done", "shutdown"]


@here
@pytest.mark.real_time
@pytest.mark.skipif(SERVER == "granian", reason="its parent process exits with its own exit code")
@every_kind
@pytest.mark.sampled(1, "number", "hold")
@pytest.mark.parametrize(
    ("number", "hold"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)]
)
async def test_every_signal_that_stops_the_server_tells_of_a_loss(
    kind: str,
    number: signal.Signals,
    hold: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The exit code is 1 also after Ctrl-C, and if SIGTERM is left to the server."""
    if kind.endswith("trio") and number == signal.SIGTERM:
        return  # it has no handler there: the process ends at once
    async with serve(kind, "quiesce", grace=0.1, hold_signal=hold) as server:
        path = "/slow" if kind.endswith("trio") else "/background"  # which ends with its nursery
        async with server.connect() as client:
            await client.ask(path)
            await server.begun(path[1:])
            server.process.send_signal(number)
            assert await server.exit_code() == 1
        assert "WORK LOST" in server.errors()


@here
@pytest.mark.real_time
@one_kind
async def test_a_websocket_is_refused_in_a_drain(kind: str) -> None:
    """A handshake gets 503 while another request runs to its end."""
    async with (
        serve(kind, "quiesce", grace=5) as server,
        server.connect() as slow,
        server.connect() as late,
    ):
        await slow.ask("/slow")
        work = await server.begun("slow")
        await server.draining()
        assert await late.upgrade("/ws") == 503
        await work.go_on()
        status, headers = await slow.head()
        assert (status, await slow.rest(headers)) == (200, (b"slow", True))


@here
@pytest.mark.real_time
@one_kind
async def test_a_stream_may_end_by_itself(kind: str) -> None:
    """A handler that waits for the drain says goodbye, and nothing is lost."""
    async with serve(kind, "quiesce", grace=600) as server, server.connect() as client:
        await client.ask("/polite")
        _, headers = await client.head()
        await server.noted("polite began")
        server.terminate()
        body, complete = await client.rest(headers)
        assert (body[-11:], complete) == (b"data: bye\n\n", True)
        assert await server.exit_code() == 0


@here
@pytest.mark.real_time
@one_kind
async def test_an_interrupted_download_looks_interrupted(kind: str) -> None:
    """A body that is not a row of messages is cut at the deadline: its client can tell."""
    async with serve(kind, "quiesce", grace=0.2) as server, server.connect() as client:
        await client.ask("/download")
        _, headers = await client.head()
        await server.noted("download began")
        server.terminate()
        assert not (await client.rest(headers))[1]


@here
@pytest.mark.real_time
@one_kind
async def test_what_is_lost_is_in_the_log(kind: str) -> None:
    """The report names what was cut; a service is none of it."""
    options = {"grace": 0.2, "services": ["WS /ws"]}
    async with (
        serve(kind, "quiesce", **options) as server,
        server.connect() as slow,
        server.connect() as socket,
    ):
        await socket.upgrade("/ws")
        await slow.ask("/slow")
        await server.begun("slow")
        await server.noted("websocket began")
        server.terminate()
        status, headers = await slow.head()
        assert (status, headers["quiesce-outcome"]) == (500, "cut")
        assert await socket.frame() == ("close", 1001)
        assert await server.exit_code() == (0 if SERVER == "granian" else 1)
        # The WebSocket has ended when it was told, or has been ended as a service just after.
        lost = r"WORK LOST: 0 jobs completed, (1 service stopped, )?1 cancelled"
        assert re.search(lost, server.errors())
        assert "cancelled: job GET /slow" in server.errors()


@here
@pytest.mark.real_time
@one_kind
async def test_clients_that_leave_at_any_point_leave_nothing(kind: str) -> None:
    """Requests, streams and WebSockets whose clients go, early or late, are gone soon after."""
    async with (
        serve(kind, "quiesce", grace=5, frontier=True) as server,
        anyio.create_task_group() as group,
    ):
        group.start_soon(server.let_all_go_on)
        for path in ("/slow", "/stream", "/ws"):
            for stage in range(4):
                async with server.connect() as client:
                    if stage == 1:
                        await client.half("/slow")
                    elif stage == 2 and path != "/ws":
                        await client.ask(path)
                    elif stage > 1 and path == "/ws":
                        await client.upgrade(path)
                    elif stage == 3:
                        await client.ask(path)
                        await client.head()
        shown = {"in_flight": -1}
        with anyio.fail_after(10):
            while shown["in_flight"]:
                shown = json.loads((await server.get("/quiesce/frontier")).body)
        server.terminate()
        assert await server.exit_code() == 0
        group.cancel_scope.cancel()


@here
@pytest.mark.real_time
@one_kind
async def test_without_a_lifespan_nothing_is_lost_either(kind: str) -> None:
    """With the server's lifespan off, SIGTERM is held while there is work, and drains it."""
    arguments = {
        "uvicorn": ("--lifespan", "off"),
        "granian": ("--interface", "asginl"),
    }.get(SERVER)
    if arguments is None:
        return  # hypercorn has no such switch
    async with serve(kind, "quiesce", *arguments, grace=5) as server:
        await server.get("/background")
        work = await server.begun("background")
        await server.draining()
        await work.go_on()
        assert await server.exit_code() == 0
        assert server.notes == ["background began", "drain begins", "background done"]


@here
@pytest.mark.real_time
@pytest.mark.skipif(SERVER == "granian", reason="its parent process exits with its own exit code")
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not kind.endswith("trio")]
)  # has no SIGTERM
@pytest.mark.sampled(1, "grace")
@pytest.mark.parametrize("grace", [0, 600])
async def test_the_exit_code_of_a_node_alone_tells_of_a_loss(kind: str, grace: float) -> None:
    """Without a `Quiesce`, `node.asgi()` drains its hops, says so, and the process exits with 1 if work was lost."""
    options = {"app": "tests.adapters.asgi.node_app:app", "logs": False}
    async with serve(kind, "quiesce", grace=grace, cleanup=5, **options) as server:
        assert (await server.get("/hop")).status == 200
        work = await server.begun("hop")
        server.terminate()
        if grace:
            while "is draining" not in server.errors():
                await anyio.lowlevel.checkpoint()
            await work.go_on()
        clean = -signal.SIGTERM if SERVER == "uvicorn" else 0  # as the server alone does
        assert await server.exit_code() == (clean if grace else 1)
        told = server.errors()
    assert told.count(f"node 'hotel' is draining, grace {grace} s: 1 hop in flight") == 1
    assert told.count("scope 'node hotel' closed in") == 1
    assert ("nothing it owned was lost" in told, "WORK LOST" in told) == (bool(grace), not grace)


@here
@pytest.mark.real_time
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("trio")])
@pytest.mark.sampled(1, "left")
@pytest.mark.parametrize("left", ["task", "queue", "failing"])
async def test_hops_of_a_node_alone_end_before_the_apps_own_shutdown(kind: str, left: str) -> None:
    """They have the app's client and its worker for as long as they need them; the exit code tells of a failure."""
    options = {"app": "tests.adapters.asgi.node_app:app", "logs": False}
    async with serve(kind, "quiesce", grace=600, cleanup=5, **options) as server:
        assert (await server.get(f"/{left}")).status == 200
        work = await server.begun(left)
        server.terminate()
        while "is draining" not in server.errors():
            await anyio.lowlevel.checkpoint()
        await server.deaf()
        if SERVER == "uvicorn":  # only its log tells when it ends the lifespan
            while "Waiting for application shutdown" not in server.errors():
                await anyio.lowlevel.checkpoint()
        await work.go_on()
        clean = -signal.SIGTERM if SERVER == "uvicorn" else 0
        if left == "failing" and SERVER != "granian":  # whose parent process exits with its own
            clean = 1
        assert await server.exit_code() == clean
        done = [] if left == "failing" else [f"{left} done"]
        assert server.notes == ["startup", *done, "shutdown"]
        assert (
            "WORK LOST" if left == "failing" else "nothing it owned was lost"
        ) in server.errors()
