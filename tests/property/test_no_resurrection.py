"""No resurrection: whatever races with a close either ran inside it, or was refused.

More than ten thousand random interleavings of spawns with closes, by tasks and by threads, many
in one run of a loop. A failure prints its seed and round; `QUIESCE_SEED=… pytest …` runs the
same rounds again (what threads do in between is up to the machine).
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce import Scope, ScopeClosed
from tests import sampling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from quiesce import Job, Report

TASK_ROUNDS = sampling.fewer(3_000, 1_000)  # on each of the three backends
THREAD_ROUNDS = sampling.fewer(800, 300)


@pytest.fixture
def seed() -> int:
    """Choose a seed: the given one, or one that pytest-randomly can choose again."""
    given = os.environ.get("QUIESCE_SEED")
    return random.randrange(2**32) if given is None else int(given)  # noqa: S311 - no secret


@dataclass
class Round:
    """One scope, those who spawn in it, and those who close it."""

    rng: random.Random
    scope: Scope
    accepted: list[Job[Any]] = field(default_factory=list)
    refused: int = 0
    draining: bool = False
    closing: bool = False
    closed: bool = False
    reports: list[Report] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def pause(self) -> None:
        """Let the others run for a random number of turns, mostly none."""
        for _ in range(self.rng.choice((0, 0, 1, 1, 2, 3))):
            await anyio.lowlevel.checkpoint()

    def spawn(self, depth: int = 0, *, by_work: bool = False) -> None:
        """Try to start a job, and see whether it was refused when, and only when, it must be."""
        refuse = self.closing or self.scope.state in {"closing", "closed"}
        refuse = refuse or (self.draining and not by_work)  # work may finish its own work
        before = self.refused
        self.try_to_spawn(depth)
        if refuse != (self.refused > before):
            what = "accepted" if refuse else "refused"
            self.faults.append(f"a spawn was {what} while the scope was {self.scope.state}")

    def try_to_spawn(self, depth: int) -> None:
        """Start a job, here or in a child scope, or be refused."""
        try:
            scope = self.scope
            if self.rng.random() < 0.2:
                scope = scope.child("child")
            service = self.rng.random() < 0.1
            self.accepted.append(scope.spawn(self.work, depth, service, service=service))
        except ScopeClosed:
            self.refused += 1

    async def work(self, depth: int, service: bool = False) -> None:  # noqa: FBT001, FBT002 - spawn passes no keywords
        """Run as a job: short, long, with work of its own, or with a cleanup that wants to spawn."""
        self.see_open("a job began")
        kind = self.rng.choice(("short", "short", "long", "parent", "late"))
        try:
            await self.pause()
            if kind == "parent" and depth < 3:
                self.spawn(depth + 1, by_work=not service)
                await self.pause()
            elif kind in {"long", "late"}:
                await anyio.sleep_forever()
        finally:
            if kind == "late":
                self.spawn(depth + 1, by_work=not service)
            self.see_open("a job ended")

    def see_open(self, what: str) -> None:
        """Note a step of a job that comes after the close."""
        if self.closed or self.scope.state == "closed":
            self.faults.append(f"{what} after the close")

    async def spawner(self) -> None:
        """Spawn a few times, at random moments."""
        for _ in range(self.rng.randrange(1, 5)):
            await self.pause()
            self.spawn()

    async def closer(self) -> None:
        """Close at a random moment, in one of the ways."""
        await self.pause()
        await self.pause()
        if self.rng.random() < 0.5:
            self.closing = True
            report = await self.scope.aclose()
        else:
            within = self.rng.choice((0.0, 0.001))
            self.draining = True
            self.closing = self.closing or within == 0
            report = await self.scope.drain(grace=within)
        self.closed = True
        self.reports.append(report)

    def check(self) -> list[str]:
        """Say what went wrong, when everybody is done."""
        alive = [job.name for job in self.accepted if not job.done()]
        if alive:
            self.faults.append(f"still running: {alive}")
        if len({id(report) for report in self.reports}) != 1:
            self.faults.append("several closers have different reports")
        report = self.reports[0]
        told = report.completed + report.withdrawn + report.services
        told += len(report.cancelled) + len(report.failed) + len(report.stuck)
        if told != len(self.accepted):
            self.faults.append(
                f"{len(self.accepted)} accepted, and the report has {told}: {report}"
            )
        if self.scope.frontier():
            self.faults.append(f"in flight: {self.scope.frontier()}")
        return self.faults


def rounds(seed: int, count: int) -> Iterator[tuple[str, random.Random]]:
    """Return each round a name and a generator of its own, so that it can be run alone."""
    for number in range(count):
        yield f"seed {seed}, round {number}", random.Random(seed * 1_000_003 + number)  # noqa: S311 - no secret


async def test_spawns_of_tasks_race_with_closes(seed: int) -> None:
    """Every spawn ran inside the barrier or was refused, and nothing runs after the close."""
    refused = accepted = 0
    for name, rng in rounds(seed, TASK_ROUNDS):
        scope = await Scope.open("scope")
        race = Round(rng, scope)
        people = [race.spawner] * rng.randrange(1, 4) + [race.closer] * rng.randrange(1, 3)
        rng.shuffle(people)
        async with anyio.create_task_group() as group:
            for person in people:
                group.start_soon(person)
        assert not race.check(), name
        refused += race.refused
        accepted += len(race.accepted)
    assert refused > TASK_ROUNDS / 4, "hardly a race: too few spawns came late"
    assert accepted > TASK_ROUNDS / 4, "hardly a race: too few spawns came in time"


@dataclass
class Stranger:
    """A thread that tries to spawn in each round's scope."""

    scopes: SimpleQueue[tuple[Round, int] | None] = field(default_factory=SimpleQueue)
    answers: SimpleQueue[list[Future[Job[None]]]] = field(default_factory=SimpleQueue)

    def run(self) -> None:
        """Serve until told to stop."""
        while (item := self.scopes.get()) is not None:
            race, count = item
            scope = race.scope
            attempts = range(count)
            self.answers.put([scope.from_thread(self.spawn, race) for _ in attempts])

    @staticmethod
    def spawn(race: Round) -> Job[None]:
        """Spawn, in the loop's thread."""
        return race.scope.spawn(race.work, 3)


