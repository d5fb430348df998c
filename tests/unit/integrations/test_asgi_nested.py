"""`Quiesce` in the midst of another scope: that one waits for all that the request has started."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import quiesce
from quiesce import Scope
from quiesce.core.light_scope import LightScope
from quiesce.core.tree import current
from tests.stress import turns
from tests.unit.integrations.asgi_driver import Call, ask, living, lost, plain, respond, wrapped

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


class Outside:
    """A middleware that opens a scope for every request, in a tree of its own, as a mesh does."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Open a scope around the request; the code outside of it sees to its end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        with quiesce.detached():
            own = await Scope.open("outside")
        self.scopes.append(own)
        hold = own.hold("handler", scope["path"])
        token = current.set(own)
        try:
            await self._app(scope, receive, send)
        finally:
            current.reset(token)
            hold.release()

    @property
    def names(self) -> list[str]:
        """What the last one has in flight."""
        return [entry.name for entry in self.scopes[-1].frontier()]

    async def close(self) -> None:
        """Close them all."""
        for scope in self.scopes:
            await scope.aclose()


def leaving(gate: anyio.Event, *, service: bool = False) -> Any:
    """Make a handler that leaves something running."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        own = quiesce.current_scope()
        assert own is not None
        own.spawn(gate.wait, name="left", service=service)
        await respond(send)

    return handler


async def test_the_scope_outside_waits_for_what_the_request_has_left() -> None:
    """The app knows of it as ever, and the other one does, too, until it has ended."""
    gate = anyio.Event()
    app = wrapped(leaving(gate), grace=10)
    outside = Outside(app)
    async with living(outside):
        call = await ask(outside, "/x")
        assert (call.status, call.error) == (200, None)
        await turns()
        assert outside.names == ["GET /x"]
        (entry,) = outside.scopes[0].frontier()
        assert dict(entry.details) == {"in_flight": "job left"}
        assert app.scope is not None
        assert [entry.name for entry in app.scope.frontier().in_flight] == ["left"]
        gate.set()
        await outside.scopes[0].idle()
        assert not app.scope.frontier()
        assert not app.scope.children
    assert lost(app) == {}
    assert app.report is not None
    assert app.report.completed == 2
    await outside.close()


async def test_a_request_that_leaves_nothing_is_over_at_once() -> None:
    """The other one is idle when the response is out."""
    app = wrapped(plain)
    outside = Outside(app)
    async with living(outside):
        await ask(outside)
        assert outside.names == []
        assert app.scope is not None
        assert not app.scope.children
    await outside.close()


@on_asyncio
async def test_tasks_of_any_code_are_waited_for() -> None:
    """Also those that a task starts which the request has left."""
    gates = [asyncio.Event(), asyncio.Event()]
    kept: list[asyncio.Task[Any]] = []

    async def first() -> None:
        await gates[0].wait()
        kept.append(asyncio.create_task(gates[1].wait()))

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        kept.append(asyncio.create_task(first()))
        await respond(send)

    app = wrapped(handler, grace=10)
    outside = Outside(app)
    async with living(outside):
        await ask(outside)
        for gate in gates:
            await turns()
            assert outside.names == ["GET /"]
            gate.set()
        await turns()
        assert outside.names == []
    await outside.close()


async def test_to_close_the_scope_outside_cancels_what_the_request_has_left() -> None:
    """It is cut off there, and the report there says so; the app goes on."""
    app = wrapped(leaving(anyio.Event()), grace=10)
    outside = Outside(app)
    async with living(outside):
        await ask(outside, "/x")
        report = await outside.scopes[0].aclose()
        assert [item.name for item in report.cancelled] == ["GET /x"]
        assert app.scope is not None
        await turns()
        assert not app.scope.children
    assert lost(app) == {}


async def test_a_drain_of_the_app_cuts_what_is_held_outside() -> None:
    """The deadline is the app's; the scope outside is free then."""
    app = wrapped(leaving(anyio.Event()))
    outside = Outside(app)
    async with living(outside):
        await ask(outside)
        await turns()
        assert outside.names == ["GET /"]
    assert lost(app) == {"cancelled": ["left"]}
    assert outside.names == []
    await outside.close()


