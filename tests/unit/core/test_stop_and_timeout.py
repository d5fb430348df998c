"""A job is told to end in the very moment in which a timeout of its own has ended a wait of it."""

from __future__ import annotations

import anyio

from quiesce import Scope
from tests.stress import turns


async def test_a_timeout_of_its_own_does_not_hide_that_it_is_to_end() -> None:
    """It goes on after the timeout, and is told again: the close does not wait for its deadline."""
    inner = anyio.CancelScope()

    async def loop() -> None:
        with inner:
            await anyio.sleep_forever()
        await anyio.sleep_forever()

    scope = await Scope.open("a")
    scope.spawn(loop)
    await turns(3)
    began = anyio.current_time()
    scope.plan_close(grace=0.0, cleanup=5.0)  # what is in flight is cancelled in a moment
    inner.cancel()
    report = await scope.aclose(5)
    assert anyio.current_time() - began < 2
    assert not report.stuck
