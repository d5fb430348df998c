"""A mesh of real processes on loopback, and what is done to it while it works."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.integration import subjects
from tests.integration.mesh.plans import STARTERS
from tests.integration.mesh.proxy import Network, Proxy, Rule
from tests.integration.mesh.truth import Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.mesh.plans import Casc, Fault, Mix, Wave

ROOT = Path(__file__).parents[3]
SUBJECT = "a2a-sdk-1.3.0"  # which has uvicorn and httpx
OLD_SUBJECT = "a2a-sdk-0.3.26"
PATIENCE = {
    "retry_first": 0.05, "retry_most": 0.5, "ask_in_doubt": 0.2, "ask_every": 1.0, "give_up": 6.0,
}  # fmt: skip
_START_SECONDS = 300.0  # these are guards
_END_SECONDS = 30.0
_VERDICT_SECONDS = 120.0  # after the time for which nodes wait
_ORDER_SECONDS = 300.0
_numbers = itertools.count()


class Process:
    """One agent, and the processes that it is one after the other."""

    def __init__(
        self, rig: Rig, name: str, kind: str, proxy: Proxy, subject: str, **more: Any
    ) -> None:
        """Describe it; `more` is what it is told beside what all are told."""
        self.rig = rig
        self.name = name
        self.label = name
        """The beginning of the names of its files."""
        self.more = more
        self.kind = kind
        self.proxy = proxy
        self.subject = subject
        self.process: asyncio.subprocess.Process | None = None
        self.reading: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[dict[str, Any]] | None = None
        self.busy = asyncio.Lock()
        self.orders: dict[int, asyncio.Future[None]] = {}

    def config(self) -> Path:
        """Write what it is told."""
        rig = self.rig
        path = rig.folder / f"{self.label}.json"
        config = {
            "name": self.name,
            "kind": self.kind,
            "url": None if self.name == "script" else self.proxy.url,
            "folder": str(rig.folder),
            "peers": {name: other.proxy.url for name, other in rig.agents.items()},
            "kinds": {name: other.kind for name, other in rig.agents.items()},
            "patience": rig.patience,
            "mutant": rig.mutant,
            **self.more,
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        path = self.config()
        with (self.rig.folder / f"{self.label}.err").open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.integration.mesh.agent", str(path)),
                cwd=ROOT,
                env=subjects.environment(self.subject),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.ready = asyncio.get_running_loop().create_future()
        self.reading = asyncio.create_task(self._read(self.process))
        async with asyncio.timeout(_START_SECONDS):
            line = await self.ready
        self.proxy.target = line["port"]
        await self.proxy.accept()
        if self.name in STARTERS:
            self.rig.recovered(self.name, line["recovered"])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hear what it says, until it has ended."""
        assert process.stdout is not None
        async for text in process.stdout:
            try:
                line = json.loads(text)
            except ValueError as error:
                message = f"{self.name} has said {text!r}"
                raise RuntimeError(message) from error
            if line["is"] == "ready" and self.ready is not None:
                self.ready.set_result(line)
            elif line["is"] == "did":
                self.orders.pop(line["number"]).set_result(None)
            else:
                self.rig.log.copy(text)
                self.rig.heard(line)
        if self.ready is not None and not self.ready.done():
            tail = (self.rig.folder / f"{self.label}.err").read_text(encoding="utf-8")[-2000:]
            self.ready.set_exception(RuntimeError(f"{self.name} did not start:\n{tail}"))

    def order(self, do: str, **facts: Any) -> asyncio.Future[None]:
        """Send an order to the process; return a future that is done when the order was carried out."""
        done = asyncio.get_running_loop().create_future()
        if self.process is not None:
            assert self.process.stdin is not None
            number = next(_numbers)
            self.orders[number] = done
            line = json.dumps({"do": do, "number": number, **facts}) + "\n"
            self.process.stdin.write(line.encode())
        return done

    def tell(self, cascade: str) -> None:
        """Say that a cascade has its verdict; nothing is answered."""
        if self.process is not None and self.process.stdin is not None:
            line = json.dumps({"do": "told", "cascade": cascade}) + "\n"
            self.process.stdin.write(line.encode())

    async def obeys(self, do: str, **facts: Any) -> None:
        """Send an order to the process, and wait until it was carried out."""
        try:
            async with asyncio.timeout(_ORDER_SECONDS):
                await self.order(do, **facts)
        except TimeoutError:
            self.rig.note("it did not recover" if do == "room" else "it did not obey", agent=self.name, do=do)  # fmt: skip

    async def stop(self, how: signal.Signals) -> None:
        """End it by a signal, and write down when it was dead."""
        process = self.process
        if process is None:
            return
        if how is signal.SIGKILL:
            self.proxy.target = 0
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        except TimeoutError:
            self.rig.note("did not end", agent=self.label)
            process.send_signal(signal.SIGUSR1)  # it says why
            await asyncio.sleep(0.5)
            process.kill()
            await process.wait()
        died = time.monotonic()
        self.proxy.target = 0
        self.proxy.refuse()
        assert self.reading is not None
        assert process.stdin is not None
        process.stdin.close()  # its children end with it
        await self.reading
        self.rig.log.write("died", of=process.pid, t=died)
        self.process = None


