"""`Quiesce` and the lifespan: the app's own, none, a broken one, and no events at all."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from typing import Any

import anyio
import pytest

from quiesce import Report, Scope, UsageError, current_scope
from quiesce.core import announce
from quiesce.core.roots import roots
from quiesce.integrations.asgi import Quiesce
from tests.stress import turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    Lifespan,
    ask,
    events,
    forever,
    living,
    lost,
    plain,
    respond,
    wrapped,
)


class Noting:
    """An app with a lifespan, that notes what happens."""

    def __init__(self, **answers: Any) -> None:
        self.notes: list[str] = []
        self._answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the lifespan and the requests."""
        if scope["type"] != "lifespan":
            self.notes.append("request begins")
            if scope["path"] == "/long":
                here = current_scope()
                assert here is not None
                await here.closing()
            await respond(send)
            self.notes.append("request ends")
            return
        for stage in ("startup", "shutdown"):
            message = await receive()
            assert message == {"type": f"lifespan.{stage}"}
            self.notes.append(stage)
            answer = self._answers.get(stage, "complete")
            if isinstance(answer, Exception):
                raise answer
            await send({"type": f"lifespan.{stage}.{answer}", "message": "why"})
            if self._answers.get("ends") == stage:
                return


async def test_the_apps_own_shutdown_comes_after_the_drain() -> None:
    """What requests use is closed when the last of them has ended, not before."""
    inner = Noting()
    app = Quiesce(inner, grace=10, hold_signal=False)
    async with anyio.create_task_group() as group, living(app) as life:
        group.start_soon(Call(app, "/long").run)
        await turns()
    assert inner.notes == ["startup", "request begins", "request ends", "shutdown"]
    assert life.sent == ["startup.complete", "shutdown.complete"]


@pytest.mark.parametrize("how", ["raises", "returns"])
async def test_an_app_without_a_lifespan_has_one(how: str) -> None:
    """One that does not know the lifespan is drained all the same."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            if how == "raises":
                raise AssertionError
            return
        await plain(scope, receive, send)

    app = Quiesce(handler, hold_signal=False)
    async with living(app) as life:
        assert (await ask(app, "/x")).body == b"/x"
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert lost(app) == {}


async def test_an_error_in_the_startup_is_the_servers_to_judge() -> None:
    """An app that has a lifespan, whose startup raises, raises: servers have a policy for that."""
    life = Lifespan(Quiesce(Noting(startup=KeyError()), hold_signal=False))
    with pytest.raises(KeyError):
        await life.run()
    assert life.sent == []


async def test_a_failed_startup_is_passed_on() -> None:
    """The server is told, and nothing stays open."""
    inner = Noting(startup="failed", ends="startup")
    life = Lifespan(Quiesce(inner, hold_signal=False))
    await life.run()
    assert (life.sent, inner.notes) == (["startup.failed"], ["startup"])


async def test_a_failed_shutdown_is_passed_on() -> None:
    """What the app says of its shutdown is what the server hears."""
    app = Quiesce(Noting(shutdown="failed"), hold_signal=False)
    async with living(app) as life:
        pass
    assert life.sent == ["startup.complete", "shutdown.failed"]


async def test_an_error_in_the_shutdown_is_passed_on() -> None:
    """What the app's shutdown raises, the server sees raised."""
    life = Lifespan(Quiesce(Noting(shutdown=KeyError()), hold_signal=False))
    life.shut_down()
    with pytest.raises(KeyError):
        await life.run()
    assert life.sent == ["startup.complete"]


async def test_a_lifespan_that_ends_after_the_startup() -> None:
    """An app that does not wait for the shutdown is done; we are not."""
    app = Quiesce(Noting(ends="startup"), hold_signal=False)
    async with living(app) as life:
        await turns()
        assert (await ask(app)).status == 200
    assert life.sent == ["startup.complete", "shutdown.complete"]


