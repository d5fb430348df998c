"""The life of an agent's HTTP server: its node is open as long as the app is."""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.core import announce, process_exit
from quiesce.errors import JournalInUse
from quiesce.mesh import CascadeFront, Patience
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.transport.node_transport import RECEIPTS
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import World, here, questions, until
from tests.unit.mesh.serving import Exchange, Life, answers

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


async def with_lifespan(scope: Any, receive: Any, send: Any) -> None:
    """Answer both events of the lifespan."""
    assert scope["type"] == "lifespan"
    for what in ("startup", "shutdown"):
        assert (await receive())["type"] == f"lifespan.{what}"
        await send({"type": f"lifespan.{what}.complete"})


async def without_lifespan(scope: Any, _: Any, __: Any) -> None:
    """Fail for a lifespan: the app serves only HTTP."""
    assert scope["type"] == "http", "only http"


async def not_caring(scope: Any, receive: Any, send: Any) -> None:
    """Return at once."""
    if scope["type"] == "http":
        await answers(scope, receive, send)


async def leaving_early(_: Any, receive: Any, send: Any) -> None:
    """Return as soon as the startup is answered."""
    await receive()
    await send({"type": "lifespan.startup.complete"})


async def leaving_unanswered(_: Any, receive: Any, __: Any) -> None:
    """Return as soon as the startup is received."""
    await receive()


async def leaving_unasked(_: Any, __: Any, send: Any) -> None:
    """Answer the startup before it was received."""
    await send({"type": "lifespan.startup.complete"})


APPS = [
    with_lifespan, without_lifespan, not_caring, leaving_early, leaving_unanswered, leaving_unasked,
]  # fmt: skip


@pytest.mark.parametrize("app", APPS)
async def test_the_node_is_open_while_the_app_lives(app: Any) -> None:
    """From before its startup until after its shutdown; also if it has no lifespan of its own."""
    async with World() as world, Scope("server") as server:
        node = world.make("b")
        life = Life(node.asgi(app))
        job = server.spawn(life.run)
        await turns(5)
        assert repr(node) == "<Node 'b' new or closed, 0 hops>"
        life.ask("startup")
        await until(lambda: life.told == ["startup.complete"])
        await turns(20)
        assert repr(node) == "<Node 'b' open, 0 hops>"
        life.ask("shutdown")
        await job
        assert life.told == ["startup.complete", "shutdown.complete"]
        assert repr(node) == "<Node 'b' new or closed, 0 hops>"


