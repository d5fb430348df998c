"""`frontier()`: what is in flight, since when, started where, waiting on what."""

from __future__ import annotations

import inspect
import json
import re
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from quiesce import FrontierEntry, Scope, UsageError
from quiesce.core.python_private import get_frame
from tests.loops import let_others_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def next_line() -> str:
    """Name the line below the caller's, as a frontier does."""
    frame = get_frame(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1}"


def waiting_line(fn: Callable[..., Any]) -> str:
    """Name the line of a function that is marked as the one it waits in."""
    lines, first = inspect.getsourcelines(fn)
    (number,) = [first + at for at, line in enumerate(lines) if "# waits here" in line]
    return f"{inspect.getsourcefile(fn)}:{number} in {fn.__qualname__}"


def entry_of(scope: Scope, name: str) -> FrontierEntry:
    """Find the one entry of a name among the scope's own."""
    (entry,) = [entry for entry in scope.frontier() if entry.name == name]
    return entry


async def wait(gate: anyio.Event) -> None:
    """Wait, in a known line."""
    await gate.wait()  # waits here


async def call(gate: anyio.Event) -> None:
    """Wait two calls deep."""
    await wait(gate)


async def numbers(gate: anyio.Event) -> AsyncIterator[int]:
    """Return a number, then wait."""
    yield 1
    await gate.wait()  # waits here


async def consume(gate: anyio.Event) -> None:
    """Wait inside an async generator."""
    async for _ in numbers(gate):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def resource() -> AsyncIterator[None]:
    """Return something to enter."""
    yield


# What started it.


async def test_the_line_that_started_it_is_exact() -> None:
    """Job, service, hold and child scope each name the very line of the call."""
    async with Scope("frontier") as scope:
        gate = anyio.Event()
        started = next_line()
        job = scope.spawn(gate.wait, name="job")
        assert entry_of(scope, "job").where == job.where == started
        started = next_line()
        scope.spawn(gate.wait, name="service", service=True)
        assert entry_of(scope, "service").where == started
        started = next_line()
        hold = scope.hold("request", "hold")
        assert entry_of(scope, "hold").where == hold.where == started
        started = next_line()
        child = scope.child("child")
        assert entry_of(scope, "child").where == child.where == started
        gate.set()
        hold.release()


async def test_the_line_of_a_call_over_many_lines_is_its_first() -> None:
    """A call that is written over several lines is named by the line it begins in."""
    async with Scope("frontier") as scope:
        started = next_line()
        job = scope.spawn(
            anyio.sleep_forever,
            name="a long call",
            key="k",
        )
        assert job.where == started
        job.cancel()


async def test_the_line_that_opened_a_scope_is_exact() -> None:
    """A block, and a scope made by `Scope.open`, name the line that opened them."""
    started = next_line()
    async with Scope("block") as block:
        assert block.where == started
        started = next_line()
        opened = await Scope.open("opened")
        assert opened.where == started
        assert entry_of(block, "opened").where == started


async def test_each_turn_of_a_loop_is_an_entry() -> None:
    """Many jobs from one line are many entries, in the order of their start."""
    async with Scope("frontier") as scope:
        gate = anyio.Event()
        for number in range(5):
            scope.spawn(gate.wait, name=f"job {number}")
        assert [entry.name for entry in scope.frontier()] == [f"job {n}" for n in range(5)]
        assert len({entry.where for entry in scope.frontier()}) == 1
        gate.set()


# What it waits on.


async def test_the_innermost_await_is_exact() -> None:
    """Below any number of calls, the last line outside the event loop's own code is named."""
    async with Scope("frontier") as scope:
        gate = anyio.Event()
        for fn in (wait, call):
            scope.spawn(fn, gate, name=fn.__name__)
        await let_others_run()
        for fn in (wait, call):
            waiting_on = entry_of(scope, fn.__name__).waiting_on
            assert waiting_on == f"{waiting_line(wait)}, in anyio Event.wait"
        gate.set()


async def test_an_await_inside_an_async_generator_is_found() -> None:
    """A job that reads a stream waits where the stream waits."""
    async with Scope("frontier") as scope:
        gate = anyio.Event()
        scope.spawn(consume, gate, name="consume")
        await let_others_run()
        waiting_on = entry_of(scope, "consume").waiting_on
        assert waiting_on == f"{waiting_line(numbers)}, in anyio Event.wait"
        gate.set()


async def test_holds_and_scopes_wait_on_nothing() -> None:
    """Where nothing can be known, nothing is said."""
    async with Scope("frontier") as scope:
        scope.child("child")
        with scope.hold("request", "one"):
            assert [entry.waiting_on for entry in scope.frontier()] == [None, None]


