"""What strangers can do to a node, and what retries, errors and overload do to messages."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import detached
from quiesce.errors import ArgumentError, EdgeRefused
from quiesce.mesh import Node, Settled, Unknown
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.runtime import admission
from tests.stress import lasting
from tests.unit.mesh.meshing import NoRoom, World, here, leaves, until
from tests.unit.mesh.serving import Exchange

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Arrival, Handing, Hop

RECEIPTS = "/quiesce/receipts"
in_virtual_time = pytest.mark.backends("asyncio", "trio")


def header(world: World, edge: bytes | None = None) -> tuple[bytes, bytes]:
    """Return the header of a message that nobody has sent."""
    handed = codec.Handed(bytes(16), edge or os.urandom(12), "0" * 12, int(world.wall) + 3600)
    return b"cascade", codec.request_header(handed).encode()


def asks(count: int) -> bytes:
    """Return a call with questions for edges that never were."""
    return codec.call_body(NodeCall("", (), tuple((os.urandom(12), False) for _ in range(count))))


def answering(status: int, calls: list[int] | None = None) -> Any:
    """Make an app that answers so."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        if calls is not None:
            calls.append(status)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


# Questions of strangers.


@in_virtual_time
async def test_strangers_do_not_use_up_what_others_may_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each address has an allowance of its own."""
    monkeypatch.setattr(admission, "EACH_MAX", 50)
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        for number in range(3):
            await other.serve_call(RECEIPTS, asks(200), f"10.0.0.{number}")
        assert len(other.opened.engine.known.over_receipts) == 150
        async with node.cascade("c") as cascade:
            with here().delegate("http://b"):
                pass  # it never arrives
        found = await cascade.settled(5)
        assert not isinstance(found, Unknown), found


@in_virtual_time
async def test_strangers_at_many_addresses_do_not_starve_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All strangers together have one; a caller that knows an edge is none."""
    monkeypatch.setattr(admission, "STRANGERS_MAX", 100)
    async with World(tmp_path) as world:
        other = await world.add("b")
        async with other.cascade("c"):
            (known,) = other.opened.running_hops
            body = codec.call_body(NodeCall("", (), ((known, False),)))
            await other.serve_call(RECEIPTS, body, "192.0.2.1")
            for number in range(20):
                await other.serve_call(RECEIPTS, asks(20), f"10.0.0.{number}")
            assert len(other.opened.engine.known.over_receipts) == 100
            reply = json.loads(await other.serve_call(RECEIPTS, asks(5), "192.0.2.1"))
            assert len(reply["answers"]) == 5


@in_virtual_time
async def test_an_edge_without_an_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node answers, but not for this edge: it is unknown after `give_up`, and not never."""
    monkeypatch.setattr(admission, "EACH_MAX", 0)
    monkeypatch.setattr(admission, "EACH_PER_SECOND", 0.0)
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b"):
                pass
        found = await cascade.settled(30)
        assert isinstance(found, Unknown)
        assert found.is_final
        assert found.seconds is not None
        assert found.seconds < 3


def test_callers_are_counted_by_address_and_network() -> None:
    """An IPv6 host has a whole network of addresses."""
    found = {
        admission.caller_address({"client": (host, 1)})
        for host in (
            "2001:db8::1",
            "2001:db8::ffff",
            "2001:db8:0:1::1",
            "192.0.2.1",
            "fe80::1%eth0",
        )
    }
    assert found == {"2001:db8::/64", "2001:db8:0:1::/64", "192.0.2.1", "fe80::/64"}
    assert admission.caller_address({"client": None}) == ""
    assert admission.caller_address({"client": ("unix:", 0)}) == "unix:"


def test_there_is_a_bound_to_the_callers_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are forgotten: what they have taken, and that they are part of the mesh."""
    monkeypatch.setattr(admission, "EACH_MAX", 1)
    monkeypatch.setattr(admission, "STRANGERS_MAX", 1)
    allowances = admission.Allowances(lambda: 0.0)
    for number in range(3000):
        allowances.known(str(number))
        assert allowances.take(str(number))
    assert not allowances.take("2999")  # it is counted
    assert allowances.take("0")  # its own was forgotten, and it has taken that of all strangers
    assert not allowances.take("1")  # it is a stranger, too


# Messages of strangers.


