"""The acts of the demo: each begins a cascade, does something to the agents, and has a verdict."""

import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx

from quiesce.mesh import Cascade, MeshFrontier, Node, Settlement

from .agent import VERSION, call
from .stage import Stage

FIXED_WAIT = 15.0
"""Seconds that a program without receipts waits before it assumes that all is done."""
_LIMIT_SECONDS = 60.0

TRIP: dict[str, Any] = {
    "what": "plan the trip",
    "seconds": 0.3,
    "then": [
        {"to": "flights", "what": "book flights", "seconds": 1.2},
        {
            "to": "hotel",
            "what": "book the hotel",
            "seconds": 0.8,
            "then": [{"to": "bank", "what": "pay the hotel", "seconds": 1.5}],
        },
    ],
}


@dataclass
class Outcome:
    """The result of an act."""

    act: str
    verdict: str
    wanted: str
    seconds: float
    after_the_end: float
    """Seconds from the end of the last work, as the agents wrote it down, to the verdict."""
    facts: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """The points in which the verdict, or something else, does not agree with the truth."""

    @property
    def ok(self) -> bool:
        """Whether everything agreed with the truth."""
        return not self.faults


Show = Callable[[MeshFrontier, float], None]


@dataclass
class Scene:
    """The agents, the client and the screen of an act."""

    stage: Stage
    node: Node
    client: httpx.AsyncClient
    show: Show

    @asynccontextmanager
    async def watched(self, cascade: Cascade, began: float) -> AsyncIterator[None]:
        """Show which agents are busy, while the block waits for the end."""

        async def watch() -> None:
            async for frontier in cascade.watch(every=0.2):
                self.show(frontier, time.monotonic() - began)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            yield
            group.cancel_scope.cancel()

    async def send(self, plan: dict[str, Any], act: str) -> None:
        """Hand a plan to the planner, which answers at once."""
        text = json.dumps({**plan, "act": act})
        body = call("SendMessage", text, f"{self.stage.urls['planner']}/pushed/{act}")
        answer = await self.client.post(self.stage.urls["planner"], json=body, headers=VERSION)
        answer.raise_for_status()

    async def stream(self, plan: dict[str, Any], act: str) -> float:
        """Hand a plan to the planner, and read its stream to the end; return the time of the end."""
        body = call("SendStreamingMessage", json.dumps({**plan, "act": act}))
        url = self.stage.urls["planner"]
        async with self.client.stream("POST", url, json=body, headers=VERSION) as response:
            async for _ in response.aiter_lines():
                pass
        return time.monotonic()

    async def until(self, act: str, agent: str) -> None:
        """Wait until an agent is at work."""
        await _until(lambda: self.stage.is_at_work(act, agent), _LIMIT_SECONDS)

    def judge(self, act: str, settlement: Settlement, wanted: str, began: float) -> Outcome:
        """Compare a verdict with what the agents have written down."""
        now = time.monotonic()
        works = self.stage.works(act)
        last = max((work.ended for work in works), default=now)
        verdict = settlement.to_json()["verdict"]
        outcome = Outcome(act, verdict, wanted, now - began, now - last)
        if verdict != wanted:
            outcome.faults.append(f"the verdict is {verdict}, and not {wanted}:\n{settlement}")
        if not works:
            outcome.faults.append("nothing was worked on")
        if verdict != "unknown" and last > now:
            outcome.faults.append("work was going on when it was said to have ended")
        if verdict == "settled" and any(work.was_cut for work in works):
            outcome.faults.append("work was lost, and the verdict does not say so")
        return outcome


async def a_trip(scene: Scene) -> Outcome:
    """A trip is planned: the stream closes, and the work goes on."""
    act = "trip"
    began = time.monotonic()
    async with scene.node.cascade("plan a trip") as cascade:
        closed = await scene.stream(TRIP, act)
    async with scene.watched(cascade, began):
        settlement = await cascade.settled(within=_LIMIT_SECONDS)
    outcome = scene.judge(act, settlement, "settled", began)
    last = max(work.ended for work in scene.stage.works(act))
    outcome.facts += [
        f"the stream closed after {closed - began:.1f} s, {last - closed:.1f} s too early",
        (
            f"it had really ended after {last - began:.1f} s, and the verdict came"
            f" {outcome.after_the_end * 1000:.0f} ms later"
        ),
        _fixed(last - began),
    ]
    if last <= closed:
        outcome.faults.append("the stream closed after the work: this shows nothing")
    return outcome


def _fixed(seconds: float) -> str:
    if seconds > FIXED_WAIT:
        return (
            f'"wait {FIXED_WAIT:.0f} s" would have said so {seconds - FIXED_WAIT:.1f} s too early'
        )
    return f'"wait {FIXED_WAIT:.0f} s" would have said so {FIXED_WAIT - seconds:.1f} s too late'


