"""What nodes say to each other by themselves: posts, questions that wait, and their bounds."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import PeerLost, RemoteProtocolError
from quiesce.mesh import Memory, Patience, Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import WORKING
from quiesce.mesh.protocol.receipt import Receipt
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.runtime import peer_calls
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import Lines, NoRoom, World, here, leaves, nothing, questions, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop, Node

RECEIPTS = "/quiesce/receipts"
in_virtual_time = pytest.mark.backends("asyncio", "trio")


def ask(*edges: bytes, wait: float = 0.0) -> bytes:
    """Write a call that asks for edges."""
    return codec.call_body(NodeCall("", (), tuple((edge, False) for edge in edges), wait))


def answers(reply: bytes) -> list[Any]:
    """Read what a node has answered."""
    found: list[Any] = json.loads(reply)["answers"]
    return found


class Deaf:
    """A transport to nobody, which fails in some way."""

    def __init__(self, error: Exception | None = None, reply: bytes = b"") -> None:
        """Raise this, or answer that."""
        self._error = error
        self.reply = reply
        self.count = 0

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Fail."""
        assert to
        assert path
        assert body
        self.count += 1
        await anyio.lowlevel.checkpoint()
        if self._error is not None:
            raise self._error
        return self.reply

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


@pytest.mark.parametrize(
    "deaf",
    [
        Deaf(PeerLost("gone")),
        Deaf(RuntimeError("broken")),
        Deaf(TimeoutError()),
        Deaf(reply=b"rubbish"),
        Deaf(reply=b'{"v":0,"answers":[["00",1]]}'),
        Deaf(reply=b'{"v":0}'),
    ],
)
@pytest.mark.parametrize("url", [None, "http://a"])
async def test_a_cascade_is_unknown_in_the_end_whatever_goes_wrong(
    deaf: Deaf, url: str | None
) -> None:
    """Not before it was given up, and never settled; the calls come more and more seldom."""
    deaf.count = 0
    async with World() as world:
        node = await world.add("a", url=url, transport=deaf)
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.in_doubt()
        found = await cascade.settled(0.1 if deaf.reply == b'{"v":0}' else 5)
        assert isinstance(found, Unknown)
        assert 1 <= deaf.count < 80
        report = await node.drain(1)
        assert report.ok


@in_virtual_time
async def test_a_node_that_answers_at_once_is_not_asked_over_and_over() -> None:
    """It has nothing to say, or does not wait as it was asked to: once a second is enough."""
    async with World() as world:

        class Hasty(Deaf):
            async def call(self, to: str, path: str, body: bytes) -> bytes:
                await super().call(to, path, body)
                asked = codec.parse_call(body).asks
                said = [[edge.hex(), "working"] for edge, _ in asked]
                return json.dumps({"v": 0, "answers": said}).encode()

        hasty = Hasty()
        node = await world.add("a", url=None, transport=hasty, patience=Patience())
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(codec.response_header(handing.edge_id, WORKING))
        assert isinstance(await cascade.settled(60), Unknown)
        assert 2 <= hasty.count <= 70


@in_virtual_time
async def test_a_silent_node_is_asked_less_and_less() -> None:
    """As long as it is not given up."""
    async with World() as world:
        deaf = Deaf(PeerLost("gone"))
        node = await world.add("a", url=None, transport=deaf, patience=Patience(give_up=600))
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(codec.response_header(handing.edge_id, WORKING))
        assert isinstance(await cascade.settled(300), Unknown)
        assert deaf.count < 50
        found = await cascade.settled()
        assert found.receipt.unknown == 1


# Posts.


async def test_receipts_that_are_due_to_one_node_go_in_one_call() -> None:
    """Ten hops end at once: one call, or a few."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            for _ in range(10):
                await world.hand("b", handler)
        gate.set()
        assert (await cascade.settled(5, require="participants")).receipt.hops == 11
        posts = [to for to, _, body in world.lines.calls if json.loads(body)["receipts"]]
        assert posts[0] == "http://a"
        assert len(posts) <= 3


async def test_a_receipt_is_posted_until_it_is_taken(tmp_path: Path) -> None:
    """A line that is cut for a while costs only time."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        world.lines.cut |= {"http://a", "http://b"}
        gate.set()
        assert isinstance(await cascade.settled(0.2), Unknown)
        assert other.opened.engine.unposted == 1
        world.lines.cut.clear()
        assert isinstance(await cascade.settled(5), Settled)
        await turns(5)
        assert other.opened.engine.unposted == 0