@in_virtual_time
@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_a_flood_that_the_app_turns_away_leaves_nothing(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in memory nor, after a compaction, in the journal; the first ones are kept as ever."""
    monkeypatch.setattr(admission, "EACH_MAX", 50)
    async with World(tmp_path) as world:
        other = await world.add("b")
        app = other.asgi(answering(status))
        for number in range(200):
            made = Exchange(app, "POST", "/", headers=[header(world)], client=("10.0.0.1", 5))
            await made.run()
            assert made.status == status
            assert ("s=closed" if number < 50 else "s=not-now;d=ask") in (made.told or "")
        detector = other.opened.engine.detector
        assert len(detector.known.over_receipts) + len(detector.known.hop_records) == 50
        await other.drain(1)
        await other.open()
        detector = other.opened.engine.detector
        assert len(detector.known.over_receipts) + len(detector.known.hop_records) == 50


@in_virtual_time
async def test_a_message_that_is_turned_away_in_a_flood_has_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks, and that is noted for it."""
    monkeypatch.setattr(admission, "EACH_MAX", 1)
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        app, client = other.asgi(answering(404)), ("10.0.0.1", 5)
        for _ in range(5):
            await Exchange(app, "POST", "/", headers=[header(world)], client=client).run()
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                line = (b"cascade", handing.header.encode())
                made = Exchange(app, "POST", "/", headers=[line], client=client)
                await made.run()
                handing.answered(made.told, is_error=True)
        found = await cascade.settled(5)
        assert not isinstance(found, Unknown), found


# accept=


async def test_nothing_is_kept_of_what_is_not_accepted(tmp_path: Path) -> None:
    """The app is not called either; a message of one that is accepted is worked on."""
    seen: list[Arrival] = []

    def accept(arrival: Arrival) -> bool:
        seen.append(arrival)
        return arrival.headers.get("authorization") == "Bearer s3cret"

    async with World(tmp_path) as world:
        other = await world.add("b", accept=accept)
        calls: list[int] = []
        app = other.asgi(answering(200, calls))
        size = (tmp_path / "b.journal").stat().st_size
        made = Exchange(app, "POST", "/x", headers=[header(world)], client=("10.0.0.1", 5))
        await made.run()
        assert made.status == 403
        assert (made.told or "").endswith(";s=not-now")
        call = Exchange(app, "POST", RECEIPTS, parts=[asks(3)])
        await call.run()
        assert call.status == 403
        assert (calls, (tmp_path / "b.journal").stat().st_size) == ([], size)
        assert [(one.path, one.client, one.is_call) for one in seen] == [
            ("/x", "10.0.0.1", False),
            (RECEIPTS, "", True),
        ]
        credentials = (b"Authorization", b"Bearer s3cret")
        made = Exchange(app, "POST", "/", headers=[header(world), credentials])
        await made.run()
        assert (made.status, calls) == (200, [200])
        rubbish = Exchange(app, "POST", "/", headers=[(b"cascade", b"rubbish")])
        await rubbish.run()
        assert rubbish.status == 400


async def test_a_verdict_says_that_accept_may_have_refused_a_message(tmp_path: Path) -> None:
    """And what to do about that: a journal, or a node that is open, would not help."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", accept=lambda _: False)
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                sent = (b"cascade", handing.header.encode())
                made = Exchange(other.asgi(answering(200, [])), "POST", "/", headers=[sent])
                await made.run()
                handing.answered(made.told, is_error=True, status=made.status)
        assert made.status == 403
        found = await cascade.settled(60)
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        assert "or to nodes that were not open or refused it by `accept=`, would run" in missing
        assert missing.endswith("and send the credentials that their `accept=` wants")


def test_what_accepts_is_a_function() -> None:
    """Anything else is refused when it is given."""
    with pytest.raises(ArgumentError, match="accept"):
        Node("a", accept="yes")  # type: ignore[arg-type]  # what is tried


# Retries.


async def test_the_answer_to_a_copy_says_how_the_first_message_stands(tmp_path: Path) -> None:
    """A proxy has tried it again: it is not run twice, and its sender does not take it for lost."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        calls: list[int] = []
        app = other.asgi(answering(503, calls))
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                line = (b"cascade", handing.header.encode())
                await Exchange(
                    app, "POST", "/", headers=[line]
                ).run()  # whose answer the proxy drops
                made = Exchange(app, "POST", "/", headers=[line])
                await made.run()
                assert made.status == 409
                assert b"it is a copy of a message that this agent took before" in made.body
                handing.answered(made.told, is_error=True)
        assert calls == [503]
        assert isinstance(await cascade.settled(5), Settled)


async def test_a_message_that_was_refused_for_now_is_taken_when_it_comes_again(
    tmp_path: Path,
) -> None:
    """The agent had too much to do: a proxy tries again, and nothing was kept of the first time."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", hops_max=1)
        calls: list[int] = []
        app = other.asgi(answering(200, calls))
        gate = anyio.Event()

        async def busy(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", busy)
            with here().delegate("http://b") as handing:
                line = (b"cascade", handing.header.encode())
                made = Exchange(app, "POST", "/", headers=[line])
                await made.run()
                assert (made.status, made.header(b"retry-after")) == (503, "1")
                assert b"hops_max" in made.body
                gate.set()
                await until(lambda: not other.opened.running_hops)
                made = Exchange(app, "POST", "/", headers=[line])
                await made.run()
                assert (made.status, calls) == (200, [200])
                handing.answered(made.told)
        await cascade.cancel()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.hops == 3


async def test_a_message_that_was_refused_for_now_does_not_run_after_a_verdict(
    tmp_path: Path,
) -> None:
    """The sender asks, and is told that it never will run: a copy does not."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", hops_max=1)
        ran: list[Hop] = []

        async def handler(hop: Hop) -> None:
            ran.append(hop)

        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
            with here().delegate("http://b") as handing:
                handing.answered(await world.deliver("b", handing.header, handler))
        await cascade.cancel()
        assert isinstance(await cascade.settled(5), Settled)
        assert not other.opened.running_hops  # there is room
        with pytest.raises(EdgeRefused):
            other.handle(handing.header)
        assert not ran


