"""`Quiesce` and requests: each has a scope, and a drain ends them all in a way the client understands."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import anyio
import pytest

import quiesce
from tests.stress import Stubborn, lasting, turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    ask,
    begin_events,
    events,
    forever,
    living,
    lost,
    plain,
    respond,
    wrapped,
)


async def test_a_request_goes_through_unchanged() -> None:
    """What the app sends is what the server gets, and the request's scope is gone then."""
    app = wrapped(plain)
    async with living(app) as life:
        call = await ask(app, "/here")
        assert (call.status, call.body, call.headers) == (200, b"/here", {})
        assert app.scope is not None
        assert not list(app.scope.frontier())
        assert not app.draining
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert lost(app) == {}


async def test_the_error_of_an_app_is_the_servers() -> None:
    """What the app raises reaches the server, and is no loss of a drain."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError(scope["path"])

    app = wrapped(broken)
    async with living(app):
        call = await ask(app, "/x")
        assert isinstance(call.error, KeyError)
    assert lost(app) == {}


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("loses", [False, True])
async def test_what_a_handler_started_goes_on_and_is_drained(loses: bool) -> None:  # noqa: FBT001 - a parameter
    """A background task outlives its response, and the shutdown waits for it, up to the deadline."""
    done = []
    go = anyio.Event()

    async def later() -> None:
        await go.wait()
        done.append(1)

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        asyncio.create_task(later())  # noqa: RUF006 - that is the point
        await respond(send)

    app = wrapped(handler)
    async with living(app) as life:
        assert (await ask(app)).status == 200
        assert app.scope is not None
        (entry,) = app.scope.frontier()
        assert (entry.kind, entry.name.rpartition(".")[2]) == ("task", "later")
        life.shut_down()
        await turns()
        assert app.draining
        if not loses:
            go.set()
    if loses:
        assert [name.rpartition(".")[2] for name in lost(app)["cancelled"]] == ["later"]
    else:
        assert (done, lost(app)) == ([1], {})


async def test_what_is_spawned_in_the_current_scope_goes_on(backend: str) -> None:
    """On every event loop a handler may leave work to the scope of its request."""
    done = []

    async def later(here: quiesce.Scope) -> None:
        await here.closing()
        done.append(backend)

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        here = quiesce.current_scope()
        assert here is not None
        here.spawn(later, here)
        await respond(send)

    app = wrapped(handler)
    async with living(app):
        await ask(app)
        assert not done
    assert (done, lost(app)) == ([backend], {})


async def test_open_requests_finish_and_new_ones_are_refused() -> None:
    """In a drain an open request goes on; a new one gets 503, and is told to come again."""
    go = anyio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await respond(send)

    app = wrapped(handler, grace=10, retry_after=7)
    open_one = Call(app, "/open")
    async with anyio.create_task_group() as group, living(app) as life:
        group.start_soon(open_one.run)
        await turns()
        life.shut_down()
        await turns()
        assert app.draining
        refused = await ask(app, "/new")
        assert (refused.status, refused.complete) == (503, True)
        assert refused.headers[b"retry-after"] == b"7"
        assert refused.headers[b"connection"] == b"close"
        http2 = await ask(app, "/new", http_version="2")
        assert b"connection" not in http2.headers
        go.set()
    assert (open_one.status, open_one.headers) == (200, {b"connection": b"close"})
    assert lost(app) == {}


async def test_readiness_turns_at_once() -> None:
    """The probe is answered 200, and 503 from the step on in which the drain begins."""
    app = wrapped(forever, notice=SHORT / 2)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(Call(app).run)
        await turns()
        ready = await ask(app, "/quiesce/ready")
        assert (ready.status, ready.body) == (200, b"ready\n")
        head = await ask(app, "/quiesce/ready", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        below = await ask(app, "/api/quiesce/ready", root_path="/api")
        assert below.status == 200
        group.start_soon(app.drain)
        await turns()
        assert (await ask(app, "/quiesce/ready")).status == 503


async def test_readiness_may_be_elsewhere_or_nowhere() -> None:
    """Another path takes its place; None leaves every path to the app."""
    other = wrapped(plain, ready="/healthz")
    async with living(other):
        assert (await ask(other, "/healthz")).body == b"ready\n"
        assert (await ask(other, "/quiesce/ready")).body == b"/quiesce/ready"
        assert (await ask(other, "/healthz", method="POST")).body == b"/healthz"
    none = wrapped(plain, ready=None)
    async with living(none):
        assert (await ask(none, "/quiesce/ready")).body == b"/quiesce/ready"


@pytest.mark.parametrize(
    ("option", "path"), [(True, "/quiesce/frontier"), ("/in-flight", "/in-flight")]
)
async def test_the_frontier_is_shown_where_it_was_asked_for(option: Any, path: str) -> None:
    """It is off unless enabled; then it names what is in flight, as JSON."""
    app = wrapped(plain)
    async with living(app):
        assert (await ask(app, path)).body == path.encode()
    app = wrapped(forever, frontier=option)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(Call(app, "/slow?secret").run)
        await turns()
        shown = await ask(app, path)
        assert shown.headers[b"content-type"] == b"application/json"
        found = json.loads(shown.body)
        assert (found["in_flight"], found["entries"][0]["name"]) == (1, "GET /slow?secret")


async def test_new_requests_are_served_for_the_grace() -> None:
    """While load balancers find out, new requests are served; then they are refused."""
    app = wrapped(plain, notice=SHORT, grace=5)
    async with living(app):
        async with anyio.create_task_group() as group:
            group.start_soon(app.drain)
            await turns()
            assert app.draining
            call = await ask(app, "/late")
            assert (call.status, call.headers) == (200, {b"connection": b"close"})
        assert (await ask(app, "/too-late")).status == 503
    assert lost(app) == {}


@pytest.mark.parametrize(
    ("headers", "complete"),
    [
        ([(b"content-type", b"text/event-stream; charset=utf-8")], True),
        ([(b"Content-Type", b"application/x-ndjson")], True),
        (lambda: iter([(b"content-type", b"application/jsonl")]), True),
        ([(b"content-type", b"application/zip")], False),
        ([], False),
    ],
)
async def test_a_stream_is_ended_at_the_deadline(headers: Any, complete: bool) -> None:  # noqa: FBT001 - a parameter
    """Events end where one ends; any other body is left incomplete, so that the client can tell."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await begin_events(send, headers() if callable(headers) else headers)
        await anyio.sleep_forever()

    app = wrapped(stream)
    call = Call(app, "/stream")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert (call.body, call.complete, call.error) == (b"data: 1\n\n", complete, None)
    assert lost(app) == {"cancelled": ["GET /stream"]}


