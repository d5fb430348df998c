"""`Quiesce` and a node of the mesh: one drain for requests and hops, one report, whatever is around what."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import quiesce
from quiesce.core.server_drain import InFlight, drain_of_server
from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import CascadeFront, Node, Settled
from quiesce.mesh.transport.links import serve_link
from quiesce.mesh.transport.node_transport import RECEIPTS
from tests.stress import turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    Lifespan,
    ask,
    living,
    lost,
    plain,
    respond,
)
from tests.unit.mesh.meshing import HASTE, NoRoom, World, here, questions, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh import Cascade

QUICK: dict[str, Any] = {"grace": SHORT, "cleanup": SHORT, "hold_signal": False}


def middleware(app: Any) -> Any:
    """Stand between two wrappers, as a framework does."""

    async def between(scope: Any, receive: Any, send: Any) -> None:
        await app(dict(scope), receive, send)

    return between


def within(node: Node, app: Any, **options: Any) -> tuple[Quiesce, Any]:
    """Wrap with the one entry; gives it, and what the server calls."""
    made = Quiesce(app, node=node, **QUICK | options)
    return made, made


def around(node: Node, app: Any, **options: Any) -> tuple[Quiesce, Any]:
    """Wrap what has a node already."""
    made = Quiesce(node.asgi(app), **QUICK | options)
    return made, made


def far_around(node: Node, app: Any, **options: Any) -> tuple[Quiesce, Any]:
    """The same, with something between."""
    made = Quiesce(middleware(node.asgi(middleware(app))), **QUICK | options)
    return made, made


def fronted(node: Node, app: Any, **options: Any) -> tuple[Quiesce, Any]:
    """Wrap the app with the mesh's own front outside."""
    made = Quiesce(node.asgi(app), **QUICK | options)
    return made, CascadeFront(node, made)


WAYS = [within, around, far_around, fronted]


def working(gate: anyio.Event) -> Any:
    """Make an app that answers at once, and works on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        own = quiesce.current_scope()
        assert own is not None
        own.spawn(gate.wait, name="booking")
        await respond(send, status=202)

    return app


async def hand(app: Any, **options: Any) -> Any:
    """Hand a message to an app, as a client does."""
    with here().delegate("http://b") as handing:
        headers = [(b"cascade", handing.header.encode())]
        with quiesce.detached():  # the server's task is not of the sender's hop
            call = await ask(app, "/book", method="POST", headers=headers, **options)
        told = call.headers.get(b"cascade-receipt")
        handing.answered(told and told.decode(), is_error=(call.status or 500) >= 400)
    return call


async def verdict(cascade: Cascade) -> tuple[bool, list[str]]:
    """Ask for the end of a cascade: whether all is well, and how each hop has ended."""
    found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), found
    return found.ok, [note.status for note in found.receipt.notes]


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("way", WAYS)
async def test_services_of_the_server_are_services_in_hops(way: Callable[..., Any]) -> None:
    """They do not hold up a verdict; what the node itself declares is a service as before."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        for name in ("keep one", "keep two"):
            tasks[name] = asyncio.create_task(anyio.sleep_forever(), name=name)
        await respond(send, status=202)

    tasks: dict[str, asyncio.Task[None]] = {}
    async with World() as world:
        node = world.make("b", services=["keep two"])
        _, served = way(node, app, services=["keep one"])
        a = await world.add("a")
        async with living(served):
            async with a.cascade("c") as cascade:
                await hand(served)
            assert isinstance(await cascade.settled(5, require="participants"), Settled)
            assert not any(task.done() for task in tasks.values())


@pytest.mark.parametrize("way", WAYS)
async def test_work_of_a_hop_has_the_grace_and_is_waited_for(way: Callable[..., Any]) -> None:
    """The drain ends when it has: not before, and not at the deadline."""
    gate = anyio.Event()
    async with World() as world:
        root, node = await world.add("a"), world.make("b")
        app, outside = way(node, working(gate), grace=1000)
        async with living(outside):
            async with root.cascade("c") as cascade:
                assert (await hand(outside)).status == 202
            async with anyio.create_task_group() as group:
                group.start_soon(app.drain)
                await until(lambda: app.draining)
                await turns()
                assert app.report is None
                assert [entry.name for entry in app.scope.frontier()] != []
                gate.set()
            assert lost(app) == {}
            assert app.report.completed >= 1
            assert await verdict(cascade) == (True, ["done", "done"])
        assert node.own_scope is None


@pytest.mark.parametrize("way", WAYS)
async def test_work_of_a_hop_that_is_cut_is_lost_everywhere(way: Callable[..., Any]) -> None:
    """In the report of the server, and in the verdict of the agent that has begun the cascade."""
    async with World() as world:
        root, node = await world.add("a"), world.make("b")
        app, outside = way(node, working(anyio.Event()))
        async with living(outside):
            async with root.cascade("c") as cascade:
                await hand(outside)
            await app.drain()
        assert lost(app) == {"cancelled": ["booking"]}
        assert await verdict(cascade) == (False, ["done", "cancelled"])