async def test_a_shutdown_that_does_not_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """The app's own shutdown has the time of a drain, and is cancelled and named then."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await anyio.sleep_forever()

    app = Quiesce(handler, grace=SHORT / 2, cleanup=SHORT / 2, hold_signal=False)
    with anyio.fail_after(5):
        async with living(app) as life:
            pass
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert "own shutdown has not ended" in caplog.text


async def test_a_wrong_message_in_the_lifespan_is_an_error() -> None:
    """What is no answer of a lifespan is refused where it is sent."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start"})

    life = Lifespan(Quiesce(handler, hold_signal=False))
    with pytest.raises(ValueError, match=r"must not send 'http.response.start'"):
        await life.run()


@pytest.mark.backends("asyncio", "uvloop")
async def test_tasks_of_the_startup_do_not_hold_up_the_drain() -> None:
    """A loop that the startup begins is the app's to end; what it leaves is ended, and no loss."""
    tasks: list[asyncio.Task[None]] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        tasks.extend(asyncio.create_task(anyio.sleep_forever()) for _ in range(2))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        assert not tasks[0].cancelled()
        tasks[0].cancel()
        await send({"type": "lifespan.shutdown.complete"})

    app = Quiesce(handler, grace=1000, hold_signal=False)
    with anyio.fail_after(5):
        async with living(app) as life:
            await turns()
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert [task.cancelled() for task in tasks] == [True, True]
    assert lost(app) == {}


async def test_the_state_of_the_lifespan_is_the_servers() -> None:
    """What the startup puts into the state reaches the server, which gives it to requests."""

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["pool"] = 1
        await Noting()(scope, receive, send)

    async with living(Quiesce(handler, hold_signal=False)) as life:
        assert life.state["pool"] == 1


async def test_without_a_lifespan_it_is_open_while_there_is_work() -> None:
    """Mounted, or with the lifespan off, requests are served, and nothing stays open after them."""
    app = wrapped(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert (await ask(app, "/x")).body == b"/x"
            assert app.scope is not None
            assert app.scope.state == "closed"
        gc.collect()
    assert (await ask(app, "/quiesce/ready")).status == 200


async def test_without_a_lifespan_two_requests_share_a_scope() -> None:
    """The second request does not open another, and the first to end does not close it."""
    app = wrapped(events, grace=SHORT)
    first, second = Call(app, "/1"), Call(app, "/2")
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await first.answering.wait()
        scope = app.scope
        group.start_soon(second.run)
        await second.answering.wait()
        assert app.scope is scope
        assert scope is not None
        assert len(scope.frontier()) == 2
        report = await app.drain()
    assert sorted(item.name for item in report.cancelled) == ["GET /1", "GET /2"]
    assert first.complete
    assert second.complete


@pytest.mark.backends("asyncio", "uvloop")
async def test_without_a_lifespan_background_work_keeps_it_open() -> None:
    """Work that a request has left goes on, and the scope is closed when it has ended."""
    go = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        asyncio.create_task(go.wait())  # noqa: RUF006 - that is the point
        await respond(send)

    app = wrapped(handler)
    await ask(app)
    assert app.scope is not None
    assert app.scope.state == "open"
    go.set()
    await turns(10)
    assert app.scope.state == "closed"
    assert not roots


async def test_an_app_may_live_twice() -> None:
    """One middleware serves run after run, also in other event loops: tests do that."""
    app = wrapped(plain)
    for _ in range(2):
        async with living(app):
            assert not app.draining
            assert (await ask(app)).status == 200
        assert app.draining
    assert (await ask(app)).status == 200


def test_an_app_may_live_in_two_event_loops() -> None:
    """What was left open in an event loop that has ended is not used in the next."""
    app = wrapped(plain)

    async def main() -> None:
        async with living(app):
            assert (await ask(app)).status == 200

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(main, backend=backend)


async def test_used_twice_the_outer_one_does_it_all() -> None:
    """An app that is wrapped twice has one scope a request, and one probe."""
    seen: list[Any] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(outer.scope and outer.scope.frontier().to_json())
        await plain(scope, receive, send)

    inner = wrapped(handler, ready="/inner")
    outer = Quiesce(inner, hold_signal=False)
    async with living(outer) as life:
        call = await ask(outer, "/inner")
        assert call.body == b"/inner"
    assert life.sent == ["startup.complete", "shutdown.complete"]
    assert inner.scope is None
    assert seen[0].count("GET /inner") == 2  # a scope and the job in it


async def test_a_request_may_call_its_own_app_in_a_drain() -> None:
    """What an open request asks of the same app, by hand, is part of it, and is not refused."""
    inner: list[Call] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/outer":
            here = current_scope()
            assert here is not None
            await here.closing()
            inner.append(await ask(app, "/inner"))
        await respond(send)

    app = wrapped(handler, grace=10)
    outer = Call(app, "/outer")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(outer.run)
        await turns()
    assert [call.status for call in (outer, *inner)] == [200, 200]
    assert lost(app) == {}


async def test_a_scope_around_the_server_does_not_end_the_app() -> None:
    """The app's life is the server's to end, also where the server itself is in a scope."""
    app = wrapped(plain)
    async with Scope("around") as around:
        life = Lifespan(app)
        serving = around.spawn(life.run)
        await life.started.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(around.drain)
            await turns()
            assert (await ask(app, "/x")).status == 200
            life.shut_down()
            await serving
    assert life.sent == ["startup.complete", "shutdown.complete"]


async def test_other_protocols_go_through() -> None:
    """A kind of call that we do not know is the app's alone."""
    seen = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "udp"}
    await Quiesce(handler)(scope, None, None)  # type: ignore[arg-type]  # not used
    assert seen == [{"type": "udp"}]


