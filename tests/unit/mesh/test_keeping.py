"""The journal under an unfriendly world: a full disk, an old copy, a lost file, another node's file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import EdgeRefused, JournalBroken, UsageError
from quiesce.mesh import Node, Settled, SettledWithLosses, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.store import journal
from quiesce.mesh.store.journal_keeper import RETRY_SECONDS
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import HASTE, Full, World, here, nothing, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop

in_virtual_time = pytest.mark.backends("asyncio", "trio")


async def sent_and_lost(world: World, node: Node) -> Cascade:
    """Begin a cascade with one message, which is under way when its sender stops waiting."""
    async with node.cascade("c") as cascade:
        with here().delegate("http://b") as handing:
            world.header = handing.header  # type: ignore[attr-defined]  # for the test alone
    return cascade


# A full disk.


async def test_a_node_takes_messages_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that was refused meanwhile is taken: it never began."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        assert other.health.ok
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                full.left = 0
                for _ in range(2):
                    with pytest.raises(JournalBroken, match=r"b\.journal.*no space left.*resumes"):
                        other.handle(handing.header)
                assert other.health.state == "refusing"
                assert not other.health.takes_messages
                assert "no space left" in other.health.why
                full.left = None
                handing.answered(await world.deliver("b", handing.header, nothing))
        assert other.health.ok
        assert isinstance(await cascade.settled(1), Settled)


@in_virtual_time
async def test_a_receipt_that_could_not_be_written_is_posted_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node tries by itself, and then posts the receipt that waits."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        node = await world.add("a", patience=replace(HASTE, give_up=60.0))
        other = await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        full.left = 0
        gate.set()
        await turns(10)
        assert other.opened.is_refusing
        full.left = None
        world.lines.cut.add("http://b")  # nobody calls it, which would have it try
        await lasting(2 * RETRY_SECONDS)
        found = await cascade.settled(5)
        assert isinstance(found, Settled), found
        assert other.health.ok


async def test_a_sender_that_cannot_write_sends_nothing_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that was not sent is no loss; the next one is sent."""
    full = Full(monkeypatch, tmp_path / "a.journal")
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            full.left = 0
            with pytest.raises(JournalBroken):
                here().delegate("http://b")
            full.left = None
            await world.hand("b", nothing)
        found = await cascade.settled(1)
        assert isinstance(found, Settled), found
        assert found.receipt.hops == 2
        await node.drain(1)
        await node.open()  # what is in the journal is a history
        assert node.recovered == ()


async def test_a_cascade_is_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node could not write for a while: it was unknown, and is known in the end."""
    full = Full(monkeypatch, tmp_path / "a.journal")
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        full.left = 0
        with pytest.raises(JournalBroken):
            await node.cascade("d").__aenter__()
        found = await cascade.settled()
        assert isinstance(found, Unknown)
        assert not found.is_final
        full.left = None
        node.opened.check_accepts()
        gate.set()
        assert isinstance(await cascade.settled(5), Settled)


# A journal that is another than it was.


async def test_a_journal_that_is_younger_than_a_message_is_not_believed(tmp_path: Path) -> None:
    """The one before it has the message, which is worked on."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                await world.deliver("b", handing.header, handler)  # its answer is lost
        world.lines.leave("http://b", other.opened.exchange.serve)
        world.wall += 5
        await world.add("b", store=tmp_path / "new.journal")
        found = await cascade.settled(5)
        assert isinstance(found, Unknown), found
        assert found.is_final
        gate.set()


async def test_a_journal_that_was_there_is_believed(tmp_path: Path) -> None:
    """What never arrived is known not to have run, also after a restart."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        world.wall += 5
        world.lines.cut.add("http://b")
        cascade = await sent_and_lost(world, node)
        await other.drain(1)
        world.wall += 5
        await other.open()
        world.lines.cut.clear()
        found = await cascade.settled(5)
        assert not isinstance(found, Unknown), found


async def test_an_old_copy_of_a_journal_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By those whom it has told how far it had come: it knows nothing of what was before."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        shutil.copyfile(tmp_path / "b.journal", tmp_path / "backup")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        world.wall += 5
        assert not isinstance(await (await sent_and_lost(world, node)).settled(5), Unknown)
        async with node.cascade("d") as cascade:
            with here().delegate("http://b") as handing:
                await world.deliver("b", handing.header, handler)  # its answer is lost
        world.lines.leave("http://b", other.opened.exchange.serve)
        world.wall += 5
        caplog.clear()
        await world.add("b", store=tmp_path / "backup")
        found = await cascade.settled(5)
        assert isinstance(found, Unknown), found
        assert "Never restore a journal" in caplog.text
        gate.set()


@pytest.mark.parametrize(
    "seen", ["%s.ffff.0123456789abcdef", "rubbish", "%s.ffff", "%s.-1.0", "0.f.0"]
)
async def test_an_unsigned_count_is_not_believed(seen: str, tmp_path: Path) -> None:
    """A stranger cannot make a node forget what it knows."""
    async with World(tmp_path) as world:
        other = await world.add("b")
        born = other.opened.engine.known.born
        assert other.opened.keeping is not None
        other.opened.keeping.check(
            seen.replace("%s", other.opened.keeping.seen().partition(".")[0])
        )
        assert other.opened.engine.known.born is born


async def test_two_nodes_at_one_address_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller says to each of them what the other has told it; one whose journal was lost says it once."""
    async with World(tmp_path) as world:
        one = await world.add("b")
        two = await world.add("b", url="http://replica", store=tmp_path / "two.journal")
        seen = ""
        for number in range(12):
            for node in (one, two):
                body = codec.call_body(NodeCall("", (), (), seen=seen))
                seen = json.loads(await node.serve_call("/quiesce/receipts", body, "10.0.0.1"))[
                    "seen"
                ]
            assert ("Give each replica" in caplog.text) == (number >= 9)
        assert caplog.text.count("Give each replica") == 2  # each of them, once


