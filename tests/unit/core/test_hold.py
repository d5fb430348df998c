"""`Hold`: something in flight that is not a task."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, Scope
from tests.loops import let_others_run

if TYPE_CHECKING:
    from collections.abc import Callable


def in_a_thread(fn: Callable[[], object]) -> None:
    """Call something in a thread, and see it return before the event loop takes another step."""
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()


async def test_a_hold_describes_itself() -> None:
    """Kind, name, details, and when it was taken."""
    async with Scope("hold") as scope:
        with scope.hold("request", "GET /", peer="somebody", kind="http", name="x") as hold:
            assert (hold.kind, hold.name) == ("request", "GET /")
            assert hold.details == {"peer": "somebody", "kind": "http", "name": "x"}
            assert 0 <= hold.since - scope.since < 1
            assert repr(hold) == "<Hold request 'GET /' in flight>"
        assert repr(hold) == "<Hold request 'GET /' released>"


async def test_a_hold_keeps_the_scope_busy_until_it_is_released() -> None:
    """It is in flight in the step in which it was taken, and not after its release."""
    async with Scope("hold") as scope:
        hold = scope.hold("request", "one")
        assert (hold.released, len(scope.frontier())) == (False, 1)
        hold.release()
        assert (hold.released, len(scope.frontier())) == (True, 0)
        await scope.idle()


async def test_release_is_idempotent() -> None:
    """A second release neither fails nor releases another hold of the same name."""
    async with Scope("hold") as scope:
        one, other = scope.hold("request", "same"), scope.hold("request", "same")
        for _ in range(3):
            one.release()
        assert one.released
        assert not other.released
        assert len(scope.frontier()) == 1
        other.release()


async def test_the_block_releases_however_it_ends() -> None:
    """A hold used in a `with` block is released by an exception, too, which goes on."""
    async with Scope("hold") as scope:
        one = scope.hold("request", "one")
        with pytest.raises(LookupError), one:
            raise LookupError
        assert one.released
        with scope.hold("request", "two") as two:
            two.release()
        assert two.released


@pytest.mark.real_time
async def test_a_hold_may_be_released_by_another_thread() -> None:
    """The event loop learns of it by itself, and wakes who waits for the scope."""
    async with Scope("hold") as scope:
        waiter = scope.spawn(scope.idle, service=True)
        hold = scope.hold("request", "one")
        await let_others_run()
        assert not waiter.done()
        in_a_thread(hold.release)
        await waiter
        assert hold.released


@pytest.mark.real_time
async def test_threads_may_race_to_release() -> None:
    """However many threads release however many holds, each is released once."""
    async with Scope("hold") as scope:
        holds = [scope.hold("request", str(number)) for number in range(100)]

        def release_all() -> None:
            for hold in holds:
                hold.release()

        threads = [threading.Thread(target=release_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        await scope.idle()
        assert all(hold.released for hold in holds)
        for thread in threads:
            thread.join()


@pytest.mark.real_time
async def test_a_release_on_its_way_survives_a_change_of_owner() -> None:
    """A release that another thread has posted counts, though the hold is handed over meanwhile."""
    async with Scope("above") as above:
        below = above.child("below", leftovers="parent")
        hold = below.hold("request", "one")

        async def release_elsewhere() -> None:
            in_a_thread(hold.release)

        closer = above.spawn(below.aclose)
        await above.spawn(release_elsewhere)
        report = await closer
        assert report.handed_over + report.completed <= 1
        await let_others_run()
        assert hold.released
        assert not above.frontier()
        hold.release()


async def test_a_hold_of_a_closed_scope_may_still_be_released() -> None:
    """Late is harmless: the report has been written, and stays as it is."""
    scope = await Scope.open("hold")
    hold = scope.hold("request", "late")
    report = await scope.aclose(cleanup=0.01)
    assert [item.name for item in report.undelivered] == ["late"]
    hold.release()
    hold.release()
    assert hold.released
    in_a_thread(hold.release)
    await let_others_run()
    assert [item.name for item in report.undelivered] == ["late"]


def test_a_hold_may_be_released_after_the_event_loop_has_ended() -> None:
    """A thread that outlives the loop gets no error for it."""

    async def main() -> None:
        async with Scope("hold") as scope:
            holds.append(scope.hold("request", "one"))
            holds[0].release()

    holds = []  # type: ignore[var-annotated]  # filled above
    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
        in_a_thread(holds[0].release)
        holds[0].release()
        holds.clear()


@pytest.mark.parametrize("kind", ["scope", "job", "thread", ""])
async def test_no_word_is_reserved(kind: str) -> None:
    """A user's hold may be of any kind, also one that quiesce itself has a use for."""
    async with Scope("above") as above:
        scope = above.child("hold", leftovers="parent")
        hold = scope.hold(kind, "mine")
        assert [(entry.kind, entry.name) for entry in scope.frontier()] == [(kind, "mine")]
        assert len(scope.frontier()) == 1
        assert (await scope.aclose(cleanup=0.01)).handed_over == 1
        assert len(above.frontier()) == 1
        hold.release()
        await above.idle()
    scope = await Scope.open("hold")
    hold = scope.hold(kind, "mine")
    report = await scope.aclose(cleanup=0.01)
    assert [item.kind for item in report.undelivered] == [kind]
    hold.release()


@pytest.mark.parametrize(("kind", "name"), [(1, "name"), ("kind", None), (b"kind", "name")])
async def test_kind_and_name_are_strings(kind: str, name: str) -> None:
    """Anything else is refused before something is held."""
    async with Scope("hold") as scope:
        with pytest.raises(ArgumentError, match="must be a string"):
            scope.hold(kind, name)
        assert not scope.frontier()
