"""Bad input: a typed error that says what to do, and no noise."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, QuiesceError, Scope, ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

BAD_SECONDS = [-1, -0.001, -math.inf, math.nan, True, False, "5", b"5", [], 1j, object()]


@contextmanager
def silence() -> Iterator[list[str]]:
    """Collect what Python complains about, of what happens in here and of nothing before."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said: list[str] = []
        yield said
        gc.collect()
        said.extend(str(warning.message) for warning in caught)


async def work() -> None:
    """Do a step."""
    await anyio.lowlevel.checkpoint()


async def many() -> AsyncIterator[int]:
    """Yield a number: an async generator, by mistake."""
    yield 1


def plain() -> int:
    """Return a number: a plain function, by mistake."""
    return 1


async def open_scope() -> Scope:
    """Open a scope."""
    return await Scope.open("arguments")


# What is spawned.


async def test_a_coroutine_given_by_mistake_is_refused_in_silence() -> None:
    """`spawn(work())` says to write `spawn(work, …)`, and nothing was "never awaited"."""
    scope = await open_scope()
    with silence() as said:
        with pytest.raises(ArgumentError, match=r"spawn\(work, …\), not spawn\(work\(…\)\)"):
            scope.spawn(work())  # type: ignore[arg-type]  # the mistake is the point
        with pytest.raises(ArgumentError, match=r"to_thread\(work, …\)"):
            await scope.to_thread(work())  # type: ignore[arg-type]  # likewise
        with pytest.raises(ArgumentError, match="is not an async context manager"):
            await scope.enter(work())  # type: ignore[arg-type]  # likewise
    assert said == []
    assert not scope.frontier()
    await scope.aclose()


async def test_a_coroutine_given_to_a_closed_scope_is_refused_in_silence() -> None:
    """Two mistakes at once are an error, and still no noise."""
    scope = await open_scope()
    await scope.aclose()
    with silence() as said:
        with pytest.raises(QuiesceError):
            scope.spawn(work())  # type: ignore[arg-type]  # the mistake is the point
        with pytest.raises(QuiesceError):
            await scope.to_thread(work())  # type: ignore[arg-type]  # likewise
    assert said == []


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (42, r"42 is not a function"),
        (None, r"None is not a function"),
        ("work", r"'work' is not a function"),
        (many, r"many is an async generator: a job needs an async function without `yield`"),
        (plain, r"plain returned int, which is not awaitable: a job needs an async function"),
    ],
    ids=["number", "none", "string", "generator", "plain"],
)
async def test_what_cannot_be_a_job_is_refused(fn: Any, message: str) -> None:
    """What is no async function is an `ArgumentError` in `spawn`, and nothing is held."""
    scope = await open_scope()
    with silence() as said, pytest.raises(ArgumentError, match=message):
        scope.spawn(fn)
    assert said == []
    assert not scope.frontier()
    await scope.aclose()


async def test_a_type_error_of_the_function_itself_is_its_own() -> None:
    """Wrong arguments for the function are a `TypeError`, as without quiesce."""
    scope = await open_scope()
    with pytest.raises(TypeError, match="argument"):
        scope.spawn(work, 1)  # type: ignore[arg-type]  # the mistake is the point
    await scope.aclose()


@pytest.mark.parametrize("fn", [42, None, "work"])
async def test_what_cannot_be_called_is_refused_by_to_thread(fn: Any) -> None:
    """`to_thread` takes a function."""
    scope = await open_scope()
    with pytest.raises(ArgumentError, match="is not a function"):
        await scope.to_thread(fn)
    assert not scope.frontier()
    await scope.aclose()


@pytest.mark.parametrize(
    ("manager", "message"),
    [
        (42, "42 is not an async context manager"),
        (threading.Lock(), "but a sync one: use `with`"),
        (nullcontext, "is not an async context manager"),
    ],
)
async def test_what_cannot_be_entered_is_refused(manager: Any, message: str) -> None:
    """`enter` takes an async context manager, and tells a plain one apart."""
    scope = await open_scope()
    with pytest.raises(ArgumentError, match=message):
        await scope.enter(manager)
    assert not scope.frontier()
    await scope.aclose()


async def test_what_was_not_entered_cannot_be_left() -> None:
    """`exit` of a stranger is an error, and so is a second `exit`."""
    scope = await open_scope()
    manager = nullcontext(1)
    with pytest.raises(UsageError, match="has not entered"):
        await scope.exit(manager)
    await scope.enter(manager)
    await scope.exit(manager)
    with pytest.raises(UsageError, match="or has left it already"):
        await scope.exit(manager)
    await scope.aclose()


