"""What a verdict takes to be so: that a worker without `task_done()` had done an item when it asked for more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.stress import turns
from tests.unit.mesh.meshing import World, here, until
from tests.unit.mesh.routes.queueing import Case, is_open, run
from tests.unit.mesh.serving import Exchange, answers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quiesce.mesh import Settlement

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def one_after_the_other(jobs: asyncio.Queue[Any], seen: list[Any]) -> None:
    """The plainest worker."""
    while True:
        job = await jobs.get()
        await turns(2)
        seen.append(job)


async def unpacks(jobs: asyncio.Queue[Any], seen: list[Any]) -> None:
    """It keeps a part of an item, and works on it only when it has the next one."""
    while True:
        _, first = await jobs.get()
        _, second = await jobs.get()
        seen += [first, second]


async def adds_up(jobs: asyncio.Queue[Any], seen: list[Any]) -> None:
    """It keeps a number that it has made of the items."""
    total = 0
    while True:
        number, _ = await jobs.get()
        total += number
        if total >= 2:
            await turns(2)
            seen += [total, total]
            total = 0


class Keeper:
    """A worker with an attribute for what it has left."""

    left: Any = None

    async def run(self, jobs: asyncio.Queue[Any], seen: list[Any]) -> None:
        """Keep an item, and work on it only when there is the next one."""
        while True:
            job = await jobs.get()
            if self.left is not None:
                await turns(2)
                seen += [self.left, job]
                self.left = None
            else:
                self.left = [job]


async def says_so(jobs: asyncio.Queue[Any], seen: list[Any]) -> None:
    """It calls `task_done()` after the work."""
    while True:
        seen.append(await jobs.get())
        await turns(2)
        jobs.task_done()


async def _verdict(folder: Path, worker: Callable[..., Any]) -> Settlement:
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    seen: list[Any] = []
    found: list[Settlement] = []

    async def scenario(case: Case) -> None:
        case.app.spawn(worker, jobs, seen, service=True)
        await turns(2)
        cascade = await case.cascade(*(lambda: jobs.put_nowait((1, object())) for _ in range(2)))
        await until(lambda: len(seen) >= 2)
        found.append(await cascade.settled(5))

    await run(folder, scenario)
    return found[0]


@pytest.mark.parametrize(
    "worker",
    [one_after_the_other, unpacks, adds_up, Keeper().run],
    ids=lambda one: one.__qualname__,
)
async def test_the_verdict_says_that_it_takes_an_item_to_be_done(
    tmp_path: Path, worker: Callable[..., Any]
) -> None:
    """It is green, and names the agent, the queue, and where the worker asked for more."""
    verdict = await _verdict(tmp_path, worker)
    assert verdict.ok, str(verdict)
    assert verdict.assumptions
    for told in verdict.assumptions:
        assert told.startswith(
            "b assumes that a worker was done with an item from asyncio.Queue when it asked for more"
        )
        assert f"{worker.__code__.co_filename}:" in told
        assert told.removeprefix("b ") in str(verdict)


async def test_what_the_worker_says_is_not_an_assumption(tmp_path: Path) -> None:
    """`task_done()` is enough."""
    verdict = await _verdict(tmp_path, says_so)
    assert verdict.ok, str(verdict)
    assert verdict.assumptions == ()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_an_event_does_not_say_when_its_work_is_over(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    """A worker that waits for it again, or for a new one at the same place, is taken to have done all of it."""
    jobs: list[int] = []
    seen: list[int] = []
    wake = [asyncio.Event()]

    async def worker() -> None:
        while True:
            await wake[0].wait()
            if is_replaced:
                wake[0] = asyncio.Event()
            else:
                wake[0].clear()
            await turns(2)
            seen.extend(jobs)

    def put() -> None:
        jobs.append(1)
        wake[0].set()

    async def scenario(case: Case) -> None:
        case.app.spawn(worker, service=True)
        await turns(2)
        cascade = await case.cascade(put)
        await until(lambda: seen)
        verdict = await cascade.settled(5)
        assert verdict.ok, str(verdict)
        (told,) = verdict.assumptions
        assert "Event" in told

    await run(tmp_path, scenario)


async def test_a_hop_that_fails_says_why_it_failed(tmp_path: Path) -> None:
    """Its reason is not what it has assumed before."""
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    seen: list[Any] = []
    gate = anyio.Event()

    async def put() -> None:
        jobs.put_nowait(1)
        await gate.wait()
        message = "on purpose"
        raise ValueError(message)

    async def scenario(case: Case) -> None:
        case.app.spawn(one_after_the_other, jobs, seen, service=True)
        asyncio.get_running_loop().call_soon(lambda: None)
        opening = asyncio.create_task(_open_when(seen, gate))
        cascade = await case.cascade(put)
        await opening
        verdict = await cascade.settled(5)
        assert verdict.receipt.failed == 1
        assert verdict.assumptions == ()
        assert "ValueError" in str(verdict)

    with pytest.raises(ValueError, match="on purpose"):
        await run(tmp_path, scenario)


async def _open_when(seen: list[Any], gate: anyio.Event) -> None:
    await until(lambda: seen)
    await turns(5)
    gate.set()


async def test_a_receipt_that_rides_on_the_answer_names_what_is_assumed(tmp_path: Path) -> None:
    """The short way of a hop that is done has no room for it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here().assume("assumes that all is well")
        await answers(scope, receive, send)

    async with World(tmp_path) as world:
        root, other = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(other.asgi(app), "POST", "/", headers=[header])
                await world.servers.spawn(made.run)
                handing.answered(made.told)
        found = await cascade.settled(5, require="participants")
        assert found.ok
        assert found.assumptions == ("b assumes that all is well",)


