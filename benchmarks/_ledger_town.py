"""What a message costs two agents whose replicas share a store: beside a file, and with many rows in the store."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks._harness import Result, Row, Samples, interleave, progress, row, run_fresh
from benchmarks._ledger_places import places
from benchmarks._ledger_rows import enrolled, fill
from quiesce.mesh import Patience, Settled
from tests.unit.mesh.replicas import Town, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from benchmarks._ledger_sizes import LedgerSizes
    from quiesce.mesh import Node

FILE = "file"
_FLAT = 1.3


@asynccontextmanager
async def agents(folder: Path, address: str) -> AsyncIterator[Town]:
    """Open two agents: with two replicas each, or with a file each if there is no address."""
    town = Town(folder)
    try:
        for agent in ("a", "b"):
            for number in range(2 if address else 1):
                store = address or str(folder / f"{agent}{number}.journal")
                await town.add(agent, store=store, patience=Patience(), lease_seconds=10.0)
        yield town
    finally:
        await town.close()


async def send(town: Town, root: Node, messages: int, at_once: int) -> None:
    """Send messages in one cascade, some at a time, and wait for its verdict."""
    left = iter(range(messages))
    async with root.cascade("trip") as cascade:

        async def sender() -> None:
            for _ in left:
                await town.hand(town.next_of("b"), nothing)

        await asyncio.gather(*(sender() for _ in range(at_once)))
    verdict = await cascade.settled(120)
    assert isinstance(verdict, Settled), verdict
    assert verdict.receipt.hops == messages + 1


async def _sent(address: str, messages: int, at_once: int) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a message."""
    async with agents(places().folder(), address) as town:
        roots = town.replicas["a"]
        await asyncio.gather(*(send(town, root, 2, 1) for root in roots))  # warms up
        share = (messages // len(roots), max(1, at_once // len(roots)))
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(send(town, root, *share) for root in roots))
        took = time.perf_counter() - began, time.process_time() - cpu
        return took[0] / messages, took[1] / messages


class _Timed:
    """Runs pieces, and keeps the processor time of each beside the time."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.cpu: dict[Any, list[float]] = {}

    def piece(self, key: Any, address: str, messages: int, at_once: int) -> float:  # noqa: ANN401 - any name
        store = places().address(address) if address in {"sqlite", "postgres", "nats"} else address
        seconds, cpu = run_fresh(self._backend, partial(_sent, store, messages, at_once))
        self.cpu.setdefault(key, []).append(cpu * 1e6)
        return seconds * 1e6

    def samples(self, key: Any) -> Samples:  # noqa: ANN401 - any name
        return Samples(tuple(self.cpu[key]))


def edges(backend: str, sizes: LedgerSizes) -> list[Result]:
    """Measure messages a second and the processor time of each, beside agents with a file each."""
    timed, results = _Timed(backend), []
    for at_once in sizes.at_once:
        pieces = {
            store: partial(
                timed.piece,
                (store, at_once),
                "" if store == FILE else store,
                sizes.messages,
                at_once,
            )
            for store in (FILE, *sizes.stores)
        }
        found = interleave(f"{backend}: {at_once} messages at once", pieces, sizes.rounds_large)
        base = timed.samples((FILE, at_once))
        for store in sizes.stores:
            rows = [row(one, found[one], "us a message", found[FILE]) for one in (FILE, store)]
            rows += [
                row(f"{one}, processor", timed.samples((one, at_once)), "us a message", base)
                for one in (FILE, store)
            ]
            results.append(
                Result(
                    f"{store}_edges_{at_once}",
                    f"messages a second, {at_once} at once; both agents in this process, two replicas each",
                    tuple(rows), 1e6 / found[store].best, base=FILE,
                    low=1e6 / found[store].worst, median=1e6 / found[store].median,
                    high=1e6 / found[store].best,
                )
            )  # fmt: skip
    return results


async def _filled(address: str, count: int) -> None:
    async with enrolled(address) as database:
        await fill(database, count)


def flatness(backend: str, sizes: LedgerSizes) -> list[Result]:
    """Compare the cost of a message with few rows in the store to that with many."""
    results = []
    for store in sizes.stores:
        timed, addresses = _Timed(backend), {}
        for count in sizes.filled:
            progress(f"{backend}: {store}: {count:,} rows")
            addresses[count] = places().address(store)
            run_fresh(backend, partial(_filled, addresses[count], count))
        pieces = {
            count: partial(timed.piece, count, address, sizes.messages, 64)
            for count, address in addresses.items()
        }
        found = interleave(f"{backend}: {store}: flatness", pieces, sizes.rounds_large)
        rows: list[Row] = []
        first = sizes.filled[0]
        for label, some in (("", found), (", processor", {n: timed.samples(n) for n in found})):
            rows += [row(f"{n:,} rows{label}", some[n], "us a message", some[first]) for n in found]
        worst = max(found[count].best for count in found)
        about = (
            "cost of a message, dearest number of rows in the store to the fewest rows; 64 at once"
        )
        value = worst / found[first].best
        results.append(Result(f"{store}_row_flatness", about, tuple(rows), value, limit=_FLAT))
    return results
