"""Event loops in several threads open and close scopes at once; and many tasks wait for one scope."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import pytest

from quiesce import Scope
from quiesce.core.backends.asyncio.backend import AsyncioBackend
from quiesce.core.roots import roots
from tests.stress import turns

SCOPES = 200


class Elsewhere:
    """A thread with an event loop of its own, and an open scope in it."""

    def __init__(self) -> None:
        """Prepare it."""
        self.opened, self.end = threading.Event(), threading.Event()
        self.errors = list[BaseException]()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        """Open a scope, and close it at the end."""
        try:
            asyncio.run(self.main())
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.opened.set()

    async def main(self) -> None:
        """Open a scope as the program of that loop, and keep it open until the test ends it."""
        async with Scope("elsewhere"):
            self.opened.set()
            self.end.wait()

    def __enter__(self) -> Self:
        """Start it, and wait until its scope is open."""
        self.thread.start()
        self.opened.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.end.set()
        self.thread.join()


def test_a_scope_opens_while_another_thread_opens_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first scope of a loop looks at the other loops; their number may change meanwhile."""
    alive, third = AsyncioBackend.alive, Elsewhere()

    def slow(self: AsyncioBackend) -> bool:
        if third.thread.ident is None:
            third.__enter__()  # it looks, too
        return alive(self)

    with Elsewhere(), Elsewhere():
        monkeypatch.setattr(AsyncioBackend, "alive", slow)
        with Elsewhere() as second:
            assert third.opened.is_set()
        third.__exit__()
    assert (second.errors, third.errors) == ([], [])


@pytest.mark.backends("asyncio", "uvloop")
async def test_the_open_scopes_may_be_read_while_others_open_theirs() -> None:
    """A leak guard looks at them in one thread while scopes open in others."""
    first, second = await Scope.open("a"), await Scope.open("b")
    seen, others = list[object](), list[Elsewhere]()
    for root in roots:
        seen.append(root)
        others.append(Elsewhere().__enter__())
        await (await Scope.open("c")).aclose()
    assert {first, second} <= set(seen)
    for one in others:
        one.__exit__()
    await first.aclose()
    await second.aclose()


@pytest.mark.backends("asyncio", "uvloop")
async def test_the_cost_of_opening_a_scope_does_not_grow_with_those_that_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Opening looks at the other event loops, not at the other scopes."""
    asked = list[AsyncioBackend]()
    alive = AsyncioBackend.alive

    def count(self: AsyncioBackend) -> bool:
        asked.append(self)
        return alive(self)

    monkeypatch.setattr(AsyncioBackend, "alive", count)
    scopes = [await Scope.open(str(number)) for number in range(SCOPES)]
    for scope in scopes:
        await scope.aclose()
    assert len(asked) <= SCOPES // 10


class Counted(asyncio.Future[Any]):
    """A future that counts how often it is compared to another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("wait", [Scope.closing, Scope.idle])
async def test_many_waiters_of_a_scope_are_not_searched_one_by_one(wait: Any) -> None:
    """Tasks that wait for the closing, or for idle, end in one step each, in whichever order."""
    scope = await Scope.open("a")
    scope.backend.waiter = Counted
    hold = scope.hold("request", "one")
    tasks = [asyncio.create_task(wait(scope)) for _ in range(SCOPES)]
    await turns()
    Counted.compared = 0
    for task in reversed(tasks):
        task.cancel()
    await asyncio.wait(tasks)
    assert Counted.compared <= SCOPES
    hold.release()
    await scope.aclose()
