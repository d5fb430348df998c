"""`Quiesce` and WebSockets, and streams that never end: a clean end, not a cut."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.stress import turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    ask,
    chat,
    events,
    forever,
    living,
    lost,
    wrapped,
)


@pytest.mark.parametrize("extended", [True, False])
async def test_a_new_websocket_is_refused_in_a_drain(extended: bool) -> None:  # noqa: FBT001 - a parameter
    """It gets 503 where the server can say so, and is closed unaccepted where it cannot."""
    app = wrapped(forever, grace=10 * SHORT)
    extensions: Any = {"extensions": {"websocket.http.response": {}}} if extended else {}
    async with anyio.create_task_group() as group, living(app) as life:
        open_one = Call(app)
        group.start_soon(open_one.run)
        await turns()
        life.shut_down()
        await turns()
        call = await ask(app, kind="websocket", **extensions)
        if extended:
            assert [m["type"] for m in call.sent] == [
                "websocket.http.response.start",
                "websocket.http.response.body",
            ]
            assert (call.status, call.headers[b"retry-after"]) == (503, b"1")
        else:
            assert call.close_code == 1013


async def test_a_websocket_is_told_before_the_deadline() -> None:
    """Its app receives a disconnect with 1001, returns, and the client gets 1001: no loss."""
    app = wrapped(chat, grace=10, hang_up=SHORT / 2)
    call = Call(app, kind="websocket")
    async with anyio.create_task_group() as group, living(app) as life:
        group.start_soon(call.run)
        await call.answering.wait()
        life.shut_down()
        await turns()
        call.say("still there?")
    assert [message["type"] for message in call.sent] == [
        "websocket.accept",
        "websocket.send",
        "websocket.close",
    ]
    assert (call.close_code, call.error) == (1001, None)
    assert lost(app) == {}


async def test_a_websocket_that_goes_on_is_cut_at_the_deadline() -> None:
    """An app that does not listen is cancelled and reported; the client gets 1001 all the same."""

    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await anyio.sleep_forever()

    app = wrapped(deaf)
    call = Call(app, "/ws", kind="websocket")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert call.close_code == 1001
    assert lost(app) == {"cancelled": ["WS /ws"]}


async def test_a_websocket_that_was_not_accepted_is_refused_at_the_deadline() -> None:
    """One still in its handshake is not told of a disconnect, and is refused in the end."""
    got = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        got.append((await receive())["type"])
        await receive()
        got.append("more")

    app = wrapped(slow)
    call = Call(app, kind="websocket")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
    assert (got, call.close_code) == (["websocket.connect"], 1001)


async def test_a_websocket_that_closes_itself_is_left_alone() -> None:
    """What the app has closed is not closed again."""

    async def tidy(scope: Any, receive: Any, send: Any) -> None:
        await chat(scope, receive, send)
        await send({"type": "websocket.close", "code": 4000})

    app = wrapped(tidy, grace=10, hang_up=0)
    call = Call(app, kind="websocket")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert [m["code"] for m in call.sent if m["type"] == "websocket.close"] == [4000]
    assert lost(app) == {}


@pytest.mark.parametrize(("kind", "name"), [("http", "GET /feed"), ("websocket", "WS /feed")])
async def test_a_service_does_not_hold_up_the_drain(kind: str, name: str) -> None:
    """A feed that never ends is ended when all work is done, cleanly, and is no loss."""
    app = wrapped(events if kind == "http" else chat, grace=1000, services=[name])
    call = Call(app, "/feed", kind=kind)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await call.answering.wait()
    assert call.complete if kind == "http" else call.close_code == 1001
    assert lost(app) == {}


STREAM = {b"accept": b"text/event-stream", b"mcp-session-id": b"1"}


@pytest.mark.parametrize(
    ("more", "is_idle"),
    [
        ({}, True),
        ({b"accept": b"application/json, Text/Event-Stream"}, True),
        ({b"accept": b"application/json"}, False),
        ({b"mcp-session-id": None}, False),
        ({b"last-event-id": b"7"}, False),
    ],
)
async def test_the_stream_that_a_client_of_mcp_keeps_open_is_not_work(
    more: dict[bytes, bytes | None], *, is_idle: bool
) -> None:
    """It is ended cleanly when all work is done; not one that resumes another, which may carry an answer."""
    app = wrapped(events, grace=SHORT)
    headers = [(name, value) for name, value in (STREAM | more).items() if value is not None]
    call = Call(app, "/mcp", headers=headers)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await call.answering.wait()
    assert call.complete
    assert (lost(app) == {}) is is_idle
    assert app.report is not None
    assert app.report.services == is_idle


async def test_what_a_client_of_mcp_posts_is_work() -> None:
    """The answer to a call is a stream with the same headers."""
    app = wrapped(events, grace=SHORT)
    call = Call(app, "/mcp", method="POST", headers=list(STREAM.items()))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await call.answering.wait()
    assert lost(app) != {}
