"""An agent's HTTP server as part of the mesh, with a server that is played by the test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import Scope
from quiesce.mesh import Settled, current_hop
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall
from tests.stress import turns
from tests.unit.mesh.meshing import Full, HandlerError, NoRoom, World, here, until
from tests.unit.mesh.serving import BODY, START, Exchange, answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from quiesce.mesh import Node

RECEIPTS, PROBE = "/quiesce/receipts", "/quiesce/probe"


class Two:
    """A node that sends, and one behind a server."""

    def __init__(self, world: World, node: Node, other: Node) -> None:
        """Record the world and both nodes."""
        self.world = world
        self.node = node
        self.other = other

    async def ask(
        self, app: Any, then: Callable[[Exchange], Awaitable[object]] | None = None
    ) -> tuple[Exchange, Any]:
        """Hand a message to the app; gives the exchange, and the verdict in the end."""
        async with self.node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(self.other.asgi(app), "POST", "/", headers=[header])
                job = self.world.servers.spawn(made.run)
                if then is not None:
                    await then(made)
                else:
                    await job
                handing.answered(made.told)
        return made, await cascade.settled(5, require="participants")


_folder: list[Path | None] = [None]


@pytest.fixture(autouse=True, params=[False, True], ids=["forgetful", "journal"])
def _journals(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Run each test with and without journals: a node that has one ends in a shorter way."""
    _folder[0] = tmp_path if request.param else None


@asynccontextmanager
async def two() -> AsyncIterator[Two]:
    """Open two nodes for the block."""
    async with World(_folder[0]) as world:
        yield Two(world, await world.add("a"), await world.add("b"))


# Messages.


async def test_a_request_with_a_message_is_a_hop() -> None:
    """Its app runs in it, and the receipt is on the response, or posted."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current_hop())
        await answers(scope, receive, send)

    async with two() as pair:
        made, found = await pair.ask(app)
        assert made.status == 200
        assert made.body == b"fine"
        assert made.header(b"x-own") == "1"
        assert made.told is not None
        assert made.told[3:15] == seen[0].mark
        assert found.ok
        assert found.receipt.hops == 2
        assert current_hop() is None
        assert not seen[0].filled  # nobody has looked at it: it stayed light


async def test_a_receipt_rides_on_the_response() -> None:
    """If the app has nothing to do afterwards: then nobody calls anybody."""
    async with two() as pair:
        made, found = await pair.ask(answers)
        assert made.told is not None
        assert ";s=closed;r=" in made.told
        assert found.ok
        assert pair.world.lines.calls == []


@pytest.mark.backends("asyncio")
async def test_a_request_that_leaves_no_work_is_answered_in_the_step_in_which_it_ends() -> None:
    """Nothing of ours is taken for something of the app's: that would cost each request a turn of the loop."""
    sent: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        await answers(scope, receive, send)
        Context().run(loop.call_soon, lambda: sent.append(len(made[0].sent)))

    async with two() as pair:
        made: list[Exchange] = []

        async def then(exchange: Exchange) -> None:
            made.append(exchange)
            await turns(3)

        await pair.ask(app, then)
        assert sent == [2]