@pytest.mark.backends("asyncio", "uvloop")
async def test_an_item_that_no_worker_has_taken_says_so() -> None:
    """The report names the request that has put it, the function and the line; once it is taken, not any more."""
    jobs: asyncio.Queue[int] = asyncio.Queue()
    taken = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        jobs.put_nowait(1)
        await respond(send, status=202)

    async def take() -> None:
        await jobs.get()
        taken.set()
        await anyio.sleep_forever()

    async with World() as world:
        root, node = await world.add("a"), world.make("b")
        server = Quiesce(app, node=node, **QUICK)
        async with living(server):
            async with root.cascade("c"):
                await hand(server)
                await hand(server)
            with quiesce.detached():
                worker = asyncio.create_task(take())
            await taken.wait()
            report = await server.drain()
        found = {one.name: one for one in report.stuck}
        assert set(found) == {
            "in asyncio.Queue, which no worker has taken",
            "taken from asyncio.Queue",
        }
        waits = found["in asyncio.Queue, which no worker has taken"]
        assert waits.where is not None
        assert waits.where.startswith(f"{__file__}:")
        assert waits.details["request"] == "POST /book"
        assert str(waits.details["put_by"]).endswith("says_so.<locals>.app")
        assert found["taken from asyncio.Queue"].details["request"] == "POST /book"
        worker.cancel()
        await asyncio.wait([worker])
        jobs.get_nowait()  # or it would be held for ever
        await turns(3)


@pytest.mark.parametrize("opens", ["the program", "the app"])
async def test_a_node_that_others_open_is_drained_as_well(opens: str) -> None:
    """Its hops are held by the requests that have brought them."""
    async with World() as world:
        root, node = await world.add("a"), world.make("b")
        work = working(anyio.Event())

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "lifespan":
                await node.asgi(work)(scope, receive, send)
                return
            await receive()
            if opens == "the app":
                await node.open()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

        if opens == "the program":
            await node.open()
        served = Quiesce(app, **QUICK)
        async with living(served):
            async with root.cascade("c") as cascade:
                await hand(served)
            report = await served.drain()
            (hop,) = report.cancelled
            assert hop.details["in_flight"] == "job booking"
            assert await verdict(cascade) == (False, ["done", "cancelled"])


async def test_a_message_that_is_refused_in_the_drain_may_be_sent_again() -> None:
    """Its sender is told that it never will run; other nodes are answered all the same."""
    gate = anyio.Event()
    async with World() as world:
        root, node = await world.add("a"), world.make("b")
        app = Quiesce(working(gate), node=node, grace=1000, hold_signal=False)
        async with living(app):
            async with root.cascade("c") as cascade:
                await hand(app)
                async with anyio.create_task_group() as group:
                    with quiesce.detached():
                        group.start_soon(app.drain)
                    await until(lambda: app.draining)
                    refused = await hand(app)
                    with quiesce.detached():
                        asked = await ask(app, RECEIPTS, method="POST")
                    gate.set()
            assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
            assert asked.status == 400  # by the node, which has read it
            assert await verdict(cascade) == (True, ["done", "refused", "done"])


async def test_a_question_that_is_a_request_does_not_hold_up_the_drain() -> None:
    """Its edge is open because of work elsewhere: the drain would wait for that, and report the question as lost."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        if scope["path"] == "/book":
            with here().delegate("http://c"):
                pass  # c has the message, as far as anybody knows
            await respond(send)
            return
        params = {"v": 0, "asks": [[edges[0], False]], "wait": 25}
        found = await serve_link(node, "quiesce/receipts", params)
        await respond(send, json.dumps(found["answers"]).encode())

    edges: list[str] = []
    async with World() as world:
        patient = replace(HASTE, give_up=1000.0)
        root, node = await world.add("a"), world.make("b", patience=patient)
        world.lines.cut.add("http://c")
        served = Quiesce(app, node=node, grace=1000, hold_signal=False)
        question = Call(served, "/question", method="POST")
        async with living(served), anyio.create_task_group() as group:
            async with root.cascade("c"):
                await hand(served)
                edges += [edge.hex() for edge in here().record.edges]
            group.start_soon(question.run)
            await until(lambda: questions(node))
            began = anyio.current_time()
            report = await served.drain()
            assert anyio.current_time() - began < 5  # the question would wait for longer
            assert report.ok
        assert question.status == 200
        assert edges[0] in question.body.decode()


@pytest.mark.parametrize("deep", [False, True])
async def test_a_node_around_the_drain_is_refused(*, deep: bool) -> None:
    """The message has the right order."""
    node = Node("b", url="http://b")
    inner = Quiesce(plain, hold_signal=False)
    if not deep:
        with pytest.raises(ArgumentError, match=r"write Quiesce\(app, node=node\)"):
            node.asgi(inner)
        return
    life = Lifespan(node.asgi(middleware(inner)))
    with pytest.raises(UsageError, match=r"write Quiesce\(app, node=node\)"):
        await life.run()
    assert life.sent == ["startup.failed"]
    assert node.own_scope is None


def test_a_node_for_an_app_that_drains_is_refused_by_what_was_written() -> None:
    """The message names no `node.asgi()`, which the caller has not written."""
    node = Node("b", url="http://b")

    class Made:  # as `quiesce_app()` makes it
        drains_server = True

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await plain(scope, receive, send)

    with pytest.raises(ArgumentError, match=r"Write quiesce_app\(agent, node=node\)") as caught:
        Quiesce(Made(), node=node)
    assert "node.asgi" not in str(caught.value)
    with pytest.raises(ArgumentError, match=r"Write Quiesce\(app, node=node\), once") as caught:
        Quiesce(Quiesce(plain, hold_signal=False), node=node)
    assert "node.asgi" not in str(caught.value)


@pytest.mark.backends("asyncio")
async def test_a_node_that_cannot_write_is_not_ready() -> None:
    """A load balancer sends its requests to another one then."""
    node = Node("b", url="http://b")
    app = Quiesce(plain, node=node, hold_signal=False)
    async with living(app):
        assert (await ask(app, "/quiesce/ready")).status == 200
        own, full = node.opened.keeping, NoRoom(node)
        assert full.is_refusing
        probe = await ask(app, "/quiesce/ready")
        assert (probe.status, probe.body) == (503, b"node 'b' cannot write its journal\n")
        node.opened.keeping = own


@pytest.mark.backends("asyncio")
async def test_a_server_whose_node_is_not_open_is_not_ready() -> None:
    """The app is mounted, or the server's lifespan is off: no message would be taken."""
    node = Node("b", url="http://b")
    app = Quiesce(plain, node=node, hold_signal=False)
    probe = await ask(app, "/quiesce/ready")
    assert (probe.status, probe.body) == (503, b"node 'b' is not open\n")
    async with node:
        assert (await ask(app, "/quiesce/ready")).status == 200


