"""Random programs of scopes, jobs, holds and closes, against a model that is plain bookkeeping.

A program is a list of acts. After each act that lets time pass, the model and the real scopes must
agree on what is in flight, who is idle, and what may start. At each close they must agree on the
report: everything that was started is in exactly one place. A failure prints the program, and the
line that replays it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest
import trio
import trio._core._run as trio_run
import trio.testing
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce import Hold, Job, Report, Scope, ScopeClosed, detached
from tests import loops, sampling

SETTLE_TURNS = 12  # of the loop: enough for a cancelled job to end and be seen
JOINING_SECONDS = {"asyncio": 1.0, "trio": 1.0, "uvloop": 0.005}
PROGRAMS = {"asyncio": 400, "trio": 250, "uvloop": 80}

# What a job does when it is cancelled.
MANNERS = ("polite", "polite", "completes", "fails", "deaf")
ACTS = (
    "spawn", "spawn", "spawn", "hold", "hold", "child", "child", "service", "release", "end",
    "end", "fail", "cancel", "settle", "settle", "watch", "close", "drain", "wait",
)  # fmt: skip

Said: TypeAlias = dict[str, Any]  # a report: numbers, and lists of names


class Thing:
    """One thing in flight: a job, a service or a hold."""

    def __init__(self, name: str, manner: str) -> None:
        self.name = name
        self.manner = manner  # one of MANNERS; "service"; "hold"
        self.handle: Any = None
        self._told = anyio.Event()
        self._to_fail = False

    async def run(self) -> None:
        """Run as the job: wait for the order to end, and react to a cancellation in its own manner."""
        while not self._told.is_set():
            try:
                with anyio.CancelScope(shield=self.manner == "deaf"):
                    await self._told.wait()
            except anyio.get_cancelled_exc_class():
                if self.manner == "completes":
                    return
                if self.manner == "fails":
                    raise LookupError(self.name) from None
                if self.manner != "deaf":
                    raise
        if self._to_fail:
            raise LookupError(self.name)

    def tell(self, *, to_fail: bool = False) -> None:
        """Send the job the order to end."""
        self._to_fail = to_fail
        self._told.set()


class Model:
    """What a scope should be."""

    def __init__(self, real: Scope, parent: Model | None, *, hands_over: bool) -> None:
        self.real = real
        self.parent = parent
        self.hands_over = hands_over
        self.closed = False
        self.draining: Job[Report] | None = None
        self.children: list[Model] = []
        self.things: list[Thing] = []
        self.ended: Counter[str] = Counter()  # "completed", "withdrawn", "services"
        self.failed: list[str] = []
        self.expected: Said = {}
        self.optional: list[Said] = []  # of children that close by themselves at the same time

    @property
    def state(self) -> str:
        """The state that the real scope should be in."""
        if self.closed:
            return "closed"
        drained = self.draining is not None
        above = self.parent
        while above is not None and not drained:
            # One that hands over leaves what is below it alone: that goes on elsewhere.
            drained = above.draining is not None and not above.hands_over
            above = above.parent
        return "draining" if drained else "open"

    def in_flight(self) -> list[str]:
        """Name the work here and below."""
        own = [thing.name for thing in self.things if thing.manner != "service"]
        return own + [name for child in self.children for name in child.in_flight()]

    def end(self, thing: Thing, how: str) -> None:
        """Record that something ended by itself."""
        self.things.remove(thing)
        if how == "failed":
            self.failed.append(thing.name)
        else:
            self.ended["services" if thing.manner == "service" else how] += 1

    def close(self) -> None:
        """Close it and all below it, and tell what the reports must say."""
        lost: dict[str, list[str]] = {"cancelled": [], "undelivered": [], "stuck": []}
        whole: Said = {"handed_over": 0, "completed": 0, "withdrawn": 0, "services": 0}
        if self.hands_over and self.parent is not None:
            whole["handed_over"] = len(self.things) + len(self.children)
            self._hand_over(self.parent)
        parts = self._close_children()
        for thing in list(self.things):
            match thing.manner:
                case "polite" | "completes":  # it returned, but the close has cut it
                    lost["cancelled"].append(thing.name)
                case "service":
                    self.end(thing, "completed")
                case "fails":
                    self.end(thing, "failed")
                case "deaf":
                    lost["stuck"].append(thing.name)
                case "hold":
                    lost["undelivered"].append(thing.name)
        self.things.clear()
        self.closed = True
        if self.parent is not None:
            self.parent.children.remove(self)
        whole.update(self.ended)
        whole.update(lost, failed=self.failed)
        self.expected = functools.reduce(together, parts, whole)

    def _hand_over(self, parent: Model) -> None:
        parent.things += self.things
        parent.children += self.children
        for child in self.children:
            child.parent = parent
        self.things, self.children = [], []

    def _close_children(self) -> list[Said]:
        """Close all children; give what their reports add to this one's."""
        parts: list[Said] = []
        while self.children:  # a child may hand its own to us
            child = self.children[0]
            child.close()
            # The report of a child that drains by itself is its own, unless the parent's close
            # came first; when both end at once, either may be the case.
            (parts if child.draining is None else self.optional).append(child.expected)
            self.optional += child.optional
        return parts

    def check(self) -> None:
        """Compare the real report with what it must say."""
        report = self.real.report
        assert report is not None
        said = said_by(report)
        for number in range(len(self.optional) + 1):
            for some in itertools.combinations(self.optional, number):
                if said == functools.reduce(together, some, plain(self.expected)):
                    return
        assert said == plain(self.expected), f"report of {self.real!r}"