# Errors, and agents that take no part.


async def test_an_error_without_a_word_is_in_doubt(tmp_path: Path) -> None:
    """A gateway has answered for an agent that is no peer, and works on: it is waited for."""
    async with World(tmp_path) as world:
        world.peers = []
        node = await world.add("a")
        other = await world.add("b", peers=["http://a"])
        gates: list[Hop] = []

        async def handler(hop: Hop) -> None:
            gates.append(hop)
            hop.spawn(lasting, 0.5)

        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                await world.deliver("b", handing.header, handler)
                handing.answered(None, is_error=True)
        found = await cascade.settled(0.1, require="participants")
        assert isinstance(found, Unknown)
        assert not found.is_final
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Settled)
        assert found.receipt.hops == 2
        assert not other.opened.running_hops


@pytest.mark.parametrize("how", ["error", "timeout", "answer"])
async def test_an_agent_that_is_known_to_take_no_part_is_not_waited_for(how: str) -> None:
    """Whatever it answers, or if it does not answer."""
    async with World() as world:
        node = await world.add("a", opaque=["http://legacy/x"], peers=[])
        assert node.policy.node_of("http://legacy/x/y") == "http://legacy/x"
        async with node.cascade("c") as cascade:
            with here().delegate("http://legacy/x") as handing:
                if how != "timeout":
                    handing.answered(None, is_error=how == "error")
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Settled)
        assert found.receipt.opaque == 1


@pytest.mark.parametrize("given", ["http://a", 7, ["nowhere"]])
def test_agents_that_take_no_part_are_addresses(given: Any) -> None:
    """And are not among the peers."""
    with pytest.raises(ArgumentError, match="opaque"):
        Node("a", opaque=given)
    with pytest.raises(ArgumentError, match="in peers and in opaque"):
        Node("a", opaque=["http://b"], peers=["http://b/"])


# Readiness.


async def test_a_node_that_cannot_write_is_not_ready(tmp_path: Path) -> None:
    """The probe says why; as long as it can, the app answers."""
    async with World(tmp_path) as world:
        other = await world.add("b")
        app = other.asgi(answering(204))
        made = Exchange(app, "GET", "/quiesce/ready")
        await made.run()
        assert made.status == 204
        NoRoom(other)
        made = Exchange(app, "GET", "/quiesce/ready")
        await made.run()
        assert made.status == 503
        assert b"refusing: it cannot write" in made.body


async def test_a_node_is_ready_while_it_is_open(tmp_path: Path) -> None:
    """Not before, and not after it."""
    node = Node("a", store=tmp_path / "a.journal")
    assert node.health.state == "closed"
    async with node:
        assert node.health.ok
        async with node.cascade("c") as cascade:
            pass
        assert (await cascade.settled(1)).ok
        await lasting(0)
    assert not node.health.takes_messages


# Messages that are refused because the agent is shut down.


async def test_a_message_refused_by_a_drain_is_sent_anew_to_the_agent_that_is_back(
    tmp_path: Path,
) -> None:
    """The new message is worked on, the old one never is; nothing is lost, and nothing runs twice."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate, calls = anyio.Event(), list[int]()
        app = other.asgi(answering(200, calls))

        async def busy(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async def post(handing: Handing) -> Exchange:
            made = Exchange(app, "POST", "/", headers=[(b"cascade", handing.header.encode())])
            await made.run()
            return made

        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as running:
                running.answered(await world.deliver("b", running.header, busy))
            with detached():
                draining = world.servers.spawn(other.drain)
            await until(lambda: other.health.state == "draining")
            with here().delegate("http://b") as first:
                made = await post(first)
                assert (made.status, made.header(b"retry-after")) == (503, "1")
                first.answered(made.told, is_error=True)
            made = await post(running)  # which may not be tried again: it is worked on
            assert (made.status, made.header(b"retry-after")) == (409, None)
            assert b"it is a copy of a message that this agent took before" in made.body
            gate.set()
            await draining
            await other.open()
            made = await post(first)  # by a proxy, that has kept it
            assert (made.status, calls) == (409, [])
            assert b"send a new message" in made.body
            with here().delegate("http://b") as second:
                made = await post(second)
                second.answered(made.told)
        found = await cascade.settled(5)
        assert found.ok, found
        assert found.receipt.hops == 3
        assert calls == [200]
        assert "refused" in str(found)
