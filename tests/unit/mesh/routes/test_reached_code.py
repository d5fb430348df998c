"""A handler may leave its job to work that another handler has started: found by the functions that it may call."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import anyio
import pytest

from quiesce.mesh.routes.reached_code import may_call
from tests.unit.mesh.meshing import World, here
from tests.unit.mesh.serving import Exchange, answers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quiesce.mesh import Cascade


def keep(coro: Any) -> asyncio.Task[Any]:
    """Start a task."""
    return asyncio.create_task(coro)


class Buffer:
    """Gathers events, and sends them together."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.at_work: asyncio.Task[None] | None = None
        self.gate = anyio.Event()

    def add(self, event: str) -> None:
        """Leave an event; the first one starts the task that sends them."""
        self.events.append(event)
        if self.at_work is None:
            self.at_work = keep(self.flush())

    async def flush(self) -> None:
        """Send them, when it may."""
        await self.gate.wait()
        self.events.clear()


class Dependency:
    """What FastAPI's `Depends` returns."""

    def __init__(self, dependency: Callable[..., object]) -> None:
        self.dependency = dependency


class Tracker:
    """Has a buffer behind a method."""

    def track(self) -> None:
        """Leave an event."""
        _track("event")


BUFFER = Buffer()
TRACKER = Tracker()


def _track(event: str) -> None:
    BUFFER.add(event)


async def orders() -> None:
    """Leave an event, by a function."""
    _track("order")


async def mails() -> None:
    """Leave an event, by a method of an object."""
    TRACKER.track()


async def depends(_: object = Dependency(orders)) -> None:
    """Leave an event, by a dependency."""


async def inner() -> None:
    """Leave an event, in a function inside of it."""

    def later() -> None:
        BUFFER.add("inner")

    later()


async def search() -> None:
    """Leave nothing."""
    await asyncio.sleep(0)


class Proxy:
    """Raises whatever is looked up, as a proxy outside of its context does."""

    @property  # type: ignore[misc]  # as proxies do
    def __class__(self) -> Any:
        """Fail, as all else."""
        message = "outside of its context"
        raise RuntimeError(message)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


PROXY = Proxy()


def _decorated() -> None:
    BUFFER.add("decorated")


_decorated.__wrapped__ = partial(print)  # type: ignore[attr-defined]  # as functools.wraps of a partial does


async def odd(_: object = PROXY) -> None:
    """Use a proxy, and a function that wraps something other than a function."""
    PROXY.add("x")
    _decorated()


class View:
    """A handler that is a method."""

    async def get(self) -> None:
        """Leave an event, by a method of its own class."""
        self.leave()

    def leave(self) -> None:
        """Leave it."""
        BUFFER.add("view")


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        (orders, True),
        (mails, True),
        (depends, True),
        (inner, True),
        (partial(orders), True),
        (View().get, True),
        (odd, True),
        (Mock(), False),
        (search, False),
        (print, False),
        (None, False),
    ],
)
def test_the_functions_that_a_handler_may_call_are_found_by_name(
    handler: object, *, found: bool
) -> None:
    """Names are looked up in globals, classes, closures and defaults; the code is not run."""
    assert may_call(handler, keep.__code__) is found
    assert not BUFFER.events


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize(("endpoint", "count"), [(mails, 1), (search, 0)])
async def test_a_hop_says_that_it_may_have_joined_the_work_of_another_handler(
    tmp_path: Path, endpoint: Callable[[], Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it may call the function that has started the work; a handler that cannot says nothing."""
    buffer = Buffer()
    monkeypatch.setitem(globals(), "BUFFER", buffer)

    async with World(tmp_path) as world:
        node = await world.add("a")
        served = await world.add("b")

        async def ask(path: str, function: Callable[[], Any]) -> Cascade:
            async def app(scope: Any, receive: Any, send: Any) -> None:
                scope["endpoint"] = function
                await function()
                await answers(scope, receive, send)

            async with node.cascade("c") as cascade:
                with here().delegate("http://b") as handing:
                    header = (b"cascade", handing.header.encode())
                    made = Exchange(served.asgi(app), "POST", path, headers=[header])
                    await world.servers.spawn(made.run)
                    handing.answered(made.told)
            return cascade

        first = await ask("/orders", orders)
        verdict = await (await ask("/mails", endpoint)).settled(5)
        assert verdict.ok, str(verdict)
        assert len(verdict.assumptions) == count
        for told in verdict.assumptions:
            assert "which another handler has left for another message at" in told
            assert __file__ in told
        buffer.gate.set()
        assert (await first.settled(5)).assumptions == ()
