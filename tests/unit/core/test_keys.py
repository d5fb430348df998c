"""`key=`: what a running job is called by those who may want to cancel it."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, DuplicateKey, JobCancelled, Scope

if TYPE_CHECKING:
    from collections.abc import Hashable


class Key:
    """A key of which it can be seen that nothing keeps it."""


async def fail() -> None:
    """End badly."""
    raise LookupError


async def test_a_job_has_the_key_it_was_given() -> None:
    """The key is readable on the job; without one it is None."""
    async with Scope("keys") as scope:
        assert scope.spawn(anyio.lowlevel.checkpoint, key=("request", 7)).key == ("request", 7)
        assert scope.spawn(anyio.lowlevel.checkpoint).key is None


async def test_a_key_cancels_its_job_and_no_other() -> None:
    """`cancel(key)` is True, and ends the job with that key alone."""
    async with Scope("keys") as scope:
        one, two = (scope.spawn(anyio.sleep_forever, key=key) for key in ("one", "two"))
        assert scope.cancel("one") is True
        with pytest.raises(JobCancelled):
            await one
        assert not two.done()
        assert scope.cancel("two") is True
    assert scope.report is not None
    assert scope.report.withdrawn == 2
    assert scope.report.ok


async def test_an_unknown_key_is_false() -> None:
    """Nothing to cancel is an answer, not an error; also in a scope that is new or closed."""
    scope = Scope("keys")
    assert scope.cancel("unknown") is False
    async with scope:
        assert scope.cancel("unknown") is False
    assert scope.cancel("unknown") is False


async def test_a_duplicate_key_is_a_clear_error() -> None:
    """A second job with the key of one in flight is refused before it has run at all."""
    ran = []

    async def work() -> None:
        ran.append("work")

    async with Scope("keys") as scope:
        first = scope.spawn(anyio.sleep_forever, key="k")
        with pytest.raises(DuplicateKey, match=r"key 'k' still runs in scope 'keys'"):
            scope.spawn(work, key="k")
        assert isinstance(DuplicateKey(""), ArgumentError)
        assert len(scope.frontier()) == 1
        first.cancel()
    assert ran == []


async def test_a_job_that_was_cancelled_has_its_key_until_it_ends() -> None:
    """A cancelled job that still cleans up is in flight, and so is its key."""
    gate = anyio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await gate.wait()

    async with Scope("keys") as scope:
        job = scope.spawn(work, key="k")
        await anyio.lowlevel.checkpoint()
        assert scope.cancel("k") is True
        await anyio.lowlevel.checkpoint()
        with pytest.raises(DuplicateKey):
            scope.spawn(work, key="k")
        gate.set()
        with pytest.raises(JobCancelled):
            await job
        assert scope.cancel("k") is False


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("service", [False, True], ids=["work", "service"])
async def test_the_key_of_an_ended_job_is_gone(end: str, service: bool) -> None:  # noqa: FBT001 - a parameter
    """However a job ended, its key is unknown afterwards, and free for the next."""
    scope = await Scope.open("keys")
    fn = {"completed": anyio.lowlevel.checkpoint, "failed": fail, "cancelled": anyio.sleep_forever}
    key = Key()
    kept = weakref.ref(key)
    for _ in range(3):
        job = scope.spawn(fn[end], key=key, service=service)
        if end == "cancelled":
            scope.cancel(key)
        try:
            await job
        except (LookupError, JobCancelled) as error:
            error.with_traceback(None)  # the report has the error, and its frames had the job
        assert job.outcome is not None
        assert job.outcome.status == end
        assert scope.cancel(key) is False
    del key, job
    gc.collect()
    assert kept() is None, "the scope still has the key"
    await scope.aclose()


async def test_a_key_is_free_as_soon_as_its_job_is_done() -> None:
    """Whoever sees `done()` may use the key again in the same step."""
    async with Scope("keys") as scope:
        seen: list[bool] = []

        async def again() -> None:
            while not first.done():
                await anyio.lowlevel.checkpoint()
            seen.append(scope.cancel("k"))
            scope.spawn(anyio.lowlevel.checkpoint, key="k")

        first = scope.spawn(anyio.lowlevel.checkpoint, key="k")
        await scope.spawn(again)
        assert seen == [False]


@pytest.mark.parametrize("key", [0, "", False, (), frozenset({1}), 1.5])
async def test_a_key_may_be_anything_hashable(key: Hashable) -> None:
    """Also something that is false."""
    async with Scope("keys") as scope:
        job = scope.spawn(anyio.sleep_forever, key=key)
        assert job.key == key
        with pytest.raises(DuplicateKey):
            scope.spawn(anyio.sleep_forever, key=key)
        assert scope.cancel(key) is True


async def test_each_scope_has_its_own_keys() -> None:
    """A child scope may use a key of its parent, and neither cancels the other's job."""
    async with Scope("keys") as scope:
        child = scope.child("child")
        above, below = (
            scope.spawn(anyio.sleep_forever, key=1),
            child.spawn(anyio.sleep_forever, key=1),
        )
        assert child.cancel(1) is True
        with pytest.raises(JobCancelled):
            await below
        assert not above.done()
        assert scope.cancel(1) is True


async def test_a_spawn_that_fails_leaves_no_key() -> None:
    """If the function cannot even be called, the key stays free."""
    async with Scope("keys") as scope:
        with pytest.raises(ArgumentError):
            scope.spawn(42, key="k")  # type: ignore[arg-type]  # the mistake is the point
        assert scope.cancel("k") is False
        await scope.spawn(anyio.lowlevel.checkpoint, key="k")
