"""How the programs of these tests take their time; the tests themselves wait for facts."""

from __future__ import annotations

import anyio


async def pause(seconds: float) -> None:
    """Take that long, or less if it is cancelled."""
    await anyio.sleep(seconds)
