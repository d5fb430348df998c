"""`Quiesce` and the scope of a request: made in part, whole as soon as anybody looks, and never in the way."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import quiesce
from quiesce.core.tree import current
from quiesce.integrations.asgi.request_exchange import RequestScope
from tests.stress import CANCELLED, Stubborn, turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    Lifespan,
    ask,
    forever,
    living,
    lost,
    plain,
    respond,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


def here() -> quiesce.Scope:
    """Return the scope that the running code is in."""
    scope = quiesce.current_scope()
    assert scope is not None
    return scope


@on_asyncio
async def test_a_request_that_starts_nothing_has_little_of_a_scope() -> None:
    """The rest is not made: that is what keeps a request cheap."""
    seen: list[Any] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current.get())
        await respond(send)

    app = wrapped(handler)
    async with living(app):
        await ask(app)
        (scope,) = seen
        assert isinstance(scope, RequestScope)
        assert (scope.filled, scope.state) == (False, "closed")
        assert app.scope is not None
        assert not app.scope.children


@pytest.mark.backends("asyncio")
async def test_a_request_leaves_nothing_to_the_collector() -> None:
    """What a request was made of is gone when it is over, not when the collector comes."""
    app = wrapped(plain)
    async with living(app):
        await ask(app)
        gc.disable()
        try:
            for _ in range(10):
                await ask(app)
            await turns()
            left = sum(isinstance(found, RequestScope) for found in gc.get_objects())
        finally:
            gc.enable()
        assert left <= 1  # the last one, perhaps


@on_asyncio
async def test_what_is_started_late_in_the_context_of_a_request_is_the_apps() -> None:
    """A callback that outlives the request, and starts a task then, starts it below the app's scope."""
    contexts: list[contextvars.Context] = []
    go = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        contexts.append(contextvars.copy_context())
        await respond(send)

    app = wrapped(handler)
    async with living(app):
        await ask(app)
        task = contexts[0].run(asyncio.ensure_future, go.wait())
        assert app.scope is not None
        assert [entry.kind for entry in app.scope.frontier()] == ["task"]
        go.set()
        await task
    assert lost(app) == {}


@on_asyncio
async def test_the_scope_of_a_request_is_like_any_other() -> None:
    """It has all that a plain scope has, and shares nothing that changes with the scope of another request."""
    found: dict[str, Any] = {}
    others: list[quiesce.Scope] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        own = here()
        usual = await quiesce.Scope.open("usual", adopt=True, on_error=print, leftovers="parent")
        slots = {slot for kind in quiesce.Scope.__mro__ for slot in vars(kind).get("__slots__", ())}
        found["missing"] = [s for s in slots if hasattr(usual, s) and not hasattr(own, s)]
        found["shared"] = [
            slot
            for slot in slots
            if isinstance(getattr(own, slot, None), dict | list)
            and any(getattr(own, slot) is getattr(other, slot, None) for other in others)
        ]
        others.append(own)
        await usual.aclose()
        with pytest.raises(AttributeError, match="no_such_thing"):
            getattr(own, "no_such_thing")  # noqa: B009 - mypy knows that it is not there
        with (
            own.hold("thing", "held"),
            own.child("inner", leftovers="parent").hold("thing", "below"),
        ):
            found["names"] = {entry.name for entry in own.frontier()}
            found["state"], found["where"] = own.state, own.where
        await respond(send)

    app = wrapped(handler)
    async with living(app):
        for _ in range(2):
            assert (await ask(app, "/x")).error is None
        assert app.scope is not None
        assert not app.scope.frontier()
    assert found["names"] == {"GET /x", "held", "inner"}
    assert (found["missing"], found["shared"], found["state"]) == ([], [], "open")
    assert "asgi_driver.py" in found["where"]  # the app's


async def test_a_handler_may_enter_contexts_in_its_scope() -> None:
    """They are left when the request is over, by their own task."""
    log: list[str] = []

    @asynccontextmanager
    async def manager() -> AsyncIterator[str]:
        log.append("in")
        yield "value"
        log.append("out")

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        assert await here().enter(manager()) == "value"
        await respond(send)

    app = wrapped(handler)
    async with living(app):
        call = await ask(app)
        assert (call.status, call.error, log) == (200, None, ["in", "out"])
    assert lost(app) == {}