# Deadlines.


@pytest.mark.parametrize("seconds", BAD_SECONDS, ids=lambda one: repr(one).partition(" at ")[0])
async def test_a_deadline_must_be_a_number_of_seconds(seconds: Any) -> None:
    """A bad deadline is refused, by name and with what was given, before anything closes."""
    scope = await open_scope()
    message = r"must be a number of seconds, 0 or more, not "
    for bad in (
        scope.drain(seconds),
        scope.drain(1, cleanup=seconds),
        scope.aclose(seconds),
        Scope.open("bad", grace=seconds),
        Scope.open("bad", cleanup=seconds),
    ):
        with pytest.raises(ArgumentError, match=r"(grace|cleanup) " + message):
            await bad
    for name in ("grace", "cleanup"):
        with pytest.raises(ArgumentError, match=f"{name} {message}"):
            Scope("bad", **{name: seconds})
    assert scope.state == "open"
    await scope.aclose()


async def test_only_a_drain_may_have_no_deadline() -> None:
    """None is "as long as it takes" for a drain, and an error where a bound must be."""
    scope = await open_scope()
    for bad in (scope.aclose(None), scope.drain(1, cleanup=None)):  # type: ignore[arg-type]  # the mistake is the point
        with pytest.raises(ArgumentError, match="must be a number of seconds"):
            await bad
    await scope.drain(None)


@pytest.mark.parametrize(
    "seconds", [0, 0.0, 1, 2.5, math.inf, 10**400], ids=["0", "0.0", "1", "2.5", "inf", "huge"]
)
async def test_a_good_deadline_is_taken(seconds: float) -> None:
    """Zero, whole numbers, however large, and infinity are numbers of seconds."""
    scope = await Scope.open("good", grace=seconds, cleanup=seconds)
    assert (await scope.drain(seconds, cleanup=seconds)).ok


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"services": "housekeeper-*"}, r"write \['housekeeper-\*'\], not 'housekeeper-\*'"),
        ({"services": [1]}, "services must be a string, not 1"),
        ({"on_error": "ignore"}, "must be one of 'collect', 'cancel', not 'ignore'"),
        ({"on_error": None}, "must be one of 'collect', 'cancel', not None"),
        ({"on_error": []}, "must be one of 'collect', 'cancel', not "),
        ({"leftovers": "keep"}, "leftovers must be one of 'cancel', 'parent', not 'keep'"),
        ({"name": 1}, "name must be a string, not 1"),
        ({"name": None}, "name must be a string, not None"),
    ],
)
async def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    """Each option says what it takes, and what to write instead of a common mistake."""
    with pytest.raises(ArgumentError, match=message):
        Scope(**options)
    with pytest.raises(ArgumentError, match=message):
        await Scope.open(**options)
    scope = await open_scope()
    with pytest.raises(ArgumentError, match=message):
        scope.child(**{"name": "child", **options})
    assert scope.frontier().entries == ()
    await scope.aclose()


