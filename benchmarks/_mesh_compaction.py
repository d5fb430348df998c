"""How long a node answers no request during a compaction of its journal, and how long it reads a journal at its start."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import Result, Samples, interleave, row, run_fresh
from benchmarks._mesh_wiring import CASCADE, NAMES, new_engine
from quiesce.mesh.protocol.facts import Over, Record
from quiesce.mesh.protocol.receipt import Alone
from quiesce.mesh.store.compaction import Compaction
from quiesce.mesh.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks._mesh_sizes import MeshSizes
    from quiesce.mesh.protocol.engine import Engine

    Make = Callable[[Journal, Engine], Awaitable[None]]

_BEAT_SECONDS = 0.001
_PARENT = "0123456789ab"


async def at_once(journal: Journal, engine: Engine) -> None:
    """Write all records in one step of the event loop."""
    draft = journal.draft(iter)
    draft.add(engine.known.snapshot())
    draft.put(draft.take(), sync=True)
    draft.replace()


async def in_slices(journal: Journal, engine: Engine) -> None:
    """Write the records in slices, as a node does."""
    await Compaction(journal, engine.known).run()


def remembering(count: int) -> Engine:
    """Return an engine that remembers `count` messages, each with its receipt."""
    engine, records, alone = new_engine(), list[Record](), Alone("there")
    for edge in (os.urandom(12) for _ in range(count)):
        records.append(Over(edge, alone.packed(edge, _PARENT, 12_346)))
    engine.restore(records, 0.0)
    return engine


def _take(journal: Journal, engine: Engine) -> None:
    """Take a message, as a node does during a compaction."""
    edge = os.urandom(12)
    engine.detector.arrive(edge, CASCADE, _PARENT, NAMES[1])
    journal.write(engine.take_writes())
    engine.end(engine.known.hop(edge), "done", 0.0, seconds=0.01234567)
    journal.write(engine.take_writes())
    engine.ride(edge, 0.0)


class Pauses:
    """Compactions of the journal of one node, which takes a message every millisecond."""

    def __init__(self, engine: Engine) -> None:
        """Keep the engine, whose records each compaction writes."""
        self._engine = engine
        self.seconds: dict[str, list[float]] = {}
        self.read_seconds: list[float] = []

    def measure(self, make: Make) -> float:
        """Run a compaction; return the longest pause of the event loop in milliseconds."""
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(Journal(Path(folder, "a"))) as journal,
        ):
            journal.open()
            pause = run_fresh("asyncio", partial(self._run, journal, make))
            if make is in_slices:
                journal.close()
                begin = time.perf_counter()
                journal.open_into(new_engine().detector.restore)
                self.read_seconds.append(time.perf_counter() - begin)
        return pause * 1e3

    async def none(self, _journal: Journal, _engine: Engine) -> None:
        """Run no compaction, for as long as one takes, to measure the machine's own pauses."""
        await asyncio.sleep(self.seconds["in_slices"][-1])

    async def _run(self, journal: Journal, make: Make) -> float:
        longest, is_over = 0.0, False

        async def work() -> None:
            nonlocal longest
            while not is_over:
                before = time.perf_counter()
                _take(journal, self._engine)
                await asyncio.sleep(_BEAT_SECONDS)
                longest = max(longest, time.perf_counter() - before - _BEAT_SECONDS)

        other = asyncio.create_task(work())
        await asyncio.sleep(20 * _BEAT_SECONDS)
        longest, begin = 0.0, time.perf_counter()
        await make(journal, self._engine)
        self.seconds.setdefault(make.__name__, []).append(time.perf_counter() - begin)
        await asyncio.sleep(_BEAT_SECONDS)
        is_over = True
        await other
        return longest


def compaction(sizes: MeshSizes) -> Result:
    """Compare the longest pauses of a compaction in one step and in slices."""
    pauses = Pauses(remembering(sizes.remembered))
    ways: dict[str, Make] = {"in one step": at_once, "in slices": in_slices, "none": pauses.none}
    found = interleave(
        "compaction",
        {name: partial(pauses.measure, make) for name, make in ways.items()},
        sizes.rounds_large,
    )
    rows = tuple(row(name, samples, "ms", found["in one step"]) for name, samples in found.items())
    totals = tuple(
        row(f"{name}, all of it", Samples(tuple(pauses.seconds[make.__name__])), "s")
        for name, make in ways.items()
        if name != "none"
    )
    read = row("read at the start", Samples(tuple(pauses.read_seconds)), "s")
    about = (
        f"the longest time in which a node does nothing else, when its journal is made smaller; "
        f"{sizes.remembered:,} messages are remembered, and one comes every millisecond"
    )
    return Result(name="compaction_pause_ms", about=about, rows=(*rows, *totals, read))