@pytest.mark.parametrize("last", ["startup.failed", "shutdown"])
async def test_an_app_may_leave_at_the_end_of_its_life(last: str) -> None:
    """It has said that it did not start, or has received the shutdown: nothing is left to answer."""

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        if last == "startup.failed":
            await send({"type": "lifespan.startup.failed", "message": "no"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()

    async with World() as world, Scope("server") as server:
        node = world.make("b")
        life = Life(node.asgi(app))
        job = server.spawn(life.run)
        life.ask("startup")
        await until(lambda: life.told)
        life.ask("shutdown")
        await job
        assert node.own_scope is None


async def test_a_node_that_cannot_be_opened_fails_the_startup(tmp_path: Path) -> None:
    """Else the server would serve without it."""
    async with World(tmp_path) as world, Scope("server") as server:
        await world.add("b")
        life = Life(world.make("b").asgi(with_lifespan))
        life.ask("startup")
        job = server.spawn(life.run)
        with pytest.raises(JournalInUse):
            await job
        assert life.told == ["startup.failed"]
        assert "another node has the journal" in life.message
        server.failed_entries.clear()


async def test_hops_that_do_not_end_are_logged_at_the_shutdown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server has a limited time; what was cut short is logged."""
    async with World() as world, Scope("server") as server:
        node = world.make("b")
        life = Life(node.asgi(with_lifespan, grace=0.05, cleanup=0.05))
        life.ask("startup")
        server.spawn(life.run)
        await until(lambda: life.told)
        async with node.cascade("c"):
            here().spawn(anyio.sleep_forever)
        life.ask("shutdown")
        await until(lambda: len(life.told) == 2)
        assert "WORK LOST" in caplog.text


async def test_the_shutdown_of_the_app_begins_when_its_hops_have_ended() -> None:
    """They may need what it closes then."""
    order: list[str] = []
    gate = anyio.Event()

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        order.append(f"shutdown, {node!r}")
        await send({"type": "lifespan.shutdown.complete"})

    async def work() -> None:
        await gate.wait()
        order.append("work")

    async with World() as world, Scope("server") as server:
        node = world.make("b")
        life = Life(node.asgi(app))
        life.ask("startup")
        job = server.spawn(life.run)
        await until(lambda: life.told)
        async with node.cascade("c") as _kept:
            here().spawn(work)
        life.ask("shutdown")
        await until(lambda: node.health.state == "draining")
        await turns(20)
        assert order == []
        gate.set()
        await job
    assert order == ["work", "shutdown, <Node 'b' new or closed, 0 hops>"]


@pytest.mark.parametrize("grace", [0, 60])
async def test_an_app_may_live_inside_of_a_cascade(
    grace: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Its shutdown ends that, so it is told at once; the node is closed after it."""
    order: list[str] = []
    caplog.set_level("INFO")

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        async with node.cascade("session"):
            await send({"type": "lifespan.startup.complete"})
            await receive()
            order.append(repr(node))
            await turns(5)
        await send({"type": "lifespan.shutdown.complete"})
        order.append(repr(node))

    async with World() as world, Scope("server") as server:
        node = world.make("b")
        life = Life(node.asgi(app, grace=grace))
        life.ask("startup")
        job = server.spawn(life.run)
        await until(lambda: life.told)
        life.ask("shutdown")
        await job
    assert life.told == ["startup.complete", "shutdown.complete"]
    assert order == ["<Node 'b' closing, 1 hops>", "<Node 'b' new or closed, 0 hops>"]
    assert caplog.text.count("nothing it owned was lost") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("app", [with_lifespan, without_lifespan])
@pytest.mark.parametrize("ends", [False, True])
async def test_waiting_questions_are_answered_after_the_signal(
    app: Any,
    number: int,
    ends: bool,  # noqa: FBT001 - a case
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server waits for open requests before it ends the lifespan: until the work has ended, or is cut."""
    monkeypatch.setattr(process_exit, "_lost", False)
    heard: list[int] = []
    gate = anyio.Event()

    def server_hears(number: int, _: object) -> None:
        heard.append(number)

    before = signal.signal(number, server_hears)
    try:
        async with World() as world, Scope("server") as server:
            node = world.make("b")
            served = node.asgi(app, grace=60.0 if ends else 0.1)
            life = Life(served)
            life.ask("startup")
            job = server.spawn(life.run)
            await until(lambda: life.told)
            async with node.cascade("c") as _kept:
                here().spawn(gate.wait)
                (edge,) = node.opened.running_hops
            body = codec.call_body(NodeCall("", (), ((edge, False),), 50.0))
            question = Exchange(served, "POST", RECEIPTS, parts=[body])
            asking = server.spawn(question.run)
            await until(lambda: questions(node) == 1)
            signal.raise_signal(number)
            await turns(5)
            assert not asking.done()
            if ends:
                gate.set()
            await until(asking.done)
            ((_, answer),) = codec.parse_reply(question.body).answers
            assert answer.receipt is not None
            assert (answer.receipt.status, heard) == ("done" if ends else "cancelled", [number])
            assert not process_exit.is_lost()  # it is told when the lifespan has ended
            gate.set()
            life.ask("shutdown")
            await job
        assert process_exit.is_lost() is not ends
        assert signal.getsignal(number) is server_hears
    finally:
        signal.signal(number, before)


class Uvicorn:
    """A server with uvicorn's switch, which ends by each signal that its own handler has seen."""

    def __init__(self) -> None:
        self.should_exit = False
        self.seen: list[int] = []

    def handle(self, number: int, _: object) -> None:
        """Handle a signal."""
        self.seen.append(number)


@pytest.mark.parametrize(
    ("number", "is_lost"),
    [
        (signal.SIGTERM, False),
        (signal.SIGTERM, True),
        (signal.SIGINT, True),
    ],
)
async def test_uvicorn_does_not_end_by_the_signal_if_work_was_lost(
    number: int, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """SIGTERM sets its switch, and its own handler sees it after a drain that lost nothing; SIGINT at once."""
    monkeypatch.setattr(process_exit, "_lost", False)
    uvicorn = Uvicorn()
    before = signal.signal(number, uvicorn.handle)
    try:
        async with World() as world, Scope("server") as server:
            node = world.make("b")
            life = Life(node.asgi(with_lifespan, grace=1, cleanup=1))
            life.ask("startup")
            job = server.spawn(life.run)
            await until(lambda: life.told)
            if is_lost:
                async with node.cascade("c") as _kept:
                    here().spawn(anyio.sleep_forever)
            signal.raise_signal(number)
            has_switch = number == signal.SIGTERM
            assert uvicorn.should_exit is has_switch
            assert uvicorn.seen == ([] if has_switch else [number])
            await until(node.opened.exchange.is_told_to_end)
            life.ask("shutdown")
            await job
        assert uvicorn.seen == ([] if has_switch and is_lost else [number])
        assert process_exit.is_lost() is is_lost
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("is_signalled", [False, True])
async def test_the_drain_of_a_node_is_seen_without_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_signalled: bool
) -> None:
    """Its beginning and its end are on standard error, once each, also if nothing was lost."""
    monkeypatch.setattr(announce, "_is_configured", lambda _: False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        async with World() as world, Scope("server") as server:
            app = world.make("b").asgi(not_caring)
            life = Life(app)
            life.ask("startup")
            job = server.spawn(life.run)
            await until(lambda: life.told)
            if not is_signalled:
                await Exchange(app, "GET", "/").run()
            if is_signalled:
                signal.raise_signal(signal.SIGTERM)
                await lasting(2.5)  # the server waits for its open requests
            life.ask("shutdown")
            await job
    finally:
        signal.signal(signal.SIGTERM, before)
    begin, end = capsys.readouterr().err.splitlines()
    why = "told to stop" if is_signalled else "the server shuts down"
    text = f"quiesce: {why}: node 'b' is draining, grace 30 s: no hops in flight. "
    assert begin.startswith(text)
    assert "Quiesce(app, node=node)" in begin
    _, _, seconds = end.partition("quiesce: scope 'node b' closed in ")
    assert float(seconds.partition(" s, ")[0]) >= (2.5 if is_signalled else 0.0)
    assert "nothing it owned was lost" in end


@pytest.mark.parametrize("is_front", [False, True])
async def test_after_the_signal_connections_are_not_used_again(*, is_front: bool) -> None:
    """A server that waits for them does not know those that were made in that moment; HTTP/2 has another way."""
    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        app = CascadeFront(node, answers) if is_front else node.asgi(answers)

        async def connections(**options: Any) -> list[str | None]:
            call = codec.call_body(NodeCall("", (), ()))
            async with root.cascade("c"):
                with here().delegate("http://b") as handing:
                    header = (b"cascade", handing.header.encode())
                    message = Exchange(app, "POST", "/", headers=[header], **options)
                    await message.run()
                    handing.answered(message.told)
            plain = Exchange(app, "GET", "/", **options)
            question = Exchange(app, "POST", RECEIPTS, parts=[call], **options)
            for one in (plain, question):
                await one.run()
            return [one.header(b"connection") for one in (message, plain, question)]

        assert await connections() == [None] * 3
        node.opened.exchange.told_to_end(60.0)
        assert await connections() == ["close"] * 3
        assert await connections(http_version="1.0") == ["close"] * 3
        assert await connections(http_version="2") == [None] * 3


async def test_a_question_about_work_elsewhere_is_answered_at_the_signal() -> None:
    """And who asks for more than one thing, when all is known that will be; later, questions wait as ever."""
    gates = [anyio.Event(), anyio.Event()]
    async with World() as world:
        node = await world.add("b", patience=Patience(give_up=600))
        edges, cascades = [], []
        for gate in gates:
            async with node.cascade("c") as cascade:
                here().spawn(gate.wait)
            edges.append(list(node.opened.running_hops)[-1])
            cascades.append(cascade)
        async with node.cascade("waits") as _kept:
            with here().delegate("http://nowhere") as handing:
                handing.in_doubt()
            elsewhere = list(node.opened.running_hops)[-1]
        await until(lambda: elsewhere not in node.opened.running_hops)

        def asked(*edges: bytes) -> Any:
            body = codec.call_body(NodeCall("", (), tuple((edge, False) for edge in edges), 50.0))
            return world.servers.spawn(node.serve_call, RECEIPTS, body)

        both, other = asked(*edges), asked(elsewhere)
        await until(lambda: questions(node) == 2)
        node.opened.exchange.told_to_end(60.0)
        await until(other.done)
        gates[0].set()
        await until(lambda: edges[0] not in node.opened.running_hops)
        await turns(5)
        assert not both.done()
        gates[1].set()
        kinds = [answer.kind for _, answer in codec.parse_reply(await both).answers]
        assert kinds == ["closed", "closed"]


async def test_a_question_does_not_hold_up_the_end_of_a_server() -> None:
    """The work may go on for longer than the server has: the answer is then that the work goes on."""
    async with World() as world:
        node = await world.add("b", patience=Patience(give_up=600))
        gate = anyio.Event()
        async with node.cascade("c") as cascade:
            here().spawn(gate.wait)
        (edge,) = node.opened.running_hops
        body = codec.call_body(NodeCall("", (), ((edge, False),), 3600.0))
        question = world.servers.spawn(node.serve_call, RECEIPTS, body)
        await until(lambda: questions(node) == 1)
        node.opened.exchange.told_to_end(0.05)
        with anyio.fail_after(60):
            assert [answer.kind for _, answer in codec.parse_reply(await question).answers] == [
                "working"
            ]
        gate.set()
        await cascade.settled(10)


async def test_a_question_after_the_signal_does_not_wait_for_other_agents() -> None:
    """Nothing is at work here that could answer it, and the server waits for the question."""
    async with World() as world:
        node = await world.add("b", patience=Patience(give_up=600))
        async with node.cascade("waits") as _kept:
            with here().delegate("http://nowhere") as handing:
                handing.in_doubt()
            (edge,) = node.opened.running_hops
        await until(lambda: not node.opened.running_hops)
        node.opened.exchange.told_to_end(math.inf)
        body = codec.call_body(NodeCall("", (), ((edge, False),), 50.0))
        asking = world.servers.spawn(node.serve_call, RECEIPTS, body)
        await until(asking.done)
        ((_, answer),) = codec.parse_reply(await asking).answers
        assert answer.kind == "working"


async def test_after_the_signal_the_end_of_the_work_here_answers_a_question() -> None:
    """Also if the work has handed a message to another agent, which may take any time."""
    gate = anyio.Event()
    async with World() as world:
        node = await world.add("b", patience=Patience(give_up=600))
        async with node.cascade("waits") as _kept:
            with here().delegate("http://nowhere") as handing:
                handing.in_doubt()
            here().spawn(gate.wait)
            (edge,) = node.opened.running_hops
        node.opened.exchange.told_to_end(math.inf)
        body = codec.call_body(NodeCall("", (), ((edge, False),), 50.0))
        asking = world.servers.spawn(node.serve_call, RECEIPTS, body)
        await until(lambda: questions(node) == 1)
        await turns(5)
        assert not asking.done()
        gate.set()
        await until(asking.done)
        assert questions(node) == 0


async def test_a_second_signal_cuts_a_node_alone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `Quiesce`: the first one counts the grace, the second one ends it."""
    monkeypatch.setattr(process_exit, "_lost", False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        async with World() as world, Scope("server") as server:
            root, node = await world.add("a"), world.make("b")
            life = Life(node.asgi(with_lifespan, grace=1000.0))
            life.ask("startup")
            job = server.spawn(life.run)
            await until(lambda: life.told)

            async def handler(hop: Hop) -> None:
                hop.spawn(anyio.sleep_forever)

            async with root.cascade("c") as cascade:
                await world.hand("b", handler)
            signal.raise_signal(signal.SIGTERM)
            await turns(5)
            life.ask("shutdown")
            await turns(5)
            signal.raise_signal(signal.SIGTERM)
            with anyio.fail_after(100):
                await job
            assert process_exit.is_lost()
            assert (await cascade.settled(5, require="participants")).receipt.cancelled == 1
    finally:
        signal.signal(signal.SIGTERM, before)