async def test_a_job_may_look_at_itself() -> None:
    """The frontier may be asked for by a job, which is in it."""
    async with Scope("frontier") as scope:

        async def look() -> FrontierEntry:
            return entry_of(scope, "me")

        entry = await scope.spawn(look, name="me")
        assert (entry.kind, entry.name) == ("job", "me")


# The rest of an entry.


async def test_the_age_is_time_since_the_start(backend: str) -> None:
    """The age is on the event loop's clock, and grows with it."""
    async with Scope("frontier") as scope:
        gate = anyio.Event()
        scope.spawn(gate.wait, name="old")
        seconds = 0.02 if backend == "uvloop" else 90.0
        with anyio.move_on_after(seconds):
            await anyio.sleep_forever()
        scope.spawn(gate.wait, name="new")
        late = 5.0 if backend == "uvloop" else 0.001
        assert seconds - 0.001 <= entry_of(scope, "old").age < seconds + late
        assert 0 <= entry_of(scope, "new").age < late
        gate.set()


async def test_services_are_shown_and_not_counted() -> None:
    """A service is an entry that is marked, and not in flight."""
    async with Scope("frontier") as scope:
        scope.spawn(anyio.sleep_forever, name="loop", service=True)
        frontier = scope.frontier()
        assert entry_of(scope, "loop").service
        assert frontier.in_flight == ()
        assert len(frontier) == 0
        assert not frontier
        hold = scope.hold("request", "work")
        assert not entry_of(scope, "work").service
        assert scope.frontier()
        hold.release()


async def test_child_scopes_are_nested() -> None:
    """Work of child scopes is below their entries, and is counted; an idle child is shown too."""
    async with Scope("frontier") as scope:
        child = scope.child("child")
        grandchild = child.child("grandchild")
        holds = [
            each.hold("request", f"of {each.name}", peer=each.name)
            for each in (scope, child, grandchild)
        ]
        frontier = scope.frontier()
        of_scope, below = frontier.entries
        of_child, far_below = below.children
        (of_grandchild,) = far_below.children
        assert (below.kind, below.name, far_below.name) == ("scope", "child", "grandchild")
        assert [of_scope.name, of_child.name, of_grandchild.name] == [hold.name for hold in holds]
        assert frontier.in_flight == (of_scope, of_child, of_grandchild)
        assert of_grandchild.details == {"peer": "grandchild"}
        assert len(frontier) == 3
        for hold in holds:
            hold.release()
        assert len(scope.frontier()) == 0
        assert [entry.name for entry in scope.frontier()] == ["child"]


async def test_a_closed_child_is_gone() -> None:
    """A child scope that was closed is no longer shown."""
    async with Scope("frontier") as scope:
        child = scope.child("child")
        assert len(scope.frontier().entries) == 1
        await child.aclose()
        assert scope.frontier().entries == ()


@pytest.mark.real_time
async def test_a_thread_is_shown_with_its_stack() -> None:
    """A function in a thread is in flight, with the line that the thread is in."""
    gate, begun = anyio.Event(), anyio.Event()
    lines: list[str] = []

    async def meet() -> None:
        begun.set()
        await gate.wait()

    def block() -> None:
        anyio.from_thread.run(meet)  # waits here

    async def work() -> None:
        lines.append(next_line())
        await scope.to_thread(block)

    async with Scope("frontier") as scope:
        scope.spawn(work)
        await begun.wait()
        entry = entry_of(scope, block.__qualname__)
        assert (entry.kind, entry.where) == ("thread", lines[0])
        assert entry.waiting_on is not None
        assert entry.waiting_on == f"{waiting_line(block)}, in anyio run"
        gate.set()


@pytest.mark.real_time
async def test_what_a_job_is_made_of_was_started_where_the_job_was() -> None:
    """A thread that is a job's whole work names the line of the spawn, not of the event loop."""
    gate, begun = threading.Event(), anyio.Event()

    def block() -> None:
        anyio.from_thread.run_sync(begun.set)
        gate.wait()

    async with Scope("frontier") as scope:
        job = scope.spawn(scope.to_thread, block, name="job")
        await begun.wait()
        where = entry_of(scope, block.__qualname__).where
        gate.set()
        assert where == job.where


async def test_an_entered_context_is_shown() -> None:
    """A context is a service of its own, named after what was entered, with the line that did."""
    async with Scope("frontier") as scope:
        started = next_line()
        await scope.enter(resource())
        (entry,) = scope.frontier()
        assert entry.where == started
        assert entry.service
        assert "resource" in entry.name
        assert not scope.frontier()


async def test_a_context_that_is_being_entered_is_work() -> None:
    """Until it is entered, somebody waits for it, and the scope is not idle."""
    gate = anyio.Event()

    class Slow:
        async def __aenter__(self) -> None:
            await gate.wait()  # waits here

        async def __aexit__(self, *_: object) -> None:
            pass

    async with Scope("frontier") as scope:

        async def enter() -> None:
            await scope.enter(Slow())

        scope.spawn(enter)
        await let_others_run()
        assert {entry.kind for entry in scope.frontier().in_flight} == {"job", "entering"}
        assert waiting_line(Slow.__aenter__) in str(scope.frontier())
        gate.set()
        await scope.idle()


