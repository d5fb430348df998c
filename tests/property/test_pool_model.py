"""Random programs of leases, releases, crashes, failures, cancellations and drains of a pool.

A plain model knows who holds what, and what was done to whom. At each step: a key has one runner
at most, and there are no more than the maximum; a lease gets a live runner of its key; a leased
runner is stopped only if it was released, or the pool is being closed; the pool's own count of
leases is the model's. At the end nothing is alive, and every lease has been answered. A failure
prints the seed, which replays the program.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import Job, Scope, ScopeClosed
from quiesce.errors import RunnerReleased, StartFailed
from quiesce.pool.backoff import Backoff
from quiesce.pool.pool import RunnerPool
from tests import sampling
from tests.unit.pool.pool_runners import FakeRunner, World

PROGRAMS = 200  # a part
SAMPLED_PROGRAMS = 50
PARTS = 5
GRACE = 0.001


class ModelRunner(FakeRunner):
    """A runner that knows whether it may be stopped."""

    model: Program

    async def stop(self, grace: float) -> None:
        """Check that no user has leased the runner for good reason, and stop it."""
        self.model.check_stop(self)
        await super().stop(grace)


class Program(World):
    """One random program, and the model of what it does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)  # noqa: S311 - a test wants to be replayed
        self.keys = "abcdef"[: self.random.randint(1, 6)]
        self.limit = self.random.choice((None, None, 1, 2, 3))
        self.held: Counter[FakeRunner] = Counter()
        self.excused: set[FakeRunner] = set()
        self.closing = False
        self.outcomes: Counter[str] = Counter()
        self.asked = 0
        self.jobs: list[Job[Any]] = []
        self.runner_pool: RunnerPool[str, FakeRunner]

    # The world.

    async def start(self, key: str) -> FakeRunner:
        """Start as the world does, quickly or slowly; it fails now and then."""
        self.start_turns = self.random.choice((0, 1, 2, 6))
        self.stop_turns = self.random.choice((0, 1, 4))
        failure = self.random.random() < 0.1
        found = await super().start(key)
        if failure:
            found.exit(1)
            self.runners.remove(found)
            raise OSError(key)
        runner = found
        runner.__class__ = ModelRunner
        assert isinstance(runner, ModelRunner)
        runner.model = self
        runner.stubborn = self.random.random() < 0.2
        return runner

    def check_stop(self, runner: FakeRunner) -> None:
        """See that nobody is robbed of a runner."""
        robbed = self.held[runner] and runner.returncode is None
        assert not robbed or self.closing or runner in self.excused, f"{runner.key} was leased"

    def check(self) -> None:
        """Compare the pool with the model."""
        assert self.limit is None or self.total() <= self.limit
        stats = self.runner_pool.stats
        alive = sum(count for runner, count in self.held.items() if runner not in self.excused)
        assert self.closing or stats.leases >= alive
        assert stats.leases + stats.waiting <= self.asked - self.outcomes.total()
        assert len(self.runners) == stats.started or self.cancelled or self.swallow

    # The actors.

    async def pause(self) -> None:
        """Let others run for a random number of turns."""
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 5))):
            await anyio.lowlevel.checkpoint()

    async def lease(self, key: str) -> None:
        """Lease, use for a while, give back; whatever comes of it is noted."""
        self.asked += 1
        outcome = "cancelled"
        try:
            async with self.runner_pool.lease(key) as runner:
                assert runner.key == key
                assert runner.returncode is None, "a dead runner was handed out"
                self.held[runner] += 1
                try:
                    await self.pause()
                    dead = runner.returncode is not None
                    assert not dead or self.closing or runner in self.excused
                    outcome = "served"
                finally:
                    self.held[runner] -= 1
        except (StartFailed, RunnerReleased, ScopeClosed) as error:
            outcome = type(error).__name__
        finally:
            self.outcomes[outcome] += 1

    async def release(self, key: str) -> None:
        """Release; those who hold it are excused."""
        there = [runner for runner in self.runners if runner.key == key]
        self.excused.update(there)
        before = {runner for runner in there if runner.returncode is None}
        try:
            await self.runner_pool.release(key)
        finally:
            assert all(runner.returncode is not None for runner in before)

    def crash(self) -> None:
        """Let some runner end by itself."""
        alive = [runner for runner in self.runners if runner.returncode is None]
        if alive:
            runner = self.random.choice(alive)
            self.excused.add(runner)
            runner.exit(9)

    def act(self, scope: Scope) -> None:
        """Do one random thing."""
        what = self.random.choices(("lease", "release", "crash", "cancel"), weights=(10, 2, 1, 4))[
            0
        ]
        key = self.random.choice(self.keys)
        if what == "lease":
            self.jobs.append(scope.spawn(self.lease, key))
        elif what == "release":
            self.jobs.append(scope.spawn(self.release, key))
        elif what == "crash":
            self.crash()
        elif self.jobs:
            self.random.choice(self.jobs).cancel()

    async def run(self) -> None:
        """Run the program to its end, and check what is left."""
        self.swallow = self.random.random() < 0.2
        scope = await Scope.open("program")
        actors = await Scope.open("actors")
        self.runner_pool = pool = RunnerPool(
            self.start,
            runners_max=self.limit,
            idle_seconds=self.random.choice((0, 0, GRACE, None)),
            grace=GRACE,
            restart=self.random.choice((None, Backoff(GRACE, longest_seconds=2 * GRACE))),
            scope=scope,
        )
        for _ in range(self.random.choice((5, 15, 30))):
            self.act(actors)
            await self.pause()
            self.check()
        if self.random.random() < 0.5:
            self.jobs += [actors.spawn(self.lease, key) for key in self.keys]
        way = self.random.choice(("quiet", "drain", "aclose", "drain and lease"))
        if way == "quiet":  # nobody interferes any more: everyone is served, or told why not
            report = await actors.drain(grace=None)
            assert not report.failed, report
            assert pool.stats.leases == pool.stats.waiting == pool.stats.queued == 0
        self.closing = True
        if way == "drain and lease":
            closing = scope.drain(grace=GRACE) if self.random.random() < 0.5 else pool.drain(GRACE)
            self.jobs.append(actors.spawn(self.lease, self.keys[0]))
            reports = [await closing, await scope.aclose()]
        else:
            reports = [await (scope.aclose() if way == "aclose" else scope.drain(grace=GRACE))]
        for report in reports:
            assert not report.stuck, report
            unexpected = [end for end in report.failed if not isinstance(end.error, OSError)]
            assert not unexpected, unexpected  # a start that fails while it is cancelled is there
        self.add_up(await actors.aclose())

    def add_up(self, report: Any) -> None:
        """See that nothing is left, and that everyone was answered."""
        assert not report.failed, report
        assert not report.stuck, report
        assert self.total() == 0
        assert self.outcomes.total() == self.asked
        stats = self.runner_pool.stats
        assert stats.ready == stats.idle == stats.starting == stats.queued == stats.stopping == 0
        assert stats.leases == stats.waiting == 0
        assert stats.crashed <= len(self.excused)


@pytest.mark.parametrize("part", range(PARTS))
async def test_no_race_hands_out_a_dead_runner_or_loses_a_live_one(part: int) -> None:
    """Whatever meets whatever, the pool and the model agree."""
    seeds = range(part * PROGRAMS, (part + 1) * PROGRAMS)
    for seed in sampling.at_most(SAMPLED_PROGRAMS, seeds, part):
        program = Program(seed)
        try:
            await program.run()
        except BaseException as error:
            error.add_note(f"replay with Program({seed})")
            raise
