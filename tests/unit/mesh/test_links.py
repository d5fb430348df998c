"""Calls over a connection that two agents have anyway: who is asked, and what its end means."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce.errors import ArgumentError, PeerLost, UsageError
from quiesce.mesh import CascadeFront, Node, Settled, Unknown, current_hop
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.runtime import admission
from quiesce.mesh.transport.links import (
    REQUEST_KEY,
    RESPONSE_KEY,
    Link,
    Links,
    handed,
    refuse_message,
    serve_link,
    with_answer,
    with_meta,
    without_meta,
)
from quiesce.mesh.transport.node_transport import RECEIPTS, Memory
from quiesce.testing import sweep
from tests.unit.mesh.meshing import here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class Plain:
    """A transport that notes who is called."""

    def __init__(self) -> None:
        """Start without calls."""
        self.called: list[str] = []
        self.closed = 0

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Note it."""
        self.called.append(to)
        return b"{}"

    async def aclose(self) -> None:
        """Note it."""
        self.closed += 1


async def never(_method: str, _body: dict[str, Any]) -> Any:
    """Wait for ever, as an agent that does not answer."""
    await anyio.Event().wait()


def over(node: Node) -> Callable[[str, dict[str, Any]], Awaitable[Any]]:
    """Return a connection to a node of this process."""

    async def ask(method: str, body: dict[str, Any]) -> Any:
        return await serve_link(node, method, body)

    return ask


async def hand_over(link: Link, below: Node, work: Any = None) -> None:
    """Hand a message over a link, as both adapters do, and leave work behind."""
    hop = current_hop()
    assert hop is not None
    with link.delegate(hop) as handing:
        async with below.handle(handing.header) as there:
            if work is not None:
                there.spawn(work)
        link.answered(handing, {RESPONSE_KEY: below.opened.answer(there)})


def in_doubt(link: Link) -> None:
    """Hand over an edge of which nothing is heard."""
    hop = current_hop()
    assert hop is not None
    with link.delegate(hop) as handing:
        assert handing.header  # it goes along


# Who is called.


async def test_a_link_is_called_by_its_address_and_others_by_the_transport() -> None:
    """An address of a connection that is not there is nobody's."""
    plain = Plain()
    async with Node("above", transport=plain) as node:
        link = Link(node, "acp", "coder", over(node))
        links = node.opened.exchange.links
        body = b'{"v":0}'
        assert json.loads(await links.call("acp:coder", RECEIPTS, body))["v"] == 0
        await links.call("http://other", RECEIPTS, body)
        assert plain.called == ["http://other"]
        link.close()
        for gone in ("acp:coder", "mcp:coder"):
            with pytest.raises(PeerLost, match="no connection to"):
                await links.call(gone, RECEIPTS, body)
        assert plain.called == ["http://other"]
    assert plain.closed == 0  # it was given


async def test_a_transport_that_is_not_given_is_made_when_it_is_needed() -> None:
    """Once, and it is closed by who has made it."""
    made: list[Plain] = []

    def make() -> Plain:
        made.append(Plain())
        return made[-1]

    links = Links(None, make)
    await links.aclose()
    assert made == []
    for _ in range(2):
        await links.call("http://other", RECEIPTS, b"{}")
    await links.aclose()
    await links.aclose()
    assert [plain.closed for plain in made] == [1]


async def test_an_agent_with_an_address_of_its_own_is_asked_there() -> None:
    """The connection does not matter, and neither does its end."""
    plain = Plain()
    async with Node("above", transport=plain) as node:
        link = Link(node, "mcp", "http://other/mcp", never)
        assert link.address == "http://other"
        async with node.cascade("work") as cascade:
            in_doubt(link)
            record = here().record
        link.close()
        assert isinstance(await cascade.settled(within=0), Unknown)
        assert len(record.edges) == 1  # it is not given up
        await node.aclose()