async def test_while_it_is_drained_it_goes_on_to_call() -> None:
    """A hop that ends during the drain is told of; others are asked."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        gate, third = anyio.Event(), await world.add("c")

        async def handler(hop: Hop) -> None:
            async def later() -> None:
                await gate.wait()
                await world.hand("c", leaves)

            hop.spawn(later)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
        async with Scope("draining") as scope:
            job = scope.spawn(other.drain)
            await turns(3)
            gate.set()
            report = await job
        assert report.ok
        assert len(third.opened.running_hops) == 1
        assert isinstance(await cascade.settled(0), Unknown)


# Questions that wait.


async def pulled(world: World, count: int) -> tuple[Node, Any, list[anyio.Event]]:
    """Begin a cascade of messages whose sender has no address."""
    node = await world.add("a", url=None)
    gates = [anyio.Event() for _ in range(count)]

    async with node.cascade("c") as cascade:
        for gate in gates:

            async def handler(hop: Hop, gate: anyio.Event = gate) -> None:
                hop.spawn(gate.wait)

            await world.hand("b", handler)
    return node, cascade, gates


async def test_a_question_of_a_sender_without_an_address_is_answered_at_once() -> None:
    """All of its messages to one node in one question, which is put anew when there are more."""
    async with World() as world:
        other = await world.add("b")
        _, cascade, gates = await pulled(world, 20)
        await until(
            lambda: questions(other) == 1 and len(other.opened.exchange.waiting_polls) == 20
        )
        assert len(world.lines.calls) < 12
        for gate in gates:
            gate.set()
            await turns(6)
        found = await cascade.settled(5, require="participants")
        assert found.receipt.hops == 21
        await turns(10)
        assert other.opened.exchange.waiting_polls == {}
        assert questions(other) == 0


@in_virtual_time
async def test_each_edge_is_asked_for_however_many_there_are() -> None:
    """More than go into a question: also if those of the first one do not end."""
    async with World() as world:
        node = await world.add("a", url=None, patience=Patience(ask_every=5000, give_up=9000))
        other, gate = await world.add("b"), anyio.Event()

        async def ends(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c"):
            for number in range(2500):
                await world.hand("b", leaves if number < 1000 else ends)
        before = len(world.lines.calls)
        await lasting(100)
        assert 25 < len(world.lines.calls) - before < 35  # three questions in the time of one
        gate.set()
        await turns(5)
        assert len(other.opened.running_hops) == 1000
        began = anyio.current_time()
        while len(node.opened.engine.known.edge_records) > 1000:
            await lasting(0.5)
            assert anyio.current_time() - began < 12
        before = len(world.lines.calls)
        await lasting(100)
        assert len(world.lines.calls) - before < 15


@in_virtual_time
async def test_while_more_are_handed_over_those_before_are_asked_for() -> None:
    """A question is put anew for each; so often that its answer comes, too."""

    class Slow(Lines):
        async def call(self, to: str, path: str, body: bytes) -> bytes:
            with anyio.move_on_after(0.2):
                await anyio.sleep_forever()
            return await super().call(to, path, body)

    async with World() as world:
        world.lines = Slow()
        node = await world.add("a", url=None, patience=Patience(ask_every=5000, give_up=9000))
        await world.add("b")

        async def ends(hop: Hop) -> None:
            hop.spawn(lasting, 1)

        async with node.cascade("c"):
            for _ in range(300):
                await world.hand("b", ends)
                await lasting(0.1)
            assert len(node.opened.engine.known.edge_records) < 60


@in_virtual_time
async def test_after_failures_a_node_that_is_heard_of_is_asked_soon() -> None:
    """It answers a message, or a call: then its other receipts need not wait for the next turn."""
    patience = Patience(ask_every=5000, give_up=9000)
    async with World() as world:
        node, _ = await world.add("a", url=None, patience=patience), await world.add("b")
        gate = anyio.Event()

        async def first(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async def second(hop: Hop) -> None:
            hop.spawn(lasting, 0.5)

        async with node.cascade("c") as cascade:
            await world.hand("b", first)
            world.lines.cut.add("http://b")
            await lasting(300)
            world.lines.cut.clear()
            gate.set()
            assert 8 < len(world.lines.calls) < 50
            await world.hand("b", second)
        began = anyio.current_time()
        found = await cascade.settled(100, require="participants")
        assert found.receipt.hops == 3
        assert anyio.current_time() - began < 2


@in_virtual_time
async def test_a_node_that_answers_only_messages_is_not_asked_over_and_over() -> None:
    """However often it is heard of; and it is given up all the same."""
    async with World() as world:
        node = await world.add("a", url=None, patience=Patience(give_up=60))
        await world.add("b")
        world.lines.cut.add("http://b")
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
            for _ in range(2000):
                await lasting(0.05)
                await world.hand("b", nothing)
        assert len(world.lines.calls) < 2 * 5 * 100
        found = await cascade.settled(100)
        assert found.receipt.unknown >= 1


@in_virtual_time
async def test_after_failures_posts_do_not_wait_if_the_node_is_heard_of() -> None:
    """What it was asked, it has answered; what it was not, it has posted."""
    patience = Patience(ask_every=5000, give_up=9000)
    async with World() as world:
        node = await world.add("a", patience=patience)
        other = await world.add("b", patience=patience)
        gate, gate_again = anyio.Event(), anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async def handler_again(hop: Hop) -> None:
            hop.spawn(gate_again.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
            await world.hand("b", handler_again)
        world.lines.cut.add("http://a")
        gate.set()
        await lasting(300)
        world.lines.cut.clear()
        assert other.opened.engine.unposted == 1
        gate_again.set()
        began = anyio.current_time()
        found = await cascade.settled(100, require="participants")
        assert found.receipt.hops == 3
        assert anyio.current_time() - began < 2


async def test_questions_end_with_the_node_that_asks() -> None:
    """Nobody waits at the other end then."""
    async with World() as world:
        other = await world.add("b")
        node, _, _ = await pulled(world, 3)
        await until(lambda: questions(other) == 1)
        await node.drain(1)
        assert questions(other) == 0
        assert other.opened.exchange.waiting_polls == {}


async def test_questions_end_with_the_node_that_is_asked() -> None:
    """Who asks is told that it takes none now, and has not to wait for the rest of the time."""
    async with World() as world:
        other = await world.add("b")
        async with other.cascade("c") as cascade:
            with here().delegate("http://nobody") as handing:
                handing.in_doubt()
            (edge,) = other.opened.running_hops
        async with Scope("asking") as scope:
            job = scope.spawn(world.lines.call, "http://b", RECEIPTS, ask(edge, wait=50))
            await until(lambda: questions(other) == 1)
            await other.aclose(1)
            assert answers(await job) == [[edge.hex(), "working"]]
            assert questions(other) == 0
        assert isinstance(await cascade.settled(0), Unknown)


async def test_the_number_of_waiting_questions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More are answered at once; and none waits for longer than a minute."""
    monkeypatch.setattr(peer_calls, "_POLLS_MAX", 2)
    async with World() as world:
        other = await world.add("b")
        async with other.cascade("c"):
            here().spawn(anyio.sleep_forever)
            (edge,) = other.opened.running_hops
        async with Scope("asking") as scope:
            for _ in range(2):
                scope.spawn(world.lines.call, "http://b", RECEIPTS, ask(edge, wait=50))
            await turns(5)
            assert questions(other) == 2
            reply = await world.lines.call("http://b", RECEIPTS, ask(edge, wait=50))
            assert answers(reply) == [[edge.hex(), "working"]]
            await scope.aclose(1)
        assert questions(other) == 0