async def test_a_journal_is_one_nodes(tmp_path: Path) -> None:
    """Another one does not take up what the first has begun."""
    async with Node("a", store=tmp_path / "journal"):
        pass
    other = Node("b", store=tmp_path / "journal")
    with pytest.raises(UsageError, match="belongs to node 'a', not to node 'b'"):
        await other.open()
    async with Node("a", store=tmp_path / "journal"):
        pass


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    """The error says what to write instead."""
    with pytest.raises(UsageError, match=r"is a directory.*agent\.journal"):
        await Node("a", store=tmp_path).open()


def test_a_journal_needs_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a platform without fcntl it is refused, with the reason."""
    monkeypatch.setattr(journal, "fcntl", None)
    with pytest.raises(UsageError, match="not have fcntl"):
        journal.Journal(tmp_path / "journal").open()


def test_the_mesh_can_be_imported_without_fcntl() -> None:
    """Nor without the others that Windows does not have: a node without a journal needs none of them."""
    missing = ("fcntl", "grp", "pwd", "resource", "termios")
    code = f"import sys; sys.modules |= dict.fromkeys({missing}); import quiesce.mesh as m; m.Node('a')"
    subprocess.run([sys.executable, "-c", code], check=True)


# Short lives.


async def test_short_lives_forget_as_a_long_one_does(tmp_path: Path) -> None:
    """The time of the last forgetting is in the journal."""
    sizes = []
    async with World(tmp_path) as world:
        node = world.make("b")
        for _ in range(6):
            await node.open()
            for number in range(20):
                header = codec.request_header(
                    codec.Handed(
                        bytes(16), os.urandom(12), f"{number:012x}", int(world.wall) + 3600
                    )
                )
                async with node.handle(header) as hop:
                    pass
                node.opened.answer(hop)
            await node.drain(1)
            await node.open()
            detector = node.opened.engine.detector
            sizes.append(
                len(detector.known.over_receipts)
                + len(detector.known.long_over_receipts)
                + len(detector.known.hop_records)
            )
            await node.drain(1)
            world.wall += 86_400
    assert sizes == [20, 40, 60, 60, 60, 60]


def records_in(node: Node) -> int:
    """Return how many records a node says that it has written."""
    assert node.opened.keeping is not None
    return int(node.opened.keeping.seen().split(".")[1], 16)


async def test_a_journal_is_made_smaller_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that lives for a second has no other time for it."""
    monkeypatch.setattr("quiesce.mesh.store.compaction._COMPACT_FROM", 1000)
    async with World(tmp_path) as world:
        node = world.make("b")
        await node.open()
        for _ in range(50):
            async with node.cascade("c") as cascade:
                pass
            assert (await cascade.settled(1)).ok
        await node.drain(1)
        size = (tmp_path / "b.journal").stat().st_size
        for _ in range(3):
            world.wall += 86_400
            await node.open()
            assert node.opened.keeping is not None
            count = records_in(node)
            await node.drain(1)
        assert (tmp_path / "b.journal").stat().st_size < size / 4
        await node.open()
        assert node.opened.keeping is not None
        assert records_in(node) >= count


@in_virtual_time
async def test_a_copy_does_not_run_in_the_life_after(tmp_path: Path) -> None:
    """However many lives there are, until it is too late for it."""
    async with World(tmp_path) as world:
        node = world.make("b", keep_seconds=100)
        await node.open()
        header = codec.request_header(
            codec.Handed(bytes(16), os.urandom(12), "0" * 12, int(world.wall) + 100)
        )
        async with node.handle(header) as hop:
            pass
        node.opened.answer(hop)
        for _ in range(20):
            await node.drain(1)
            world.wall += 70
            await node.open()
            with pytest.raises(EdgeRefused):
                node.handle(header)


async def test_recovered_cascades_keep_their_names(tmp_path: Path) -> None:
    """Also when the journal was written anew."""
    async with World(tmp_path) as world:
        node = await world.add("a")
        world.lines.cut.add("http://b")
        await sent_and_lost(world, node)
        shutil.copyfile(tmp_path / "a.journal", tmp_path / "a.copy")  # it is killed here
        await node.aclose(1)
        again = await world.add("a", store=tmp_path / "a.copy")
        assert [cascade.name for cascade in again.recovered] == ["c"]
        assert any(getattr(one, "name", "") == "c" for one in again.opened.engine.known.snapshot())


async def test_what_is_lost_is_still_a_loss(tmp_path: Path) -> None:
    """Work that began, and whose process died, is not the same as a message that did not arrive."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        shutil.copyfile(tmp_path / "b.journal", tmp_path / "b.copy")  # it is killed here
        world.lines.leave("http://b", other.opened.exchange.serve)
        await world.add("b", store=tmp_path / "b.copy")
        assert isinstance(await cascade.settled(5), SettledWithLosses)
        gate.set()
        await until(gate.is_set)