def together(one: Said, other: Said) -> Said:
    """Add a child's report to its parent's; what was handed over came to the parent itself."""
    whole = {word: one[word] + other[word] for word in one if word != "handed_over"}
    return plain({**whole, "handed_over": one["handed_over"]})


def plain(said: Said) -> Said:
    """Put names in order."""
    return {word: sorted(it) if isinstance(it, list) else it for word, it in said.items()}


def said_by(report: Report) -> Said:
    """Return a report in the model's words."""
    said: Said = {
        word: getattr(report, word)
        for word in ("completed", "withdrawn", "services", "handed_over")
    }
    for word in ("cancelled", "failed", "undelivered", "stuck"):
        said[word] = [item.name for item in getattr(report, word)]
    return plain(said)


class Program:
    """One random program, and the model beside it."""

    def __init__(self, joining_seconds: float) -> None:
        self._joining_seconds = joining_seconds
        self._count = 0
        self._models: list[Model] = []
        self._things: list[Thing] = []
        self._watching: list[tuple[Job[None], Model]] = []

    async def run(self, acts: list[tuple[str, int, int]]) -> None:
        """Carry out all acts, then close everything, and see that nothing is left."""
        with detached():
            self._outside = await Scope.open("outside")
            root = Model(await Scope.open("root"), None, hands_over=False)
        self._models.append(root)
        try:
            for act, which, how in acts:
                await getattr(self, f"_act_{act}")(self._models[which % len(self._models)], how)
            await self._act_close(root, 0)
        finally:
            await self._end_all(root)
        assert all(thing.handle.done() for thing in self._things if isinstance(thing.handle, Job))

    async def _end_all(self, root: Model) -> None:
        """Let nothing run on, not even after a failure: trio would wait for it for ever."""
        for thing in self._things:
            if isinstance(thing.handle, Hold):
                thing.handle.release()
            else:
                thing.tell()
        for _ in range(SETTLE_TURNS):
            await anyio.lowlevel.checkpoint()
        await root.real.aclose()
        assert (await self._outside.aclose()).ok

    async def _settle(self) -> None:
        """Let everything run that can, without letting time pass; then compare."""
        for _ in range(SETTLE_TURNS):
            await anyio.lowlevel.checkpoint()
        for model in self._models:
            if model.draining is not None and not model.closed and not model.in_flight():
                await model.draining
                model.close()
        for model in self._models:
            if model.closed:
                model.check()
            expected = [] if model.closed else sorted(model.in_flight())
            frontier = model.real.frontier()
            assert model.real.state == model.state, model.real
            assert sorted(entry.name for entry in frontier.in_flight) == expected
            assert len(frontier) == len(expected)
            assert bool(model.real.holds) == bool(expected)  # that is what idle() goes by
        for waiter, model in list(self._watching):
            idle = model.closed or not model.in_flight()
            assert waiter.done() == idle, f"idle() of {model.real!r}"
            if idle:
                self._watching.remove((waiter, model))

    # Acts: each takes a scope, and a number to choose by.

    async def _start(self, model: Model, start: Any) -> Any:
        """Start something, which must be refused unless the scope is open."""
        try:
            started = start()
        except ScopeClosed:
            assert model.state != "open"
            return None
        assert model.state == "open"
        return started

    async def _act_spawn(self, model: Model, how: int, manner: str = "") -> None:
        thing = self._new(manner or MANNERS[how % len(MANNERS)])
        spawn = model.real.spawn
        service = thing.manner == "service"
        thing.handle = await self._start(
            model, lambda: spawn(thing.run, name=thing.name, key=thing.name, service=service)
        )
        self._keep(model, thing)

    async def _act_service(self, model: Model, how: int) -> None:
        await self._act_spawn(model, how, "service")

    async def _act_hold(self, model: Model, how: int) -> None:
        thing = self._new("hold")
        thing.handle = await self._start(model, lambda: model.real.hold("request", thing.name))
        self._keep(model, thing)

    def _new(self, manner: str) -> Thing:
        self._count += 1
        return Thing(f"{manner} {self._count}", manner)

    def _keep(self, model: Model, thing: Thing) -> None:
        if thing.handle is not None:
            model.things.append(thing)
            self._things.append(thing)

    async def _act_child(self, model: Model, how: int) -> None:
        hands_over = how % 3 == 0
        leftovers = "parent" if hands_over else "cancel"
        name = f"scope {len(self._models)}"
        real = await self._start(model, lambda: model.real.child(name, leftovers=leftovers))
        if real is not None:
            child = Model(real, model, hands_over=hands_over)
            model.children.append(child)
            self._models.append(child)

    def _pick(self, model: Model, how: int, *, holds: bool) -> Thing | None:
        found = [thing for thing in model.things if (thing.manner == "hold") is holds]
        return found[how % len(found)] if found else None

    async def _act_release(self, model: Model, how: int) -> None:
        thing = self._pick(model, how, holds=True)
        if thing is not None:
            thing.handle.release()
            thing.handle.release()
            model.things.remove(thing)

    async def _act_end(self, model: Model, how: int, end: str = "completed") -> None:
        await self._settle()  # so that it has begun, and runs to its end if it is closed next
        thing = self._pick(model, how, holds=False)
        if thing is not None:
            thing.tell(to_fail=end == "failed")
            model.end(thing, end)
            await self._settle()

    async def _act_fail(self, model: Model, how: int) -> None:
        await self._act_end(model, how, "failed")

    async def _act_cancel(self, model: Model, how: int) -> None:
        await self._settle()
        thing = self._pick(model, how, holds=False)
        if thing is not None:
            assert thing.handle.cancel()
            ends = {"completes": "completed", "fails": "failed", "deaf": None}
            end = ends.get(thing.manner, "withdrawn")
            if end is not None:
                model.end(thing, end)
            await self._settle()

    async def _act_settle(self, model: Model, how: int) -> None:
        await self._settle()

    async def _act_watch(self, model: Model, how: int) -> None:
        self._watching.append((self._outside.spawn(model.real.idle), model))

    async def _act_close(self, model: Model, how: int) -> None:
        await self._settle()
        if model.closed:
            assert model.real.report is await model.real.aclose()
            return
        report = await model.real.aclose(self._joining_seconds)
        assert report is model.real.report
        await self._see_closed(model)

    async def _see_closed(self, model: Model) -> None:
        parent = model.parent
        model.close()
        if parent is not None:  # its own drain may end by this, and come upon it still closing
            parent.optional += [model.expected, *model.optional]
        await self._settle()
        if parent is not None and not parent.closed:
            parent.optional.clear()

    async def _act_drain(self, model: Model, how: int) -> None:
        if not model.closed and model.draining is None:
            model.draining = self._outside.spawn(model.real.drain, None)
            await self._settle()

    async def _act_wait(self, model: Model, how: int) -> None:
        """Drain, and let the deadline pass."""
        await self._settle()
        if not model.closed:
            seconds = self._joining_seconds
            await model.real.drain(seconds, cleanup=seconds)
            await self._see_closed(model)


