"""The middleware under uvicorn, and with Starlette."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest

import quiesce
from quiesce.integrations.asgi import Quiesce
from tests.adapters.asgi.every_server import *  # noqa: F403 - the tests are the same for every server
from tests.adapters.asgi.kit import serve
from tests.stress import turns
from tests.unit.integrations.asgi_driver import Call, ask, living, lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Not where mypy looks, as all test subjects.
_applications: Any = import_module("starlette.applications")
_responses: Any = import_module("starlette.responses")
_routing: Any = import_module("starlette.routing")
FASTAPI = "tests.adapters.asgi.fastapi_app:app"
WITH_FASTAPI = "a2a-sdk-0.3.22"  # which has it among others
BackgroundTask: Any = import_module("starlette.background").BackgroundTask


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_workers_are_drained_each() -> None:
    """With `--workers` the parent passes SIGTERM on, and each worker drains its own."""
    async with serve("uvicorn", "quiesce", "--workers", "2", grace=5) as server:
        await server.noted("startup", times=2)
        await server.get("/background")
        work = await server.begun("background")
        server.terminate()
        await server.noted("shutdown")  # the other's
        await work.go_on()
        await server.exit_code()
        assert "background done" in server.notes
        assert server.notes.count("shutdown") == 2


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_a_task_that_swallows_every_cancellation_does_not_keep_the_process() -> None:
    """The report has it as stuck; when nothing else is left in the event loop, the process exits."""
    async with serve("uvicorn", "quiesce", grace=0.1, cleanup=0.5) as server:
        assert (await server.get("/deaf")).status == 202
        server.terminate()
        with anyio.fail_after(60):
            assert await server.exit_code() == 1
        assert "1 stuck" in server.errors()
        assert "Only stuck tasks are left" in server.errors()
        assert "children of multiprocessing" not in server.errors()
        assert "shutdown" in server.notes


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_the_worker_of_a_process_pool_does_not_outlive_such_a_process() -> None:
    """It would hold the listening port, so that the server could not be started again."""
    async with serve("uvicorn", "quiesce", grace=0.1, cleanup=0.5) as server:
        pid = int((await server.get("/pool")).body)
        await server.get("/deaf")
        server.terminate()
        with anyio.fail_after(60):
            assert await server.exit_code() == 1
        assert f"(pid {pid})" in server.errors()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_fastapi_is_drained() -> None:
    """Dependencies, background tasks, threads and streams end, and only then its lifespan."""
    asked = ("dependency", "tasks", "thread", "stream")
    async with (
        serve("uvicorn", "quiesce", grace=20, app=FASTAPI, subject=WITH_FASTAPI) as server,
        AsyncExitStack() as stack,
    ):
        clients = {path: await stack.enter_async_context(server.connect()) for path in asked}
        for path, client in clients.items():
            await client.ask(f"/{path}")
        works = [await server.begun(name) for name in ("dependency", "task", "thread", "stream")]
        await server.draining()
        for work in works:
            await work.go_on()
        bodies = {}
        for path, client in clients.items():
            status, headers = await client.head()
            bodies[path] = (status, *await client.rest(headers))
        assert await server.exit_code() == 0
        notes = server.notes
    assert bodies == {
        "dependency": (200, b'"resource"', True),
        "tasks": (200, b'"resource"', True),
        "thread": (200, b'"thread"', True),
        "stream": (200, b"first last", True),
    }
    assert sorted(notes[1:-1]) == ["resource given back"] * 3 + ["task in a thread done"]
    assert (notes[0], notes[-1]) == ("startup", "shutdown")


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_a_thread_of_fastapi_that_cannot_be_stopped_is_stuck() -> None:
    """The client is told that its request may have had effects, and the report names the request."""
    options = {"grace": 0.2, "cleanup": 0.2, "app": FASTAPI, "subject": WITH_FASTAPI}
    async with serve("uvicorn", "quiesce", **options) as server, server.connect() as client:
        await client.ask("/blocking")
        await server.noted("blocking began")
        server.terminate()
        status, headers = await client.head()
        assert (status, headers["quiesce-outcome"]) == (500, "cut")
        assert "retry-after" not in headers
        assert await server.exit_code() == 1
        assert "WORK LOST: 0 jobs completed, 1 stuck" in server.errors()
        assert "stuck: job GET /blocking" in server.errors()


class Events:
    """Events for ever; not a generator, which Starlette leaves for the collector to close."""

    def __init__(self) -> None:
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._begun:
            await anyio.sleep_forever()
        self._begun = True
        return "data: 1\n\n"


async def hello(request: Any) -> Any:
    """Answer, and have something done afterwards."""
    notes = request.app.state.notes
    return _responses.PlainTextResponse("hello", background=BackgroundTask(_note, notes))


async def _note(notes: list[str]) -> None:
    await drain_begins()
    notes.append("background")


async def drain_begins() -> None:
    """Wait for the drain, as an app may."""
    scope = quiesce.current_scope()
    assert scope is not None
    await scope.closing()


async def stream(request: Any) -> Any:
    """Stream events."""
    return _responses.StreamingResponse(Events(), media_type="text/event-stream")


async def echo(websocket: Any) -> None:
    """Echo until the client leaves."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


