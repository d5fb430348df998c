"""Tasks that a library starts for the whole process are no scope's work."""

from __future__ import annotations

import asyncio
import functools
import sys
import types
from typing import Any

import anyio
import pytest

from quiesce import Scope, current_scope
from quiesce.core import libraries
from quiesce.core.python_private import get_frame
from tests.foreign_private import shutdown_watcher
from tests.unit.core.adoption_work import others

pytestmark = pytest.mark.backends("asyncio", "uvloop")

SOURCE = """
class Watching:
    async def _shutdown_watcher(self, told, seen):
        seen.append(look())
        await told.wait()

async def _shutdown_watcher(told, seen):
    seen.append(look())
    await told.wait()
"""


def library(name: str) -> Any:
    """Return a module of this name with a watcher."""
    module: Any = types.ModuleType(name)
    module.look = current_scope
    exec(SOURCE, vars(module))  # noqa: S102 - a library's source, as it were
    return module


def plain_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make tasks as a program's own factory would."""
    return asyncio.Task(coro, loop=loop, **options)


WAYS = ["create_task", "another factory", "late", "eager"]


async def start(coro: Any, way: str) -> asyncio.Task[Any]:
    """Start a task in one of the ways that adoption sees."""
    loop = asyncio.get_running_loop()
    if way == "another factory":
        loop.set_task_factory(plain_factory)
    elif way == "eager":
        factory = getattr(asyncio, "eager_task_factory", None)
        if factory is None:
            coro.close()
            pytest.skip("since Python 3.12")
        if not isinstance(loop, asyncio.BaseEventLoop) and sys.version_info[:2] == (3, 13):
            coro.close()
            pytest.skip("uvloop passes eager_start=None, which the eager factory of 3.13 refuses")
        loop.set_task_factory(factory)
    if way == "late":  # by one who has kept the loop's own function
        return type(loop).create_task(loop, coro)
    return asyncio.create_task(coro)


@pytest.mark.parametrize("way", WAYS)
async def test_a_known_watcher_is_not_adopted(way: str) -> None:
    """It is in no scope, holds up nothing, and outlives the scope in which it was started."""
    told, seen = anyio.Event(), list[object]()
    loop = asyncio.get_running_loop()
    try:
        async with Scope("a", adopt=True) as scope:
            before = loop.get_task_factory()
            task = await start(shutdown_watcher(library("sse_starlette.sse"))(told, seen), way)
            loop.set_task_factory(before)
            await scope.idle()
            assert not scope.frontier()
        assert scope.report is not None
        assert scope.report.ok
        assert not scope.report.completed
        assert task in others()
    finally:
        told.set()
    await task
    assert seen == [None]


async def test_a_known_task_in_a_task_group_is_not_adopted() -> None:
    """Task groups of anyio wrap what they run; so a request starts the session of MCP that it opens."""
    told, seen = anyio.Event(), list[object]()
    async with anyio.create_task_group() as group, Scope("a", adopt=True) as scope:
        group.start_soon(shutdown_watcher(library("sse_starlette.sse")), told, seen)
        group.start_soon(shutdown_watcher(library("mine.sse")), told, [])
        assert [entry.kind for entry in scope.frontier()] == ["task"]
        told.set()
    assert seen == [None]


@pytest.mark.parametrize(
    ("module", "owner"), [("mine.sse", None), ("sse_starlette.sse", "Watching")]
)
async def test_what_only_has_its_name_is_adopted(module: str, owner: str | None) -> None:
    """Module and qualified name both have to be those of the table."""
    told, seen = anyio.Event(), list[object]()
    made = library(module)
    function = shutdown_watcher(made if owner is None else made.Watching())
    async with Scope("a", adopt=True) as scope:
        task = asyncio.create_task(function(told, seen))
        assert [entry.kind for entry in scope.frontier()] == ["task"]
        told.set()
        await task


def test_only_coroutines_are_looked_up() -> None:
    """Other awaitables, and a coroutine that has ended, are nobody's watcher."""
    coro = shutdown_watcher(library("sse_starlette.sse"))(None, None)
    assert libraries.is_process_wide(coro)
    coro.close()
    assert not libraries.is_process_wide(coro)
    assert not libraries.is_process_wide(object())


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("asyncpg.pool", "asyncpg"),
        ("google.auth.transport.requests", "google.auth"),
        ("google.adk.runners", "google.adk"),
        ("app", "app"),
        (None, ""),
    ],
)
def test_a_library_is_told_by_its_package(module: str | None, package: str) -> None:
    """Several libraries are below `google`: the agents of google-adk are not the clients of Google Cloud."""
    assert libraries.package_of(module) == package
    assert (package in libraries.HOUSEKEEPERS) == (package in {"asyncpg", "google.auth"})


async def test_what_every_program_uses_has_no_name_to_be_declared_by() -> None:
    """A task that waits for an event is not a library's; one of a library, or of the program, has its name."""
    event = asyncio.Event()
    coro, own = event.wait(), shutdown_watcher(library("unheard.pool"))(None, None)
    assert libraries.full_name(coro) is None
    assert libraries.full_name(own) == "unheard.pool._shutdown_watcher"
    coro.close()
    own.close()


LOOPS = """
class BaseSession:
    def _receive_loop(self, ask):
        return ask()

    def other(self, ask):
        return ask()
"""


@pytest.mark.parametrize(
    ("module", "function", "is_known"),
    [
        ("mcp.shared.session", "_receive_loop", True),
        ("mcp.shared.session", "other", False),
        ("mine.shared.session", "_receive_loop", False),
    ],
)
async def test_a_relay_is_known_by_its_module_and_name(
    module: str, function: str, *, is_known: bool
) -> None:
    """Also behind the queue that mcp has around a queue; the program's own loop is not one."""
    made: Any = types.ModuleType(module)
    exec(LOOPS, vars(made))  # noqa: S102 - a library's source, as it were
    loop = getattr(made.BaseSession(), function)
    around: Any = types.ModuleType("mcp.shared._context_streams")
    exec("def receive(ask):\n    return ask()\n", vars(around))  # noqa: S102 - the same

    def asks() -> bool:
        return libraries.is_relay(get_frame(1))

    assert loop(asks) is is_known
    assert loop(lambda: around.receive(asks)) is False  # a function of the program is between
    assert loop(functools.partial(around.receive, asks)) is is_known