@pytest.mark.parametrize("said", [False, None], ids=["handshake", "answer"])
async def test_an_agent_that_takes_no_part_is_opaque_whatever_its_node_would_say(
    tmp_path: Path,
    said: bool | None,  # noqa: FBT001 - a case
) -> None:
    """It works on what it was sent; a node at its address knows nothing of that, and is not asked."""
    wires = Memory()
    async with (
        Node("other", url="http://other", transport=wires, store=tmp_path / "other"),
        Node("above", transport=wires, peers=["http://other"]) as node,
    ):
        link = Link(node, "mcp", "http://other/mcp", never)
        link.takes_part = said
        async with node.cascade("work") as cascade:
            hop = current_hop()
            assert hop is not None
            with link.delegate(hop) as handing:
                assert said is False or handing.header
                link.answered(handing, {})
        settled = await cascade.settled(within=5, require="participants")
        assert settled.receipt.opaque == 1, settled
        told = "it answered without a receipt" if said is None else "it announced no node in the"
        assert f"(it takes no part in the mesh: {told}" in str(settled)
        assert settled.receipt.lost == 0


async def test_a_flood_of_messages_to_a_draining_agent_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many refusals are noted, and promised; the others are not."""
    monkeypatch.setattr(admission, "EACH_MAX", 2)
    monkeypatch.setattr(admission, "EACH_PER_SECOND", 0.0)
    async with Node("below", store=tmp_path / "below") as below:
        handed_over = [
            codec.Handed(bytes(16), bytes(11) + bytes([one]), "0" * 12, int(time.time()) + 60, None)
            for one in range(4)
        ]
        told = [await refuse_message(below, codec.request_header(one)) or "" for one in handed_over]
        said = [one.rpartition(";s=")[2] for one in told]
        assert said == ["never", "never", "not-now", "not-now"]
        assert [below.opened.engine.detector.knows(one.edge) for one in handed_over] == [
            True, True, False, False,
        ]  # fmt: skip
        assert await refuse_message(below, codec.request_header(handed_over[0])) == told[0]


# What its end means.


async def test_a_receipt_comes_over_the_link(tmp_path: Path) -> None:
    """Work that goes on is waited for; nobody has an address."""
    gate = anyio.Event()
    async with (
        Node("below", store=tmp_path / "below") as below,
        Node("above", store=tmp_path / "above") as above,
    ):
        link = Link(above, "acp", None, over(below))
        async with above.cascade("work") as cascade:
            await hand_over(link, below, gate.wait)
        assert isinstance(await cascade.settled(within=0.01), Unknown)
        gate.set()
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2
        link.close()


async def test_a_call_ends_with_its_link() -> None:
    """Whoever has made it is told, once the link is closed; what is open is unknown."""
    async with Node("above") as node:
        link = Link(node, "acp", None, never)
        async with node.cascade("work") as cascade:
            in_doubt(link)
        assert isinstance(await cascade.settled(within=0), Unknown)
        async with anyio.create_task_group() as group:
            failed: list[Exception] = []

            async def call() -> None:
                try:
                    await link.call(RECEIPTS, b"{}")
                except PeerLost as error:
                    failed.append(error)

            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            link.close()
        assert "has ended" in str(failed[0])
        assert (await cascade.settled(within=1)).receipt.unknown == 1
        link.close()


@pytest.mark.parametrize("answer", [{1, 2}, float("nan")])
async def test_an_answer_that_is_none_is_no_answer(answer: object) -> None:
    """It is as if there had been none."""

    async def ask(_method: str, _body: dict[str, Any]) -> Any:
        return answer

    async with Node("above") as node:
        link = Link(node, "acp", None, ask)
        with pytest.raises(PeerLost, match="gave an invalid answer to a call of the protocol"):
            await link.call(RECEIPTS, b"{}")
        link.close()


async def test_a_link_keeps_only_the_edges_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many it has handed over: those that it keeps are given up when it is closed."""
    given_up: list[bytes] = []
    monkeypatch.setattr(Detector, "give_up", lambda _, edge, why: given_up.append(edge))
    async with Node("below") as below, Node("above") as above:
        link = Link(above, "acp", None, over(below))
        async with above.cascade("work"):
            for _ in range(1000):
                await hand_over(link, below)
            link.close()
            assert 0 < len(given_up) <= 64


