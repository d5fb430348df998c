"""What a mesh is to do, and what is done to it: random, and the same for the same seed.

A run is made of waves: so many cascades at once, and faults among them. A wave follows from the seed and
its own number, so one that went wrong is run again alone. What a fault meets in real processes may differ.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Mode = Literal["blocking", "background", "retry", "httpx", "sync", "plain"]
Kind = Literal["http", "opaque", "brief"]

STARTERS = ("home", "script")
"""Who begins cascades: one that others can reach, and one that they cannot."""

BARE = "a"
"""The agent that has not called `node.instrument()`: what it sends by plain httpx is untracked."""

SENDING = (
    "task", "starlette", "queue", "queue-done", "stream", "deque-send", "later", "spawn", "working",
)  # fmt: skip
"""Patterns of work that outlives a request, in which the work sends messages itself."""

LEAVING = (
    *SENDING, "deque", "to-thread", "queue-thread", "executor", "pool", "thread", "timer", "callback", "popen", "exec",
    "daemon",
)  # fmt: skip
"""All patterns of work that outlives a request; see patterns.py."""

PATTERNS = (*LEAVING, "httpx", "sync", "plain", "self")
"""All that an agent may do otherwise than by a task and `node.client()`.

`httpx` and `sync`: a message is sent by plain httpx after `node.instrument()`, by a coroutine, or in a thread. `plain`:
the same without `node.instrument()`. `self`: an agent sends a message to its own address.
"""

UNTRACKED = ("daemon", "plain")
"""Patterns that quiesce only notices: a cascade that has one is `Unknown`."""


@dataclass
class Plan:
    """What one agent does with one message."""

    hop: str
    agent: str
    work: float = 0.0
    """Seconds until it answers."""
    after: float = 0.0
    """Seconds that it works in the background, after it has answered."""
    tail: float = 0.0
    """Seconds of work after the answer, in the same call of the app."""
    stream: int = 0
    """In how many pieces it answers, over the time of its work; 0: in one."""
    pattern: str = "task"
    """How it works in the background: one of `LEAVING`."""
    fail: bool = False
    push: bool = False
    """Whether what becomes of its task is pushed to `hook`, who works a little on every push."""
    mode: Mode = "blocking"
    """How it is sent: from the handler, who waits for the answer; from the background; from the
    handler, who does not wait long, and sends it again as the same message; or by a plain client, see
    `PATTERNS`.
    """
    children: list[Plan] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as it is sent."""
        return asdict(self)

    @classmethod
    def from_json(cls, made: dict[str, Any]) -> Plan:
        """Read what was sent."""
        children = [cls.from_json(child) for child in made["children"]]
        return cls(**made | {"children": children})

    def everything(self) -> list[Plan]:
        """Return it and all that is below it."""
        return [self, *(below for child in self.children for below in child.everything())]


@dataclass
class Casc:
    """A cascade that is to be run."""

    name: str
    plan: Plan
    """Of the starter itself: its `agent` is who begins it."""
    at: float = 0.0
    """Seconds after the beginning of the wave."""
    cancel_after: float | None = None

    @property
    def agents(self) -> set[str]:
        """All that have to do with it."""
        plans = self.plan.everything()
        return {plan.agent for plan in plans} | {"hook" for plan in plans if plan.push}

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """Who sends to whom, both ways: receipts and questions go back."""
        sent = {(one.agent, to.agent) for one in self.plan.everything() for to in one.children}
        return sent | {(to, sender) for sender, to in sent}


FaultKind = Literal[
    "kill", "term", "refuse", "cut", "hang", "slow", "lose", "gateway", "copy",
    "stop", "clock", "forget", "restore", "full", "repeat",
]  # fmt: skip