async def test_what_is_left_of_a_drain_is_shown() -> None:
    """While a scope is drained, the frontier names its state and what the drain waits for."""
    scope = await Scope.open("frontier")
    child = scope.child("child")
    seen = []

    async def work() -> None:
        await scope.closing()
        seen.append(scope.frontier())

    child.spawn(work, name="last")
    await scope.drain()
    (frontier,) = seen
    assert frontier.state == "draining"
    assert [entry.name for entry in frontier.in_flight] == ["last"]
    assert frontier.entries[0].details == {"state": "draining"}
    assert scope.frontier().state == "closed"
    assert scope.frontier().entries == ()


# As text, as JSON.


async def test_the_tree_is_readable() -> None:
    """The text has a head, a line an entry, and lines that show what is below what."""
    async with Scope("frontier") as scope:
        assert str(scope.frontier()) == "scope 'frontier' (open): nothing in flight"
        child = scope.child("child")
        holds = [child.hold("request", "GET /", peer="somebody"), scope.hold("request", "POST /")]
        file = inspect.getsourcefile(test_the_tree_is_readable)
        line = inspect.getsourcelines(test_the_tree_is_readable)[1] + 4
        scope.child("other").spawn(anyio.sleep_forever, name="loop", service=True)
        text = str(scope.frontier())
        assert re.sub(r"\d+\.\d s", "AGE", text).splitlines()[:4] == [
            "scope 'frontier' (open): 2 in flight",
            f"├─ request POST / · AGE · started {file}:{line + 1}",
            f"├─ scope child · AGE · started {file}:{line}",
            f"│  └─ request GET / · AGE · started {file}:{line + 1} · peer=somebody",
        ]
        assert text.splitlines()[4].startswith("└─ scope other")
        assert text.splitlines()[5].startswith("   └─ job (service) loop")
        for hold in holds:
            hold.release()


async def test_two_entries_that_look_the_same_are_drawn_right() -> None:
    """Only the last of several equal entries has the corner."""
    async with Scope("frontier") as scope:
        holds = [scope.hold("request", "same") for _ in range(3)]
        corners = [line[0] for line in str(scope.frontier()).splitlines()[1:]]
        assert corners == ["├", "├", "└"]
        for hold in holds:
            hold.release()


async def test_the_json_has_everything() -> None:
    """The JSON has each entry's every field, nested as the scopes are, whatever the details."""
    async with Scope("frontier") as scope:
        child = scope.child("child")
        gate = anyio.Event()
        started = next_line()
        child.spawn(wait, gate, name="work")
        hold = scope.hold("request", "one", peer=("host", 80), tries=2)
        await let_others_run()
        data = json.loads(scope.frontier().to_json())
        assert json.loads(scope.frontier().to_json(indent=2)).keys() == data.keys()
        assert {key: data[key] for key in ("scope", "state", "in_flight")} == {
            "scope": "frontier", "state": "open", "in_flight": 2,
        }  # fmt: skip
        request, below = data["entries"]
        assert request["details"] == {"peer": "('host', 80)", "tries": 2}
        (work,) = below["children"]
        assert work.pop("age") >= 0
        assert work == {
            "kind": "job", "name": "work", "where": started, "service": False, "details": {},
            "waiting_on": f"{waiting_line(wait)}, in anyio Event.wait", "children": [],
        }  # fmt: skip
        gate.set()
        hold.release()


async def test_a_frontier_does_not_change() -> None:
    """It is what was in flight when it was asked for, though everything has ended since."""
    async with Scope("frontier") as scope:
        with scope.hold("request", "one", tries=1):
            frontier = scope.frontier()
        assert [entry.name for entry in frontier] == ["one"]
        assert len(frontier) == 1
        assert not scope.frontier()


async def test_a_new_scope_has_no_frontier() -> None:
    """Asking before the scope is open is an error that says how to open it."""
    with pytest.raises(UsageError, match="async with Scope"):
        Scope("new").frontier()


class Unspeakable:
    """A value of a user's that cannot be shown."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


async def test_a_detail_that_cannot_be_shown_is_named_by_its_type() -> None:
    """A user's `__str__` that raises spoils neither the frontier nor the report."""
    scope = await Scope.open("a")
    scope.hold("request", "one", value=Unspeakable())
    text = "value=<Unspeakable, whose str raised ZeroDivisionError>"
    assert text in str(scope.frontier())
    report = await scope.aclose(cleanup=0)
    assert "Unspeakable" in str(report)
    assert "Unspeakable" in scope.report.to_json() if scope.report else False