@in_virtual_time
async def test_a_question_waits_as_long_as_it_may() -> None:
    """Not longer than it says, and than a minute."""
    async with World() as world:
        other = await world.add("b")
        async with other.cascade("c"):
            here().spawn(anyio.sleep_forever)
            (edge,) = other.opened.running_hops
        for wait, takes in ((0.0, 0.0), (7.0, 7.0), (1e9, 60.0)):
            began = anyio.current_time()
            reply = await world.lines.call("http://b", RECEIPTS, ask(edge, wait=wait))
            assert answers(reply) == [[edge.hex(), "working"]]
            assert anyio.current_time() - began == pytest.approx(takes, abs=0.1)


async def test_a_question_with_a_receipt_or_with_news_is_not_kept_waiting() -> None:
    """There is something to say."""
    async with World() as world:
        other = await world.add("b")
        async with other.cascade("c"):
            here().spawn(anyio.sleep_forever)
            (edge,) = other.opened.running_hops
        receipts = ((b"y" * 12, Receipt("done")),)
        asks = ((edge, False),)
        for call in (
            NodeCall("", receipts, asks, 50.0),
            NodeCall("", (), (*asks, (b"z" * 12, False)), 50.0),
        ):
            with anyio.fail_after(1):
                await world.lines.call("http://b", RECEIPTS, codec.call_body(call))


# What is no call.


@pytest.mark.parametrize("path", ["/", "/quiesce", "/quiesce/receipts/"])
async def test_there_are_two_paths(path: str) -> None:
    """Others are refused."""
    async with World() as world:
        await world.add("b")
        with pytest.raises(RemoteProtocolError):
            await world.lines.call("http://b", path, b"{}")


@pytest.mark.parametrize("path", ["/quiesce/receipts", "/quiesce/probe"])
async def test_a_closed_or_broken_node_takes_no_calls(path: str, tmp_path: Path) -> None:
    """It says so in one way, whatever is called."""
    async with World(tmp_path) as world:
        node = await world.add("b")
        NoRoom(node)
        with pytest.raises(PeerLost):
            await node.serve_call(path, b'{"v":0}')
        await node.drain(1)
        for serve in (node.serve_call, node.opened.exchange.serve):
            with pytest.raises(PeerLost):
                await serve(path, b'{"v":0}')
        with pytest.raises(PeerLost):
            await world.lines.call("http://b", path, b'{"v":0}')


async def test_an_unreachable_node_is_logged_at_debug_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A log at the level INFO does not have its address."""
    caplog.set_level(logging.INFO)
    async with World() as world:
        node = await world.add("a", transport=Deaf(PeerLost("gone")))
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.in_doubt()
        assert isinstance(await cascade.settled(5), Unknown)
    assert "http://b" not in caplog.text


async def test_a_memory_is_shared_by_its_nodes_only() -> None:
    """A node at another one is not found."""
    async with World() as world:
        node, _ = await world.add("a", transport=Memory()), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.in_doubt()
        found = await cascade.settled(5)
        assert found.receipt.unknown == 1
