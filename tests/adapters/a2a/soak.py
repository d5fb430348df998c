"""A soak of an A2A server: many tasks, random signals, bad receivers; and a count of what was lost.

Clients send by JSON-RPC and REST: they wait, stream, leave half way, hang up at once, cancel, or
answer a task that waits for them; some executors raise. The server, a process of its own under uvicorn,
is ended by SIGTERM or SIGKILL again and again, and started anew; who is pushed to is slow, fails, or
hangs up. It is done with the SDK alone and with the adapter, and the tallies stand side by side.

The exit code is 1 if anything is wrong with the adapter. What is sent follows from the seed; what the
signals meet does not.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
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

from tests.adapters.a2a import kit, soak_judge
from tests.adapters.a2a.server import Refused, serving, webhook
from tests.adapters.a2a.soak_judge import Sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.adapters.a2a.server import Server, Webhook

DRAIN, CLEANUP, GRACEFUL = 1.0, 1.0, 3
_OPTIONS = (f"grace={DRAIN}", f"cleanup={CLEANUP}", f"graceful={GRACEFUL}")
_SETTLE_SECONDS = 20.0  # without a push; one may have to wait so long for its next attempt
_HEARD_AT_A_TIME = 100  # pushes, before all is judged again
_ANSWER_SECONDS = 60.0
_END_SECONDS = 60.0  # of a server that was told to; it should need DRAIN + CLEANUP + GRACEFUL
_RESUMES_MAX = 20
_KINDS = {
    "immediate": 20,
    "blocking": 20,
    "streaming": 18,
    "leaving": 12,
    "hanging up": 8,
    "cancelling": 12,
    "parking": 10,
}
_TEXTS = {
    "complete": 30,
    "update sleep 0.02 artifact complete": 30,
    "sleep 0.05 raise": 12,
    "artifact raise": 6,
    "sleep 0.3 complete": 15,
    "fail": 5,
    "sleep 3 complete": 1,  # longer than a drain
    "raise-first": 1,  # never becomes a task
}
_GONE = (httpx.HTTPError, OSError, EOFError, ValueError, StopAsyncIteration)
GROWTH_KILOBYTES = 64 * 1024


@dataclass
class Plan:
    """What is to be done, to whom."""

    way: str
    tasks: int = 300
    clients: int = 32
    answers: tuple[int, int] = (30, 260)
    """Between how many and how many answers a server is given a signal."""
    seed: int = 7
    signals: tuple[signal.Signals, ...] = ()
    """The signals, one after the other; then none. Random ones, and no end of them, if empty."""
    progress: bool = False


def planned(seed: int, number: int) -> Sent:
    """Return the message of a number: the same whatever the way, and whatever came before."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - not for secrets
    (kind,) = rng.choices(list(_KINDS), list(_KINDS.values()))
    (text,) = rng.choices(list(_TEXTS), list(_TEXTS.values()))
    if kind == "cancelling":
        text = rng.choice(("sleep 2 complete", "update sleep 2 artifact complete"))
    elif kind == "parking":
        text = rng.choice(("park", "update artifact park"))
    return Sent(number, kind, text, rest=rng.random() < 0.5)


