"""Work that a handler starts in a scope outside of its hop is the hop's work all the same."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, detached
from quiesce.errors import JobCancelled
from quiesce.mesh import Settled, current_hop
from tests.stress import CANCELLED, turns
from tests.unit.mesh.meshing import HandlerError, World, is_held_by, nothing

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


async def test_a_job_in_the_scope_of_the_app_holds_the_hop() -> None:
    """`app_scope.spawn(work)` in a handler: the hop waits for it, and it works for the hop."""
    seen: list[Hop | None] = []

    async def work(gate: anyio.Event) -> None:
        seen.append(current_hop())
        await gate.wait()

    async with Scope("app") as app:

        def start(hop: Hop, gate: anyio.Event) -> None:
            seen.append(hop)
            app.spawn(work, gate)

        await is_held_by(start)
        assert seen[0] is seen[1]
        assert not app.frontier()


async def test_a_hold_in_the_scope_of_the_app_holds_the_hop() -> None:
    """`app_scope.hold(...)` in a handler is released by anything, anywhere."""
    async with Scope("app") as app:

        def start(_: Hop, gate: anyio.Event) -> None:
            hold = app.hold("item", "7")
            with detached():
                app.spawn(release, hold, gate)

        async def release(hold: Any, gate: anyio.Event) -> None:
            await gate.wait()
            hold.release()

        await is_held_by(start)


@pytest.mark.real_time
async def test_a_thread_of_the_scope_of_the_app_holds_the_hop() -> None:
    """Also when the task that waits for the thread was cancelled."""
    ready, go = threading.Event(), threading.Event()

    def blocked() -> None:
        ready.set()
        go.wait(30)

    async with Scope("app") as app:

        async def left() -> None:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(app.to_thread, blocked)
                    while not ready.is_set():
                        await turns(1)
                    scope.cancel()

        async def opens(gate: anyio.Event) -> None:
            await gate.wait()
            go.set()

        def start(hop: Hop, gate: anyio.Event) -> None:
            hop.spawn(left)
            with detached():
                app.spawn(opens, gate)

        await is_held_by(start)


@on_asyncio
@pytest.mark.parametrize("adopt", [False, True])
async def test_tasks_of_such_a_job_hold_the_hop(*, adopt: bool) -> None:
    """Also if the scope of the app adopts none."""
    async with Scope("app", adopt=adopt) as app:

        async def first(gate: anyio.Event) -> None:
            asyncio.get_running_loop().create_task(gate.wait())

        await is_held_by(lambda _, gate: app.spawn(first, gate))


async def test_what_it_sends_is_sent_for_the_hop(tmp_path: Path) -> None:
    """An edge of the hop, in whichever scope the sender runs."""
    async with World(tmp_path) as world, Scope("app") as app:
        root = await world.add("a")
        await world.add("b")
        await world.add("c")

        async def sends() -> None:
            await turns(5)
            await world.hand("c", nothing)

        async def handler(_: Hop) -> None:
            app.spawn(sends)

        async with root.cascade("trip") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.hops == 3


async def test_its_failure_is_the_hops_and_is_in_the_report_of_the_app(tmp_path: Path) -> None:
    """Both are told."""

    async def breaks() -> None:
        raise HandlerError

    async with World(tmp_path) as world:
        app = await Scope.open("app")
        root, _ = await world.add("a"), await world.add("b")

        async def handler(_: Hop) -> None:
            app.spawn(breaks)

        async with root.cascade("trip") as cascade:
            await world.hand("b", handler)
        assert (await cascade.settled(5)).receipt.failed == 1
        report = await app.aclose()
        assert [type(ended.error) for ended in report.failed] == [HandlerError]


async def test_a_job_in_the_scope_of_the_app_is_cancelled_with_its_cascade(tmp_path: Path) -> None:
    """As all other work of the hop."""
    ended: list[str] = []

    async def works() -> None:
        try:
            await anyio.sleep_forever()
        except CANCELLED:
            ended.append("cancelled")
            raise

    async with World(tmp_path) as world, Scope("app") as app:
        root, _ = await world.add("a"), await world.add("b")

        async def handler(_: Hop) -> None:
            app.spawn(works)

        async with root.cascade("trip") as cascade:
            await world.hand("b", handler)
        await turns(5)
        await cascade.cancel()
        assert (await cascade.settled(5)).receipt.cancelled
        assert ended == ["cancelled"]


async def test_a_job_in_the_scope_of_the_app_is_found_by_its_key(tmp_path: Path) -> None:
    """And the key is free again when it has ended."""
    async with World(tmp_path) as world, Scope("app") as app:
        root, _ = await world.add("a"), await world.add("b")
        jobs: list[Any] = []

        async def handler(_: Hop) -> None:
            jobs.append(app.spawn(anyio.sleep_forever, key="job"))

        async with root.cascade("trip") as cascade:
            await world.hand("b", handler)
        await turns(5)
        assert app.cancel("job")
        with pytest.raises(JobCancelled):
            await jobs[0]
        assert isinstance(await cascade.settled(5), Settled)
        assert not app.cancel("job")


async def test_a_service_of_the_app_is_not_the_hops(tmp_path: Path) -> None:
    """A loop that a handler starts first outlives the hop by declaration."""
    async with World(tmp_path) as world, Scope("app") as app:
        root, _ = await world.add("a"), await world.add("b")

        async def handler(_: Hop) -> None:
            app.spawn(anyio.sleep_forever, service=True)

        async with root.cascade("trip") as cascade:
            await world.hand("b", handler)
        assert isinstance(await cascade.settled(5), Settled)