async def test_the_drain_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What is in flight is logged when the drain begins, and the report at its end."""
    app = wrapped(events)
    call = Call(app, "/stream")
    with caplog.at_level(logging.INFO, "quiesce.asgi"):
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(call.run)
            await call.answering.wait()
    first, *_, last = [record for record in caplog.records if "scope 'requests'" in record.message]
    assert (first.levelname, last.levelname) == ("INFO", "ERROR")
    assert "1 in flight" in first.message
    assert "WORK LOST" in last.message
    assert "GET /stream" in last.message


async def test_the_drain_is_told_without_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning and its report are on standard error, if nothing has configured a handler."""
    monkeypatch.setattr(announce, "_is_configured", lambda _: False)
    app = wrapped(events)
    call = Call(app, "/stream")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    first, second, *more = capsys.readouterr().err.splitlines()
    assert first == "quiesce: the server shuts down: draining, grace 0.1 s: 1 request in flight"
    assert second.startswith("quiesce: scope 'requests' closed in ")
    assert "cancelled: job GET /stream" in more[0]


async def test_drain_by_hand() -> None:
    """`drain()` stops the app as SIGTERM does, for everyone who calls it."""
    app = wrapped(forever)
    call = Call(app)
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await turns()
        report = await app.drain()
        assert (await app.drain()) is report is app.report
        assert [item.name for item in report.cancelled] == ["GET /"]


async def test_drain_where_nothing_runs() -> None:
    """Without a run in this event loop there is nothing to drain, and that is said."""
    app = wrapped(plain)
    with pytest.raises(UsageError, match="does not run"):
        await app.drain()


async def test_a_request_may_ask_for_the_drain() -> None:
    """A handler that drains its own app gets the report of all the others, and answers with it."""
    reports: list[Report] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/drain":
            reports.append(await app.drain())
        else:
            here = current_scope()
            assert here is not None
            await here.closing()
        await respond(send)

    app = wrapped(handler, grace=1000, notice=SHORT / 4)
    other, asking = Call(app, "/other"), Call(app, "/drain")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, living(app):
            group.start_soon(other.run)
            await turns()
            await asking.run()
    assert (asking.status, asking.complete, other.status) == (200, True, 200)
    assert [report.ok for report in reports] == [True]
    assert lost(app) == {}


@pytest.mark.backends("asyncio", "uvloop")
async def test_without_a_lifespan_a_loop_of_a_library_lives() -> None:
    """A pool's housekeeper, which the first request has started, is there for the next one."""
    tasks: list[asyncio.Task[None]] = []

    async def housekeeper() -> None:
        await anyio.sleep_forever()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if not tasks:
            tasks.append(asyncio.create_task(housekeeper()))
        await respond(send)

    app = wrapped(handler, services=["*housekeeper"])
    for _ in range(2):
        await ask(app)
        await turns()
        assert not tasks[0].done()
    tasks[0].cancel()
    await turns()
    await ask(app)
    assert app.scope is not None
    assert app.scope.state == "closed"
