"""Reading a stream: what comes, when the generator runs, and who gets what."""

from __future__ import annotations

import gc
import re
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import ArgumentError, JobCancelled, Scope, ScopeClosed, UsageError
from quiesce.streams.stream import stream
from tests.stress import turns
from tests.unit.streams.stream_sources import (
    Counter,
    begin_to_read,
    cancelled_read,
    job_of,
    pump_of,
    this_task,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUFFERS = pytest.mark.parametrize("buffer", [0, 1, 4, 100])
variable: ContextVar[str] = ContextVar("variable", default="unset")


class Plain:
    """An async iterator that is no generator, and cannot be closed."""

    def __init__(self, count: int = 3) -> None:
        self.left = count

    def __aiter__(self) -> Plain:
        return self

    async def __anext__(self) -> int:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return self.left


class Iterable:
    """What gives an iterator, once asked."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def __aiter__(self) -> AsyncIterator[int]:
        return self.counter()


class OnlyNext:
    """An iterator that does not even give itself."""

    async def __anext__(self) -> int:
        raise StopAsyncIteration


@BUFFERS
async def test_everything_comes_once_and_in_order(buffer: int) -> None:
    """An `async for` over a stream gives what one over the generator would."""
    counter = Counter(10)
    async with Scope("a") as scope:
        assert [item async for item in stream(counter(), buffer=buffer)] == list(range(10))
        assert counter.cleaned_up
        assert not scope.frontier()
    assert scope.report is not None
    assert scope.report.ok


@BUFFERS
async def test_the_generator_runs_in_a_task_of_its_own(buffer: int) -> None:
    """All that the generator does, it does in one task, which is not the reader's."""
    counter = Counter(3)
    async with Scope("a"):
        async for _ in stream(counter(), buffer=buffer):
            pass
    assert counter.tasks
    assert this_task() not in counter.tasks
    assert counter.cleaned_up


@pytest.mark.parametrize("kind", ["function", "iterable", "iterator"])
async def test_what_is_not_a_generator_can_be_read_as_well(kind: str) -> None:
    """A function that gives a generator, an async iterable, and a bare iterator are read."""
    counter = Counter(3)
    sources: dict[str, Any] = {"function": counter, "iterable": Iterable(counter)}
    async with Scope("a"):
        items = [item async for item in stream(sources.get(kind, Plain()))]
        assert items == ([2, 1, 0] if kind == "iterator" else [0, 1, 2])
        assert [item async for item in stream(OnlyNext())] == []  # type: ignore[arg-type, var-annotated]  # less than an iterator


async def test_nothing_runs_before_it_is_read() -> None:
    """A stream that nobody reads has started nothing, and is not in flight."""
    counter = Counter()
    async with Scope("a") as scope:
        made = stream(counter)
        await turns()
        assert counter.diary == []
        assert not scope.frontier()
        assert repr(made) == "<Stream 'Counter' not begun>"


@pytest.mark.parametrize(("buffer", "ahead"), [(0, 0), (1, 1), (4, 4)])
async def test_it_reads_ahead_as_far_as_the_buffer_and_no_further(buffer: int, ahead: int) -> None:
    """After a read, the generator has given that item, and so many more."""
    counter = Counter()
    async with Scope("a"), stream(counter, buffer=buffer) as source:
        for number in range(3):
            assert await anext(source) == number
            await turns()
            assert counter.diary[-1] == f"gave {number + ahead}"


@BUFFERS
async def test_after_the_end_it_has_ended_for_ever(buffer: int) -> None:
    """Every further read says again that there is nothing more."""
    async with Scope("a"):
        source = stream(Counter(1), buffer=buffer)
        assert await anext(source) == 0
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await anext(source)
        assert repr(source) == "<Stream 'Counter' ended>"
        await source.aclose()


@BUFFERS
async def test_a_cancelled_reader_loses_nothing(buffer: int) -> None:
    """In a resumable stream, the item that a cancelled reader has waited for is the next reader's."""
    counter = Counter()
    counter.slow_from = 1
    async with Scope("a"), stream(counter, buffer=buffer, resumable=True) as source:
        assert await anext(source) == 0
        await cancelled_read(source)
        counter.hold_up.set()
        await turns()
        assert [await anext(source) for _ in range(3)] == [1, 2, 3]


async def test_a_cancelled_reader_does_not_cancel_the_generator() -> None:
    """In a resumable stream, the step goes on, and is the last one until somebody reads."""
    counter = Counter()
    counter.slow_from = 0
    async with Scope("a"), stream(counter, resumable=True) as source:
        await cancelled_read(source)
        counter.hold_up.set()
        await turns()
        assert counter.diary == ["began", "gave 0"]
        assert await anext(source) == 0
        await turns()
        assert counter.diary == ["began", "gave 0"]


@BUFFERS
async def test_tasks_may_read_in_turn(buffer: int) -> None:
    """Each item may be read by another task."""
    counter = Counter(200)
    async with Scope("a") as scope, stream(counter, buffer=buffer) as source:
        assert [await scope.spawn(source.__anext__) for _ in range(4)] == [0, 1, 2, 3]
        await turns()
    assert counter.cleaned_up


@BUFFERS
async def test_two_readers_at_once_are_refused(buffer: int) -> None:
    """The second reader gets an error that names the stream, and the first one its item."""
    counter = Counter()
    counter.slow_from = 0
    async with Scope("a") as scope, stream(counter, buffer=buffer, name="words") as source:
        first = await begin_to_read(scope, source)
        with pytest.raises(UsageError, match="'words' is being read"):
            await anext(source)
        counter.hold_up.set()
        assert await first == 0


async def test_two_readers_are_refused_although_the_item_is_there() -> None:
    """An item that is there is still the one's who has waited for it."""
    counter = Counter()
    counter.slow_from = 0
    async with Scope("a") as scope, stream(counter) as source:
        first = await begin_to_read(scope, source)
        pump = pump_of(scope)
        pump.items.append(7)  # as the pump does, in the step before the reader's
        with pytest.raises(UsageError, match="is being read"):
            await anext(source)
        pump.items.clear()
        counter.hold_up.set()
        assert await first == 0


@BUFFERS
async def test_an_error_goes_to_the_reader_once(buffer: int) -> None:
    """What the generator raises comes out of the read that waits or comes next, then the end."""
    counter = Counter()
    counter.fail_at = 2
    async with Scope("a") as scope:
        source = stream(counter, buffer=buffer)
        assert [await anext(source), await anext(source)] == [0, 1]
        with pytest.raises(KeyError):
            await anext(source)
        with pytest.raises(StopAsyncIteration):
            await anext(source)
        assert counter.cleaned_up
    assert scope.report is not None
    assert scope.report.ok  # the reader has it


async def test_an_error_waits_for_the_next_reader() -> None:
    """In a resumable stream, an error that a cancelled reader would have got is the next reader's."""
    counter = Counter()
    counter.slow_from = counter.fail_at = 0
    async with Scope("a"):
        source = stream(counter, resumable=True)
        await cancelled_read(source)
        counter.hold_up.set()
        await turns()
        with pytest.raises(KeyError):
            await anext(source)


async def test_a_function_that_gives_no_generator_is_named() -> None:
    """The reader is told what the function gave, and no coroutine complains."""

    async def no_generator() -> None:
        """Yield nothing."""

    async with Scope("a"):
        source = stream(no_generator)  # type: ignore[arg-type, var-annotated]  # the mistake
        with pytest.raises(ArgumentError, match=r"no_generator.*returned a coroutine"):
            await anext(source)
        gc.collect()


async def test_a_generator_cannot_read_itself() -> None:
    """A generator that reads its own stream is refused, instead of waiting for ever."""

    async def inward() -> AsyncIterator[object]:
        with pytest.raises(UsageError, match="by its own generator"):
            await anext(itself)
        yield "refused"

    async with Scope("a"):
        itself = stream(inward)
        assert await anext(itself) == "refused"
        await itself.aclose()


async def test_context_variables_are_those_of_the_first_read() -> None:
    """The generator sees them as they were then, keeps its own, and does not change the reader's."""

    async def looking() -> AsyncIterator[str]:
        yield variable.get()
        variable.set("the generator's")
        yield variable.get()
        yield variable.get()

    async with Scope("a"), stream(looking()) as source:
        variable.set("at the first read")
        assert await anext(source) == "at the first read"
        variable.set("later")
        assert await anext(source) == "the generator's"
        assert await anext(source) == "the generator's"
        assert variable.get() == "later"


async def test_the_frontier_names_it() -> None:
    """It says what it is, where it was made, and whether somebody reads."""
    counter = Counter()
    async with Scope("a") as scope, stream(counter, buffer=2, name="words") as source:
        await anext(source)
        await turns()
        (entry,) = scope.frontier()
        assert (entry.kind, entry.name) == ("stream", "words")
        assert entry.where is not None
        assert "test_stream_reading.py" in entry.where
        assert entry.details == {"reader": False, "buffered": 2}
        assert "stream_sources.py" in str(entry.waiting_on)  # at the generator's `yield`


async def test_the_frontier_tells_what_a_step_waits_on() -> None:
    """In the middle of a step it names the line that the generator waits in."""
    counter = Counter()
    counter.slow_from = 0
    async with Scope("a") as scope, stream(counter) as source:
        reader = await begin_to_read(scope, source)
        (entry,) = [entry for entry in scope.frontier() if entry.kind == "stream"]
        assert entry.details == {"reader": True}
        assert "stream_sources.py" in str(entry.waiting_on)
        reader.cancel()


async def test_a_stream_belongs_to_the_scope_it_was_given() -> None:
    """The current scope is only the default."""
    async with Scope("outer") as outer:
        async with Scope("inner") as inner:
            source = stream(Counter(), scope=outer)
            await anext(source)
            assert outer.frontier()
            assert not inner.frontier()
        assert await anext(source) == 1
        await source.aclose()


async def test_without_a_scope_it_says_what_to_do() -> None:
    """A stream needs an owner."""
    with pytest.raises(UsageError, match="async with Scope"):
        stream(Counter())


@pytest.mark.parametrize("when", ["made", "read"])
async def test_a_closed_scope_takes_no_stream(when: str) -> None:
    """Neither is it made in a closed scope, nor started there."""
    scope = await Scope.open("a")
    source = stream(Counter(), scope=scope) if when == "read" else None
    await scope.aclose()
    with pytest.raises(ScopeClosed):
        await anext(source or stream(Counter(), scope=scope))


async def nothing() -> None:
    """Return at once, as a coroutine function."""


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (nothing, {"call": True}, "is a coroutine"),
        ([1, 2], {}, "neither an async iterable nor a function"),
        (None, {}, "neither"),
        (Counter, {}, "neither"),
        (Counter(), {"buffer": -1}, "buffer must be"),
        (Counter(), {"buffer": True}, "buffer must be"),
        (Counter(), {"buffer": 1.5}, "buffer must be"),
        (Counter(), {"scope": "a"}, "scope must be a Scope"),
        (Counter(), {"name": 7}, "name must be"),
    ],
)
async def test_wrong_arguments_are_told(source: Any, options: dict[str, Any], words: str) -> None:
    """Each mistake has its message, at once, and leaves no coroutine that complains."""
    options = dict(options)
    if options.pop("call", False):
        source = source()
    async with Scope("a"):
        with pytest.raises(ArgumentError, match=re.escape(words)):
            stream(source, **options)
    del source
    gc.collect()