class Soak:
    """One run."""

    def __init__(self, plan: Plan, folder: Path, hook: Webhook) -> None:
        """Begin with nothing sent."""
        self.plan = plan
        self.folder = folder
        self.hook = hook
        self.rng = random.Random(plan.seed)  # noqa: S311 - not for secrets
        self.server: Server | None = None
        self.up = asyncio.Event()
        self.due = asyncio.Event()
        self.log: list[Sent] = []
        self.accepted = 0
        self.answered = 0
        self.signals: Counter[str] = Counter()
        self.stuck = 0
        self.most: Counter[str] = Counter()
        self.signal_after = 0
        self.store = kit.FileStore(folder / "tasks")

    # Clients.

    async def client(self) -> None:
        """Send one message after the other."""
        while self.accepted < self.plan.tasks:
            if not self.up.is_set() and self.rng.random() < 0.75:
                await self.up.wait()  # the others meet a server that is about to end
            sent = planned(self.plan.seed, len(self.log))
            self.log.append(sent)
            await self._send(sent)
            self.accepted += bool(sent.task_id)
            self.answered += 1
            if self.answered >= self.signal_after:
                self.due.set()
            if sent.outcome == "cut off":
                await self.up.wait()

    async def _send(self, sent: Sent) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._play(await self._server(), sent)
            sent.outcome = "answered"
        except Refused:
            sent.outcome = "refused"
        except TimeoutError:
            sent.outcome = "never answered"
        except _GONE:
            sent.outcome = "cut off"

    async def _server(self) -> Server:
        if self.server is None:
            await self.up.wait()
        assert self.server is not None
        return self.server

    async def _play(self, server: Server, sent: Sent) -> None:
        blocking = sent.kind in {"blocking", "hanging up", "parking"}
        params = kit.sending(sent.text, blocking=blocking, webhook=self.hook.url)
        sent.message_id = params["message"]["messageId"]
        if sent.kind == "hanging up":
            await server.hang_up(params, rest=sent.rest)
        elif sent.kind in {"streaming", "leaving"}:
            async with server.reading(params, rest=sent.rest) as events:
                sent.hear(await anext(events))
                if sent.kind == "streaming":
                    async for event in events:
                        sent.hear(event)
        else:
            task = await server.ask(params, rest=sent.rest)
            sent.hear(task)
            if sent.kind == "cancelling":
                with suppress(Refused):  # too late
                    sent.hear(await server.cancel(task["id"], rest=sent.rest))
            elif sent.told[-1] == "input-required":
                await self._resume(sent, task["contextId"])

    async def _resume(self, sent: Sent, context_id: str) -> None:
        """Answer a task that waits for its client, here or at a server after this one."""
        for _ in range(_RESUMES_MAX):
            params = kit.sending("update complete", task_id=sent.task_id, context_id=context_id)
            try:
                sent.hear(await (await self._server()).ask(params, rest=sent.rest))
            except (Refused, *_GONE):
                if self.store.had(sent.task_id)[-1:] != ["input-required"]:
                    return  # it was taken before the server went
                await self.up.wait()
                await asyncio.sleep(0)
            else:
                return

    # Servers.

    async def run(self) -> None:
        """Run servers, one after the other, until enough was accepted; then one that settles it."""
        sending = asyncio.gather(*(self.client() for _ in range(self.plan.clients)))
        signals = self._signals()
        while True:
            async with serving(self.plan.way, self.folder, *_OPTIONS) as server:
                number = None if sending.done() else next(signals, None)
                self.signal_after = self.answered + self.rng.randint(*self.plan.answers)
                self.due.clear()
                self.server = server
                self.up.set()
                if number is None:
                    await sending
                    await self._settle(server)  # what those before have left is this one's
                    await self._end(server, signal.SIGTERM)
                    return
                due: asyncio.Future[bool] = asyncio.ensure_future(self.due.wait())
                ends: list[asyncio.Future[Any]] = [sending, due]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                due.cancel()
                await self._end(server, number)

    def _signals(self) -> Iterator[signal.Signals]:
        if self.plan.signals:
            yield from self.plan.signals
            return
        while True:
            yield self.rng.choice((signal.SIGTERM, signal.SIGKILL))

    async def _end(self, server: Server, number: signal.Signals) -> None:
        """Measure a server, and end it."""
        if number is signal.SIGTERM:
            with suppress(*_GONE, TimeoutError):
                found = await server.client.get("/tasks-alive", timeout=5)
                self.most["asyncio tasks"] = max(self.most["asyncio tasks"], found.json()["tasks"])
        for what, count in kit.measured(server.process.pid).items():
            self.most[what] = max(self.most[what], count)
        self.signals[number.name] += 1
        self.up.clear()
        self._say()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await server.stop(number)
        except TimeoutError:
            self.stuck += 1
        finally:
            self.server = None

    def _say(self) -> None:
        if self.plan.progress:
            sys.stderr.write(
                f"{self.plan.way}: {self.accepted} of {self.plan.tasks} accepted,"
                f" {self.signals.total()} signals\n"
            )

    async def _settle(self, server: Server) -> None:
        """Let the last server deliver what it has, and answer what still waits for its client."""
        self.hook.fate = None
        for task_id, found in self.store.all().items():
            if kit.state_of(found) == "input-required":
                params = kit.sending("complete", task_id=task_id, context_id=found["contextId"])
                with suppress(Refused, *_GONE):
                    await server.ask(params)
        heard, since = -1, time.monotonic()
        while any(self.judged().wrong.values()):
            if len(self.hook.heard) != heard:
                heard, since = len(self.hook.heard), time.monotonic()
            if time.monotonic() > since + _SETTLE_SECONDS:
                return  # nothing more comes
            await self.hook.hears(heard + _HEARD_AT_A_TIME, seconds=1)

    def judged(self) -> soak_judge.Judged:
        """Look at what is stored, and was heard."""
        return soak_judge.judged(
            self.log, self.store.all(), zip(self.hook.places, self.hook.heard, strict=True)
        )