async def test_a_task_that_returns_something_made_of_an_item_is_taken_to_be_done(
    tmp_path: Path,
) -> None:
    """The task that awaits it may go on with that: the verdict says so."""
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    seen: list[Any] = []

    async def next_job() -> list[int]:
        return [*(await jobs.get())]

    async def worker() -> None:
        (done,), _ = await asyncio.wait([asyncio.create_task(next_job())])
        seen.append(done.result())
        await asyncio.Event().wait()

    async def scenario(case: Case) -> None:
        case.app.spawn(worker, service=True)
        await turns(2)
        cascade = await case.cascade(lambda: jobs.put_nowait((1, 2)))
        await until(lambda: seen)
        verdict = await cascade.settled(5)
        assert verdict.ok, str(verdict)
        (told,) = verdict.assumptions
        assert "when it ended" in told

    await run(tmp_path, scenario)


async def test_a_setter_that_was_kept_before_the_worker_waited_is_followed(tmp_path: Path) -> None:
    """`self.kick = self.event.set`, in the constructor of a service."""
    wake, gate = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def worker() -> None:
        while True:
            await wake.wait()
            wake.clear()
            await gate.wait()
            seen.append(1)

    async def scenario(case: Case) -> None:
        kick = wake.set
        case.app.spawn(worker, service=True)
        await turns(2)
        cascade = await case.cascade(kick)
        assert await is_open(cascade)
        gate.set()
        assert (await cascade.settled(5)).ok
        assert seen

    await run(tmp_path, scenario)


async def test_a_job_that_was_once_taken_outside_of_hops_is_followed_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    """The same number was in the queue before: putting it back is not a pool's connection that comes home."""
    jobs: asyncio.Queue[int] = asyncio.Queue()
    gate = asyncio.Event()
    tries: list[int] = []

    async def worker() -> None:
        while True:
            job = await jobs.get()
            tries.append(job)
            if len(tries) == 2:
                jobs.put_nowait(job)  # it has failed
            elif len(tries) == 3:
                await gate.wait()
            jobs.task_done()

    async def scenario(case: Case) -> None:
        case.app.spawn(worker, service=True)
        jobs.put_nowait(7)
        await until(lambda: tries)
        cascade = await case.cascade(lambda: jobs.put_nowait(7))
        await until(lambda: len(tries) == 3)
        assert await is_open(cascade)
        gate.set()
        assert (await cascade.settled(5)).ok

    await run(tmp_path, scenario)


async def test_the_line_of_a_worker_that_waits_for_another_task_is_named(tmp_path: Path) -> None:
    """`asyncio.wait` of a task that gets the next item."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[int] = asyncio.Queue()

        async def worker() -> None:
            while True:
                await asyncio.wait({asyncio.ensure_future(jobs.get())})
                await turns(2)

        case.app.spawn(worker, service=True)
        await turns(5)
        verdict = await (await case.cascade(lambda: jobs.put_nowait(7))).settled(5)
        assert verdict.ok, str(verdict)
        (told,) = verdict.assumptions
        assert "when it asked for more at " in told
        assert "test_assuming.py" in told
        assert "in test_the_line_of_a_worker" in told
        jobs.put_nowait(8)  # or the task that gets it stays

    await run(tmp_path, scenario)
