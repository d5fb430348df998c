"""A stream and its scope: what a drain, a close and their deadlines do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import JobCancelled, Scope, ScopeClosed
from quiesce.streams.stream import stream
from tests.stress import CANCELLED, turns
from tests.unit.streams.stream_sources import Counter, begin_to_read, job_of, on_trio, outcome_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUFFERS = pytest.mark.parametrize("buffer", [0, 4])


@BUFFERS
@pytest.mark.parametrize("verb", ["aclose", "drain"])
async def test_closing_the_scope_closes_a_half_read_stream(verb: str, buffer: int) -> None:
    """The `finally` runs to the end, and who reads later is told that the scope was closed."""
    counter = Counter()
    scope = await Scope.open("a")
    source = stream(counter, buffer=buffer, scope=scope)
    await anext(source)
    await turns()
    report = await (scope.aclose() if verb == "aclose" else scope.drain(grace=None))
    assert counter.cleaned_up
    assert (report.completed, report.ok) == (1, True)
    for _ in range(2):
        with pytest.raises(ScopeClosed, match="stream 'Counter' was closed with scope 'a'"):
            await anext(source)


async def test_a_reader_that_waits_is_told_of_the_scopes_close() -> None:
    """The reader is not left waiting, and does not take it for the end of the items."""
    counter = Counter()
    counter.slow_from = 1
    async with Scope("readers") as readers:
        scope = await Scope.open("a")
        source = stream(counter, scope=scope)
        assert await anext(source) == 0
        reader = await begin_to_read(readers, source)
        report = await scope.aclose()
        assert isinstance(await reader, ScopeClosed)
        assert counter.cleaned_up
        assert [str(item).split(" · ")[0] for item in report.cancelled] == ["stream Counter"]


@pytest.mark.parametrize("depth", [0, 1])
async def test_a_reader_of_the_scope_is_cancelled_with_it(depth: int) -> None:
    """Work that reads when its scope is closed has not failed: it is cancelled, as all work is."""
    counter = Counter()
    counter.slow_from = 0
    scope = inner = await Scope.open("a")
    for _ in range(depth):
        inner = inner.child("inner")
    source = stream(counter, scope=inner)
    reader = inner.spawn(source.__anext__)
    await turns(3)
    report = await scope.aclose()
    assert report.failed == ()
    assert sorted(item.kind for item in report.cancelled) == ["job", "stream"]
    assert reader.outcome is not None
    assert reader.outcome.status == "cancelled"
    assert counter.cleaned_up


async def test_a_drain_waits_for_a_stream_that_is_being_read() -> None:
    """Work that reads to the end may do so, and may start to read a stream."""
    counter = Counter(5)
    items: list[int] = []

    async def read() -> None:
        async for item in stream(counter):
            items.append(item)
            await turns(2)

    scope = await Scope.open("a")
    scope.spawn(read)
    report = await scope.drain(grace=None)
    assert items == list(range(5))
    assert (report.completed, report.ok) == (2, True)


@BUFFERS
@pytest.mark.parametrize("depth", [0, 2])
async def test_a_drain_waits_for_a_step_that_is_under_way(depth: int, buffer: int) -> None:
    """Its reader gets the item, and then the drain does not wait for a read that nobody makes."""
    counter = Counter()
    counter.slow_from = 1
    async with Scope("readers") as readers:
        scope = inner = await Scope.open("a")
        for _ in range(depth):
            inner = inner.child("inner")
        source = stream(counter, buffer=buffer, scope=inner)
        assert await anext(source) == 0
        reader = await begin_to_read(readers, source)
        closing = readers.spawn(scope.drain, None)
        with anyio.move_on_after(0.05):
            await anyio.sleep_forever()
        assert not closing.done()
        counter.hold_up.set()
        set_at = anyio.current_time()
        assert await reader == 1
        assert (await closing).ok
        assert anyio.current_time() - set_at < 5  # it was told, and did not look again by chance
    assert counter.cleaned_up


async def test_the_end_of_a_block_closes_what_the_block_has_half_read() -> None:
    """A block that keeps a half-read stream does not wait for its own next read."""
    counter = Counter()
    async with Scope("a"):
        source = stream(counter)
        assert await anext(source) == 0
    assert counter.cleaned_up
    with pytest.raises(ScopeClosed):
        await anext(source)


@pytest.mark.parametrize("by", ["aclose", "drop"])
async def test_the_scope_is_not_idle_before_the_cleanup_has_run(by: str) -> None:
    """The stream is in the frontier, as closing, until the `finally` is done."""
    counter = Counter()
    counter.cleanup_turns = 10
    async with Scope("a") as scope:
        source = stream(counter)
        await anext(source)
        if by == "aclose":
            scope.spawn(source.aclose)
        del source
        await turns(3)
        details = [entry.details for entry in scope.frontier() if entry.kind == "stream"]
        assert details == [{"reader": False, "closing": True}]
        await scope.idle()
        assert counter.cleaned_up


@pytest.mark.parametrize("stage", ["parked", "in a step"])
async def test_a_cleanup_that_hangs_is_cut_short_at_the_deadline(stage: str) -> None:
    """A `finally` that takes too long is cancelled as any job's, and the scope gets closed."""
    diary: list[str] = []

    async def slow() -> AsyncIterator[int]:
        try:
            yield 0
            await anyio.sleep_forever()
        finally:
            try:
                await anyio.sleep_forever()
            except CANCELLED:
                diary.append("cut short")
                raise

    scope = await Scope.open("a")
    source = stream(slow, scope=scope)
    await anext(source)
    async with Scope("readers") as readers:
        reader = await begin_to_read(readers, source) if stage == "in a step" else None
        report = await scope.aclose(cleanup=0.02)
        assert reader is None or isinstance(await reader, ScopeClosed)
    assert diary == ["cut short"]
    assert len(report.cancelled) == 1
    assert not report.stuck