@pytest.mark.real_time
async def test_another_thread_is_refused() -> None:
    """A read or close from another thread is an error, whether an item is there or not."""
    told: list[str] = []

    def step(coroutine: Any) -> None:
        try:
            coroutine.send(None)
        except UsageError as error:
            told.append(str(error))
        finally:
            coroutine.close()

    async with Scope("a"), stream(Counter(), buffer=1) as source:
        await anext(source)
        await turns()
        for call in (source.__anext__(), source.aclose()):
            thread = threading.Thread(target=step, args=(call,))
            thread.start()
            thread.join()
        assert await anext(source) == 1
    async with Scope("a"), stream(Counter()) as source:
        await anext(source)
        thread = threading.Thread(target=step, args=(source.__anext__(),))
        thread.start()
        thread.join()
    assert len(told) == 3
    assert all("another thread" in words for words in told)


async def test_a_pump_that_others_cancel_is_told() -> None:
    """A reader whose stream's task is cancelled by others is not itself cancelled."""
    counter = Counter()
    counter.slow_from = 1
    async with Scope("a") as scope:
        source = stream(counter)
        assert await anext(source) == 0
        reader = await begin_to_read(scope, source)
        job_of(scope).cancel()
        outcome = await reader
        assert isinstance(outcome, JobCancelled)
        assert "'Counter' was cancelled" in str(outcome)
        assert counter.cleaned_up
        with pytest.raises(JobCancelled):
            await anext(source)