@pytest.mark.parametrize("room", range(3))
async def test_a_receipt_that_was_not_written_does_not_ride(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has sent the message is told that it is worked on: whoever comes next knows nothing else."""
    _folder[0] = tmp_path
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with two() as pair:
        full.left = room
        made, _ = await pair.ask(answers)
        written = (tmp_path / "b.journal").read_text()
        said = made.told or ""
        assert (";s=closed" in said) == ('["over"' in written) == (room == 2)
        assert (";s=working" in said) == (room == 1)


async def test_a_receipt_rides_if_what_the_app_has_started_has_ended() -> None:
    """Such a hop ends a turn of the loop later, which the response waits for."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await here().spawn(anyio.lowlevel.checkpoint)
        await answers(scope, receive, send)

    async with two() as pair:
        made, found = await pair.ask(app)
        assert made.told is not None
        assert ";s=closed;r=" in made.told
        assert found.ok
        assert pair.world.lines.calls == []


async def test_a_request_without_one_is_the_apps_alone() -> None:
    """As is one that is not HTTP."""
    async with two() as pair:
        made = Exchange(pair.other.asgi(answers), "POST", "/")
        await made.run()
        assert made.told is None
        assert made.body == b"fine"
        seen: list[str] = []

        async def socket(scope: Any, _: Any, __: Any) -> None:
            seen.append(scope["type"])

        await pair.other.asgi(socket)({"type": "websocket", "path": RECEIPTS}, None, None)
        assert seen == ["websocket"]
        assert not pair.other.opened.running_hops


async def test_an_app_is_not_given_the_header_to_pass_on() -> None:
    """Two agents would take the message, and one of them is waited for."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(name for name, _ in scope["headers"])
        await answers(scope, receive, send)

    async with two() as pair:
        _, found = await pair.ask(app)
        assert found.ok
        assert b"cascade" not in seen


async def test_what_another_agent_has_answered_is_not_passed_on() -> None:
    """It was about another message: the response has one line, of its own."""

    async def app(_: Any, __: Any, send: Any) -> None:
        lines = [(b"Cascade-Receipt", b"00-000000000000;s=working"), (b"x", b"y")]
        await send(START | {"headers": lines})
        await send(BODY)

    async with two() as pair:
        made, found = await pair.ask(app)
        assert made.told is not None
        assert not made.told.startswith("00-0000")
        assert made.header(b"Cascade-Receipt") is None
        assert made.header(b"x") == "y"
        assert found.ok


async def test_an_app_that_has_more_to_do_answers_before() -> None:
    """The response is not held back for it, though its hop goes on."""
    gate = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answers(scope, receive, send)
        await gate.wait()

    async with two() as pair:

        async def then(made: Exchange) -> None:
            await until(lambda: len(made.sent) == 2)
            assert made.body == b"fine"
            assert made.told is not None
            assert made.told.endswith(";s=working")
            assert len(pair.other.opened.running_hops) == 1
            gate.set()

        _, found = await pair.ask(app, then)
        assert found.ok
        assert found.receipt.hops == 2


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_messages_come_in_order(slow: bool, streams: bool) -> None:  # noqa: FBT001 - cases
    """Also if the server takes its time for each of them."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        if streams:
            for number in range(5):
                await send(BODY | {"body": b"%d" % number, "more_body": True})
                await turns(number)
        await send(BODY)

    async with two() as pair:

        async def then(made: Exchange) -> None:
            made.slow = slow
            await until(
                lambda: made.sent and not made.sent[-1].get("more_body", len(made.sent) < 2)
            )

        made, found = await pair.ask(app, then)
        kinds = [message["type"] for message in made.sent]
        assert kinds == ["http.response.start"] + ["http.response.body"] * (6 if streams else 1)
        assert made.body == (b"01234fine" if streams else b"fine")
        assert found.ok


async def test_an_app_that_answers_while_its_node_is_drained() -> None:
    """It is let end, and its response is not held back."""
    gate = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await until(lambda: pair.other.opened.scope_of_hops.state == "draining")
        await answers(scope, receive, send)
        await gate.wait()

    async with two() as pair:

        async def then(made: Exchange) -> None:
            await until(lambda: pair.other.opened.running_hops)
            job = pair.world.servers.spawn(pair.other.drain)
            await until(lambda: len(made.sent) == 2)
            assert not job.done()
            gate.set()
            assert (await job).ok

        _, found = await pair.ask(app, then)
        assert found.ok
        assert found.receipt.cancelled == 0


# How it may end.


async def test_an_app_that_fails_has_failed() -> None:
    """The sender is told on the response, and not what it was; the server is told all."""
    raised: list[BaseException] = []

    async def app(_: Any, __: Any, ___: Any) -> None:
        message = "the password is secret"
        raise HandlerError(message)

    async with two() as pair:

        async def then(made: Exchange) -> None:
            try:
                await made.run()
            except HandlerError as error:
                raised.append(error)

        async with pair.node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(pair.other.asgi(app), "POST", "/", headers=[header])
                await pair.world.servers.spawn(then, made)
                handing.answered(made.told)
        found = await cascade.settled(5, require="participants")
        assert made.status == 500
        assert b"password" not in made.body
        assert len(raised) == 1
        assert found.receipt.failed == 1


@pytest.mark.parametrize("sends", [False, True])
async def test_the_receipt_of_a_cancelled_request_is_posted(sends: bool) -> None:  # noqa: FBT001 - a case
    """The server ends the task, as some do when the client is gone: nobody is there to be answered."""
    gate = anyio.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        here().spawn(gate.wait)
        if sends:
            await send(START)
        await anyio.sleep_forever()

    async with two() as pair, Scope("server") as server:
        async with pair.node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(pair.other.asgi(app), "POST", "/", headers=[header])
                job = server.spawn(made.run)
                await until(lambda: pair.other.opened.running_hops)
                await turns(5)
                job.cancel()
                await until(job.done)
                handing.in_doubt()
                gate.set()
        found = await cascade.settled(5, require="participants")
        assert found.receipt.cancelled == 1
        assert isinstance(found, Settled)
        await until(lambda: any(to == "http://a" for to, _, _ in pair.world.lines.calls))


async def test_a_hop_that_is_cancelled_says_so() -> None:
    """The app is interrupted, and what the sender gets is a response."""

    async def app(_: Any, __: Any, ___: Any) -> None:
        await anyio.sleep_forever()

    async with two() as pair:

        async def then(made: Exchange) -> None:
            await until(lambda: pair.other.opened.running_hops)
            (edge,) = pair.other.opened.running_hops
            body = codec.call_body(NodeCall("", (), ((edge, True),)))
            await pair.world.lines.call("http://b", RECEIPTS, body)
            await until(lambda: len(made.sent) == 2)

        made, found = await pair.ask(app, then)
        assert (made.status, made.header(b"quiesce-outcome")) == (500, "cut")
        assert b"was cancelled with its cascade" in made.body
        assert found.receipt.cancelled == 1


async def test_a_client_that_is_gone_is_the_apps_to_know() -> None:
    """Sending fails: the app is told, the node goes on, and its report is clean."""
    raised: list[BaseException] = []

    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        await turns(5)
        try:
            await send(BODY | {"more_body": True})
        except OSError as error:
            raised.append(error)

    async with two() as pair:
        async with pair.node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(pair.other.asgi(app), "POST", "/", headers=[header])
                made.error = OSError("gone")
                await pair.world.servers.spawn(made.run)
        assert len(raised) == 1
        found = await cascade.settled(5, require="participants")
        assert found.receipt.hops == 2
        assert (await pair.other.drain(1)).ok


# Messages that are not taken.


async def test_the_answer_to_a_copy_says_how_the_first_message_stands() -> None:
    """With a conflict; the app does not run."""
    ran: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(1)
        await answers(scope, receive, send)

    async with two() as pair:
        async with pair.node.cascade("c"):
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = [
                    Exchange(pair.other.asgi(app), "POST", "/", headers=[header]) for _ in range(3)
                ]
                for one in made:
                    await one.run()
        assert [one.status for one in made] == [200, 409, 409]
        assert all(one.told is not None for one in made)
        assert len(ran) == 1


async def test_what_is_no_message_is_refused() -> None:
    """It would run outside of the cascade that it claims to be part of."""
    async with two() as pair:
        made = Exchange(pair.other.asgi(answers), "POST", "/", headers=[(b"cascade", b"rubbish")])
        await made.run()
        assert made.status == 400
        assert b"Cascade" in made.body


@pytest.mark.parametrize("why", ["closed", "broken"])
async def test_a_node_that_takes_nothing_is_unavailable(why: str) -> None:
    """The app does not run: nobody would know when it has ended."""
    async with two() as pair:
        header = codec.request_header(codec.Handed(bytes(16), bytes(12), "0" * 12, 1))
        app = pair.other.asgi(answers)
        if why == "closed":
            await pair.other.drain(1)
        else:
            NoRoom(pair.other)
        made = Exchange(app, "POST", "/", headers=[(b"cascade", header.encode())])
        await made.run()
        assert made.status == 503
        call = Exchange(app, "POST", RECEIPTS, parts=[b'{"v":0}'])
        await call.run()
        assert call.status == 503
        assert call.header(b"retry-after") == "1"


# The scope around the server.


async def test_a_scope_around_the_server_holds_its_hops() -> None:
    """Its drain waits for them, though they belong to the node."""
    gate = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answers(scope, receive, send)
        here().spawn(gate.wait)

    async with two() as pair:
        server = await Scope.open("server")
        async with pair.node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(pair.other.asgi(app), "POST", "/", headers=[header])
                await server.spawn(made.run)
                handing.answered(made.told)
        async with Scope("draining") as scope:
            job = scope.spawn(server.drain)
            await turns(10)
            assert not job.done()
            gate.set()
            assert (await job).ok
        assert (await cascade.settled(5, require="participants")).ok


async def test_a_scope_that_takes_nothing_any_more_has_its_messages_refused() -> None:
    """The sender is told that it does not run; nothing is left of it."""
    async with two() as pair:
        server, ready = await Scope.open("server"), anyio.Event()
        async with pair.node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(pair.other.asgi(answers), "POST", "/", headers=[header])

                async def late() -> None:
                    await ready.wait()
                    await made.run()

                server.spawn(late, service=True)
                hold = server.hold("work", "one")
                async with Scope("draining") as scope:
                    job = scope.spawn(server.drain)
                    await turns(5)
                    ready.set()
                    await until(lambda: len(made.sent) == 2)
                    hold.release()
                    await job
                handing.answered(made.told)
        assert (made.status, made.header(b"retry-after")) == (503, "1")
        assert not pair.other.opened.running_hops
        found = await cascade.settled(5, require="participants")
        assert [note.status for note in found.receipt.notes] == ["done", "refused"]