@dataclass
class Fault:
    """Something that is done to the mesh.

    `kill` and `term`: of an agent, by SIGKILL or SIGTERM, who is started again after `lasts`. `refuse`:
    nobody can connect to an agent. `cut`, `hang`, `slow`: what one sends to another, and back, is cut
    off, held up, or late. `lose`: the answer to a message. `gateway`: the same, and it is answered by a 502.
    `copy`: a message comes again, later.

    `stop`: an agent is stopped by SIGSTOP, and goes on after `lasts`. `clock`: its time of day jumps by `amount`, and
    back. `forget` and `restore`: it is killed, and started again without its journal, or with a copy that was made
    `lasts` before. `full`: it cannot write more than `amount` bytes to its journal. `repeat`: a proxy sends a message
    again after a 502 of its own (`detail`: whether it waits for the agent's answer before), or after the agent's 503.
    """

    kind: FaultKind
    at: float
    lasts: float | None = 0.0
    """None: until the wave has its verdicts."""
    agent: str = ""
    pair: tuple[str, str] | None = None
    hop: str = ""
    """`cascade/hop`, of the message."""
    detail: str = ""
    amount: float = 0.0


@dataclass
class Wave:
    """Cascades at once, and the faults among them."""

    number: int
    cascades: list[Casc]
    faults: list[Fault]


