"""What a drain cuts at its deadline is *cancelled* in the verdict, and in the report, whatever it was."""

from __future__ import annotations

import asyncio
import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import CascadeCancelled, UsageError
from tests.stress import CANCELLED, turns
from tests.unit.mesh.meshing import World, here, until
from tests.unit.mesh.serving import Exchange, answers

if TYPE_CHECKING:
    from quiesce.mesh import Hop
    from quiesce.mesh.runtime.hop_parts import Part

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


async def _cut(world: World, handler: Any) -> tuple[Any, Any]:
    """Hand a message to b, close b at once, and return b's report and the verdict."""
    root, node = await world.add("a"), await world.add("b")
    async with root.cascade("c") as cascade:
        await world.hand("b", handler)
    await turns(3)
    report = await node.drain(0.05, cleanup=1)
    return report, await cascade.settled(5, require="participants")


@on_asyncio
async def test_a_timer_that_is_not_due_is_cancelled() -> None:
    """Its callback was never called."""
    called: list[int] = []

    async def handler(_: Hop) -> None:
        asyncio.get_running_loop().call_later(1000, called.append, 1)

    async with World() as world:
        report, found = await _cut(world, handler)
        assert not called
        assert [one.kind for one in report.cancelled] == ["timer"]
        assert found.receipt.cancelled == 1
        assert not found.ok


async def test_a_part_that_no_task_has_begun_is_cancelled() -> None:
    """The task that takes it afterwards is told so."""
    parts: list[Part] = []

    async def handler(hop: Hop) -> None:
        parts.append(hop.working("invoice"))

    async with World() as world:
        report, found = await _cut(world, handler)
        assert [one.name for one in report.cancelled] == ["invoice, which no task has entered yet"]
        assert found.receipt.cancelled == 1
        with pytest.raises((CascadeCancelled, UsageError)):
            parts[0].enter()


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_part_that_is_cut_is_cancelled_also_if_it_swallows_that(*, swallows: bool) -> None:
    """The work was interrupted: what it returns afterwards is not what it was to do."""
    parts: list[Part] = []

    async def work() -> None:
        with suppress(CascadeCancelled):
            async with parts[0]:
                try:
                    await anyio.sleep_forever()
                except CANCELLED:
                    if not swallows:
                        raise

    async def handler(hop: Hop) -> None:
        parts.append(hop.working("invoice"))

    async with World() as world, Scope("workers") as workers:
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        workers.spawn(work)
        await turns(5)
        report = await node.drain(0.05, cleanup=1)
        found = await cascade.settled(5, require="participants")
        assert [one.name for one in report.cancelled] == ["invoice"]
        assert found.receipt.cancelled == 1


@on_asyncio
async def test_a_failure_after_the_answer_is_in_the_report_of_a_drain() -> None:
    """A background task of a framework runs in the handler's task, when its response is sent."""
    gate = anyio.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})
        await gate.wait()
        message = "the mail server is down"
        raise ValueError(message)

    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(node.asgi(app), "POST", "/", headers=[header])
                job = world.servers.spawn(made.run)
                await until(lambda: made.sent)
                handing.answered(made.told)
        drain = asyncio.create_task(node.drain(5, cleanup=1))
        await turns(5)
        gate.set()
        report = await drain
        with pytest.raises(ValueError, match="mail server"):
            await job
        assert [str(one.error) for one in report.failed] == ["the mail server is down"]
        notes = (await cascade.settled(5, require="participants")).receipt.notes
        assert [one.status for one in notes if one.name == "b"] == ["failed"]


@on_asyncio
async def test_a_worker_that_is_cancelled_after_its_hop_was_given_up_fails_nothing() -> None:
    """The app's lifespan ends it, after the drain has called its item stuck."""
    jobs: asyncio.Queue[int] = asyncio.Queue()
    begun = asyncio.Event()

    async def worker() -> None:
        await jobs.get()
        begun.set()
        await asyncio.Event().wait()

    async def handler(_: Hop) -> None:
        jobs.put_nowait(1)

    async with World() as world:
        working = asyncio.create_task(worker())
        await turns(2)
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c"):
            await world.hand("b", handler)
        await begun.wait()
        report = await node.drain(0.05, cleanup=0.05)
        assert [one.kind for one in report.stuck] == ["item"]
        working.cancel()
        await asyncio.wait([working])
        await turns(3)
        assert [one.kind for one in report.stuck] == ["item"]


@on_asyncio
@pytest.mark.parametrize("where", ["task", "thread", "queue"])
async def test_an_item_that_is_stuck_shows_where_its_worker_is(where: str) -> None:
    """As other stuck work does; one that no worker has taken is nowhere."""
    jobs: asyncio.Queue[int] = asyncio.Queue()
    calls: queue.Queue[int] = queue.Queue()
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def worker() -> None:
        await jobs.get()
        begun.set()
        await asyncio.Event().wait()

    def thread_worker() -> None:
        calls.get()
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    async def handler(_: Hop) -> None:
        (calls if where == "thread" else jobs).put_nowait(1)
        if where == "queue":
            begun.set()

    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        thread = threading.Thread(target=thread_worker)
        working = None
        if where == "thread":
            thread.start()
        elif where == "task":
            working = asyncio.create_task(worker())
        await turns(2)
        async with root.cascade("c"):
            await world.hand("b", handler)
        await begun.wait()
        report = await node.drain(0.05, cleanup=0.05)
        gate.set()
        (left,) = report.stuck or report.undelivered
        assert left.kind == "item"
        names = {"task": ".worker", "thread": ".thread_worker"}
        if where == "queue":
            assert left.stack == ()
        else:
            assert any(line.endswith(names[where]) for line in left.stack)
        if working is not None:
            working.cancel()
            await asyncio.wait([working])
        elif where == "thread":
            await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("swallows", [False, True])
async def test_the_answer_of_a_handler_that_is_cut_does_not_say_done(*, swallows: bool) -> None:
    """Also if the handler catches its cancellation, and answers as if nothing had happened."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await anyio.sleep_forever()
        except CANCELLED:
            if not swallows:
                raise
        with anyio.CancelScope(shield=True):
            await answers(scope, receive, send)

    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(node.asgi(app), "POST", "/", headers=[header])
                world.servers.spawn(made.run)
                await until(lambda: node.opened.running_hops)
        report = await node.drain(0.05, cleanup=1)
        await until(lambda: made.sent)
        handing.answered(made.told)
        assert [one.kind for one in report.cancelled] == ["handler"]
        notes = (await cascade.settled(5, require="participants")).receipt.notes
        assert [one.status for one in notes if one.name == "b"] == ["cancelled"]