async def test_a_request_without_an_answer_gets_one_at_the_deadline() -> None:
    """What has not begun to answer is answered with 500, and reported."""
    app = wrapped(forever)
    call = Call(app, "/slow")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
    assert (call.status, call.complete, call.error) == (500, True, None)
    assert lost(app) == {"cancelled": ["GET /slow"]}


async def test_a_handler_may_end_by_itself() -> None:
    """One that waits for the drain ends its own stream in time, and nothing is lost."""

    async def polite(scope: Any, receive: Any, send: Any) -> None:
        await begin_events(send)
        here = quiesce.current_scope()
        assert here is not None
        await here.closing()
        await send({"type": "http.response.body", "body": b"data: bye\n\n"})

    app = wrapped(polite, grace=10)
    call = Call(app)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert (call.body, call.complete) == (b"data: 1\n\ndata: bye\n\n", True)
    assert lost(app) == {}


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_loop_of_a_library_is_no_work() -> None:
    """A housekeeper that was started lazily by a request does not hold up the drain."""

    async def housekeeper() -> None:
        await anyio.sleep_forever()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        asyncio.create_task(housekeeper())  # noqa: RUF006 - that is the point
        await respond(send)

    app = wrapped(handler, grace=1000, services=["*housekeeper"])
    with anyio.fail_after(5):
        async with living(app):
            await ask(app)
    assert lost(app) == {}