@dataclass
class Result:
    """What came of one run."""

    way: str
    seconds: float
    sent: int
    outcomes: dict[str, int]
    accepted: int
    untold: int
    ends: dict[str, int]
    signals: dict[str, int]
    pushes: int
    again: int
    most: dict[str, int]
    lives: int
    growth: int
    wrong: dict[str, int]
    samples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values())


async def soak(plan: Plan) -> Result:
    """Run one way, and judge it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quiesce-soak-") as place:
        async with webhook() as hook:
            rng = random.Random(plan.seed)  # noqa: S311 - not for secrets
            hook.fate = lambda: (
                rng.choices((0.0, 0.01, 0.1, 1.0), (60, 25, 14, 1))[0],
                rng.choices((200, 503, 500, 0), (78, 12, 5, 5))[0],
            )
            run = Soak(plan, Path(place), hook)
            await run.run()
            found = run.judged()
            lives = soak_judge.lives(Path(place))
        outcomes = Counter(one.outcome for one in run.log)
        wrong = dict(found.wrong) | dict(lives.leaks)
        wrong["servers that did not end"] = run.stuck
        wrong["SIGTERM, and no orderly end"] = run.signals["SIGTERM"] - lives.ended
        wrong["requests that were never answered"] = outcomes.pop("never answered", 0)
        wrong["servers that grew by more than 64 MiB"] = int(lives.growth > GROWTH_KILOBYTES)
        return Result(
            plan.way,
            round(time.monotonic() - began, 1),
            len(run.log),
            dict(outcomes),
            found.accepted,
            found.untold,
            dict(found.ends),
            dict(run.signals),
            len(hook.heard),
            found.again,
            dict(run.most),
            lives.ended,
            lives.growth,
            wrong,
            [*found.samples[:20], *(f"left: {name} {n}" for name, n in lives.names.most_common(9))],
        )


def rows(result: Result) -> dict[str, str]:
    """Return the lines of a soak_judge."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))

    return {
        "seconds": f"{result.seconds:.0f}",
        "messages sent": str(result.sent),
        "their clients": listed(result.outcomes),
        "signals": listed(result.signals),
        "tasks accepted": f"{result.accepted}, {result.untold} without their clients' knowing",
        "as stored at the end": listed(result.ends),
        "pushes taken": f"{result.pushes}; final ones more than once: {result.again}",
        "a server had at most": listed(result.most),
        "memory grew at most": f"{result.growth} kB in a server's life",
        "-": "",
    } | {name: str(count) for name, count in result.wrong.items()}


def table(results: list[Result]) -> str:
    """Put tallies side by side."""
    columns = [rows(result) for result in results]
    lines = [("", *(result.way for result in results))]
    lines += [(name, *(column[name] for column in columns)) for name in columns[0]]
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    printed = []
    for line in lines:
        if line[0] == "-":
            printed.append("  ".join("-" * width for width in widths))
        else:
            printed.append("  ".join(map(str.ljust, line, widths)).rstrip())
    return "\n".join(printed) + "\n"


def main() -> None:
    """Run it, and print the tallies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=300, help="how many are to be accepted")
    parser.add_argument("--clients", type=int, default=32, help="how many send at a time")
    parser.add_argument("--seed", type=int, help="of what is sent; a random one if none is given")
    parser.add_argument(
        "--way", action="append", choices=("bare", "quiesce"), help="one alone; both by default"
    )
    parser.add_argument("--json", action="store_true", help="the tallies as JSON")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    version = ".".join(map(str, kit.VERSION))
    sys.stderr.write(f"a2a-sdk {version}, --seed {seed}\n")
    results = []
    for way in options.way or ["bare", "quiesce"]:
        plan = Plan(way, options.tasks, options.clients, seed=seed, progress=True)
        results.append(asyncio.run(soak(plan)))
        if results[-1].samples and (way == "quiesce" or not options.json):
            sys.stderr.write("\n".join(["", f"{way}, samples:", *results[-1].samples, ""]))
    if options.json:
        found = [dataclasses.asdict(result) for result in results]
        text = json.dumps({"sdk": version, "seed": seed, "results": found}, indent=2) + "\n"
    else:
        text = f"a2a-sdk {version}, seed {seed}\n\n{table(results)}"
    sys.stdout.write(text)
    sys.exit(any(not result.ok for result in results if result.way == "quiesce"))


if __name__ == "__main__":
    main()
