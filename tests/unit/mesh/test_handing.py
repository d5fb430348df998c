"""Handing over a message: its edge is there before its bytes leave, and until its end is known."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from quiesce import ArgumentError, UsageError
from quiesce.mesh import Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import NEVER, NOT_NOW, UNKNOWN, WORKING, Answer
from quiesce.mesh.protocol.receipt import Note, Receipt, edge_mark
from quiesce.mesh.protocol.scheduler import NodeCall
from tests.stress import turns
from tests.unit.mesh.meshing import World, here, nothing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quiesce.mesh import Handing, Hop

DONE = Receipt("done", notes=(Note("0" * 12, "", "b", "done"),))


def says(answer: Answer) -> Callable[[Handing], None]:
    """Return a function by which the receiver gives this answer, in the header."""
    return lambda handing: handing.answered(codec.response_header(handing.edge_id, answer))


@pytest.mark.parametrize(
    ("tell", "verdict", "status"),
    [
        (says(Answer("closed", DONE)), Settled, "done"),
        (lambda handing: handing.told(Answer("closed", DONE)), Settled, "done"),
        (says(NEVER), Settled, "refused"),
        (says(NOT_NOW), Unknown, "refused"),
        (lambda handing: handing.answered(None), Unknown, "opaque"),
        (lambda handing: handing.not_sent(), Settled, None),
    ],
)
async def test_what_the_answer_says_is_what_is_known(
    tell: Callable[[Handing], None], verdict: type, status: str | None
) -> None:
    """It is known at once, and nobody is asked."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with here().delegate("http://stranger") as handing:
                tell(handing)
                handing.in_doubt()  # the first word counts
                handing.not_sent()
                handing.answered(None)
        found = await cascade.settled(1)
        assert type(found) is verdict
        assert [note.status for note in found.receipt.notes[1:]] == ([status] if status else [])
        assert world.lines.calls == []


@pytest.mark.parametrize(
    "tell",
    [
        lambda _: None,
        lambda handing: handing.in_doubt(),
        says(UNKNOWN),
        lambda handing: handing.answered("rubbish"),
        lambda handing: handing.answered(codec.response_header(b"x" * 12, Answer("closed", DONE))),
    ],
)
@pytest.mark.parametrize("url", [None, "http://a"])
async def test_what_is_in_doubt_is_asked_for(
    tell: Callable[[Handing], None], url: str | None, tmp_path: Path
) -> None:
    """A receiver that it never reached says so, and it is not delivered; a copy that comes later is refused."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a", url=url), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                tell(handing)
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.undelivered == 1
        answer = await world.deliver("b", handing.header, nothing)
        assert answer == f"00-{handing.mark};s=never"


async def test_an_exception_in_the_block_leaves_it_in_doubt() -> None:
    """Whatever a client raises: bytes may have left."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            hop = here()
            with pytest.raises(LookupError), hop.delegate("http://b"):
                raise LookupError
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert found.receipt.unknown == 1
        assert "has not said for 0.8 s how" in found.receipt.notes[1].why


async def test_an_unresolved_edge_is_in_doubt_when_its_hop_ends() -> None:
    """Else nobody would ever ask for it."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            here().delegate("http://b")
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)  # b has no journal
        assert "has no journal" in found.receipt.notes[1].why


@pytest.mark.parametrize("must_ask", [False, True])
async def test_a_running_edge_is_asked_for_if_no_receipt_is_posted(must_ask: bool) -> None:  # noqa: FBT001 - a case
    """Whether the receiver posts is what it says."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                text = codec.response_header(handing.edge_id, WORKING, must_ask=must_ask)
                handing.answered(text)
            await turns(10)
            assert bool(world.lines.calls) == must_ask


async def test_the_id_of_an_edge_is_written_before_it_is_handed_out(tmp_path: Path) -> None:
    """What is not in the journal is not sent."""
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                assert handing.edge_id.hex() in (tmp_path / "a.journal").read_text()
                handing.not_sent()


@pytest.mark.parametrize("to", [None, 7])
async def test_a_receiver_has_an_address(to: str) -> None:
    """Nothing is begun for one that has none."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            hop = here()
            with pytest.raises(ArgumentError):
                hop.delegate(to)
        assert (await cascade.settled(1)).ok


async def test_a_receipt_may_be_faster_than_the_answer() -> None:
    """The answer changes nothing then."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                body = codec.call_body(NodeCall("", ((handing.edge_id, DONE),), ()))
                await world.lines.call("http://a", "/quiesce/receipts", body)
                handing.answered(codec.response_header(handing.edge_id, WORKING))
        assert isinstance(await cascade.settled(1), Settled)


async def test_an_edge_is_printed_by_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    """Wherever it is printed: its id is a secret."""
    caplog.set_level(logging.DEBUG)
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                handing.answered("rubbish")
        assert repr(handing) == f"<Handing {edge_mark(handing.edge_id)} to http://b>"
        assert handing.mark in caplog.text
        assert handing.edge_id.hex() not in caplog.text
        assert handing.headers == {"Cascade": handing.header}
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_refusal_for_now_says_nothing_of_a_copy_that_went_before(times: int) -> None:
    """An agent without a journal may have taken the first one, and have been started anew since."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                assert len({handing.header for _ in range(times)}) == 1
                handing.answered(codec.response_header(handing.edge_id, NOT_NOW))
        settlement = await cascade.settled(0.1, require="participants")
        assert settlement.ok == (times == 1)


async def test_what_answers_in_the_place_of_a_peer_does_not_speak_for_it() -> None:
    """A proxy's error has no header: the peer is asked, and nobody takes it for one that takes no part."""
    async with World() as world:
        node = await world.add("a", peers=["http://b"])
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(None, is_error=True)
        found = await cascade.settled(0.1, require="participants")
        assert isinstance(found, Unknown)
        assert not found.receipt.opaque


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_peer_that_has_answered_and_knows_nothing_of_it_has_it_all_the_same(
    tmp_path: Path, *, is_error: bool
) -> None:
    """What came along was dropped by a proxy, say, and the message is worked on; an error may be the proxy's own."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(None, is_error=is_error)
        found = await cascade.settled(5)
        assert type(found) is (Settled if is_error else Unknown)
        assert ("a proxy drops" in str(found)) == (not is_error)


@pytest.mark.real_time
async def test_nothing_is_sent_from_another_event_loop() -> None:
    """Its end would be asked for there, and that ends: nobody would ask any more."""

    async def send(hop: Hop) -> None:
        hop.delegate("http://stranger")

    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            hop = here()
            with pytest.raises(UsageError, match="send from"):
                await anyio.to_thread.run_sync(asyncio.run, send(hop))
        assert isinstance(await cascade.settled(1), Settled)
