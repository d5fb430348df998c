"""What a node does not do for strangers, and whom it does not tell what."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.errors import EdgeRefused, QuiesceError
from quiesce.mesh import Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import Note, Receipt
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.runtime import admission
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import WALL, World, fails, here, leaves, marks, nothing, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop, Node

RECEIPTS, PROBE = "/quiesce/receipts", "/quiesce/probe"
DONE = Receipt("done", notes=(Note("0" * 12, "", "forger", "done"),))


def handed(number: int, home: str | None = None, begin_by: float = WALL) -> codec.Handed:
    """Make what comes with a message, of a sender that is none of the nodes."""
    edge = number.to_bytes(12, "big")
    return codec.Handed(bytes(16), edge, "0" * 12, int(begin_by), home)


async def post(world: World, *receipts: tuple[bytes, Receipt]) -> Any:
    """Post receipts to a."""
    body = codec.call_body(NodeCall("", receipts, ()))
    return json.loads(await world.lines.call("http://a", RECEIPTS, body))


# Addresses.


@pytest.mark.parametrize(
    "home",
    [
        "http://169.254.169.254",
        "http://localhost:2375",
        "http://a.evil",
        "http://evil/a",
        "http://evil",
        "https://a",
        "http://a@evil",
    ],
)
async def test_an_address_that_is_not_allowed_is_never_called(home: str) -> None:
    """Whoever has sent it has to ask."""
    async with World() as world:
        node = await world.add("b")
        header = codec.request_header(handed(1, home))
        told = await world.deliver("b", header, leaves)
        assert told.endswith(";s=working;d=ask")
        for hop in list(node.opened.running_hops.values()):
            hop.cancel_work()
        await until(lambda: not node.opened.running_hops)
        await lasting(0.2)
        assert world.lines.calls == []
        assert node.opened.engine.unposted == 0


async def test_the_sender_then_asks(tmp_path: Path) -> None:
    """So the cascade settles as any other; nothing is posted."""
    async with World(tmp_path) as world:
        world.peers = []
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        await turns(10)
        gate.set()
        assert isinstance(await cascade.settled(5), Settled)
        assert {to for to, _, _ in world.lines.calls} == {"http://b"}


# Forged and repeated calls.


async def test_a_forged_receipt_changes_nothing() -> None:
    """Whoever does not know the id of an edge cannot end it."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        before = node.opened.engine.detector
        for start in range(0, 5000, 500):
            forged = [(n.to_bytes(12, "big"), DONE) for n in range(start, start + 500)]
            assert len((await post(world, *forged))["taken"]) == 500
        assert isinstance(await cascade.settled(0), Unknown)
        assert len(before.known.edge_records) == 1
        assert not before.known.over_receipts
        assert len(before.known.hop_records) == 1


async def test_a_receipt_that_comes_again_counts_once(tmp_path: Path) -> None:
    """However often it is replayed; also when its cascade has settled."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(await world.deliver("b", handing.header, nothing))
            await world.hand("b", leaves)
        receipt = Receipt("done", notes=(Note(handing.mark, "", "b", "done"),))
        for _ in range(5):
            await post(world, (handing.edge_id, receipt))
        await cascade.cancel()
        found = await cascade.settled(5)
        assert found.receipt.hops == 3
        size = (tmp_path / "a.journal").stat().st_size
        for _ in range(5):
            await post(world, (handing.edge_id, receipt))
        assert (tmp_path / "a.journal").stat().st_size == size
        assert await cascade.settled(0) == found


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("way", ["ask", "late", "early"])
async def test_what_strangers_can_have_noted_is_bounded(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of questions, or of messages, for edges that never were; others are answered later."""
    monkeypatch.setattr(admission, "EACH_MAX", 50)
    async with World(tmp_path) as world:
        node = await world.add("a")

        async def flood(first: int) -> None:
            for number in range(first, first + 200):
                if way == "ask":
                    body = codec.call_body(NodeCall("", (), ((number.to_bytes(12, "big"), False),)))
                    await world.lines.call("http://a", RECEIPTS, body)
                else:
                    moved = -4000 if way == "late" else 100_000
                    with pytest.raises(EdgeRefused) as refused:
                        node.handle(handed(number, None, WALL + moved))
                    assert "s=n" in refused.value.header

        await flood(0)
        assert len(node.opened.engine.known.over_receipts) == 50
        size = (tmp_path / "a.journal").stat().st_size
        await flood(1000)
        assert len(node.opened.engine.known.over_receipts) == 50
        assert (tmp_path / "a.journal").stat().st_size == size
        # One who has a right to it asks again, and is answered in the end; what runs, at once.
        async with node.cascade("c"):
            (root,) = node.opened.running_hops
            body = codec.call_body(NodeCall("", (), ((b"z" * 12, False), (root, False))))
            reply = json.loads(await world.lines.call("http://a", RECEIPTS, body))
            assert [answer for _, answer in reply["answers"]] == ["working"]
            await lasting(0.2)
            reply = json.loads(await world.lines.call("http://a", RECEIPTS, body))
            assert [answer for _, answer in reply["answers"]] == ["never", "working"]