async def test_an_unknown_option_is_a_type_error() -> None:
    """A misspelt option is what Python says it is."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'witihn'"):
        await Scope.open("bad", witihn=1)
    assert not hasattr(Scope, "witihn")


# The wrong time.

EVERYTHING: dict[str, Callable[[Scope], Any]] = {
    "spawn": lambda scope: scope.spawn(work),
    "hold": lambda scope: scope.hold("request", "one"),
    "child": lambda scope: scope.child("child"),
    "enter": lambda scope: scope.enter(nullcontext()),
    "to_thread": lambda scope: scope.to_thread(plain),
    "from_thread": lambda scope: scope.from_thread(plain),
    "frontier": lambda scope: scope.frontier(),
    "idle": lambda scope: scope.idle(),
    "closing": lambda scope: scope.closing(),
    "drain": lambda scope: scope.drain(),
    "aclose": lambda scope: scope.aclose(),
}


@pytest.mark.parametrize("verb", EVERYTHING)
async def test_nothing_works_before_the_scope_is_open(verb: str) -> None:
    """Use before opening is an error that says how to open a scope, and no noise."""
    scope = Scope("early")

    async def use() -> None:
        await EVERYTHING[verb](scope)

    message = r"not open: use `async with Scope\(...\)` or"
    with silence() as said, pytest.raises(UsageError, match=message):
        await use()
    assert said == []
    assert scope.state == "new"
    assert scope.report is None


async def test_a_scope_is_opened_once() -> None:
    """A scope in use, or used up, cannot be opened again: the error says to make a new one."""
    scope = Scope("once")
    async with scope:
        with pytest.raises(
            UsageError, match="was opened before, and opens only once: make a new one"
        ):
            async with scope:
                pass
        assert scope.state == "open"
        await scope.spawn(work)
    with pytest.raises(UsageError, match="was opened before, and opens only once: make a new one"):
        async with scope:
            pass


def test_a_scope_needs_an_event_loop() -> None:
    """Opened where no loop runs, a scope says that it wants async code around it."""
    coro = Scope.open("alone")
    with pytest.raises(UsageError, match="no event loop runs here"):
        coro.send(None)


async def test_a_closed_scope_says_that_it_is_closed() -> None:
    """The error after a close names the scope and its state."""
    scope = await open_scope()
    await scope.aclose()
    with pytest.raises(ScopeClosed, match=r"scope 'arguments' is closed: nothing new may start"):
        scope.spawn(work)


# The wrong place.


def in_a_thread(fn: Callable[[], object]) -> BaseException | None:
    """Call something in a thread that has no event loop; give what it raised."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            fn()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize("verb", ["spawn", "hold", "child"])
@pytest.mark.parametrize("loop", ["none", "asyncio", "trio"])
async def test_nothing_is_started_from_another_thread(verb: str, loop: str) -> None:
    """A thread, with an event loop of its own or none, is sent to `from_thread`, without noise."""
    scope = await open_scope()

    async def elsewhere() -> None:
        EVERYTHING[verb](scope)

    with silence() as said:
        if loop == "none":
            error = in_a_thread(lambda: EVERYTHING[verb](scope))
        else:
            error = in_a_thread(lambda: anyio.run(elsewhere, backend=loop))
    assert type(error) is UsageError
    assert "from another thread or event loop: use scope.from_thread(...)" in str(error)
    assert said == []
    assert not scope.frontier()
    await scope.aclose()


@pytest.mark.parametrize("verb", ["drain", "aclose"])
async def test_nothing_is_closed_from_another_event_loop(verb: str) -> None:
    """A close from another loop is an error there, and leaves the scope as it is."""
    scope = await open_scope()

    async def elsewhere() -> None:
        await EVERYTHING[verb](scope)

    for loop in ("asyncio", "trio"):
        error = in_a_thread(lambda: anyio.run(elsewhere, backend=loop))  # noqa: B023 - called at once
        assert type(error) is UsageError
        assert "scope.from_thread(...)" in str(error)
    assert scope.state == "open"
    await scope.aclose()


async def test_from_thread_is_for_other_threads() -> None:
    """In the event loop's own thread it would be a deadlock, so it is an error."""
    scope = await open_scope()
    with pytest.raises(UsageError, match="call or await the function itself"):
        scope.from_thread(scope.aclose)
    await scope.aclose()


def test_a_scope_of_a_loop_that_has_ended_is_closed_to_threads() -> None:
    """`from_thread` after the end of the loop raises `ScopeClosed` instead of waiting for ever."""

    async def main() -> Scope:
        async with Scope("gone") as scope:
            return scope

    for backend in ("asyncio", "trio"):
        scope = anyio.run(main, backend=backend)
        error = in_a_thread(lambda: scope.from_thread(scope.aclose))  # noqa: B023 - called at once
        assert isinstance(error, ScopeClosed)
        assert "the event loop of scope 'gone' has ended" in str(error)


@pytest.mark.backends("trio")
async def test_adoption_is_for_asyncio() -> None:
    """On trio there is nothing to adopt, and the error says why; the scope was not opened."""
    scope = Scope("adopting", adopt=True)
    with pytest.raises(UsageError, match="works on asyncio and uvloop only"):
        async with scope:
            pass
    assert scope.state == "new"


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_scope_that_could_not_be_opened_leaves_the_loop_alone() -> None:
    """A refused adopting scope does not leave its task factory behind."""
    factory = asyncio.get_running_loop().get_task_factory()
    parent = await open_scope()
    await parent.aclose()
    with pytest.raises(ScopeClosed):
        parent.child("late", adopt=True)
    assert asyncio.get_running_loop().get_task_factory() is factory