async def test_what_a_request_leaves_waits_for_the_apps_drain(backend: str) -> None:
    """The end of the request is no reason to stop for work that goes on after it."""
    told: list[str] = []

    async def later(own: quiesce.Scope) -> None:
        await own.closing()
        told.append("drain")

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        own = here()
        own.spawn(later, own)
        await respond(send)

    app = wrapped(handler, grace=10)
    async with living(app):
        await ask(app)
        await turns()
        assert told == []
        assert app.scope is not None
        assert len(app.scope.frontier()) == 1
    assert (told, lost(app)) == (["drain"], {})


@on_asyncio
async def test_requests_that_are_done_are_counted() -> None:
    """The report says how much was done: requests, and what they have started."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/task":
            await asyncio.create_task(asyncio.sleep(0))
        await respond(send)

    app = wrapped(handler, services=["GET /service"])
    async with living(app):
        for path in ("/", "/", "/task", "/service"):
            await ask(app, path)
    assert app.report is not None
    assert (app.report.completed, app.report.ok) == (4, True)


async def test_what_the_app_raises_in_a_group_is_the_servers() -> None:
    """Also a group that is no `Exception` reaches the server as it was."""
    group = BaseExceptionGroup("of the app", [GeneratorExit()])

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise group

    app = wrapped(broken)
    async with living(app):
        with pytest.raises(BaseExceptionGroup) as caught:
            await ask(app)
    assert caught.value is group
    assert lost(app) == {}


@on_asyncio
async def test_the_server_may_cancel_a_request_more_than_once() -> None:
    """An app that has swallowed the first cancellation gets the second, as it would without us."""
    swallowed = []

    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        try:
            await anyio.sleep_forever()
        except CANCELLED:
            swallowed.append(1)
        await anyio.sleep_forever()

    app = wrapped(deaf)
    async with living(app):
        task = asyncio.ensure_future(Call(app).run())
        await turns()
        for count in (1, 2):
            task.cancel()
            await turns()
            assert (len(swallowed), task.done()) == (1, count == 2)
        assert task.cancelled()


async def test_a_lifespan_that_is_cancelled_says_what_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that does not wait for the shutdown still gets the report into the log."""
    app = wrapped(forever, grace=1000)
    call = Call(app, "/slow")
    with caplog.at_level(logging.INFO):
        async with anyio.create_task_group() as group:
            life = Lifespan(app)
            async with anyio.create_task_group() as server:
                server.start_soon(life.run)
                await life.started.wait()
                group.start_soon(call.run)
                await turns()
                life.shut_down()
                await turns()
                assert app.draining
                server.cancel_scope.cancel()
    assert (call.status, lost(app)) == (500, {"cancelled": ["GET /slow"]})
    assert caplog.text.count("WORK LOST") == 1


async def test_a_lifespan_that_is_cancelled_keeps_no_request_waiting() -> None:
    """Without a drain, too, the server's task ends when the app does not, and the client is answered."""
    async with Stubborn() as stubborn:

        async def stuck(scope: Any, receive: Any, send: Any) -> None:
            await stubborn.run()

        app = wrapped(stuck, cleanup=SHORT / 2)
        call = Call(app, "/stuck")
        async with anyio.create_task_group() as group:
            life = Lifespan(app)
            async with anyio.create_task_group() as server:
                server.start_soon(life.run)
                await life.started.wait()
                group.start_soon(call.run)
                await turns()
                server.cancel_scope.cancel()
        assert (call.status, call.error) == (500, None)
        assert lost(app) == {"stuck": ["GET /stuck"]}


@pytest.mark.backends("asyncio")
async def test_failures_of_background_tasks_take_no_memory() -> None:
    """An app whose tasks fail all the time, after the response, keeps nothing of them."""

    async def fails() -> None:
        raise KeyError

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(50):
            asyncio.create_task(fails())  # noqa: RUF006 - that is the point
        await respond(send)

    app = wrapped(handler)
    logging.getLogger("quiesce.asgi").disabled = True
    try:
        async with living(app):
            await ask(app)
            await turns()
            gc.collect()
            before = len(gc.get_objects())
            for _ in range(40):
                await ask(app)
                await turns()
            gc.collect()
            await turns()
            assert len(gc.get_objects()) < before + 500
            assert app.scope is not None
            assert not app.scope.failed_entries
    finally:
        logging.getLogger("quiesce.asgi").disabled = False
    assert app.report is not None
    assert (app.report.ok, app.report.handled) == (True, 41 * 50)
