"""A soak of an A2A server: many tasks, random signals, bad receivers; a tally of what was lost.

`python -m tests.adapters.a2a_soak --tasks 10000` runs it with the SDK alone, and with the adapter.
Clients send at return-immediately, blocking and streaming; some leave half way, some cancel; some
executors raise. The server is ended by SIGTERM or SIGKILL again and again, and started anew.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.adapters import a2a_kit as kit
from tests.adapters.a2a_server import serving, told_in, webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.adapters.a2a_server import Server, Webhook

_RANKS = {"submitted": 0, "working": 1} | dict.fromkeys(kit.TERMINAL, 2)
_SETTLE_SECONDS = 20.0
_TEXTS = (
    "complete",
    "update sleep 0.02 artifact complete",
    "sleep 0.05 raise",
    "sleep 0.3 complete",
)
_GONE = (httpx.HTTPError, OSError, KeyError, ValueError, StopAsyncIteration)


@dataclass
class Soak:
    """One run."""

    way: str
    folder: Path
    hook: Webhook
    rng: random.Random
    todo: Iterator[int]
    server: Server | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: set[str] = field(default_factory=set)
    signals: Counter[str] = field(default_factory=Counter)
    tasks_most: int = 0
    samples: list[str] = field(default_factory=list)

    async def client(self) -> None:
        """Send one message after the other; what is not answered was not accepted."""
        for _ in self.todo:
            await self.up.wait()
            if self.server is None:
                continue
            with suppress(*_GONE):
                await self._one(self.server)

    async def _one(self, server: Server) -> None:
        kind = self.rng.choice(("immediate", "blocking", "streaming", "leaving", "cancelling"))
        options = {"webhook": self.hook.url}
        text = self.rng.choice(_TEXTS)
        if kind in {"streaming", "leaving"}:
            async with server.stream(text, **options) as events:
                first = (await anext(events))["result"]
                self.accepted.add(first.get("task", first)["id"])
                if kind == "streaming":
                    async for _ in events:
                        pass
            return
        blocking = kind == "blocking"
        task = await server.send(text, blocking=blocking, **options)
        self.accepted.add(task["id"])
        if kind == "cancelling":
            await server.call("cancel", {"id": task["id"]})

    async def run(self, clients: int, uptime: float) -> None:
        """Have servers, one after the other, until all was sent."""
        sending = asyncio.gather(*(self.client() for _ in range(clients)))
        while not sending.done():
            async with serving(self.way, self.folder, "drain=2", "graceful=3") as server:
                self.server = server
                self.up.set()
                await asyncio.wait([sending], timeout=self.rng.uniform(0.3, 1.0) * uptime)
                if sending.done():
                    await server.stop()
                    break
                number = self.rng.choice((signal.SIGTERM, signal.SIGKILL))
                self.signals[number.name] += 1
                self.up.clear()
                with suppress(*_GONE):
                    found = await server.client.get("/tasks-alive", timeout=2)
                    self.tasks_most = max(self.tasks_most, found.json()["tasks"])
                await server.stop(number)
        async with serving(self.way, self.folder, "drain=2", "graceful=3") as server:
            await self._settle(server)  # what the one before has left is this one's to deliver

    async def _settle(self, server: Server) -> None:
        """Let the last server deliver what it has."""
        until = time.monotonic() + _SETTLE_SECONDS
        self.hook.fate = None
        while time.monotonic() < until and any(self.tally().values()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.2)
        await server.stop()

    def tally(self) -> dict[str, int]:
        """Count what went wrong."""
        stored = kit.FileStore(self.folder / "tasks").states()
        heard: dict[str, list[str]] = {}
        for told in map(told_in, self.hook.heard):
            if "status" in told:
                heard.setdefault(told.get("taskId") or told["id"], []).append(kit.state_of(told))
        wrong: Counter[str] = Counter()
        self.samples = []
        for task_id in self.accepted | set(stored):
            state = stored.get(task_id, "missing")
            states = heard.get(task_id, [])
            ends = {one for one in states if one in kit.TERMINAL}
            wrong["not stored"] += state == "missing"
            wrong["no terminal state"] += state not in kit.TERMINAL
            wrong["final state never pushed"] += state in kit.TERMINAL and state not in ends
            wrong["another end pushed than stored"] += bool(ends - {state})
            if ends - {state} or (state in kit.TERMINAL and state not in ends):
                self.samples.append(f"{task_id} stored {state}, pushed {states}")
            ranks = [_RANKS[one] for one in states]
            wrong["pushed out of order"] += ranks != sorted(ranks)
        return dict(wrong)


async def soak(way: str, tasks: int, clients: int, uptime: float, seed: int) -> dict[str, Any]:
    """Run one way, and give its tally."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quiesce-soak-") as place:
        async with webhook() as hook:
            hook.fate = lambda: (
                rng.choice((0.0, 0.0, 0.01, 0.1)),
                503 if rng.random() < 0.2 else 200,
            )
            run = Soak(way, Path(place), hook, rng, iter(itertools.repeat(0, tasks)))
            await run.run(clients, uptime)
            stored = Counter(kit.FileStore(Path(place) / "tasks").states().values())
            return {
                "way": way,
                "sent": tasks,
                "accepted": len(run.accepted),
                "stored": dict(stored),
                "signals": dict(run.signals),
                "pushes heard": len(hook.heard),
                "asyncio tasks at most": run.tasks_most,
                "wrong": run.tally(),
                "samples": run.samples[:10],
                "seconds": round(time.monotonic() - began, 1),
            }


def main() -> None:
    """Run it, and print the tallies."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--uptime", type=float, default=3.0, help="seconds until a signal, at most")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--way", action="append", choices=("bare", "quiesce"))
    options = parser.parse_args()
    lost = False
    for way in options.way or ["bare", "quiesce"]:
        found = asyncio.run(soak(way, options.tasks, options.clients, options.uptime, options.seed))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        lost = lost or (way == "quiesce" and any(found["wrong"].values()))
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