async def test_a_generator_that_does_not_end_is_stuck() -> None:
    """It is named in the report, and a reader is not left waiting for it."""
    release = anyio.Event()

    async def deaf() -> AsyncIterator[int]:
        yield 0
        while not release.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await release.wait()
            except CANCELLED:
                pass

    scope = await Scope.open("a")
    source = stream(deaf, scope=scope)
    await anext(source)
    async with Scope("readers") as readers:
        reader = await begin_to_read(readers, source)
        report = await scope.aclose(cleanup=0.02)
        assert isinstance(await reader, ScopeClosed)
        assert [(item.kind, item.name) for item in report.stuck] == [
            ("stream", "test_a_generator_that_does_not_end_is_stuck.<locals>.deaf")
        ]
        release.set()
        await source.aclose()


async def test_a_close_that_is_under_way_is_not_cancelled_by_the_scopes() -> None:
    """The scope's close waits for a cleanup that has begun, and does not break it."""
    diary: list[str] = []
    go_on = anyio.Event()

    async def careful() -> AsyncIterator[int]:
        try:
            yield 0
        finally:
            await go_on.wait()
            diary.append("cleaned up")

    async with Scope("closers") as closers:
        scope = await Scope.open("a")
        source = stream(careful, scope=scope)
        await anext(source)
        closer = closers.spawn(source.aclose)
        await turns(3)
        closing = closers.spawn(scope.aclose)
        await turns()
        go_on.set()
        report = await closing
        await closer
        assert diary == ["cleaned up"]
        assert report.ok
        with pytest.raises(StopAsyncIteration):
            await anext(source)


async def test_leftovers_are_handed_to_the_parent_and_can_be_read_on() -> None:
    """A stream outlives a scope that hands it over, and its error is the parent's to report."""
    counter = Counter()
    counter.fail_at = 2
    parent = await Scope.open("parent")
    child = parent.child("child", leftovers="parent")
    source = stream(counter, scope=child)
    assert await anext(source) == 0
    report = await child.aclose()
    assert report.handed_over == 1
    assert await anext(source) == 1
    assert [entry.kind for entry in parent.frontier()] == ["stream"]
    with pytest.raises(KeyError):
        await anext(source)
    assert not parent.frontier()
    report = await parent.aclose()
    assert report.ok


async def test_an_error_is_the_parents_after_a_hand_over() -> None:
    """What fails ahead of its reader after the hand-over is in the report of the parent."""
    counter = Counter()
    counter.slow_from = counter.fail_at = 1
    parent = await Scope.open("parent")
    child = parent.child("child", leftovers="parent")
    source = stream(counter, buffer=2, scope=child)
    assert await anext(source) == 0
    await child.aclose()
    counter.hold_up.set()
    await turns()
    report = await parent.aclose()
    assert [type(item.error) for item in report.failed] == [KeyError]
    assert repr(source) == "<Stream 'Counter' ended>"


async def test_a_generator_may_close_its_own_scope() -> None:
    """It gets the report, as any job that does so, and the stream ends."""
    reports: list[object] = []

    async def closing() -> AsyncIterator[int]:
        yield 0
        reports.append(await scope.aclose())
        yield 1

    async with Scope("readers") as readers:
        scope = await Scope.open("a")
        source = stream(closing, scope=scope)
        await anext(source)
        outcome = await readers.spawn(outcome_of, source.__anext__)
        assert isinstance(outcome, ScopeClosed)
        await scope.aclose()
    assert len(reports) == 1


@pytest.mark.parametrize("swallow", [False, True])
async def test_a_job_that_is_cancelled_while_parked_passes_it_to_the_generator(
    swallow: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The generator sees the cancellation at its `yield`, and what it makes of it is read."""
    diary: list[str] = []

    async def watching() -> AsyncIterator[int]:
        try:
            yield 0
        except CANCELLED:
            diary.append("cancelled")
            if not swallow:
                raise
            yield 1

    async with Scope("a") as scope:
        source = stream(watching)
        await anext(source)
        job_of(scope).cancel()
        await turns()
        assert diary == ["cancelled"]
        if swallow:
            assert await anext(source) == 1
            if not on_trio():  # where a cancellation lasts
                with pytest.raises(StopAsyncIteration):
                    await anext(source)
        else:
            with pytest.raises(JobCancelled):
                await anext(source)


@pytest.mark.quiesce(allow=["task:*.main"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_gets_out(kind: type[BaseException], backend_name: str) -> None:
    """What wants to end the program does, also out of a generator."""

    async def interrupted() -> AsyncIterator[int]:
        yield 0
        await turns(2)
        raise kind

    async def main() -> None:
        async with Scope("a"):
            source = stream(interrupted, buffer=1)
            await anext(source)
            await anyio.sleep_forever()

    with pytest.raises(kind):
        anyio.run(main, backend=backend_name)


@pytest.fixture(params=["asyncio", "trio"])
def backend_name(request: pytest.FixtureRequest) -> str:
    """Name the event loop for a test that runs its own."""
    return str(request.param)


@pytest.mark.parametrize("services", [0, 1])
async def test_the_body_of_the_block_does_not_come_back(services: int) -> None:
    """A half-read stream that the body has kept is closed at the block's end, beside a service."""
    counter = Counter()
    async with Scope("a") as scope:
        for _ in range(services):
            scope.spawn(anyio.sleep_forever, service=True)
        source = stream(counter)
        assert await anext(source) == 0
    assert counter.cleaned_up
    assert scope.report is not None
    assert scope.report.ok
    with pytest.raises(ScopeClosed):
        await anext(source)
