"""The lines that a drain writes, and the counts in its report, are true: each thing is counted once."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest

import quiesce
from quiesce.core import announce
from quiesce.core.light_scope import LightScope, Model
from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import current_hop
from tests.stress import lasting, turns
from tests.unit.integrations.asgi_driver import (
    SHORT,
    Call,
    begin_events,
    forever,
    living,
    plain,
    respond,
    wrapped,
)
from tests.unit.mesh.meshing import World, until
from tests.unit.mesh.serving import Life, answers

EDGE = b"00-" + b"0a" * 16 + b"-%s-" + b"0b" * 6 + b"-00;b=%d;h=http://nowhere"


@pytest.fixture
def err(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> pytest.CaptureFixture[str]:
    """Return what is written to standard error, as if nothing had configured logging."""
    monkeypatch.setattr(announce, "_is_configured", lambda _: False)
    return capsys


def of_cascade(app: Any, world: World, number: int = 1) -> Call:
    """Make a request that hands over a message."""
    header = EDGE % (b"%024x" % number, int(world.wall) + 100)
    return Call(app, "/work", headers=[(b"cascade", header)])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("hurried", [False, True])
async def test_a_request_that_is_a_hop_is_one_loss(*, hurried: bool, streams: bool) -> None:
    """It was counted again: as the job of the request, as one that completed, and as a response that was not."""
    begun = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        if streams:
            await begin_events(send)
        begun.set()
        await anyio.sleep_forever()

    async with World() as world:
        grace = 60 if hurried else SHORT
        served = Quiesce(app, node=world.make("b"), grace=grace, cleanup=SHORT, hold_signal=False)
        async with living(served) as life, anyio.create_task_group() as group:
            group.start_soon(of_cascade(served, world).run)
            await begun.wait()
            if hurried:
                group.start_soon(served.drain)
                await until(lambda: served.draining)
                await turns()
                life.shut_down()
            report = await served.drain()
    assert [item.name for item in report.cancelled] == ["GET /work"]
    assert (report.completed, len(report.undelivered)) == (0, 0)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("is_hop", [False, True])
async def test_failures_in_a_drain_are_counted_once(*, is_hop: bool) -> None:
    """They were failures that were handled, and failed, at the same time."""
    kept: list[Any] = []

    async def fail() -> None:
        scope = served.scope
        assert scope is not None
        await scope.closing()
        message = "no"
        raise ValueError(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        kept.extend(asyncio.create_task(fail()) for _ in range(3))
        await respond(send)

    async with World() as world:
        node = world.make("b")
        served = Quiesce(app, node=node, grace=60, cleanup=0, hold_signal=False)
        async with living(served):
            call = of_cascade(served, world) if is_hop else Call(served, "/work")
            await call.run()
            report = await served.drain()
    assert (len(report.failed), report.handled) == (3, 0)


async def test_services_of_quiesce_itself_are_not_counted() -> None:
    """A node has loops of its own, which no user has declared."""
    async with World() as world:
        node = await world.add("b")
        scope = node.own_scope
        assert scope is not None
        scope.spawn(anyio.sleep_forever, service=True)
        report = await node.drain()
    assert report.services == 1
    assert "1 service stopped" in str(report)


@pytest.mark.parametrize("in_task", [False, True])
async def test_the_beginning_counts_a_request_that_is_a_hop_once(
    err: pytest.CaptureFixture[str], *, in_task: bool
) -> None:
    """As a hop, also if middleware has given its handler a task of its own; another request is one of its own."""
    begun: list[None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        begun.append(None)
        await anyio.sleep_forever()

    async with World() as world:
        inner = world.make("b").asgi(app)

        async def outer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan" or not in_task:
                await inner(scope, receive, send)
                return
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(inner, scope, receive, send)

        served = Quiesce(outer, grace=0, cleanup=SHORT, hold_signal=False)
        async with living(served), anyio.create_task_group() as group:
            group.start_soon(of_cascade(served, world).run)
            group.start_soon(Call(served, "/work").run)
            await until(lambda: len(begun) == 2)
            await served.drain()
    assert "draining, grace 0 s: 1 request, 1 hop in flight\n" in err.readouterr().err


@pytest.mark.backends("asyncio")
async def test_the_beginning_counts_receipts_that_are_to_be_posted(
    err: pytest.CaptureFixture[str],
) -> None:
    """The drain waits for them, although nothing is in flight."""
    go_on = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        hop = current_hop()
        assert hop is not None
        hop.spawn(go_on.wait)
        await respond(send)

    async with World() as world:
        node = world.make("b", peers=["http://nowhere"])
        served = Quiesce(app, node=node, grace=0, cleanup=SHORT, hold_signal=False)
        async with living(served):
            for number in (1, 2):
                await of_cascade(served, world, number).run()
            go_on.set()
            await until(lambda: node.opened.engine.unposted == 2)
            await served.drain()
    told = err.readouterr().err
    assert "draining, grace 0 s: nothing in flight, 2 receipts to be posted\n" in told


@pytest.mark.parametrize("has_node", [False, True])
async def test_a_server_that_has_not_served_says_nothing(
    err: pytest.CaptureFixture[str], *, has_node: bool
) -> None:
    """Its port is taken: it starts the app up, and shuts it down."""
    async with World() as world, quiesce.Scope("server") as server:
        async with living(wrapped(plain)):
            pass
        life = Life(world.make("b").asgi(answers) if has_node else wrapped(plain))
        life.ask("startup")
        job = server.spawn(life.run)
        await until(lambda: life.told)
        life.ask("shutdown")
        await job
    assert err.readouterr().err == ""


@pytest.mark.parametrize("handler", [plain, forever])
@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_level_above_info_leaves_the_report_of_a_loss(
    handler: Any, caplog: pytest.LogCaptureFixture, *, is_asked: bool
) -> None:
    """A loss is an error, and the logger `quiesce` at INFO has both lines of a drain again."""
    caplog.set_level("ERROR")
    if is_asked:
        caplog.set_level("INFO", "quiesce")
    served = wrapped(handler)
    async with living(served), anyio.create_task_group() as group:
        group.start_soon(Call(served, "/work").run)
        await turns()
        await served.drain()
    told = [line.partition("\n")[0] for line in caplog.messages]
    begin = [line for line in told if line.startswith("drain(): draining")]
    end = [line for line in told if line.startswith("scope 'requests' closed in")]
    assert len(begin) == is_asked
    assert len(end) == (is_asked or handler is forever)


async def test_each_line_begins_with_the_name(err: pytest.CaptureFixture[str]) -> None:
    """Also those of a traceback, and of what is written because nothing has configured logging."""
    try:
        raise ValueError
    except ValueError:
        logging.getLogger("quiesce.asgi").exception("a job failed")
    logging.getLogger("quiesce").info("not said")
    lines = err.readouterr().err.splitlines()
    assert lines[0] == "quiesce: a job failed"
    assert len(lines) > 2
    assert all(line.startswith("quiesce: ") for line in lines)


def test_a_handler_of_the_user_gets_it_alone(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written twice."""
    logging.getLogger("quiesce.asgi").warning("once")
    assert (caplog.messages, capsys.readouterr().err) == (["once"], "")