def starlette(**options: Any) -> Any:
    """Make an app with a lifespan that notes when it ends."""
    notes: list[str] = []

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        notes.append("lifespan over")

    routes = [
        _routing.Route("/", hello),
        _routing.Route("/stream", stream),
        _routing.WebSocketRoute("/ws", echo),
    ]
    app = _applications.Starlette(
        routes=options.pop("routes", routes), lifespan=lifespan, **options
    )
    app.state.notes = notes
    return app


async def test_starlette_is_drained() -> None:
    """Its background tasks run, streams and WebSockets end cleanly, and its lifespan ends last."""
    inner = starlette()
    app = Quiesce(inner, grace=0.3, services=["GET /stream"], hold_signal=False)
    calls = [Call(app, "/"), Call(app, "/stream"), Call(app, "/ws", kind="websocket")]
    async with anyio.create_task_group() as group, living(app) as life:
        for call in calls:
            group.start_soon(call.run)
            await call.answering.wait()
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert inner.state.notes == ["background", "lifespan over"]
    assert [call.error for call in calls] == [None, None, None]
    assert (calls[0].body, calls[1].complete, calls[2].close_code) == (b"hello", True, 1001)
    assert lost(app) == {}


async def test_as_a_middleware_of_starlette() -> None:
    """`add_middleware(Quiesce, grace=…)` does the same, lifespan included."""
    app = starlette()
    app.add_middleware(Quiesce, grace=0.2, hold_signal=False)
    call = Call(app, "/stream")
    async with anyio.create_task_group() as group, living(app) as life:
        group.start_soon(call.run)
        await call.answering.wait()
        assert (await ask(app, "/quiesce/ready")).status == 200
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert app.state.notes == ["lifespan over"]
    assert call.complete


@pytest.mark.backends("asyncio", "uvloop")
async def test_mounted_below_another_app() -> None:
    """A mounted app gets no lifespan; its probe is below its path, and its work is owned."""
    tasks = []

    async def starts(request: Any) -> Any:
        tasks.append(asyncio.create_task(drain_begins()))
        return _responses.PlainTextResponse("started")

    inner = Quiesce(starlette(routes=[_routing.Route("/go", starts)]), grace=5, hold_signal=False)
    outer = starlette(routes=[_routing.Mount("/api", inner)])
    async with living(outer):
        assert (await ask(outer, "/api/quiesce/ready")).status == 200
        assert (await ask(outer, "/api/go")).body == b"started"
        assert (await inner.drain()).ok
        assert tasks[0].done()
        assert (await ask(outer, "/api/go")).status == 503
        await turns()
