"""What is wrapped while somebody watches is given back exactly, whoever wraps it meanwhile."""

from __future__ import annotations

import asyncio
import asyncio.runners
import socket
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import trio
import uvloop

from quiesce.core.backends.asyncio.tasks import TaskJob
from quiesce.core.patches import Patch
from quiesce.testing import trio_private
from quiesce.testing.leaks import instrument
from quiesce.testing.leaks.census import Census
from quiesce.testing.leaks.instrument import watch

RUNNER, GENERATORS = trio_private.starters(trio) or (None, None)
WRAPPED: list[tuple[Any, str]] = [
    (asyncio.BaseEventLoop, "__init__"),
    (asyncio.BaseEventLoop, "create_task"),
    (asyncio.BaseEventLoop, "close"),
    (asyncio.BaseEventLoop, "call_exception_handler"),
    (asyncio.BaseEventLoop, "run_in_executor"),
    (TaskJob, "__init__"),
    (asyncio.runners, "_cancel_all_tasks"),
    (sys, "set_asyncgen_hooks"),
    (warnings, "_warn_unawaited_coroutine"),
    (threading.Thread, "start"),
    (subprocess.Popen, "__init__"),
    (socket.socket, "__init__"),
    (socket.socket, "bind"),
    (uvloop.Loop, "__init__"),
    (uvloop.Loop, "create_task"),
    (uvloop.Loop, "close"),
    (uvloop.Loop, "call_exception_handler"),
    (uvloop.Loop, "run_in_executor"),
    (uvloop.Loop, "_asyncgen_firstiter_hook"),
    (uvloop.Loop, "_asyncgen_finalizer_hook"),
    (uvloop.Loop, "subprocess_exec"),
    (uvloop.Loop, "subprocess_shell"),
    (RUNNER, "spawn_impl"),
    (GENERATORS, "finalize_remaining"),
    (trio.to_thread, "run_sync"),
]
NOTHING = object()


def found() -> list[object]:
    """Return what is there of all that is wrapped."""
    return [vars(owner).get(name, NOTHING) for owner, name in WRAPPED]


@pytest.mark.usefixtures("unwatched")
def test_everything_is_given_back() -> None:
    """After the last of several censuses all is as it was before the first."""
    before = found()
    depth = sys.get_coroutine_origin_tracking_depth()
    outer = Census(kinds=())
    inner = Census(kinds=())
    outer.close()
    assert all(now is not then for now, then in zip(found(), before, strict=True))
    inner.close()
    inner.close()
    assert found() == before
    assert sys.get_coroutine_origin_tracking_depth() == depth


@pytest.mark.usefixtures("unwatched")
def test_nothing_that_is_wrapped_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every private name that is wrapped exists in the versions that are tested."""
    made: list[Patch] = []

    def recorded(*wrapped: Any) -> Patch:
        made.append(Patch(*wrapped))
        return made[-1]

    monkeypatch.setattr(instrument, "Patch", recorded)
    with Census(kinds=()):
        assert not watch.unknown
        assert len(made) == len(WRAPPED)


class Owner:
    """Something of somebody else."""

    def act(self, value: int) -> int:
        """Return the value."""
        return value


def doubled(original: Any) -> Any:
    """Wrap a function so that it gives twice as much."""
    return lambda self, value: 2 * original(self, value)


def test_a_wrap_on_top_is_not_lost() -> None:
    """A foreign wrap that is put on top, and stays, goes on working; ours below passes calls on."""
    original = Owner.act
    patch = Patch(Owner, "act", doubled)
    ours = Owner.act
    theirs = lambda self, value: 100 + ours(self, value)  # noqa: E731 - as somebody would wrap it
    Owner.act = theirs  # type: ignore[method-assign]  # the point of the test
    try:
        assert Owner().act(1) == 102
        patch.remove()
        assert Owner.act is theirs
        assert Owner().act(1) == 101
        again = Patch(Owner, "act", doubled)
        assert Owner().act(1) == 202
        again.remove()
        assert Owner.act is theirs
        Owner.act = ours  # type: ignore[method-assign]  # they take theirs away at last
        assert Owner().act(1) == 1
    finally:
        Owner.act = original  # type: ignore[method-assign]  # as it was


def test_an_inherited_function_is_inherited_again() -> None:
    """A wrap of an inherited method leaves nothing in the class when it is removed."""

    class Heir(Owner):
        """One who inherits."""

    patch = Patch(Heir, "act", doubled)
    assert (Heir().act(1), Owner().act(1)) == (2, 1)
    patch.remove()
    assert "act" not in vars(Heir)


@pytest.mark.usefixtures("unwatched")
def test_what_cannot_be_wrapped_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private name that is gone is remembered as unknown, and the rest is watched."""
    monkeypatch.delattr(asyncio.runners, "_cancel_all_tasks")
    monkeypatch.setattr(watch, "unknown", set())
    with Census(kinds=()):
        assert watch.unknown == {"asyncio.runners._cancel_all_tasks"}
        assert vars(asyncio.BaseEventLoop)["close"].__wrapped__


@pytest.mark.usefixtures("unwatched")
def test_a_warning_keeps_its_line() -> None:
    """The warning of a coroutine that is never awaited names the line that it names without us."""

    async def nothing() -> None: ...

    def lines() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            nothing()  # type: ignore[unused-coroutine]  # the point of the test
        return [(warning.filename, warning.lineno) for warning in caught]

    plain = lines()
    assert len(plain) == 1
    with Census(kinds=()):
        assert lines() == plain


@pytest.mark.usefixtures("unwatched")
async def test_the_hooks_of_a_running_loop_are_given_back() -> None:
    """A census inside a running loop wraps the loop's hooks for generators, and unwraps them."""
    before = sys.get_asyncgen_hooks()
    census = Census(kinds=())
    assert sys.get_asyncgen_hooks().firstiter is not before.firstiter
    census.close()
    assert sys.get_asyncgen_hooks() == before
