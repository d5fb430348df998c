"""What a client and the report are told of a request that a drain has cut: apart from one that it has refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce.core.graveyard import graveyards
from tests.stress import turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    ask,
    begin_events,
    events,
    forever,
    living,
    lost,
    respond,
    wrapped,
)
from tests.unit.mesh.meshing import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.integrations.asgi import Quiesce


async def cut(app: Quiesce, go_on: threading.Event | None = None, **options: Any) -> Call:
    """Make a call, drain the app, and wait for what the client gets; then let a thread go on."""
    call = Call(app, "/pay", **options)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
        await app.drain()
        await call.over.wait()
        if go_on is not None:
            assert lost(app)
            go_on.set()
            await until(lambda: not graveyards)  # the thread has ended, and that is seen
    return call


async def test_a_request_that_was_cut_is_not_to_be_sent_again() -> None:
    """It may have had effects: 500, which nothing repeats by itself, and no Retry-After."""
    call = await cut(wrapped(forever))
    assert call.status == 500
    assert b"retry-after" not in call.headers
    assert call.headers[b"quiesce-outcome"] == b"cut"
    assert b"may have had effects" in call.body


async def test_a_request_is_placed_at_the_endpoint_that_its_framework_has_found() -> None:
    """As the handler of a hop is: the line of the framework's own `__call__` says nothing."""

    async def endpoint() -> None:
        await anyio.Event().wait()

    async def framework(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        scope["endpoint"] = endpoint
        await endpoint()

    app, line = wrapped(framework), f"{__file__}:{endpoint.__code__.co_firstlineno}"
    call = Call(app, "/pay")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
        assert app.scope is not None
        assert [entry.where for entry in app.scope.frontier().in_flight] == [line]
        await app.drain()
        await call.over.wait()
    assert app.report is not None
    assert [entry.where for entry in app.report.cancelled] == [line]


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("groups", ["anyio", "asyncio"])
@pytest.mark.parametrize("ends", ["cut", "completes"])
async def test_a_task_in_a_group_of_a_request_that_was_cut_is_not_another_loss(
    groups: str, ends: str
) -> None:
    """Starlette streams in one; the request is the loss, also if it catches its cancellation and returns."""
    kept: list[Any] = []

    async def stream() -> None:
        await anyio.Event().wait()

    async def left() -> None:
        await anyio.Event().wait()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        kept.append(asyncio.create_task(left(), name="left"))
        try:
            if groups == "anyio":
                async with anyio.create_task_group() as group:
                    group.start_soon(stream, name="stream")
                    await anyio.Event().wait()
            else:
                async with asyncio.TaskGroup() as other:
                    other.create_task(stream(), name="stream")
                    await anyio.Event().wait()
        except asyncio.CancelledError:
            if ends == "cut":
                raise

    app = wrapped(handler, grace=SHORT, cleanup=SHORT)
    await cut(app)
    assert app.report is not None
    named = sorted(entry.name for entry in app.report.cancelled)
    assert named == ["GET /pay", "left"]


async def test_a_request_that_was_refused_may_be_sent_again() -> None:
    """It was never begun: 503, with Retry-After."""
    app = wrapped(forever)
    async with living(app):
        await app.drain()
        call = await ask(app, "/pay")
    assert call.status == 503
    assert call.headers[b"retry-after"] == b"1"
    assert call.headers[b"quiesce-outcome"] == b"refused"
    assert lost(app) == {}


async def test_a_handshake_that_was_cut_is_told_so_where_the_server_can() -> None:
    """As a request is."""
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    call = await cut(wrapped(forever), kind="websocket", extensions=extensions)
    assert (call.status, call.headers[b"quiesce-outcome"]) == (500, b"cut")


def pay(done: threading.Event, go_on: threading.Event) -> None:
    """Work in a thread, which nothing can stop."""
    go_on.wait()
    done.set()


async def by_anyio(function: Callable[[], None]) -> None:
    """Wait for a thread as Starlette and FastAPI do."""
    await anyio.to_thread.run_sync(function)


async def by_asyncio(function: Callable[[], None]) -> None:
    """Wait for a thread as asyncio does."""
    await asyncio.to_thread(function)


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("way", [by_anyio, by_asyncio])
async def test_a_thread_that_cannot_be_stopped_is_stuck(way: Any) -> None:
    """It goes on, and may still have effects."""
    done, go_on = threading.Event(), threading.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await way(partial(pay, done, go_on))

    app = wrapped(handler, grace=SHORT, cleanup=SHORT)
    try:
        call = await cut(app, go_on, method="POST")
        assert (call.status, call.headers[b"quiesce-outcome"]) == (500, b"cut")
        assert lost(app) == {"stuck": ["POST /pay"]}
        assert app.report is not None
        (stuck,) = app.report.stuck
        named = [frame.rpartition(" in ")[2] for frame in stuck.stack]
        assert named.index("pay") > named.index(way.__name__)  # and what it waits in is below it
    finally:
        go_on.set()
        await anyio.to_thread.run_sync(done.wait)


@pytest.mark.backends("asyncio", "uvloop")
async def test_an_app_that_completes_its_response_when_it_is_cancelled_has_lost_nothing() -> None:
    """The client has all of it."""

    async def polite(scope: Any, receive: Any, send: Any) -> None:
        await begin_events(send)
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            await send({"type": "http.response.body", "body": b"bye"})

    app = wrapped(polite)
    call = Call(app)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert call.complete
    assert lost(app) == {}


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_background_task_that_catches_the_cut_of_a_drain_is_lost() -> None:
    """The client has its response, but the work after it was cut."""

    async def works_on(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep_forever()

    app = wrapped(works_on, grace=SHORT, cleanup=SHORT)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(Call(app, "/mail").run)
        await turns()
        await app.drain()
    assert lost(app) == {"cancelled": ["GET /mail"]}


@pytest.mark.parametrize("ends", ["cancelled", "failed", "by itself"])
async def test_a_background_task_that_the_server_cuts_on_its_way_down_is_lost(ends: str) -> None:
    """The response is complete, and the request still works: the report names it, and does not count it as withdrawn."""

    async def works_on(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            if ends == "failed":
                message = "no mail server"
                raise ValueError(message) from error
            if ends == "cancelled":
                raise

    app = wrapped(works_on)
    async with living(app), anyio.create_task_group() as group:
        call = Call(app, "/mail")
        group.start_soon(call.run)
        await turns()
        assert call.complete
        group.cancel_scope.cancel()
    assert lost(app) == ({} if ends == "by itself" else {ends: ["GET /mail"]})
    assert app.report is not None
    assert app.report.withdrawn == 0


async def test_a_service_that_the_server_cuts_on_its_way_down_is_not_a_loss() -> None:
    """Nothing waits for it, whether the drain ends it or the server."""
    app = wrapped(events, services=["GET /feed"])
    async with living(app), anyio.create_task_group() as group:
        call = Call(app, "/feed")
        group.start_soon(call.run)
        await call.answering.wait()
        group.cancel_scope.cancel()
    assert lost(app) == {}
