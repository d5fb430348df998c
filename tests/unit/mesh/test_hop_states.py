"""Random lives of hops, of their work and of their edges take the steps of the tables, and no others."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.errors import CascadeCancelled, EdgeRefused, ScopeClosed, UsageError
from quiesce.mesh.protocol.states import (
    EDGE_LIFE,
    HOP_LIFE,
    WORK_LIFE,
    EdgeState,
    HopState,
    WorkState,
)
from tests import sampling
from tests.lives import steps_taken
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import HandlerError, World, here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quiesce import Scope
    from quiesce.mesh import Hop
    from quiesce.mesh.runtime.hop_parts import Part
    from tests.unit.mesh.meshing import Handler

    Deed = Callable[[Hop], Any]

ERRORS = (CascadeCancelled, EdgeRefused, ScopeClosed, UsageError, HandlerError)
H, W, E = HopState, WorkState, EdgeState


class Lives:
    """What the handlers of one world do, by chance."""

    def __init__(self, world: World, rng: random.Random) -> None:
        """Begin."""
        self.world = world
        self.rng = rng
        self.left = 12  # messages that may be handed on

    async def handler(self, hop: Hop) -> None:
        """Do some things, one after the other."""
        deeds: tuple[Deed, ...] = (
            self.wait, self.wait, self.leave, self.promise, self.close_its_own, self.hand_on, self.hand_on, self.refuse,
            self.cut_lines, self.fail, self.not_followed,
        )  # fmt: skip
        for _ in range(self.rng.randrange(4)):
            await self.rng.choice(deeds)(hop)

    async def wait(self, _: Hop) -> None:
        """Let others run."""
        await turns(self.rng.randrange(5))

    async def leave(self, hop: Hop) -> None:
        """Start a job that may hand messages on when the handler has returned."""
        hop.spawn(self.later, hop)

    async def later(self, hop: Hop) -> None:
        """Go on for a moment, in a job."""
        await lasting(self.rng.choice([0.0, 0.01]))
        if self.rng.random() < 0.5:
            await self.hand_on(hop)

    async def promise(self, hop: Hop) -> None:
        """Make a part; a job enters it, or it is dropped."""
        part = hop.working("part")
        if self.rng.random() < 0.7:
            hop.spawn(self.enter, part)

    async def enter(self, part: Part) -> None:
        """Do the part."""
        async with part:
            await turns(self.rng.randrange(4))

    async def close_its_own(self, hop: Hop) -> None:
        """Start a job that closes the scope that it is in, and goes on."""
        inner = hop.child("inner")
        inner.spawn(self.close, inner)

    async def close(self, scope: Scope) -> None:
        """Close it, and go on."""
        await scope.aclose()
        await lasting(0.01)

    async def hand_on(self, _: Hop) -> None:
        """Hand a message to another node."""
        if self.left:
            self.left -= 1
            await self.world.hand(self.rng.choice("ab"), self.handler)

    async def refuse(self, hop: Hop) -> None:
        """Hand a message to an agent that answers with an error, or not at all."""
        with hop.delegate("http://b") as handing:
            if self.rng.random() < 0.5:
                handing.answered(None, is_error=True)

    async def cut_lines(self, _: Hop) -> None:
        """Cut a line for receipts and questions, or mend it."""
        self.world.lines.cut ^= {f"http://{self.rng.choice('ab')}"}

    async def fail(self, _: Hop) -> None:
        """Fail."""
        raise HandlerError

    async def not_followed(self, hop: Hop) -> None:
        """Leave work that is not followed."""
        hop.opaque("queue")
        hop.untracked("thread", "here")


async def _begin(world: World, handler: Handler, rng: random.Random) -> None:
    """Begin a cascade, cancel it perhaps, and wait for a moment."""
    with suppress(*ERRORS):
        cascade = world.nodes["a"].cascade("c")
        with suppress(*ERRORS):
            async with cascade:
                await world.hand("b", handler)
                if rng.random() < 0.3:
                    with here().delegate("http://b") as handing:
                        world.nodes["b"].handle(handing.header)  # and its part is dropped
                        handing.answered(None)
                if rng.random() < 0.3:
                    await cascade.cancel()
        await cascade.settled(rng.choice([0.0, 0.02, 0.1]))


async def test_random_lives_take_no_step_that_is_refused(tmp_path: Path) -> None:
    """Messages are taken, refused, in doubt and cancelled; nodes are drained and closed in the midst."""
    all_taken: set[Any] = set()
    for number in range(sampling.fewer(40, 10)):
        seed = f"{sampling.Sample.seed or 0} {number}"
        rng = random.Random(seed)  # noqa: S311 - a seed gives the same again
        print(f"seed {seed!r}")  # noqa: T201 - shown if it fails
        folder = None if number % 2 else tmp_path / str(number)
        if folder is not None:
            folder.mkdir()
        with steps_taken(HOP_LIFE, WORK_LIFE, EDGE_LIFE) as taken:
            async with World(folder) as world:
                await world.add("a")
                await world.add("b", **({"url": None} if rng.random() < 0.2 else {}))
                async with anyio.create_task_group() as group:
                    for _ in range(3):
                        group.start_soon(_begin, world, Lives(world, rng).handler, rng)
                    if rng.random() < 0.3:
                        await turns(rng.choice([1, 5, 20]))
                        await world.nodes[rng.choice("ab")].drain(
                            rng.choice([0.0, 0.02]), cleanup=0.5
                        )
        all_taken |= taken
    assert all_taken >= {
        (H.RUNNING, H.CLOSED), (H.CLOSED, H.OVER), (W.RUNNING, W.ENDING), (W.ENDING, W.ENDED), (E.SENDING, E.OPEN),
        (E.OPEN, E.CLOSED),
    }  # fmt: skip