async def no_tasks_left(acts: list[tuple[str, int, int]], seconds: float) -> None:
    """Run a program on asyncio, and see that it leaves no task."""
    await Program(seconds).run(acts)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def run_on(backend: str, acts: list[tuple[str, int, int]], seed: int) -> None:
    """Run one program; on trio, `seed` decides in which order tasks that are ready run."""
    seconds = JOINING_SECONDS[backend]
    if backend == "trio":
        trio_run._r.seed(seed)
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(Program(seconds).run, acts, clock=clock)
    else:
        factory = uvloop.new_event_loop if backend == "uvloop" else loops.VirtualLoop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(no_tasks_left(acts, seconds))


@pytest.mark.parametrize("backend", loops.BACKENDS)
def test_scopes_do_what_the_model_says(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a program does, scopes and model agree on what is in flight, and on what was lost."""
    monkeypatch.setattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    act = st.tuples(st.sampled_from(ACTS), st.integers(0, 5), st.integers(0, 5))
    seed = st.integers(0, 2**16) if backend == "trio" else st.just(0)

    @settings(max_examples=sampling.fewer(PROGRAMS[backend], 20), deadline=None, print_blob=True)
    @given(acts=st.lists(act, max_size=40), seed=seed)
    def run(acts: list[tuple[str, int, int]], seed: int) -> None:
        run_on(backend, acts, seed)

    run()