async def test_a_link_needs_a_node_that_is_open_and_a_name_of_its_own() -> None:
    """Both mistakes are told at once."""
    with pytest.raises(UsageError, match="is not open"):
        Link(Node("above"), "acp", None, never)
    async with Node("above") as node:
        link = Link(node, "acp", "coder", never)
        with pytest.raises(UsageError, match="acp:coder already"):
            Link(node, "acp", "coder", never)
        Link(node, "mcp", "coder", never).close()
        link.close()
        Link(node, "acp", "coder", never).close()


async def test_the_end_of_a_link_whose_node_is_closed_changes_nothing() -> None:
    """Not even if that is open again."""
    node = Node("above")
    await node.open()
    link = Link(node, "acp", None, never)
    async with node.cascade("work"):
        in_doubt(link)
    await node.aclose()
    link.close()
    await node.open()
    again = Link(node, "acp", None, never)
    async with node.cascade("work"):
        in_doubt(again)
    await node.aclose()
    await node.open()
    again.close()
    await node.aclose()


async def test_a_journal_that_cannot_be_written_does_not_keep_a_connection_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node takes nothing any more; whoever closes is told nothing of it."""

    def fail(_: object) -> None:
        message = "the disk is full"
        raise OSError(message)

    async with Node("above", store=tmp_path / "above") as node:
        link = Link(node, "acp", None, never)
        async with node.cascade("work"):
            in_doubt(link)
        monkeypatch.setattr(node.journal, "write", fail)
        link.close()
        assert "the disk is full" in caplog.text
        assert node.opened.is_refusing
        caplog.clear()


async def _use() -> None:
    gate = anyio.Event()
    async with Node("below") as below, Node("above") as above:
        link = Link(above, "acp", None, over(below))
        try:
            async with above.cascade("work") as cascade:
                await hand_over(link, below, gate.wait)
            assert isinstance(await cascade.settled(within=0.01), Unknown)
            gate.set()
            await cascade.settled(within=5)
        finally:
            link.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_at_every_step(backend: Any) -> None:
    """Nothing is left, and the cancellation comes through."""
    result = sweep(_use, backend=backend, where="all", clock="mock", cancel="scope", runs_max=200)
    assert result.ok, str(result)


# What both sides do with `_meta`.


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"_meta": {REQUEST_KEY: "text"}}, "text"),
        ({"_meta": {REQUEST_KEY: 3}}, ""),
        ({"_meta": {REQUEST_KEY: None}}, ""),
        ({"_meta": {"other": 1}}, None),
        ({"_meta": None}, None),
        ({}, None),
        (None, None),
        ([1], None),
    ],
)
def test_what_hands_over_an_edge_is_found(params: Any, found: str | None) -> None:
    """What is there, and no text, is not taken for nothing: it must not run."""
    assert handed(params) == found


def test_one_key_of_meta_is_put_in_and_taken_out() -> None:
    """The rest stays as it is, and what is given is not changed."""
    given = {"a": 1, "_meta": {"b": 2}}
    more = with_meta(given, "key", "value")
    assert more == {"a": 1, "_meta": {"b": 2, "key": "value"}}
    assert without_meta(more, "key") == given == {"a": 1, "_meta": {"b": 2}}
    assert without_meta(with_meta({"a": 1}, "key", "value"), "key") == {"a": 1}
    assert with_meta(None, "key", 1) == {"_meta": {"key": 1}}
    assert with_meta({"_meta": "strange"}, "key", 1) == {"_meta": {"key": 1}}
    for nothing in (None, [1], {"_meta": 3}, {"a": 1}):
        assert without_meta(nothing, "key") is nothing


@pytest.mark.parametrize("data", ["text", [1], 3])
def test_an_error_without_room_stays_as_it_is(data: object) -> None:
    """The sender asks, then."""
    assert with_answer(data, "told") is data
    assert with_answer(None, "told") == {"_meta": {RESPONSE_KEY: "told"}}


@pytest.mark.parametrize(
    "make", [lambda node: Link(node, "acp", None, never), lambda node: CascadeFront(node, node)]
)
async def test_what_is_no_node_is_refused(make: Callable[[Any], object]) -> None:
    """The error says what to write."""
    with pytest.raises(ArgumentError, match=r"node must be a Node.*not 'hotel'"):
        make("hotel")