@pytest.fixture
def strangers() -> Iterator[list[Stranger]]:
    """Start some threads, and end them."""
    made = [Stranger() for _ in range(3)]
    threads = [Thread(target=stranger.run) for stranger in made]
    for thread in threads:
        thread.start()
    yield made
    for stranger in made:
        stranger.scopes.put(None)
    for thread in threads:
        thread.join()


@pytest.mark.real_time
async def test_spawns_of_threads_race_with_closes(seed: int, strangers: list[Stranger]) -> None:
    """From other threads it is the same: ran inside the barrier, or was refused."""
    refused = accepted = 0
    for name, rng in rounds(seed, THREAD_ROUNDS):
        race = Round(rng, await Scope.open("scope"))
        for stranger in strangers:
            stranger.scopes.put((race, rng.randrange(1, 5)))
        race.spawn()
        for _ in range(rng.randrange(40)):  # turns: about as long as a thread takes to begin
            await anyio.lowlevel.checkpoint()
        await race.closer()
        answers = await anyio.to_thread.run_sync(gather, strangers)
        for answer in answers:
            if isinstance(answer, ScopeClosed):
                race.refused += 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                race.accepted.append(answer)
        assert not race.check(), name
        refused += race.refused
        accepted += len(race.accepted)
    assert refused > THREAD_ROUNDS / 20, "hardly a race: too few spawns came late"
    assert accepted > THREAD_ROUNDS / 20, "hardly a race: too few spawns came in time"


def gather(strangers: list[Stranger]) -> list[Job[Any] | BaseException]:
    """Wait for the threads, and for what became of their spawns."""
    futures = [future for stranger in strangers for future in stranger.answers.get(timeout=10)]
    return [future.exception(timeout=10) or future.result() for future in futures]