@pytest.mark.parametrize("way", WAYS)
async def test_a_node_that_no_lifespan_reaches_says_so_once(
    way: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets 503, and the server's operator is told why, and what to write."""
    async with World() as world:
        node = world.make("b")
        _, served = way(node, plain)
        a = await world.add("a")
        for _ in range(2):
            async with a.cascade("c"):
                assert (await hand(served)).status == 503
        (told,) = [one for one in caplog.records if "never opened" in one.getMessage()]
        assert told.levelno == logging.ERROR
        assert "node 'b' was never opened, and refuses" in told.getMessage()
        assert "mounted below another app" in told.getMessage()
        assert "Quiesce(outermost_app, node=node)" in told.getMessage()
        assert "`async with node:` in the lifespan" in told.getMessage()
        caplog.clear()
        async with node, a.cascade("c"):  # the second of the two that are advised
            assert (await hand(served)).status == 200
        async with a.cascade("c"):
            assert (await hand(served)).status == 503
        assert "never opened" not in caplog.text  # it was


@pytest.mark.parametrize("what", ["hotel", object, None.__class__])
async def test_what_is_not_a_node_is_refused(what: Any) -> None:
    """In words, not by an AttributeError."""
    with pytest.raises(ArgumentError, match=r"node must be a Node"):
        Quiesce(plain, node=what)


def test_two_nodes_for_one_app_are_refused() -> None:
    """A message would be the one's or the other's, by where it stands in the program."""
    one, other = Node("one"), Node("other")
    for wrap in (lambda: Quiesce(one.asgi(plain), node=other), lambda: other.asgi(one.asgi(plain))):
        with pytest.raises(ArgumentError, match=r"the app belongs to node 'one'.*'other'"):
            wrap()
    Quiesce(one.asgi(plain), node=one)


@pytest.mark.backends("asyncio")
async def test_what_joins_the_drain_is_part_of_its_report(caplog: pytest.LogCaptureFixture) -> None:
    """It is drained by the same deadline, before the requests that wait for it are cut; both are counted."""
    caplog.set_level(logging.INFO, "quiesce.asgi")
    answered, part = asyncio.Event(), await quiesce.Scope.open("part")
    times: list[tuple[float, float]] = []

    async def drain(grace: float, cleanup: float) -> quiesce.Report:
        times.append((grace, cleanup))
        answered.set()
        return await part.aclose(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await answered.wait()
            await respond(send)
            return
        await receive()
        owner = drain_of_server.get()
        assert owner is not None
        part.hold("task", "t1")
        owner.join("part", drain, lambda: InFlight({"part task": len(part.frontier())}))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    served = Quiesce(app, grace=0, cleanup=SHORT, hold_signal=False)
    async with living(served), anyio.create_task_group() as group:
        calls: list[Any] = []

        async def call() -> None:
            calls.append(await ask(served))

        group.start_soon(call)
        await until(lambda: served.scope is not None and served.scope.holds)
        await served.drain()
    assert lost(served) == {"undelivered": ["t1"]}
    assert "draining, grace 0 s: 1 request, 1 part task in flight" in caplog.text
    assert times == [(0.0, SHORT)]
    assert calls[0].status == 200
