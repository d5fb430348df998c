"""`Quiesce` and what cannot work: each error says what to do."""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
from typing import Any

import anyio
import pytest

from quiesce import ArgumentError, current_scope
from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import Node
from quiesce.testing import sweep
from tests.stress import turns
from tests.unit.integrations.asgi_driver import (
    Call,
    Lifespan,
    ask,
    begin_events,
    chat,
    living,
    plain,
    wrapped,
)


def two(scope: Any, receive: Any) -> None:
    """Take two arguments, as no ASGI app does."""


def wsgi(environ: Any, start_response: Any, more: Any) -> list[bytes]:
    """Answer without awaiting."""
    return [b""]


@pytest.mark.parametrize(
    ("app", "options", "message"),
    [
        ("main:app", {}, "import it, and pass the application itself"),
        (None, {}, "wraps an ASGI application, not None"),
        (Quiesce, {}, "not the class Quiesce"),
        (two, {}, "cannot be called as app"),
        (plain, {"grace": -1}, "grace must be a number of seconds"),
        (plain, {"cleanup": "5"}, "cleanup must be a number of seconds"),
        (plain, {"notice": -1}, "notice must be a number of seconds"),
        (plain, {"hang_up": -1}, "hang_up must be a number of seconds"),
        (plain, {"retry_after": 1.5}, "retry_after must be a whole number"),
        (plain, {"retry_after": True}, "retry_after must be a whole number"),
        (plain, {"services": "GET /"}, "services must be a list of patterns"),
        (plain, {"ready": "ready"}, "ready must be a path that begins with '/'"),
        (plain, {"frontier": "f"}, "frontier must be a path that begins with '/'"),
        (plain, {"name": 3}, "name must be a string"),
    ],
)
def test_a_wrong_argument_is_refused(app: Any, options: Any, message: str) -> None:
    """It is refused when the middleware is made, not when the first request comes."""
    with pytest.raises(ArgumentError, match=message):
        Quiesce(app, **options)


def test_a_node_in_the_wrong_place_is_named() -> None:
    """The second argument is the grace: the error names `node=`, and not a number of seconds."""
    with pytest.raises(TypeError, match=r"write Quiesce\(app, node=node\)"):
        Quiesce(plain, Node("shop"))  # type: ignore[arg-type]  # wrong on purpose


async def test_an_app_that_is_not_async_is_told() -> None:
    """A function that is not async is named in the error of the first call."""
    app = Quiesce(wsgi, hold_signal=False)  # type: ignore[arg-type]  # wrong on purpose
    call = await ask(app)
    assert isinstance(call.error, ArgumentError)
    assert "cannot be awaited" in str(call.error)


def test_what_is_made_in_c_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callable whose parameters nobody knows is not refused."""

    def signature(_: object) -> None:
        raise ValueError

    monkeypatch.setattr(inspect, "signature", signature)
    assert Quiesce(plain).app is plain


# --- cancelled at every await -------------------------------------------------------------------


async def request() -> None:
    """Serve a request, without a lifespan, and one more."""
    app = wrapped(plain)
    await ask(app)
    await ask(app)


async def streamed() -> None:
    """Serve a stream that waits in the middle."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await begin_events(send)
        await receive()
        await send({"type": "http.response.body", "body": b""})

    app = wrapped(handler)
    async with living(app):
        await ask(app)


async def talked() -> None:
    """Serve a WebSocket whose client leaves."""
    app = wrapped(chat)
    async with living(app):
        call = Call(app, kind="websocket")
        call.say("hello")
        call.hang_up()
        await call.run()


async def lived() -> None:
    """Live and be shut down."""
    life = Lifespan(wrapped(plain))
    life.shut_down()
    await life.run()


async def drained() -> None:
    """Drain by hand, with a request open that ends then, and one that is cut."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert here is not None
        await here.closing()
        if scope["path"] == "/cut":
            await receive()
            await receive()
        await plain(scope, receive, send)

    app = wrapped(handler)
    async with living(app), anyio.create_task_group() as group:
        for path in ("/ends", "/cut"):
            group.start_soon(Call(app, path).run)
        await turns()
        await app.drain()


async def left() -> None:
    """Serve a request that leaves a task, and be shut down while it runs."""

    async def later() -> None:
        await turns(3)

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        asyncio.create_task(later())  # noqa: RUF006 - that is the point
        await plain(scope, receive, send)

    app = wrapped(handler)
    async with living(app):
        await ask(app)


@pytest.mark.sampled(1, "scenario")
@pytest.mark.parametrize(
    ("backend", "scenario"),
    [
        *itertools.product(["asyncio", "trio"], [request, streamed, talked, lived, drained]),
        ("asyncio", left),
    ],
)
@pytest.mark.parametrize("where", ["task", "all"])
def test_every_await_may_be_cancelled(scenario: Any, where: Any, backend: Any) -> None:
    """A server that cancels its task, at any point, once or twice, leaves nothing behind."""
    once = where == "all" and scenario in {drained, left}  # which have many tasks
    found = sweep(scenario, backend=backend, clock="mock", where=where, depth=1 if once else 2)
    assert not found.failures, str(found)
    assert found.points > 1
    assert not found.not_covered


@pytest.mark.parametrize(
    "wrap",
    [Quiesce, lambda app: Quiesce(app, node=Node("shop")), lambda app: Node("shop").asgi(app)],
    ids=["Quiesce", "Quiesce with a node", "node.asgi"],
)
async def test_attributes_of_the_app_are_found(wrap: Any) -> None:
    """Handlers of a module use its `app.state`, also after `app = Quiesce(app)` or `app = node.asgi(app)`."""

    class App:
        state = "of the app"

        async def __call__(self, *_: Any) -> None:
            """Serve nothing."""

    app: Any = wrap(App())
    assert app.state == "of the app"
    for name in ("router", "_private"):
        with pytest.raises(AttributeError, match=name):
            getattr(app, name)
    assert copy.copy(app).state == "of the app"
