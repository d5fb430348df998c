"""What people are told: each line names the place in their own code, or says that it is not known."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError, detached
from quiesce.core.graveyard import graveyards
from quiesce.core.report import ReportEntry
from quiesce.mesh import Patience, Unknown
from quiesce.mesh.routes.following import Followed
from quiesce.mesh.runtime import cascade as cascades
from tests.stress import turns
from tests.unit.mesh.meshing import World, here, until
from tests.unit.mesh.serving import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh import Hop, Node


async def book(*_: Any) -> None:
    """Work until the end."""
    await anyio.sleep_forever()


def logged(function: Any) -> Any:
    """Wrap an endpoint."""

    @functools.wraps(function)
    async def wrapped(*args: Any) -> None:
        await function(*args)

    return wrapped


class Booking:
    """An endpoint for each method."""

    async def post(self) -> None:
        """Book."""

    async def __call__(self, *_: Any) -> None:
        """Work until the end."""
        await anyio.sleep_forever()


class App:
    """An app that calls an endpoint, and says which, as frameworks do."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Any, _: Any, __: Any) -> None:
        """Serve a request."""
        if self._endpoint is not None:
            scope["endpoint"] = self._endpoint
        await book()


def line_of(function: Any) -> str:
    """Return the place of a function."""
    return f"{__file__}:{function.__code__.co_firstlineno}"


class Odd:
    """Something that fails when it is looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    ("app", "where"),
    [
        (App(book), line_of(book)),
        (App(logged(book)), line_of(book)),
        (App(functools.partial(book, 1)), line_of(book)),
        (App(Booking), line_of(Booking.post)),
        (App(Booking().post), line_of(Booking.post)),
        (App(Booking()), line_of(Booking.__call__)),
        (App(None), line_of(App.__call__)),
        (App(Odd()), line_of(App.__call__)),
        (book, line_of(book)),
    ],
)
async def test_a_handler_is_named_by_its_request_and_its_endpoint(app: Any, where: str) -> None:
    """In the frontier, in a verdict, and in the report of a drain."""
    async with World() as world, Scope("server") as server:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(other.asgi(app), "POST", "/book", headers=[header])
                with detached():
                    job = server.spawn(made.run)
                await until(lambda: other.opened.running_hops)
                await turns(5)
        (entry,) = other.frontier().in_flight
        assert (entry.kind, entry.name, entry.where) == ("handler", "POST /book", where)
        verdict = await cascade.settled(0.6)
        assert isinstance(verdict, Unknown)
        assert ": handler POST /book since" in verdict.missing[0]
        assert f"started at {where}" in verdict.missing[0]
        (lost,) = (await other.aclose()).cancelled
        assert (lost.name, lost.where) == ("POST /book", where)
        await job


async def test_a_message_without_http_is_named_by_the_line_that_takes_it() -> None:
    """Not by one of ours."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                pass
        async with other.handle(handing.header) as hop:
            (entry,) = other.frontier().in_flight
            assert (entry.where or "").startswith(f"{__file__}:")
            part = hop.working("more")
            where = [one.where or "" for one in other.frontier().in_flight]
        async with part:
            where += [one.where or "" for one in other.frontier().in_flight]
        assert len(where) == 3
        assert all(one.startswith(f"{__file__}:") for one in where)


async def test_a_receipt_that_was_not_posted_names_whom_it_is_for() -> None:
    """And how many there are."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b", patience=Patience())
        async with node.cascade("c"):
            await world.hand("b", leaves)
        world.lines.cut.add("http://a")
        report = await other.drain(0.05, cleanup=0.05)
        (lost,) = report.undelivered
        assert dict(lost.details) == {"count": 1, "to": "http://a"}


async def leaves(hop: Hop) -> None:
    """Leave work behind."""
    hop.spawn(anyio.sleep_forever)


@pytest.mark.real_time
async def test_no_receipt_is_undelivered_if_there_is_none() -> None:
    """The hop has not ended, because a thread of it is stuck: the report names that."""
    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        begun, gate = threading.Event(), threading.Event()

        def works() -> None:
            begun.set()
            gate.wait()

        async def handler(hop: Hop) -> None:
            hop.spawn(hop.to_thread, works)

        async with node.cascade("c"):
            await world.hand("b", handler)
        await until(begun.is_set)
        try:
            report = await other.drain(0.05, cleanup=0.05)
        finally:
            gate.set()
            await until(lambda: not graveyards)  # the thread has ended, and that is seen
        assert any(one.name.endswith("works") for one in report.stuck)
        assert all((one.where or "").startswith(f"{__file__}:") for one in report.stuck)
        assert not report.undelivered
        assert "receipts" not in str(report)
        world.all.remove(other)


def test_a_place_that_is_not_known_is_said_to_be_so() -> None:
    """A question mark says nothing."""
    lost = ReportEntry("item", "in asyncio.Queue", "hop", None, 1.0, {})
    assert str(lost) == "item in asyncio.Queue · 1.00 s · started at an unknown place"


@pytest.mark.backends("asyncio")
async def test_what_wakes_several_workers_names_its_place() -> None:
    """Each of them holds the hop from the line that has set the event."""
    async with World() as world:
        node = await world.add("a")
        await _woken(node, asyncio.Event(), asyncio.Event())


async def _woken(node: Node, bell: asyncio.Event, done: asyncio.Event) -> None:
    async def worker() -> None:
        while True:
            await bell.wait()
            bell.clear()
            await done.wait()

    async with Scope("app") as app:
        with detached():
            app.spawn(worker, service=True)
        await turns(5)
        async with node.cascade("c"):
            bell.set()
        await turns(5)
        held = [
            one for hop in node.opened.running_hops.values() for one in hop.holds.values()
            if isinstance(one, Followed)
        ]  # fmt: skip
        assert held
        assert all((one.where or "").startswith(f"{__file__}:") for one in held)
        done.set()


@pytest.mark.parametrize("in_job", [False, True])
async def test_a_wait_inside_the_own_block_is_an_error_that_names_the_block(
    monkeypatch: pytest.MonkeyPatch, *, in_job: bool
) -> None:
    """With both lines: of the call, and of the block."""
    monkeypatch.setattr(cascades, "_LOOK_SHARE", 0.9)  # a busy machine may pause for long
    async with World() as world:
        node = await world.add("a")

        async def wait(within: float | None) -> Any:
            return await cascade.settled(within)

        async def call(within: float | None) -> Any:
            return await (here().spawn(wait, within) if in_job else wait(within))

        async with node.cascade("c") as cascade:
            with pytest.raises(UsageError, match="leave the block first") as error:
                await call(None)
            assert f"{line(wait, 1)}" in str(error.value)
            found = await call(0.6)
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        block = f"{__file__}:{call.__code__.co_firstlineno + 3}"
        assert re.search(rf"cascade c since \d\.\d s, started at {re.escape(block)}", missing)
        assert missing.endswith(
            f". It was waited for inside of its own block, at {line(wait, 1)} in {wait.__qualname__}: "
            f"leave the block first (it began at {block})"
        )
        assert block in str(error.value)


def line(function: Callable[..., Any], number: int) -> str:
    """Return the place of a line of a function."""
    return f"{__file__}:{function.__code__.co_firstlineno + number}"
