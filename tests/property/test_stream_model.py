"""Random lives of a stream, against what must hold for each of them.

Readers come, are cancelled after any number of turns, and one of the ends comes at any time: the
items are seen once and in order, the generator runs in one task and to its end, and its error has
exactly one taker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce import Scope, ScopeClosed
from quiesce.streams.stream import Stream, stream
from tests import loops, sampling
from tests.stress import CANCELLED, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENDS = ("read on", "aclose", "drop", "scope aclose", "scope drain", "aclose in a step")


@dataclass
class Life:
    """What one stream went through."""

    pace: list[int]  # turns that each item takes
    cleanup: int
    error: bool
    buffer: int
    reads: list[int | None]  # turns after which a reader is cancelled; None: it is not
    end: str
    resumable: bool
    seen: list[int] = field(default_factory=list)
    errors: int = 0
    tasks: set[int] = field(default_factory=set)
    began: int = 0
    ended: int = 0
    raised: int = 0
    over: bool = False  # as a reader was cancelled

    async def generator(self) -> AsyncIterator[int]:
        """Return the numbers, each at its pace."""
        self.began += 1
        self.tasks.add(anyio.get_current_task().id)
        try:
            for number, pace in enumerate(self.pace):
                await turns(pace)
                yield number
            if self.error:
                self.raised += 1
                raise KeyError
        finally:
            self.tasks.add(anyio.get_current_task().id)
            self.ended += 1
            with anyio.CancelScope(shield=True):
                await turns(self.cleanup)

    async def read(self, source: Stream[int], patience: int | None) -> bool:
        """Read one item, perhaps cancelled; tell whether there may be more."""
        async with anyio.create_task_group() as group:
            if patience is not None:
                group.start_soon(self._cancel, group.cancel_scope, patience)
            try:
                self.seen.append(await anext(source))
            except CANCELLED:
                self.over = not self.resumable
                raise
            except KeyError:
                self.errors += 1
            except (StopAsyncIteration, ScopeClosed):
                group.cancel_scope.cancel()
                return False
            group.cancel_scope.cancel()
        return True

    async def _cancel(self, scope: anyio.CancelScope, patience: int) -> None:
        await turns(patience)
        scope.cancel()

    async def live(self) -> None:
        """Read, then end, then look."""
        scope = await Scope.open("life")
        source = stream(self.generator, buffer=self.buffer, resumable=self.resumable, scope=scope)
        for patience in self.reads:
            await self.read(source, patience)
        await self._end(scope, source)
        del source
        report = await scope.drain(grace=None)
        assert self.seen == list(range(len(self.seen)))
        assert self.began == self.ended == len(self.tasks) <= 1
        assert not report.stuck
        taken = self.errors + len(report.failed)
        assert taken <= self.raised
        assert taken == self.raised or self.cleanup  # where a close may replace it by cancellation
        if self.end == "read on" and not self.over:
            assert self.seen == list(range(len(self.pace)))
            assert self.errors == self.error

    async def _end(self, scope: Scope, source: Stream[int]) -> None:
        match self.end:
            case "read on":
                while await self.read(source, None):
                    pass
            case "aclose":
                await self._close(source)
            case "scope aclose":
                await scope.aclose()
            case "scope drain":
                await scope.drain(grace=None)
            case "aclose in a step":
                async with anyio.create_task_group() as group:
                    group.start_soon(self.read, source, None)
                    await turns(1)
                    await self._close(source)
                    group.cancel_scope.cancel()

    async def _close(self, source: Stream[int]) -> None:
        try:
            await source.aclose()
        except KeyError:
            self.errors += 1


few = st.integers(min_value=0, max_value=3)
lives = st.builds(
    Life,
    pace=st.lists(few, max_size=5),
    cleanup=few,
    error=st.booleans(),
    buffer=few,
    reads=st.lists(st.none() | few, max_size=6),
    end=st.sampled_from(ENDS),
    resumable=st.booleans(),
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(deadline=None, max_examples=sampling.fewer(150, 15))
@given(life=lives)
def test_every_life_of_a_stream_adds_up(backend: str, life: Life) -> None:
    """Items are seen once and in order, the generator ends in its task, its error has one taker."""
    loops.run(backend, life.live, real_time=False)
