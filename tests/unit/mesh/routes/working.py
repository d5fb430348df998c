"""What the tests of workers share: jobs that are worked on until their gates open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quiesce.mesh import current_hop

if TYPE_CHECKING:
    from quiesce.mesh import Hop


class Job:
    """Something to be done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = asyncio.Event()
        self.is_begun = False
        self.hop: Hop | None = None


async def work(*jobs: Job) -> None:
    """Work on jobs until their gates open."""
    for job in jobs:
        job.is_begun = True
        job.hop = current_hop()
    for job in jobs:
        await job.gate.wait()
