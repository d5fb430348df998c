"""How long the guard lets the event loop turn before it calls something left."""

from __future__ import annotations

import asyncio

import pytest

from quiesce.testing import guard


@pytest.mark.quiesce(allow=["task:left"])
def test_a_machine_that_is_held_up_does_not_cut_the_settling() -> None:
    """However much time has passed, the event loop has a few turns: what is left may cancel the guard."""

    async def main() -> None:
        me = asyncio.current_task()
        assert me is not None

        async def cancel_later() -> None:
            for _ in range(6):
                await asyncio.sleep(0)
            me.cancel()
            await asyncio.Event().wait()

        async with guard(settle=1e-9):  # it is over when the loop has turned once
            kept.append(asyncio.create_task(cancel_later(), name="left"))

    kept: list[asyncio.Task[None]] = []
    with pytest.raises(asyncio.CancelledError) as raised:
        asyncio.run(main())
    assert "left" in raised.value.__notes__[0]