async def test_an_app_that_falls_over_when_it_is_cut_is_reported() -> None:
    """An error in the cleanup at the deadline is a failure, and the client still gets an answer."""

    async def clumsy(scope: Any, receive: Any, send: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError

    app = wrapped(clumsy)
    call = Call(app)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
    assert (call.status, call.error) == (500, None)
    assert lost(app) == {"failed": ["GET /"]}


@pytest.mark.backends("asyncio", "uvloop")
async def test_an_app_that_swallows_its_end_has_not_answered() -> None:
    """One that returns when it is cancelled, with half a response, was cut."""

    async def sly(scope: Any, receive: Any, send: Any) -> None:
        await begin_events(send)
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return

    app = wrapped(sly)
    call = Call(app)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert call.complete
    assert lost(app) == {"cancelled": ["GET /"]}


async def test_an_app_that_does_not_end_holds_nobody_up() -> None:
    """The server's task ends, the client gets its answer, and the report has the app as stuck."""
    async with Stubborn() as stubborn:

        async def stuck(scope: Any, receive: Any, send: Any) -> None:
            await stubborn.run()

        app = wrapped(stuck, grace=SHORT / 2, cleanup=SHORT / 2)
        call = Call(app)
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await turns()
            await app.drain()
            assert call.over.is_set()
        assert (call.status, call.error) == (500, None)
        assert lost(app) == {"stuck": ["GET /"]}


async def test_a_late_answer_of_what_was_ended_is_refused() -> None:
    """An app that answers after us is told that it is too late."""
    refused = []
    async with Stubborn() as stubborn:

        async def late(scope: Any, receive: Any, send: Any) -> None:
            await stubborn.run()
            try:
                await respond(send)
            except OSError as error:
                refused.append(error)
                raise

        app = wrapped(late, grace=SHORT / 4, cleanup=SHORT / 4)
        call = Call(app)
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await turns()
    assert len(refused) == 1
    assert (call.status, [m["type"] for m in call.sent].count("http.response.start")) == (500, 1)


async def test_a_client_that_does_not_read_is_not_waited_for_long() -> None:
    """The end of a response is sent with a bound."""

    class Deaf(Call):
        async def send(self, message: Any) -> None:
            if message.get("more_body") is False:
                await anyio.sleep_forever()
            await super().send(message)

    app = wrapped(events, grace=SHORT / 4, cleanup=SHORT / 4)
    call = Deaf(app)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await call.answering.wait()
    assert not call.complete


async def test_a_client_that_is_gone_is_no_error() -> None:
    """If the end of a response cannot be sent, that is all."""

    class Gone(Call):
        async def send(self, message: Any) -> None:
            if message.get("more_body") is False:
                raise OSError
            await super().send(message)

    app = wrapped(events)
    call = Gone(app)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert call.error is None


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("when", ["before the drain", "in the drain"])
async def test_a_background_task_that_fails(when: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; in a drain it is work that was accepted and is lost, before it is history."""
    early = when == "before the drain"
    go = asyncio.Event()

    async def fails() -> None:
        await go.wait()
        raise KeyError(when)

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        asyncio.create_task(fails())  # noqa: RUF006 - that is the point
        await respond(send)

    app = wrapped(handler, grace=10)
    with caplog.at_level(logging.ERROR):
        async with living(app) as life:
            await ask(app)
            if not early:
                life.shut_down()
                await turns()
            go.set()
            await turns()
    assert lost(app).keys() == (set() if early else {"failed"})
    assert when in caplog.text


async def test_a_job_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A job in the request's scope that fails after the response is logged."""

    async def fails() -> None:
        raise KeyError

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        here = quiesce.current_scope()
        assert here is not None
        here.spawn(fails, name="some job")
        await respond(send)

    app = wrapped(handler, grace=10)
    async with living(app):
        await ask(app)
        await turns()
    assert "job some job failed" in caplog.text
    assert lost(app) == {}


@pytest.mark.backends("asyncio", "uvloop")
async def test_tasks_of_the_server_are_not_the_apps() -> None:
    """What a server starts inside `send` and `receive` is not adopted: it has its own life."""
    tasks = []

    class Busy(Call):
        async def send(self, message: Any) -> None:
            tasks.append(asyncio.create_task(anyio.sleep_forever()))
            await super().send(message)

        async def receive(self) -> Any:
            tasks.append(asyncio.create_task(anyio.sleep_forever()))
            return await super().receive()

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await respond(send)

    app = wrapped(reads, grace=1000)
    with anyio.fail_after(5):
        async with living(app):
            await Busy(app).run()
            assert app.scope is not None
            assert not app.scope.frontier()
    assert len(tasks) == 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_the_server_cuts_on_its_way_down_is_lost() -> None:
    """Requests that the server cancels just before it tells of the shutdown are in the report."""
    app = wrapped(events)
    async with living(app), anyio.create_task_group() as group:
        call = Call(app, "/cut")
        group.start_soon(call.run)
        await call.answering.wait()
        group.cancel_scope.cancel()
    assert lost(app) == {"undelivered": ["GET /cut"]}


async def test_what_the_server_cut_long_ago_is_not() -> None:
    """A request that was cancelled well before the shutdown was the client's to give up."""
    app = wrapped(events)
    async with living(app):
        async with anyio.create_task_group() as group:
            call = Call(app, "/cut")
            group.start_soon(call.run)
            await call.answering.wait()
            group.cancel_scope.cancel()
        await lasting(1.1)
    assert lost(app) == {}