async def test_services_that_a_request_has_left_are_the_apps() -> None:
    """They are nobody's work: the scope outside does not wait for them, and does not end them."""
    app = wrapped(leaving(anyio.Event(), service=True))
    outside = Outside(app)
    async with living(outside):
        await ask(outside)
        await turns()
        assert outside.names == []
        assert app.scope is not None
        assert [entry.name for entry in app.scope.frontier()] == ["left"]
        await outside.close()
        await turns()
        assert [entry.name for entry in app.scope.frontier()] == ["left"]
    assert lost(app) == {}


async def test_a_request_in_a_scope_that_takes_no_more_is_refused() -> None:
    """What nobody would wait for does not begin."""
    app = wrapped(plain)

    async def late(scope: Any, receive: Any, send: Any) -> None:
        with quiesce.detached():
            own = await Scope.open("outside")
        hold = own.hold("thing", "open")
        token = current.set(own)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(own.drain)
                await turns()
                await app(scope, receive, send)
                hold.release()
        finally:
            current.reset(token)

    async with living(app):
        call = await ask(late)
        assert (call.status, call.error) == (503, None)
        assert app.scope is not None
        assert not app.scope.children


async def test_a_scope_around_the_server_holds_no_requests() -> None:
    """The server is its work, and the requests are the server's: all is as without that scope."""
    gate = anyio.Event()
    app = wrapped(leaving(gate), grace=10)
    async with Scope("main") as main, living(app):
        await ask(app)
        assert not main.frontier()
        assert app.scope is not None
        assert [entry.name for entry in app.scope.frontier()] == ["left"]  # handed over
        gate.set()


@on_asyncio
async def test_a_call_from_the_app_to_itself_belongs_to_who_holds_the_first() -> None:
    """It is the app's own, unless the request that it comes from is held by another."""
    gate = asyncio.Event()
    inner: list[Scope] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        own = quiesce.current_scope()
        assert own is not None
        if scope["path"] == "/inner":
            inner.append(own)
            own.spawn(gate.wait, name="left")
        else:
            await ask(app, "/inner")
        await respond(send)

    app = wrapped(handler, grace=10)
    outside = Outside(app)
    async with living(outside):
        await ask(app)
        assert isinstance(inner[0], LightScope)
        assert (inner[0].bond, inner[0].state) == (None, "closed")
        await ask(outside)
        await turns()
        assert outside.names == ["GET /"]
        assert inner[1].state == "open"
        gate.set()
        await outside.scopes[0].idle()
    await outside.close()
    assert lost(app) == {}


async def test_what_is_outside_of_the_app_is_in_the_scope_outside() -> None:
    """Also while the app sends and receives: what is started there is not the app's."""
    seen: list[Any] = []

    class Watched(Call):
        async def send(self, message: Any) -> None:
            seen.append(quiesce.current_scope())
            await super().send(message)

        async def receive(self) -> Any:
            seen.append(quiesce.current_scope())
            return await super().receive()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await respond(send)

    app = wrapped(handler)
    outside = Outside(app)
    async with living(outside):
        await Watched(outside).run()
        assert seen == outside.scopes * 3
        seen.clear()
        await Watched(app).run()
        assert seen == [None] * 3
    await outside.close()


async def test_an_app_without_a_lifespan_is_held_too() -> None:
    """It is closed when all is over, as ever."""
    gate = anyio.Event()
    app = wrapped(leaving(gate), grace=10)
    outside = Outside(app)
    await ask(outside)
    await turns()
    assert outside.names == ["GET /"]
    gate.set()
    await outside.scopes[0].idle()
    await turns()
    assert app.scope is not None
    assert app.scope.state == "closed"
    await outside.close()