async def test_a_refusal_that_is_not_noted_says_not_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a flood, a message that was not taken, and not noted, may come again: that is not settled."""
    monkeypatch.setattr(admission, "EACH_MAX", 0)
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", hops_max=1)
        async with node.cascade("busy") as busy:
            await world.hand("b", leaves)
        async with node.cascade("c") as cascade:
            await world.hand("b", nothing)
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert found.is_final
        assert not other.opened.engine.known.over_receipts
        await busy.cancel()


# Secrets.


async def busy(world: World, texts: list[str]) -> None:
    """Run a cascade in which something of everything happens, and keep all that is printed."""

    async def mid(hop: Hop) -> None:
        texts.extend((repr(hop), str(hop.frontier()), hop.name))
        await world.hand("c", leaves)
        hop.spawn(fails, hop)
        await world.hand("c", nothing)

    a, b = world.nodes["a"], world.nodes["b"]
    async with a.cascade("busy") as cascade:
        await world.hand("b", mid)
        await world.hand("c", fails)
        with here().delegate("http://b") as handing:
            texts.extend((repr(handing), repr(codec.parse_request_header(handing.header))))
            texts += [await world.deliver("b", handing.header, leaves) for _ in range(2)]
            handing.answered("rubbish")
        with here().delegate("http://nobody") as handing:
            texts.append(repr(handing))
        texts.append(str(a.frontier()))
    try:
        b.handle(handed(1, None, 0))
    except EdgeRefused as refused:
        texts.extend((repr(refused), refused.header, str(refused)))
    for early in (await cascade.settled(0), await cascade.settled(0.1)):
        texts.extend((str(early), repr(early), json.dumps(early.to_json())))
    frontier = await cascade.frontier()
    texts.extend((str(frontier), repr(frontier), json.dumps(frontier.to_json())))
    texts.extend((repr(cascade), repr(a), str(a.frontier()), str(b.frontier())))
    world.lines.cut.add("http://c")
    await cascade.cancel()
    found = await cascade.settled(5)
    texts.extend((str(found), repr(found), json.dumps(found.to_json())))
    for path, body in ((RECEIPTS, b'{"v":0,"asks":[["x",1]]}'), (PROBE, b"x"), ("/x", b"")):
        try:
            await world.lines.call("http://a", path, body)
        except QuiesceError as error:
            texts.append(repr(error))
    texts += [str(await node.aclose(0.3)) for node in (a, b)]


@pytest.mark.parametrize("journal", [False, True])
async def test_no_edge_is_ever_named_by_its_id(
    journal: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not in a log, an error, a frontier, a report, a verdict, or a repr: whoever knows it may end it."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    async with World(tmp_path if journal else None) as world:
        for name in "abc":
            await world.add(name)
        await busy(world, texts)
    texts.append(caplog.text)
    texts.extend(capfd.readouterr())
    everything = "\n".join(texts)
    assert len(world.edges) == 7
    assert any(mark in everything for mark in marks(world))
    for secret in world.secrets():
        assert secret not in everything


async def test_an_error_says_nothing_of_what_failed(tmp_path: Path) -> None:
    """Only its kind leaves the agent."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")

        async def handler(hop: Hop) -> None:
            async def fail() -> None:
                message = "the password is secret"
                raise LookupError(message)

            hop.spawn(fail)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5)
        assert "LookupError" in str(found)
        assert "password" not in repr(found)
        assert not any(b"password" in body for _, _, body in world.lines.calls)


async def test_a_node_that_is_asked_by_another_than_its_sender_says_nothing(tmp_path: Path) -> None:
    """Who does not know the id of an edge cannot ask for it by its mark."""
    async with World(tmp_path) as world:
        node = await world.add("b")
        told = await world.deliver("b", codec.request_header(handed(7)), leaves)
        known = told[3:15]
        body = b'{"v":0,"asks":[["%s",true]]}' % (known.encode() * 2)
        await world.lines.call("http://b", RECEIPTS, body.replace(b"http://a", b""))
        assert len(node.opened.running_hops) == 1
        check_untouched(node)


def check_untouched(node: Node) -> None:
    """See that nothing was told to end."""
    assert not any(hop.is_cancelled for hop in node.opened.running_hops.values())