@pytest.mark.backends("asyncio")
async def test_what_a_closed_node_has_left_running_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not the id of its hop alone: the handler, the work, and where that was started."""
    go_on = threading.Event()
    begun = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        hop = current_hop()
        assert hop is not None
        hop.spawn(stubborn)
        begun.set()
        await anyio.sleep_forever()

    async def stubborn() -> None:
        while not go_on.is_set():
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                continue

    async with World() as world:
        served = Quiesce(app, node=world.make("b"), grace=0, cleanup=SHORT, hold_signal=False)
        async with living(served), anyio.create_task_group() as group:
            group.start_soon(of_cascade(served, world).run)
            await begun.wait()
            report = await served.drain()
            go_on.set()
            for task in asyncio.all_tasks():
                if "stubborn" in task.get_name():
                    task.cancel()
    assert report.stuck
    (told,) = (text for text in caplog.messages if "work of its hops still runs" in text)
    assert "handler GET /work was cancelled" in told
    assert "stubborn, started " in told
    assert f"{__file__}:" in told
    assert told.endswith("Make the work that was cancelled end when it is cancelled")


def child_process() -> subprocess.Popen[bytes]:
    """Start a process that runs until its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )


_ADVICE = {
    "an item": "The worker of an item was started with the app, and the drain does not cancel it: give it more grace",
    "a thread": "Nothing can stop a thread: give it more grace",
    "a process": "The drain does not end a child process: give it more grace",
}


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("kind", _ADVICE)
async def test_work_that_nothing_cancels_is_not_told_to_end_when_it_is_cancelled(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The advice fits the kind of work: a worker of the app, a thread and a child process cannot follow any other."""
    go_on = threading.Event()
    jobs: asyncio.Queue[str] = asyncio.Queue()
    children: list[subprocess.Popen[bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        if kind == "an item":
            jobs.put_nowait("mail")
        elif kind == "a thread":
            asyncio.get_running_loop().run_in_executor(None, go_on.wait)
        else:
            children.append(child_process())
        await respond(send)

    async def worker() -> None:
        while True:
            await jobs.get()
            await anyio.Event().wait()

    with quiesce.detached():
        task = asyncio.create_task(worker())
    async with World() as world:
        served = Quiesce(app, node=world.make("b"), grace=0, cleanup=SHORT, hold_signal=False)
        async with living(served):
            await of_cascade(served, world).run()
            assert (await served.drain()).stuck
            go_on.set()
            task.cancel()
            for child in children:
                child.communicate()
            (told,) = (text for text in caplog.messages if "work of its hops still runs" in text)
            assert _ADVICE[kind] in told
            assert "cancelled end when" not in told


async def test_the_age_of_a_scope_is_its_own() -> None:
    """Not that of the hold of it, which may be made just before it is cut."""
    async with quiesce.Scope("outer") as outer, quiesce.Scope("other") as other:
        light = LightScope(Model(other), "hop", LightScope.dissolve.__code__)
        light.spawn(anyio.sleep_forever)
        await lasting(5)
        light.held_by(outer)
        report = await outer.aclose()
        await light.aclose()
    assert [round(item.age) for item in report.cancelled if item.kind == "scope"] == [5]


@pytest.mark.backends("asyncio")
async def test_the_age_of_a_failure_is_how_long_it_ran() -> None:
    """It was the time until the report, for which the drain has waited for other work."""
    kept: list[Any] = []
    done = anyio.Event()

    async def fail() -> None:
        scope = served.scope
        assert scope is not None
        await scope.closing()
        message = "no"
        raise ValueError(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        kept.extend([asyncio.create_task(fail()), asyncio.create_task(done.wait())])
        await respond(send)

    served = Quiesce(app, grace=60, cleanup=0, hold_signal=False)
    async with living(served), anyio.create_task_group() as group:
        await Call(served, "/work").run()
        group.start_soon(served.drain)
        await until(kept[0].done)
        with anyio.move_on_after(5):
            await anyio.Event().wait()
        done.set()
        report = await served.drain()
    (failed,) = report.failed
    assert failed.age < 5
