"""The lifespan of an app that fails: its node is open for as long as the server serves."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.core.tree import logger
from quiesce.integrations.asgi import Quiesce
from tests.stress import turns
from tests.unit.mesh.meshing import HandlerError, World, until
from tests.unit.mesh.serving import Life


async def failing_unanswered(_: Any, receive: Any, __: Any) -> None:
    """Fail when the startup is received: servers that are not told to insist on a lifespan go on."""
    await receive()
    raise HandlerError


async def failing_early(_: Any, receive: Any, send: Any) -> None:
    """Fail when the startup is answered: the server serves by then."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    raise HandlerError


@pytest.mark.parametrize("app", [failing_unanswered, failing_early])
@pytest.mark.parametrize("is_within", [False, True])
async def test_the_node_is_open_while_the_server_serves_on(
    app: Any, *, is_within: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged at once, and the log says nothing of a shutdown before there is one."""
    async with World() as world, Scope("server") as server:
        node = world.make("b")
        inner = Quiesce(app, node=node, hold_signal=False) if is_within else node.asgi(app)
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
        assert node._scope is None


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
            await until(lambda: node._scope is not None)
            job.cancel()
        await until(job.done)
        assert node._scope is None
        await turns()  # the scope hears of a failure a moment later
        server._failed.clear()
    why = "the startup failed" if how == "fails" else "the lifespan has ended"
    assert f"{why}: node 'b' is draining" in caplog.text
    assert "shuts down" not in caplog.text
