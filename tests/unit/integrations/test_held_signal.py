"""SIGTERM is the app's while it drains, and the server's otherwise: none is lost between the two."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
import pytest

from quiesce import Scope
from quiesce.integrations.asgi.held_signal import HeldSignal

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server_told() -> Iterator[list[int]]:
    """Return the signals that the server's own handler has seen."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_signal_that_comes_as_the_handler_is_given_back_reaches_the_server(
    server_told: list[int],
) -> None:
    """The event loop has not called us yet, and does not afterwards: the signal is passed on."""
    heard: list[str] = []
    scope = await Scope.open("app")
    held = HeldSignal(scope, lambda: heard.append("app"))
    assert held.take()
    await scope.aclose()
    signal.raise_signal(signal.SIGTERM)
    held.give_back()
    for _ in range(20):  # trio passes it on in a later turn
        await anyio.lowlevel.checkpoint()
    assert (heard, server_told) == ([], [signal.SIGTERM])


async def test_a_signal_that_the_app_has_heard_is_not_passed_on_when_the_handler_is_given_back(
    server_told: list[int],
) -> None:
    """The app tells the server itself, when it has drained."""
    heard: list[str] = []
    async with Scope("app") as scope:
        held = HeldSignal(scope, lambda: scope.spawn(hear))  # type: ignore[arg-type]  # a job is fine
        assert held.take()

        async def hear() -> None:
            heard.append("app")

        signal.raise_signal(signal.SIGTERM)
        while not heard:  # the loop hears of it by a socket
            await anyio.lowlevel.checkpoint()
        held.give_back()
        assert (heard, server_told) == (["app"], [])


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_signal_to_a_forked_child_is_not_the_apps(
    server_told: list[int], *, is_kept: bool
) -> None:
    """The child has the handler of before; and if it had not, the app would know that the signal was not its own."""
    heard: list[str] = []
    async with Scope("app") as scope:
        held = HeldSignal(scope, lambda: heard.append("app"))
        assert held.take()
        parents, wakes = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        child = os.fork()
        if child == 0:
            if not is_kept:  # as if nothing had been given back
                signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
                signal.signal(signal.SIGTERM, parents)
            signal.raise_signal(signal.SIGTERM)
            os._exit(len(server_told))
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it exits at once
        assert os.waitstatus_to_exitcode(status) == int(is_kept)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        held.give_back()
        assert (heard, server_told) == ([], [])


async def test_a_handler_that_cannot_be_restored_does_not_reach_later_children(
    server_told: list[int],
) -> None:
    """A child gets the handler that was there when it was forked."""
    async with Scope("app") as scope:
        if scope.backend.name == "trio":
            pytest.skip("trio has no handlers of loops")
        loop: Any = scope.backend.loop
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
        earlier = HeldSignal(scope, lambda: None)
        assert earlier.take()
        earlier.give_back()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, _: server_told.append(number))
        held = HeldSignal(scope, lambda: None)
        assert held.take()
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(len(server_told))
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it exits at once
        held.give_back()
        assert os.waitstatus_to_exitcode(status) == 1
