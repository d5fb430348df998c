"""What a type checker makes of a scope's other methods."""

from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import assert_type

import quiesce


@asynccontextmanager
async def connection(host: str) -> AsyncIterator[bytes]:
    """Stand for something that is opened and closed."""
    yield host.encode()


def blocking(text: str) -> int:
    """Stand for work in a thread."""
    return int(text)


async def opens() -> None:
    """Both ways to open a scope give a scope."""
    async with quiesce.Scope("name", adopt=True, services=["pool-*"]) as scope:
        assert_type(scope, quiesce.Scope)
    opened = await quiesce.Scope.open("name", grace=1.0, cleanup=0.5)
    assert_type(opened, quiesce.Scope)
    assert_type(opened.child("part"), quiesce.Scope)
    assert_type(quiesce.current_scope(), quiesce.Scope | None)
    quiesce.Scope("name", True)  # error: call-arg
    quiesce.Scope("name", on_error="ignore")  # error: arg-type
    quiesce.Scope("name", leftovers="keep")  # error: arg-type


async def closes(scope: quiesce.Scope) -> None:
    """Every way to close gives a report."""
    assert_type(await scope.drain(grace=30), quiesce.Report)
    assert_type(await scope.drain(grace=None), quiesce.Report)
    assert_type(await scope.aclose(), quiesce.Report)
    assert_type(scope.report, quiesce.Report | None)
    assert_type(await scope.idle(), None)
    await scope.drain(grace="30")  # error: arg-type


async def holds(scope: quiesce.Scope) -> None:
    """A hold is a context manager, and entering gives what the context manager gives."""
    with scope.hold("request", "GET /", size=3) as hold:
        assert_type(hold, quiesce.Hold)
    assert_type(await scope.enter(connection("localhost")), bytes)
    assert_type(await scope.to_thread(blocking, "12"), int)
    assert_type(scope.from_thread(scope.aclose, cleanup=1.0), Future[quiesce.Report])
    assert_type(scope.from_thread(scope.child, "part"), Future[quiesce.Scope])
    scope.from_thread(scope.aclose, "soon")  # error
    await scope.to_thread(blocking, 12)  # error: arg-type
    await scope.enter(blocking)  # error: arg-type


def reports(report: quiesce.Report) -> None:
    """A report cannot be changed."""
    assert_type(report.ok, bool)
    assert_type(report.completed, int)
    report.completed = 0  # error: misc


async def main(number: int) -> str:
    """Stand for a program."""
    return str(number)


def runs() -> None:
    """Running a program gives its result; a service may have been stopped without one."""
    assert_type(quiesce.run(main, 1, grace=5.0, backend="trio"), str)
    assert_type(quiesce.run(main, 1, service=True), str | None)
    quiesce.run(main, "1")  # error
    quiesce.run(main, 1, backend="twisted")  # error
