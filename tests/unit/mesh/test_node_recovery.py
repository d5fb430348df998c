"""After a crash a node goes on from its journal; and one that cannot write it stops."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.core.roots import roots
from quiesce.errors import JournalBroken, PeerLost
from quiesce.mesh import Patience, Settled, SettledWithLosses, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import EdgeClosed
from quiesce.mesh.protocol.receipt import Receipt
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.store.journal import Journal
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import HASTE, Full, World, here, leaves, nothing

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop, Node

RECEIPTS = "/quiesce/receipts"


async def restarted(world: World, node: Node, folder: Path) -> Node:
    """Return a node that goes on from what another one had written up to now, as after a crash."""
    name = node.name
    path = folder / f"{name}.journal"
    copy = folder / f"{name}.copy"
    shutil.copyfile(path, copy)
    assert node.url is not None
    world.lines.leave(node.url, node.opened.exchange.serve)
    return await world.add(name, store=copy)


# The receiver is restarted.


async def test_what_was_worked_on_is_lost(tmp_path: Path) -> None:
    """Its sender is told so, by the next process."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        await restarted(world, other, tmp_path)
        found = await cascade.settled(5)
        assert isinstance(found, SettledWithLosses)
        assert found.receipt.lost == 1
        assert [note.why for note in found.receipt.notes if note.status == "lost"] == [
            "its process stopped before it was done"
        ]


