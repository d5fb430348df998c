"""An app that fails: by an exception, or by what it answers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.unit.mesh.meshing import HandlerError, World, here
from tests.unit.mesh.serving import BODY, START, Exchange


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize(("version", "is_told"), [("1.1", True), ("2", False)])
@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_more_is_sent_on_the_connection_of_an_app_that_failed(
    *, answers: bool, version: str, is_told: bool, fails: bool
) -> None:
    """Else the next message on it would be lost; HTTP/2 has no word for it, and needs none."""

    async def app(_: Any, __: Any, send: Any) -> None:
        if answers:
            await send(START)
            await send(BODY)
        if fails:
            raise HandlerError

    async def run(made: Exchange) -> None:
        with suppress(HandlerError):
            await made.run()

    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                headers = [(b"cascade", handing.header.encode())]
                made = Exchange(other.asgi(app), "POST", "/", headers=headers, http_version=version)
                await world.servers.spawn(run, made)
                handing.answered(made.told if made.sent else None)
        await cascade.settled(5, require="participants")
        assert (made.told is not None) if made.sent else not fails  # an agent that fails says so
        sent = made.sent[0]["headers"] if made.sent else ()
        assert ((b"connection", b"close") in sent) is (fails and is_told)


@pytest.mark.parametrize(
    ("status", "is_ok"), [(200, True), (422, True), (500, False), (503, False)]
)
async def test_an_agent_that_answers_with_a_server_error_has_failed(
    *, status: int, is_ok: bool
) -> None:
    """Frameworks turn an exception of a handler into such an answer; one of 4xx blames the client."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({**START, "status": status})
        await send(BODY)

    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                headers = [(b"cascade", handing.header.encode())]
                made = Exchange(other.asgi(app), "POST", "/", headers=headers)
                await world.servers.spawn(made.run)
                handing.answered(made.told, is_error=status >= 400)
        settlement = await cascade.settled(5, require="participants")
        assert settlement.ok is is_ok
        assert (f"(it answered {status})" in str(settlement)) is (status >= 400)
        assert settlement.assumptions == ()
