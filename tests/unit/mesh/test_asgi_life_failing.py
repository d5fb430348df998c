"""The lifespan of an app that fails: its node is open for as long as the server serves."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, detached
from quiesce.core import process_exit
from quiesce.core.tree import logger
from quiesce.integrations.asgi import Quiesce
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import HandlerError, World, here, until
from tests.unit.mesh.serving import Exchange, Life, answers
from tests.unit.mesh.test_asgi_life import with_lifespan

if TYPE_CHECKING:
    from quiesce.mesh import Hop


async def failing_early(_: Any, receive: Any, send: Any) -> None:
    """Fail when the startup is answered: the server serves by then."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    raise HandlerError


@pytest.mark.parametrize("is_within", [False, True])
async def test_a_startup_that_raises_fails_the_startup_of_the_server(
    *, is_within: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers that do not insist on a lifespan would serve on, without the node."""
    caplog.set_level("INFO")

    async def app(_: Any, receive: Any, __: Any) -> None:
        await receive()
        message = "no database"
        raise HandlerError(message)

    async with World() as world:
        node = world.make("b")
        life = Life(Quiesce(app, node=node, hold_signal=False) if is_within else node.asgi(app))
        life.ask("startup")
        with pytest.raises(HandlerError):
            await life.run()
        assert (life.told, life.message) == (["startup.failed"], "HandlerError: no database")
        assert node.own_scope is None
    assert "drain" not in caplog.text  # of a server that has served nothing


@pytest.mark.parametrize("is_within", [False, True])
async def test_the_node_is_open_while_the_server_serves_on(
    *, is_within: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged at once, and the log says nothing of a shutdown before there is one."""
    async with World() as world, Scope("server") as server:
        node = world.make("b")
        inner = (
            Quiesce(failing_early, node=node, hold_signal=False)
            if is_within
            else node.asgi(failing_early)
        )
        life = Life(inner)
        job = server.spawn(life.run)
        life.ask("startup")
        await until(lambda: life.told == ["startup.complete"])
        await until(lambda: "HandlerError" in caplog.text)
        assert "node 'b' stays open" in caplog.text
        assert "shuts down" not in caplog.text
        assert repr(node) == "<Node 'b' open, 0 hops>"
        life.ask("shutdown")
        await job
        assert life.told == ["startup.complete", "shutdown.complete"]
        assert node.own_scope is None


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_a_life_that_ends_badly_closes_the_node(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever ends it; the log has the reason."""
    caplog.set_level("INFO", logger.name)

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        if how == "fails":
            await send({"type": "lifespan.startup.failed", "message": "no"})
            raise HandlerError
        await send({"type": "lifespan.startup.complete"})
        await anyio.sleep_forever()

    async with World() as world, Scope("server") as server:
        node = world.make("b")
        life = Life(node.asgi(app))
        life.ask("startup")
        job = server.spawn(life.run)
        await until(lambda: life.told)
        if how == "is cancelled":
            await until(lambda: node.own_scope is not None)
            job.cancel()
        await until(job.done)
        assert node.own_scope is None
        await turns()  # the scope hears of a failure a moment later
        server.failed_entries.clear()
    assert "drain" not in caplog.text  # of a server that has served nothing


@pytest.mark.real_time
@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("ends", [False, True])
async def test_a_daemon_thread_that_the_exit_will_cut_is_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_within: bool,
    ends: bool,
) -> None:
    """The drain does not wait for it; the verdict has it, and so have the report and the exit code."""
    monkeypatch.setattr(process_exit, "_lost", False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, daemon=True)

    async def handler(_: Hop) -> None:
        thread.start()

    try:
        async with World() as world, Scope("server") as server:
            root, node = await world.add("a"), world.make("b")
            app = Quiesce(with_lifespan, node=node) if is_within else node.asgi(with_lifespan)
            life = Life(app)
            life.ask("startup")
            job = server.spawn(life.run)
            await until(lambda: life.told)
            async with root.cascade("c") as _kept:
                await world.hand("b", handler)
            if ends:
                gate.set()
                thread.join()
            signal.raise_signal(signal.SIGTERM)
            calls = node.opened.exchange
            await until(lambda: calls.is_told_to_end() or calls.is_ending)
            life.ask("shutdown")
            await job
    finally:
        signal.signal(signal.SIGTERM, before)
        gate.set()
        thread.join()
    said = caplog.text
    assert process_exit.is_lost() is not ends
    assert ("stuck: daemon thread Event.wait" in said) is not ends
    assert (f"started {__file__}:{handler.__code__.co_firstlineno + 1}" in said) is not ends
    assert ("declare=`with quiesce.detached():`" in said) is not ends


@pytest.mark.parametrize("when", ["after the signal", "just before", "long before"])
@pytest.mark.parametrize("is_within", [False, True])
async def test_a_background_task_that_the_server_cancels_on_its_way_down_is_lost(
    when: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_within: bool,
) -> None:
    """The response is complete, and the task is named once: by the node alone, or by the `Quiesce` around it."""
    monkeypatch.setattr(process_exit, "_lost", False)
    caplog.set_level("INFO")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await with_lifespan(scope, receive, send)
            return
        await answers(scope, receive, send)
        await anyio.sleep_forever()

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        async with World() as world, Scope("server") as server:
            root, node = await world.add("a"), world.make("b")
            inner: Any = Quiesce(app, node=node, hold_signal=False) if is_within else node.asgi(app)
            life = Life(inner)
            life.ask("startup")
            job = server.spawn(life.run)
            await until(lambda: life.told)
            async with root.cascade("c") as _kept:
                with here().delegate("http://b") as handing:
                    header = (b"cascade", handing.header.encode())
                    call = Exchange(inner, "GET", "/work", headers=[header])
                    with detached():  # the server is another process
                        request = server.spawn(call.run)
                    await until(lambda: len(call.sent) == 2)
                    handing.answered(call.told)
            if when == "after the signal":
                signal.raise_signal(signal.SIGTERM)
                calls = node.opened.exchange
                await until(lambda: calls.is_told_to_end() or calls.is_ending)
            request.cancel()
            await until(request.done)
            if when == "long before":
                await lasting(1.1)
            life.ask("shutdown")
            await job
    finally:
        signal.signal(signal.SIGTERM, before)
    is_lost = when != "long before"
    assert ("WORK LOST" in caplog.text) is is_lost
    assert caplog.text.count("cancelled: ") == is_lost
    assert ("GET /work" in caplog.text) is is_lost
    assert process_exit.is_lost() is (when == "after the signal")