async def test_what_it_had_handed_on_is_asked_for(tmp_path: Path) -> None:
    """The one in the midst dies; what runs below it is waited for all the same."""
    async with World(tmp_path) as world:
        gate = anyio.Event()
        for name in "abc":
            await world.add(name)

        async def low(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async def mid(hop: Hop) -> None:
            await world.hand("c", low)
            hop.spawn(anyio.sleep_forever)

        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", mid)
        await restarted(world, world.nodes["b"], tmp_path)
        assert isinstance(await cascade.settled(0.2), Unknown)
        gate.set()
        found = await cascade.settled(5)
        assert isinstance(found, SettledWithLosses)
        assert (found.receipt.hops, found.receipt.lost) == (3, 1)


@pytest.mark.parametrize("has_journal", [True, False])
async def test_a_drained_agent_does_not_wait_for_those_it_has_handed_on_to(
    tmp_path: Path, *, has_journal: bool
) -> None:
    """No verdict is green until its next process has found in the journal what is open, or ever if there is none."""
    gate = anyio.Event()
    async with World(tmp_path if has_journal else None) as world:
        patience = replace(HASTE, give_up=600)
        root, middle, _ = [await world.add(name, patience=patience) for name in "abc"]

        async def low(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async def mid(_: Hop) -> None:
            await world.hand("c", low)

        async with root.cascade("c") as cascade:
            await world.hand("b", mid)
        assert (await middle.drain(None)).ok
        early = await cascade.settled(0.1)
        assert isinstance(early, Unknown)
        assert not early.is_final
        assert "http://b" in early.missing[0]
        gate.set()
        assert isinstance(await cascade.settled(0.1), Unknown)
        await world.add("b", patience=patience)
        found = await cascade.settled(30)
        assert found.ok is has_journal
        if not has_journal:
            assert isinstance(found, Unknown)
            assert found.is_final


@pytest.mark.parametrize("journal", ["says it", "is old", "is of a clock that was set back"])
async def test_a_recovered_cascade_has_taken_as_long_as_since_its_beginning(
    tmp_path: Path, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not since its node was opened again; where the journal does not say when it began, nor does the verdict."""
    async with World(tmp_path) as world:
        if journal == "is old":
            begin = Detector.begin
            monkeypatch.setattr(Detector, "begin", lambda *given: begin(*given[:4]))
        node = await world.add("a")
        await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        assert isinstance(await cascade.settled(0), Unknown)
        await node.aclose(0.1)
        world.wall += -10_000 if "back" in journal else 10_000
        node = await world.add("a")
        (again,) = node.recovered
        found = await again.settled(0)
        if journal == "says it":
            assert found.seconds is not None
            assert 9_000 < found.seconds < 20_000
            assert f"unknown after {found.seconds:.2f} s" in str(found)
            return
        assert found.seconds is None
        assert found.to_json()["seconds"] is None
        assert "after a time that is not recorded" in str(found)


async def test_a_late_copy_is_refused_after_a_restart(tmp_path: Path) -> None:
    """Of what was worked on then, of what was done, and of what was asked for in vain."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        headers: list[str] = []
        async with node.cascade("c"):
            for handler in (leaves, nothing):
                with here().delegate("http://b") as handing:
                    headers.append(handing.header)
                    handing.answered(await world.deliver("b", handing.header, handler))
            with here().delegate("http://b") as handing:
                headers.append(handing.header)
                body = codec.call_body(NodeCall("", (), ((handing.edge_id, False),)))
                await world.lines.call("http://b", RECEIPTS, body)
        await restarted(world, other, tmp_path)
        ran: list[Hop] = []

        async def handler_again(hop: Hop) -> None:
            ran.append(hop)

        for header in headers:
            assert ";s=" in await world.deliver("b", header, handler_again)
        assert ran == []


async def test_a_receipt_that_was_not_posted_is_posted_after_a_restart(tmp_path: Path) -> None:
    """It was written first."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        world.lines.cut.add("http://a")
        gate.set()
        await turns(20)
        assert other.opened.engine.unposted == 1
        again = await restarted(world, other, tmp_path)
        assert again.opened.engine.unposted == 1
        world.lines.cut.clear()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)


async def test_a_node_without_a_journal_says_unknown_after_a_restart() -> None:
    """So nobody can: it is unknown, also for those who do not ask for all."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        assert other.url is not None
        world.lines.leave(other.url, other.opened.exchange.serve)
        await world.add("b")
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Unknown)
        assert found.receipt.unknown == 1


# The sender is restarted.


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_cascade_is_recovered(is_over: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    """Whoever has begun it is dead; its end is known all the same, whenever it was."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
            if not is_over:
                again = await restarted(world, node, tmp_path)
        if is_over:
            gate.set()
            await turns(30)  # nobody has asked how it ended
            again = await restarted(world, node, tmp_path)
        (recovered,) = again.recovered
        assert recovered.id == cascade.id
        if not is_over:
            early = await recovered.settled(0.1)
            assert isinstance(early, Unknown)
            assert "at work" not in str(early)
            gate.set()
        found = await recovered.settled(5)
        assert isinstance(found, Settled if is_over else SettledWithLosses)
        assert found.receipt.hops == 2
        assert again.opened.engine.known.roots() == []


async def test_a_recovered_cascade_can_be_cancelled(tmp_path: Path) -> None:
    """And then it is told once, and after the next restart not again."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c"):
            await world.hand("b", leaves)
        again = await restarted(world, node, tmp_path)
        (recovered,) = again.recovered
        await recovered.cancel()
        found = await recovered.settled(5)
        assert found.receipt.cancelled == 1
        await again.drain(1)
        await again.open()
        assert again.recovered == ()


async def test_messages_that_may_have_left_are_asked_for(tmp_path: Path) -> None:
    """It was written that they would be sent: nobody knows whether they were."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                again = await restarted(world, node, tmp_path)
                handing.not_sent()
        (recovered,) = again.recovered
        found = await recovered.settled(5)
        assert isinstance(found, SettledWithLosses)
        assert (found.receipt.lost, found.receipt.undelivered) == (1, 1)
        answer = await world.deliver("b", handing.header, nothing)
        assert answer.endswith("s=never")


@pytest.mark.backends("asyncio", "trio")
async def test_a_sender_without_an_address_has_its_receipt_at_once_after_a_restart(
    tmp_path: Path,
) -> None:
    """It asks as before, and does not wait until it would be time to ask again."""
    async with World(tmp_path) as world:
        patience = Patience(ask_every=5000, give_up=9000)
        node, _ = await world.add("a", url=None, patience=patience), await world.add("b")
        gate = anyio.Event()

        async def work(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c"):
            await world.hand("b", work)
            shutil.copyfile(tmp_path / "a.journal", tmp_path / "a.copy")
        await node.aclose()
        again = await world.add("a", url=None, patience=patience, store=tmp_path / "a.copy")
        (cascade,) = again.recovered
        await lasting(60)
        gate.set()
        assert isinstance(await cascade.settled(1), SettledWithLosses)


# A journal that is inconsistent.


async def test_a_journal_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """Though every line of it is as it was written; nothing is left open."""
    kept = Journal(tmp_path / "a.journal")
    kept.open()
    kept.write([EdgeClosed(b"x" * 12, Receipt("done"))])
    kept.close()
    async with World(tmp_path) as world:
        node = world.make("a")
        for _ in range(2):
            with pytest.raises(JournalBroken, match="is inconsistent"):
                await node.open()
        assert {root.name for root in roots} == {"servers"}
        (tmp_path / "a.journal").unlink()
        await node.open()


# A journal that cannot be written.


async def three(world: World, ran: list[str]) -> Any:
    """Run a cascade over three nodes, whose second may break; return the verdict."""

    async def low(hop: Hop) -> None:
        ran.append(hop.mesh_node.name)

    async def mid(hop: Hop) -> None:
        ran.append(hop.mesh_node.name)
        await world.hand("c", low)

        async def more() -> None:
            await turns(3)
            await world.hand("c", low)

        hop.spawn(more)

    async with world.nodes["a"].cascade("c") as cascade:
        try:
            await world.hand("b", mid)
        except JournalBroken:
            ran.append("broken")
    return await cascade.settled(20)


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("room", range(12))
async def test_what_cannot_be_written_is_not_done(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever write the disk is full: nothing runs unwritten, and nobody claims that it ended."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        for name in "abc":
            await world.add(name)
        full.left, full.count = room, 0
        ran: list[str] = []
        found = await three(world, ran)
        node = world.nodes["b"]
        written = (tmp_path / "b.journal").read_text()
        if full.count <= room:
            assert isinstance(found, Settled)
            assert ran == ["b", "c", "c"]
            return
        assert room < 8, "the disk was never full: more room than writes"
        assert ran.count("b") <= written.count('["begun"')
        assert ran.count("c") <= written.count('["sent"')
        assert node.opened.is_refusing
        with pytest.raises(JournalBroken):
            node.cascade("d")
        with pytest.raises(PeerLost):
            await node.serve_call(RECEIPTS, codec.call_body(NodeCall("", (), ())))
        if isinstance(found, Settled):  # all that b had to say was written
            assert '["closed"' in written
            assert found.receipt.hops == 1 + len(ran)


async def test_a_node_that_cannot_write_ends_the_waits_for_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They cannot know: so it is unknown, at once."""
    full = Full(monkeypatch, tmp_path / "a.journal")
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
        async with Scope("waiters") as scope:
            job = scope.spawn(cascade.settled)
            await turns(3)
            full.left = 0
            other = node.cascade("d")
            with pytest.raises(JournalBroken):
                await other.__aenter__()
            assert isinstance(await job, Unknown)
        assert "it cannot write" in caplog.text
        assert "No space left" in caplog.text or "no space left" in caplog.text
        assert node.opened.running_hops == {}
        full.left = None
        await node.drain(1)
        await node.open()
        assert [cascade.name for cascade in node.recovered] == ["c"]


async def test_a_verdict_stands_although_its_delivery_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written before it was told; after a restart it is told again."""
    full = Full(monkeypatch, tmp_path / "a.journal")
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            pass
        await turns(3)
        full.left = 0
        assert isinstance(await cascade.settled(1), Settled)
        assert isinstance(await cascade.settled(1), Settled)
        await node.drain(1)
        full.left = None
        await node.open()
        (recovered,) = node.recovered
        assert isinstance(await recovered.settled(1), Settled)


async def test_an_end_that_was_not_written_is_not_disclosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the answer, nor by a post, nor to who asks."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                part = other.handle(handing.header)
                full.left = 0
                async with part:
                    pass
                await turns(5)
                assert other.opened.is_refusing
                answer = other.opened.answer(part.hop)
                assert answer == f"00-{handing.mark};s=working"
                handing.answered(answer)
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert not any(to == "http://a" for to, _, _ in world.lines.calls)


async def test_an_end_that_was_not_written_is_not_posted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was answered before; nobody is called any more."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        full.left = 0
        gate.set()
        await turns(10)
        assert other.opened.is_refusing
        assert other.opened.engine.unposted == 1
        other.opened.exchange.wake()  # whatever else is due
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert not any(to == "http://a" for to, _, _ in world.lines.calls)