class Rig:
    """The mesh."""

    def __init__(
        self,
        folder: Path,
        mix: Mix,
        patience: dict[str, float],
        kinds: tuple[str, ...] = ("http",),
        mutant: str = "",
    ) -> None:
        """Describe it.

        Args:
            folder: for the log, and the journals.
            mix: what it is to do.
            patience: of the nodes.
            kinds: of the agents that take part, in turn; `http`, `a2a` or `a2a-old`.
            mutant: how agents are broken, to see that the judge finds it.
        """
        self.folder = folder
        self.mix = mix
        self.patience = patience
        self.kinds = kinds
        self.mutant = mutant
        self.verdict_seconds = patience["give_up"] + _VERDICT_SECONDS
        self.log_path = folder / "truth.jsonl"
        self.log = Log.at(self.log_path, "rig")
        self.network = Network(lambda hop, status: self.log.write("copy", hop=hop, status=status))
        self.agents: dict[str, Process] = {}
        self.cascades: dict[str, Casc] = {}
        self.waves: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.waiting: dict[str, asyncio.Event] = {}
        self.untold: set[str] = set()
        """Cascades whose beginner died, and knows nothing of them when it is started again."""
        self.notes: list[dict[str, Any]] = []

    def note(self, what: str, **facts: Any) -> None:
        """Keep something that is wrong, whatever the verdicts are."""
        self.notes.append({"what": what, **facts})

    # Agents.

    def add(self, name: str, kind: str = "http", subject: str = SUBJECT) -> None:
        """Add an agent."""
        self.agents[name] = Process(self, name, kind, Proxy(self.network, name), subject)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        """Start all, and end all."""
        kinds = {"old": "opaque", "brief": "brief"}
        for name in (*STARTERS, *self.mix.odd):
            self.add(name, kinds.get(name, "http"), OLD_SUBJECT if name == "script" else SUBJECT)
        if self.mix.push_share:
            self.add("hook")
        for place, name in enumerate(self.mix.agents):
            kind = self.kinds[place % len(self.kinds)]
            self.add(name, kind.partition("-")[0], OLD_SUBJECT if kind == "a2a-old" else SUBJECT)
        self.client = httpx.AsyncClient(timeout=30.0)
        try:
            await asyncio.gather(*(agent.start() for agent in self.agents.values()))
            yield self
        finally:
            stops = (agent.stop(signal.SIGKILL) for agent in self.agents.values())
            await asyncio.gather(*stops)
            await self.network.aclose()
            await self.client.aclose()
            self.log.close()

    def heard(self, line: dict[str, Any]) -> None:
        """Take in a line that an agent has written."""
        if line["is"] == "start":
            self.ids[line["id"]] = line["cascade"]
        elif line["is"] == "verdict":
            name = self.ids.get(line["id"])
            if name in self.waiting:
                self.waiting[name].set()
                self.tell_all(name)

    def tell_all(self, name: str) -> None:
        """End the daemon threads of a cascade, which has its verdict."""
        for agent in self.agents.values():
            agent.tell(name)

    def recovered(self, starter: str, ids: list[str]) -> None:
        """Stop waiting for the cascades that a beginner no longer has after its restart."""
        known = {self.ids[one] for one in ids if one in self.ids}
        for name, done in self.waiting.items():
            mine = self.cascades[name].plan.agent == starter
            if mine and not done.is_set() and name in self.ids.values() and name not in known:
                self.untold.add(name)
                done.set()

    # Waves.

    async def run(self, wave: Wave) -> None:
        """Run a wave, until every cascade has its verdict, and all is well again."""
        self.waiting = {cascade.name: asyncio.Event() for cascade in wave.cascades}
        self.cascades |= {cascade.name: cascade for cascade in wave.cascades}
        self.waves |= {cascade.name: wave.number for cascade in wave.cascades}
        told = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for fault in wave.faults:
                group.create_task(self._commit(fault, wave, told))
            begun = [group.create_task(self._begin(cascade)) for cascade in wave.cascades]
            await asyncio.wait(begun)
            try:
                async with asyncio.timeout(self.verdict_seconds):
                    for done in self.waiting.values():
                        await done.wait()
            except TimeoutError:
                late = [name for name, done in self.waiting.items() if not done.is_set()]
                self.note("no verdict", wave=wave.number, cascades=late)
            told.set()
        for name in self.waiting:
            self.tell_all(name)
        self.network.lost.clear()
        self.network.repeats.clear()

    async def _begin(self, cascade: Casc) -> None:
        await asyncio.sleep(cascade.at)
        starter = self.agents[cascade.plan.agent]
        async with starter.busy:  # not while it is being started anew
            port = starter.proxy.target
        body = {
            "cascade": cascade.name,
            "plan": cascade.plan.to_json(),
            "cancel_after": cascade.cancel_after,
        }
        try:
            response = await self.client.post(f"http://127.0.0.1:{port}/start", json=body)
            response.raise_for_status()
        except httpx.HTTPError:
            async with starter.busy:
                if cascade.name not in self.ids.values():
                    self.untold.add(cascade.name)
                    self.waiting[cascade.name].set()

    # Faults.

    async def _commit(self, fault: Fault, wave: Wave, told: asyncio.Event) -> None:
        await asyncio.sleep(fault.at)
        begin = time.monotonic()
        if fault.agent and fault.kind != "refuse":
            begin = await self._trouble(fault, told)
        elif fault.kind == "refuse":
            agent = self.agents[fault.agent]
            agent.proxy.refuse()
            await self._last(fault, told)
            async with agent.busy:
                await agent.proxy.accept()
        elif fault.pair is not None:
            rule = Rule(fault.kind, frozenset(fault.pair), late=fault.detail == "late")  # type: ignore[arg-type]  # one of the three
            self.network.begin(rule)
            await self._last(fault, told)
            self.network.end(rule)
            await asyncio.sleep(
                0.01
            )  # lines that are cut off are closed by the loop, and after that all is well
        elif fault.kind in {"lose", "gateway"}:
            self.network.lost[fault.hop] = fault.detail if fault.kind == "lose" else fault.kind
        elif fault.kind == "repeat":
            self.network.repeats[fault.hop] = fault.detail
        else:
            self.network.copies[fault.hop] = fault.lasts or 0.0
        facts = asdict(fault) | {"from": begin, "to": time.monotonic(), "wave": wave.number}
        self.log.write("fault", **facts)

    async def _trouble(self, fault: Fault, told: asyncio.Event) -> float:
        """Cause trouble for an agent for a while; return since when."""
        agent = self.agents[fault.agent]
        journal = self.folder / f"{agent.name}.journal"
        begin, copy = time.monotonic(), b""
        if fault.kind == "restore":
            async with agent.busy:  # or another fault has it deleted
                copy = journal.read_bytes()
            await self._last(fault, told)
        async with agent.busy:
            begin = begin if fault.kind == "restore" else time.monotonic()
            match fault.kind:
                case "stop":
                    await self._stop_for_a_while(agent, fault, told)
                case "clock":
                    await agent.obeys("clock", seconds=fault.amount)
                    await self._last(fault, told)
                    await agent.obeys("clock", seconds=0.0)
                case "full":
                    await agent.obeys("full", bytes=fault.amount)
                    await self._last(fault, told)
                    await agent.obeys("room")
                case "forget" | "restore":
                    await agent.stop(signal.SIGKILL)
                    journal.with_name(f"{journal.name}.new").unlink(missing_ok=True)
                    journal.unlink() if fault.kind == "forget" else journal.write_bytes(copy)
                    await agent.start()
                case _:
                    how = signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM
                    await agent.stop(how)
                    await self._last(fault, told)
                    await agent.start()
        return begin

    async def _stop_for_a_while(self, agent: Process, fault: Fault, told: asyncio.Event) -> None:
        assert agent.process is not None
        agent.process.send_signal(signal.SIGSTOP)
        try:
            if fault.agent in STARTERS:
                told = asyncio.Event()  # it cannot be told before it goes on
            await self._last(fault, told)
        finally:
            agent.process.send_signal(signal.SIGCONT)

    async def _last(self, fault: Fault, told: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(fault.lasts):
                await told.wait()
