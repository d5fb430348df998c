"""Addresses at which something answers that is no node: a wrong url, a lost prefix, a plain server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Patience, Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import Answer
from quiesce.mesh.protocol.receipt import Receipt
from quiesce.mesh.transport.node_transport import RECEIPTS, not_ok
from tests.stress import lasting
from tests.unit.mesh.meshing import Lines, World, here, leaves, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop, Node

in_virtual_time = pytest.mark.backends("asyncio", "trio")
PATIENCE = Patience(ask_every=5000, give_up=600)
CLOSED = Answer("closed", Receipt("done", hops=1))
WRONG = "no mesh at {}: it answered 404. Is it served by Quiesce(app, node=…), quiesce_app(agent, node=…) or node.asgi(app)"


class Elsewhere(Lines):
    """Lines, at the end of some of which there is no node."""

    def __init__(self) -> None:
        """Start with every receiver in order."""
        super().__init__()
        self.wrong: set[str] = set()
        self.is_page = False
        self.tries = 0

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Return the answer of a node, or of what is in its place."""
        if to in self.wrong:
            self.tries += path == RECEIPTS
            await anyio.lowlevel.checkpoint()
            if self.is_page:
                return b"<html>welcome</html>"
            raise not_ok(to, 404)
        return await super().call(to, path, body)


async def ended_unheard(world: World, node: Node, lines: Elsewhere, gate: anyio.Event) -> Cascade:
    """Begin a cascade whose work ends when nobody is at the sender's address any more."""

    async def handler(hop: Hop) -> None:
        hop.spawn(gate.wait)

    async with node.cascade("c") as cascade:
        await world.hand("b", handler)
    lines.wrong.add("http://a")
    gate.set()
    return cascade


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was told to whoever reads the log."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@in_virtual_time
async def test_a_receipt_whose_address_is_wrong_is_posted_when_it_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried seldom, said once, shown to who asks, and not lost."""
    async with World(tmp_path) as world:
        lines = world.lines = Elsewhere()
        node = await world.add("a", patience=PATIENCE)
        other, gate = await world.add("b", patience=PATIENCE), anyio.Event()
        cascade = await ended_unheard(world, node, lines, gate)
        assert isinstance(await cascade.settled(290), Unknown)
        assert 8 <= lines.tries <= 21
        (text,) = said(caplog)
        assert WRONG.format("http://a") in text
        _, busy = (await cascade.frontier()).entries
        assert busy.name == "b"
        assert busy.state == "waits"
        assert busy.what.startswith("to have its receipt taken: no mesh at http://a: ")
        assert other.opened.engine.unposted == 1
        lines.wrong.clear()
        assert isinstance(await cascade.settled(31), Settled)
        assert len(said(caplog)) == 1


@in_virtual_time
async def test_a_receipt_with_a_wrong_address_answers_questions(tmp_path: Path) -> None:
    """Also when it is not posted any more."""
    async with World(tmp_path) as world:
        lines = world.lines = Elsewhere()
        node = await world.add("a", patience=Patience(ask_every=2000, give_up=9000))
        other, gate = await world.add("b", patience=PATIENCE), anyio.Event()
        cascade = await ended_unheard(world, node, lines, gate)
        assert isinstance(await cascade.settled(1000), Unknown)
        assert other.opened.engine.unposted == 0
        assert isinstance(await cascade.settled(1100), Settled)


@in_virtual_time
@pytest.mark.parametrize("url", [None, "http://a"])
@pytest.mark.parametrize("is_page", [False, True])
async def test_an_agent_that_is_asked_at_a_wrong_address_is_unknown_in_the_end(
    url: str | None,
    is_page: bool,  # noqa: FBT001 - a parameter of the test
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And it says why; however often messages are answered there, and never settled."""
    async with World() as world:
        lines = world.lines = Elsewhere()
        lines.is_page = is_page
        lines.wrong.add("http://b")
        patience = Patience(give_up=600)
        node, _ = await world.add("a", url=url, patience=patience), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
            for _ in range(400):
                with here().delegate("http://b") as handing:
                    handing.answered(codec.response_header(handing.edge_id, CLOSED))
                await lasting(1)
            (_, found, *_) = (await cascade.frontier()).entries
            assert found.state == "not reached"
            assert "no mesh at http://b" in found.what or is_page
        ended = await cascade.settled()
        assert isinstance(ended, Unknown)
        assert "no mesh at http://b: " in str(ended)
        assert "has not said" not in str(ended)  # it is known why
        assert len(said(caplog)) == 1
        assert lines.tries < (150 if url is None else 80)


@in_virtual_time
async def test_an_agent_that_is_at_its_address_at_last_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A deployment may take its time."""
    async with World(tmp_path) as world:
        lines = world.lines = Elsewhere()
        node = await world.add("a", url=None, patience=PATIENCE)
        await world.add("b")
        lines.wrong.add("http://b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        assert isinstance(await cascade.settled(14), Unknown)
        assert lines.tries == 1
        assert isinstance(await cascade.settled(200), Unknown)
        (hop,) = world.nodes["b"].opened.running_hops.values()
        hop.cancel_work()
        lines.wrong.clear()
        found = await cascade.settled(31)
        assert found.receipt.cancelled == 1
        async with node.cascade("again"):
            lines.wrong.add("http://b")
            with here().delegate("http://b") as handing:
                handing.in_doubt()
            await until(lambda: len(said(caplog)) == 2)  # it had been right meanwhile
