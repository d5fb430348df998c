"""A mesh in which each agent is several processes behind one address, and what is done to single ones of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import httpx

from tests.integration.mesh.plans import STARTERS
from tests.integration.mesh.rig import OLD_SUBJECT, PATIENCE, SUBJECT, Process, Rig
from tests.integration.replicas.balancer import Balancer, Door

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.mesh.plans import Fault, Mix, Wave

_LEASE_SECONDS = 0.9


class Group:
    """The replicas of one agent."""

    def __init__(self, rig: ReplicaRig, name: str, count: int) -> None:
        """Describe them."""
        subject = OLD_SUBJECT if name == "script" else SUBJECT
        self.rig = rig
        self.name = name
        self.kind = "http"
        self.proxy = Balancer(rig.network, name)
        self.replicas: list[Process] = []
        for place in range(count):
            one = Process(rig, name, "http", Door(self.proxy), subject)  # type: ignore[arg-type]  # it has what is used
            one.label = f"{name}-{place}"
            self.replicas.append(one)

    @property
    def is_single(self) -> bool:
        """Whether there is one replica, which finds its cascades by its name."""
        return len(self.replicas) == 1

    @property
    def busy(self) -> asyncio.Lock:
        """The lock of the first replica, which begins cascades."""
        return self.replicas[0].busy

    def tell(self, cascade: str) -> None:
        """Say in all replicas that a cascade has its verdict."""
        for one in self.replicas:
            one.tell(cascade)

    async def start(self, one: Process, *, is_named: bool) -> None:
        """Start a replica; with the name that its earlier process has had, or none."""
        one.more = {
            "store": self.rig.store,
            "lease": _LEASE_SECONDS,
            "is_one_of_many": True,
            "replica": one.label if is_named else None,
        }
        await one.start()


class ReplicaRig(Rig):
    """A mesh of replicas."""

    agents: dict[str, Group]  # type: ignore[assignment]  # each has what a process has for the rig

    def __init__(self, folder: Path, mix: Mix, store: str, count: int, mutant: str) -> None:
        """Describe it; `count` replicas for each agent."""
        super().__init__(folder, mix, PATIENCE | {"give_up": 60.0}, mutant=mutant)
        self.is_sqlite = store == "sqlite"
        self.store = f"sqlite://{folder / 'mesh.db'}" if self.is_sqlite else store
        self.count = count
        self.beginners = 1  # replicas of `home`, which begin cascades
        self.lock_seconds = 0.0  # how long a stranger has the write lock of the store in each wave

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        """Start all, and end all: by SIGTERM, which they have to heed."""
        for name in STARTERS:
            self.agents[name] = Group(self, name, self.beginners if name == "home" else 1)
        for name in self.mix.agents:
            self.agents[name] = Group(self, name, self.count)
        self.client = httpx.AsyncClient(timeout=30.0)
        try:
            async with asyncio.TaskGroup() as group:
                for agent in self.agents.values():
                    for one in agent.replicas:
                        named = agent.is_single or one is not agent.replicas[0]
                        group.create_task(agent.start(one, is_named=named))
            yield self
            await self._end(signal.SIGTERM)
            if self.is_sqlite:
                self._look_at_what_is_left()
        finally:
            await self._end(signal.SIGKILL)
            await self.network.aclose()
            await self.client.aclose()
            self.log.close()

    async def _end(self, how: signal.Signals) -> None:
        every = [one for agent in self.agents.values() for one in agent.replicas]
        await asyncio.gather(*(one.stop(how) for one in every))

    def _look_at_what_is_left(self) -> None:
        """Note rows that are open after all cascades have their verdicts, and all replicas have left."""
        with contextlib.closing(sqlite3.connect(self.folder / "mesh.db")) as file:
            query = "SELECT agent, side, state, count(*) FROM quiesce_rows WHERE state <> 'over' GROUP BY 1, 2, 3"
            for agent, side, state, count in file.execute(query):
                if state == "open":
                    self.note("rows are left open", agent=agent, side=side, count=count)

    # Faults.

    async def _commit(self, fault: Fault, wave: Wave, told: asyncio.Event) -> None:
        if not fault.agent:
            await super()._commit(fault, wave, told)
            return
        await asyncio.sleep(fault.at)
        begin = time.monotonic()
        rng = random.Random(f"{self.mix.seed}/{wave.number}/{fault.at}")  # noqa: S311 - not for secrets
        agent = self.agents[fault.agent]
        one = rng.choice(agent.replicas)
        named = agent.is_single or rng.random() < 0.5
        async with one.busy:
            begin = time.monotonic()
            if fault.kind == "stop":
                await self._stop_for_a_while(one, fault, told)
            elif fault.kind == "full":
                await one.obeys("full", bytes=fault.amount)
                await self._last(fault, told)
                await one.obeys("room")
            else:
                await one.stop(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
                await self._last(fault, told)
                await agent.start(one, is_named=named)
        what = f"{one.label}, {'its name' if named else 'no name'}"
        facts = asdict(fault) | {"from": begin, "to": time.monotonic(), "wave": wave.number}
        self.log.write("fault", **facts | {"detail": what})

    async def run(self, wave: Wave) -> None:
        """Run a wave, with a stranger who has locked the store for a while."""
        async with asyncio.TaskGroup() as group:
            if self.lock_seconds:
                group.create_task(self._lock())
            await super().run(wave)

    async def _lock(self) -> None:
        await asyncio.sleep(0.3)
        begin = time.monotonic()
        with contextlib.closing(sqlite3.connect(self.folder / "mesh.db", timeout=30)) as file:
            file.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(self.lock_seconds)
        facts = {"kind": "refuse", "pair": None, "hop": "", "from": begin, "to": time.monotonic()}
        for agent in self.agents:
            self.log.write("fault", **facts | {"agent": agent})

    def recovered(self, starter: str, ids: list[str]) -> None:
        """Stop waiting for cascades that a beginner has not begun, unless another replica of it may have them."""
        if self.agents[starter].is_single:
            super().recovered(starter, ids)