async def a_stranger(scene: Scene) -> Outcome:
    """One agent takes no part: the verdict says so, and does not guess."""
    act = "stranger"
    plan = {**TRIP, "then": [*TRIP["then"], {"to": "taxi", "what": "order a taxi", "seconds": 0.5}]}
    began = time.monotonic()
    async with scene.node.cascade("a trip with a taxi") as cascade:
        await scene.send(plan, act)
    async with scene.watched(cascade, began):
        settlement = await cascade.settled(within=_LIMIT_SECONDS)
    participants = await cascade.settled(require="participants")
    outcome = scene.judge(act, settlement, "unknown", began)
    outcome.facts += [
        (
            f"of all: unknown, because {settlement.receipt.opaque} message went to an agent that"
            " takes no part"
        ),
        f'of those that take part (require="participants"): {participants.to_json()["verdict"]}',
    ]
    if participants.to_json()["verdict"] != "settled":
        outcome.faults.append(f"those that take part have not settled:\n{participants}")
    return outcome


async def a_kill(scene: Scene) -> Outcome:
    """The hotel is killed in the middle of its work, and started again."""
    act = "kill"
    began = time.monotonic()
    async with scene.node.cascade("a trip, with a crash") as cascade:
        await scene.send(TRIP, act)
    async with scene.watched(cascade, began):
        await scene.until(act, "hotel")
        scene.stage.kill("hotel")
        scene.stage.start("hotel")
        settlement = await cascade.settled(within=_LIMIT_SECONDS)
    outcome = scene.judge(act, settlement, "settled with losses", began)
    lost = [note for note in settlement.receipt.notes if note.status == "lost"]
    pushes = len(lost) - 1
    outcome.facts.append(
        f"lost: the hotel's work{f', and {pushes} of its pushes' * bool(pushes)};"
        " all that others do has ended"
    )
    hotel = {note.mark for note in lost if note.name == "hotel"}
    if len(hotel) != 1 or not all(note.mark in hotel or note.parent in hotel for note in lost):
        outcome.faults.append(
            f"it was the hotel that was lost, and what it had sent:\n{settlement}"
        )
    return outcome


async def a_shutdown(scene: Scene) -> Outcome:
    """The flights are told to end while their push is on its way."""
    act = "shutdown"
    began = time.monotonic()
    async with scene.node.cascade("a trip, with a shutdown") as cascade:
        await scene.send(TRIP, act)
    async with scene.watched(cascade, began):
        await scene.until(act, "flights")
        scene.stage.terminate("flights")
        code = await anyio.to_thread.run_sync(scene.stage.wait, "flights")
        scene.stage.start("flights")
        settlement = await cascade.settled(within=_LIMIT_SECONDS)
    outcome = scene.judge(act, settlement, "settled", began)
    pushes = await _pushes(scene.stage, act, 4)
    outcome.facts.append(f"{pushes} of 4 final pushes have arrived")
    # uvicorn lets the signal end the process once all is done.
    if pushes != 4 or code not in {0, -signal.SIGTERM}:  # noqa: PLR2004 - four agents work at it
        outcome.faults.append(f"{pushes} of 4 final pushes have arrived, exit code {code}")
    return outcome


async def _pushes(stage: Stage, act: str, wanted: int) -> int:
    """Return pushes that are slow a moment: each is on its way, or lost."""
    await _until(lambda: stage.pushes(act) >= wanted, 10)
    return stage.pushes(act)


async def _until(happened: Callable[[], bool], seconds: float) -> None:
    """Wait a moment for what other processes write down; the caller looks again."""
    with anyio.move_on_after(seconds):
        while not happened():  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(0.02)


async def a_cancellation(scene: Scene) -> Outcome:
    """A trip that would take minutes is cancelled on every agent."""
    act = "cancel"
    long = {"seconds": 300}
    plan = {
        "what": "plan the trip",
        "then": [
            {"to": "flights", "what": "book flights", **long},
            {"to": "hotel", "what": "book", "then": [{"to": "bank", "what": "pay", **long}]},
        ],
    }
    began = time.monotonic()
    async with scene.node.cascade("a trip that is called off") as cascade:
        await scene.send(plan, act)
    async with scene.watched(cascade, began):
        await scene.until(act, "flights")
        await scene.until(act, "bank")
        await cascade.cancel()
        settlement = await cascade.settled(within=_LIMIT_SECONDS)
    outcome = scene.judge(act, settlement, "settled", began)
    cancelled = {note.name for note in settlement.receipt.notes if note.status == "cancelled"}
    outcome.facts.append(
        f"{settlement.receipt.cancelled} of {settlement.receipt.hops} hops and messages were cancelled,"
        " and nothing of them runs"
    )
    if not {"flights", "bank"} <= cancelled:
        outcome.faults.append(f"flights and bank were at work:\n{settlement}")
    return outcome


ACTS: tuple[Callable[[Scene], Awaitable[Outcome]], ...] = (
    a_trip,
    a_stranger,
    a_kill,
    a_shutdown,
    a_cancellation,
)