@dataclass
class Mix:
    """How waves are made."""

    seed: int = 7
    width: int = 10
    """Cascades in a wave."""
    agents: tuple[str, ...] = ("a", "b", "c", "d")
    odd: tuple[str, ...] = ("old", "brief")
    """Agents that take no part, or have no journal; each is sent few messages."""
    odd_share: float = 0.03
    fault_share: float = 0.5
    """Waves with faults, of all; the others have none."""
    faults_most: int = 3
    """In a wave."""
    faults: tuple[FaultKind, ...] = (
        "kill", "kill", "kill", "term", "refuse", "cut", "hang", "slow", "lose", "lose", "copy",
    )  # fmt: skip
    long_share: float = 0.12
    """Of the faults that have a length, those that last until there are verdicts."""
    cancel_share: float = 0.06
    fail_share: float = 0.05
    push_share: float = 0.0
    """Of the messages to agents that push."""
    background_seconds: float = 0.2
    """What an agent does in the background takes so long on average."""
    patterns: tuple[str, ...] = ()
    """Of `PATTERNS`."""
    pattern_share: float = 0.7
    """Of the messages: each has one of the patterns, and not one that is untracked."""
    untracked_share: float = 0.03
    """Of the messages."""

    def wave(self, number: int) -> Wave:
        """Make a wave."""
        rng = random.Random(f"{self.seed}/{number}")  # noqa: S311 - not for secrets
        cascades = [self._cascade(f"w{number}.{place}", rng) for place in range(self.width)]
        has_faults = rng.random() < self.fault_share
        faults = [
            self._fault(cascades, rng) for _ in range(rng.randint(1, self.faults_most) * has_faults)
        ]
        return Wave(number, cascades, faults)

    def _cascade(self, name: str, rng: random.Random) -> Casc:
        size = rng.choice((1, 2, 3, 4, 5, 6, 8, 12))
        root = Plan("0", rng.choice(STARTERS))
        made = [root]
        while len(made) < size + 1:
            parent = rng.choice(made[-3:])
            child = self._plan(f"{parent.hop}.{len(parent.children)}", parent, rng)
            self._vary(child, parent, rng)
            parent.children.append(child)
            made.append(child)
        made_at, cancel = rng.uniform(0.0, 0.4), rng.uniform(0.0, 0.5)
        has_odd = any(
            plan.agent in self.odd for plan in made
        )  # they could not tell what became of it
        is_cancelled = rng.random() < self.cancel_share and not has_odd
        return Casc(name, root, made_at, cancel if is_cancelled else None)

    def _plan(self, hop: str, parent: Plan, rng: random.Random) -> Plan:
        is_odd = self.odd and rng.random() < self.odd_share
        others = [name for name in self.agents if name != parent.agent]
        has_more = rng.random() < 0.5
        return Plan(
            hop,
            rng.choice(self.odd if is_odd else others),
            work=rng.choice((0.0, 0.0, rng.uniform(0.0, 0.05))),
            after=min(2.0, rng.expovariate(1 / self.background_seconds)) if has_more else 0.0,
            tail=rng.uniform(0.0, 0.1) if rng.random() < 0.15 else 0.0,
            stream=rng.choice((0, 0, 0, 3)),
            fail=rng.random() < self.fail_share,
            push=not is_odd and rng.random() < self.push_share,
            mode=rng.choice(("blocking", "blocking", "background", "background", "retry")),
        )

    def _vary(self, plan: Plan, parent: Plan, rng: random.Random) -> None:
        """Choose a pattern in which a message is worked on, or sent."""
        if not self.patterns or plan.agent in self.odd:
            return
        if rng.random() < self.untracked_share:
            noticed = {"daemon"} if parent.agent != BARE else {"plain"}
            chosen = [name for name in self.patterns if name in noticed]
        elif rng.random() < self.pattern_share:
            chosen = [name for name in self.patterns if name not in UNTRACKED]
        else:
            return
        match rng.choice(chosen or ["task"]):
            case "self" if parent.agent != "script" and parent.agent not in self.odd:
                plan.agent = parent.agent
            case "plain" if parent.agent == BARE:
                plan.mode = "plain"
            case "httpx" | "sync" as mode if parent.agent not in {BARE, *self.odd}:
                plan.mode = mode
            case name if name in LEAVING:
                plan.pattern = name
                plan.after = plan.after or rng.uniform(0.05, 0.3)
                if name == "starlette":  # the background of its response, if there is one
                    plan.stream, plan.fail = 0, False

    def _fault(self, cascades: list[Casc], rng: random.Random) -> Fault:
        kind = rng.choice(self.faults)
        cascade = rng.choice(cascades)
        plans = cascade.plan.everything()
        target = rng.choice(plans[1:])
        sender = next(plan for plan in plans if target in plan.children)
        at = cascade.at + rng.uniform(0.0, 0.6)
        lasts = None if rng.random() < self.long_share else rng.uniform(0.0, 0.8)
        match kind:
            case "kill" | "term":
                agent = rng.choice(sorted(cascade.agents))
                if agent in {*STARTERS, "hook"} or kind == "term":
                    lasts = lasts or 0.3  # a verdict needs somebody to tell it to
                return Fault(kind, at, lasts, agent=agent)
            case "stop" | "clock" | "forget" | "restore" | "full":
                return self._trouble(kind, at, cascade, rng)
            case "refuse":
                return Fault(kind, at, lasts, agent=target.agent)
            case "cut" | "hang" | "slow":
                detail = rng.choice(("late", "never")) if kind == "hang" else ""
                pair = (sender.agent, target.agent)
                lasts = 1.0 if kind == "slow" else lasts
                return Fault(kind, at, lasts, pair=pair, detail=detail)
            case _:
                detail = rng.choice(("request", "answer", *(("503",) if kind == "repeat" else ())))
                where = f"{cascade.name}/{target.hop}"
                if (
                    kind in {"copy", "repeat"} and target.agent in self.odd
                ):  # who would run it, and may
                    kind = "lose"
                return Fault(kind, 0.0, rng.uniform(0.0, 2.0), hop=where, detail=detail)

    def _trouble(self, kind: FaultKind, at: float, cascade: Casc, rng: random.Random) -> Fault:
        """Make a fault for an agent that takes part in a cascade."""
        agent = rng.choice(sorted(cascade.agents - {*self.odd, "hook"}))
        lasts, amount = rng.uniform(0.1, 1.5), 0.0
        if kind == "stop" and rng.random() < self.long_share:
            lasts = 8.0  # more than nodes wait
        elif kind == "clock":
            amount = rng.choice((-1, 1)) * rng.choice((rng.uniform(5, 290), rng.uniform(310, 3000)))
        elif kind == "full":
            amount = rng.choice((0, rng.randrange(200), rng.randrange(3000)))
        return Fault(kind, at, lasts, agent=agent, amount=amount)
