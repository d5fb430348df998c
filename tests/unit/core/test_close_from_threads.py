"""Other threads close a scope, through `from_thread`."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread

import anyio
import pytest

from quiesce import Report, Scope
from quiesce.core.graveyard import graveyards

PROMPT = 1.0


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_another_thread_closes(how: str) -> None:
    """`from_thread` gives the report to a thread that the event loop knows nothing of."""
    results: Future[Report] = Future()
    ended = anyio.Event()

    def stranger() -> None:
        results.set_result(scope.from_thread(getattr(scope, how)).result(timeout=10))
        scope.from_thread(ended.set).result(timeout=10)

    scope = await Scope.open("a")
    job = scope.spawn(scope.closing)
    thread = Thread(target=stranger)
    thread.start()
    await ended.wait()
    thread.join()
    assert scope.state == "closed"
    assert not results.result().stuck
    assert not graveyards
    assert job.done()
    assert scope.report is results.result()


@pytest.mark.real_time
async def test_many_threads_close_at_once() -> None:
    """All threads get the same report."""
    reports: list[Report] = []
    done: list[None] = []
    ended = anyio.Event()

    def finished() -> None:
        done.append(None)
        if len(done) == 8:
            ended.set()

    def stranger() -> None:
        reports.append(scope.from_thread(scope.aclose).result(timeout=10))
        scope.from_thread(finished).result(timeout=10)

    scope = await Scope.open("a")
    scope.spawn(anyio.sleep_forever)
    threads = [Thread(target=stranger) for _ in range(8)]
    for thread in threads:
        thread.start()
    await ended.wait()
    for thread in threads:
        thread.join()
    assert len(reports) == 8
    assert {id(report) for report in reports} == {id(scope.report)}


@pytest.mark.real_time
async def test_a_thread_of_the_scope_closes_it() -> None:
    """A function that runs in `scope.to_thread` closes the scope, and does not wait for itself."""

    def close_from_inside() -> Report:
        report: Report = scope.from_thread(scope.aclose, cleanup=2).result(timeout=10)
        return report

    scope = await Scope.open("a")
    scope.spawn(anyio.sleep_forever)
    begun = anyio.current_time()
    report = await scope.to_thread(close_from_inside)
    assert anyio.current_time() - begun < PROMPT
    assert not report.stuck
    assert not (await scope.aclose()).stuck
