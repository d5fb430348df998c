"""What a shared store adds to its engine: batches a second, the time to a commit, and the time to a verdict."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._harness import Result, Row, Samples, compare, interleave, row, run_fresh
from benchmarks._ledger_engines import database_at, engine_at
from benchmarks._ledger_places import places
from quiesce.mesh import Ledger
from quiesce.mesh.protocol.facts import Begun, Closed, Over
from quiesce.mesh.protocol.receipt import Receipt, pack
from quiesce.mesh.store.record_rows import RecordRows
from quiesce.mesh.store.rows import Batch
from quiesce.mesh.store.shared_store import SharedStore
from tests.unit.mesh.replicas import replica_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks._ledger_sizes import LedgerSizes
    from quiesce.mesh.store.database import Database

_CASCADE = bytes(16)
_RECEIPT = pack(Receipt("done"))
_OWN = "a1"
_WARM = 8  # batches: a driver prepares and plans its statements in the first ones
_WAITS = 0.05  # seconds until a ledger certainly waits
_LOOK = 0.01
_RATIO, _ROUND_TRIPS = 0.6, 3.0


def _rows() -> RecordRows:
    return RecordRows("a", _OWN, time.time, lambda: 86_400.0)


def batches(count: int, size: int) -> Iterator[Batch]:
    """Make batches like those of a busy node: each claims new rows, and ends those of the batch before."""
    rows = _rows()
    before: list[bytes] = []
    for _ in range(count):
        batch = Batch(_OWN)
        keys = [os.urandom(16) for _ in range(size)]
        batch.claims = [rows.claim_of(Begun(key, _CASCADE, "1234", None)) for key in keys]
        for claim in batch.claims:
            rows.claimed(claim)
        rows.add(Over(key, _RECEIPT) for key in before)
        rows.take_changes(batch)
        yield batch
        before = keys


async def fill(database: Database, count: int) -> None:
    """Put rows into a store that are over, as those of earlier messages are."""
    rows, put = _rows(), 0
    while put < count:
        size = min(200, count - put)
        batch = Batch(_OWN)
        rows.add(Over(os.urandom(16), _RECEIPT) for _ in range(size))
        rows.take_changes(batch)
        batch.puts = [replace(one, cascade=os.urandom(16)) for one in batch.puts]
        await database.apply(batch)
        put += size


@asynccontextmanager
async def enrolled(address: str) -> AsyncIterator[Database]:
    """Open a database with one incarnation, which listens as a node does."""
    database = database_at(address)
    await database.open()
    listening = asyncio.ensure_future(database.run(lambda: None))
    try:
        if not any(one.incarnation == _OWN for one in await database.replicas()):
            await database.enroll(replica_of(_OWN))
        yield database
    finally:
        listening.cancel()
        await asyncio.wait([listening])
        await database.close()


async def _measured(store: str, size: int, count: int, *, is_ours: bool) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a row, in the middle batch of some, one after the other."""
    address = places().address(store)
    warming, *given = batches(count + _WARM, size)
    times: list[float] = []
    cpus: list[float] = []
    async with enrolled(address) as database:
        engine = await engine_at(store, address)
        try:
            for batch in (warming, *given):
                began, cpu = time.perf_counter(), time.process_time()
                if is_ours:
                    assert not await database.apply(batch)
                else:
                    await engine.upsert(batch)
                times.append(time.perf_counter() - began)
                cpus.append(time.process_time() - cpu)
        finally:
            await engine.close()
    rows = 2 * size
    return statistics.median(times[_WARM:]) / rows, statistics.median(cpus[_WARM:]) / rows


_PIECES = {"quiesce": True, "driver alone": False}


def ratio_to_engine(backend: str, sizes: LedgerSizes) -> list[Result]:
    """Compare `Database.apply` with upserts of the same rows by the driver alone, with one connection."""
    return [
        _ratio_of(backend, sizes, store, size)
        for store in sizes.stores
        for size in sizes.batch_rows
    ]


def _ratio_of(backend: str, sizes: LedgerSizes, store: str, size: int) -> Result:
    work: dict[str, list[float]] = {name: [] for name in _PIECES}

    def piece(name: str) -> float:
        main = partial(_measured, store, size, sizes.batches, is_ours=_PIECES[name])
        seconds, cpu = run_fresh(backend, main)
        work[name].append(cpu * 1e6)
        return seconds * 1e6

    label = f"{backend}: {store}, batches of {size} claims"
    pieces = {name: partial(piece, name) for name in _PIECES}
    found = interleave(label, pieces, sizes.rounds)
    result = compare(
        f"{store}_ratio_to_engine_{size}",
        f"rows a second to those of the driver alone; batches of {size} claims and as many puts",
        found, unit="us a row", limit=_RATIO, base="driver alone", at_least=True,
    )  # fmt: skip
    cpus = {name: Samples(tuple(times)) for name, times in work.items()}
    rows = [
        row(f"{name}, processor time", one, "us a row", cpus["driver alone"], at_least=True)
        for name, one in cpus.items()
    ]
    note = f"{1e6 / found['quiesce'].best:,.0f} rows a second; the driver alone {1e6 / found['driver alone'].best:,.0f}"
    return replace(result, rows=(*result.rows, *rows), notes=(note,))


# Commits.


async def _round_trips(store: str, address: str, count: int) -> list[float]:
    engine = await engine_at(store, address)
    try:
        times = []
        for _ in range(count + 1):
            began = time.perf_counter()
            await engine.round_trip()
            times.append(time.perf_counter() - began)
        return times[1:]
    finally:
        await engine.close()


async def _commits(store: str, writers: int, count: int) -> tuple[list[float], list[float]]:
    """Return how long each commit took, and each round trip of the driver."""
    address = places().address(store)
    database = database_at(address)
    shared = SharedStore(database, replica_of(_OWN), _rows(), within=60.0)
    times: list[float] = []

    async def writer() -> None:
        for _ in range(count):
            key = os.urandom(16)
            for record in (Begun(key, _CASCADE, "1234", None), Over(key, _RECEIPT)):
                began = time.perf_counter()
                shared.add([record])
                await shared.written()
                times.append(time.perf_counter() - began)

    async with shared.opened():
        services = [asyncio.ensure_future(shared.write())]
        services.append(asyncio.ensure_future(database.run(lambda: None)))
        try:
            shared.add([Over(os.urandom(16), None)])
            await shared.written()
            await asyncio.gather(*(writer() for _ in range(writers)))
            return times, await _round_trips(store, address, count)
        finally:
            for service in services:
                service.cancel()
            await asyncio.wait(services)


def _percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1e3


def commit_latency(backend: str, sizes: LedgerSizes) -> list[Result]:
    """Measure the time from `SharedStore.add` to the end of `written`, with some writers at once."""
    found: dict[str, list[tuple[list[float], list[float]]]] = {one: [] for one in sizes.stores}

    def piece(store: str) -> float:
        main = partial(_commits, store, sizes.writers, sizes.commits)
        found[store].append(run_fresh(backend, main))
        return 0.0

    interleave(
        f"{backend}: commits", {one: partial(piece, one) for one in found}, sizes.rounds_large
    )
    results = []
    for store, rounds in found.items():
        rows = [
            row(label, Samples(tuple(_percentile(one[at], share) for one in rounds)), "ms")
            for label, at, share in (("p50", 0, 0.5), ("p99", 0, 0.99), ("round trip, p50", 1, 0.5))
        ]
        about = f"from add to written, p50 in ms, {sizes.writers} writers at once"
        results.append(Result(f"{store}_commit_latency", about, tuple(rows), rows[0].best))
    return results


# Verdicts.


async def _verdicts(store: str, count: int) -> list[tuple[float, float, float]]:
    """Return for each cascade: the seconds of a ledger that waits, of one that asks afterwards, and of a round trip."""
    address = places().address(store)
    found = []
    async with enrolled(address) as database, Ledger(address) as ledger:
        engine = await engine_at(store, address)
        try:
            for _ in range(count + 1):
                waited, asked = await _verdict(database, ledger)
                await asyncio.sleep(_WAITS)  # as before both: what has slept is slower
                began = time.perf_counter()
                await engine.round_trip()
                found.append((waited, asked, time.perf_counter() - began))
        finally:
            await engine.close()
    return found[1:]


async def _verdict(database: Database, ledger: Ledger) -> tuple[float, float]:
    """Return the seconds of a ledger that waits, and of one that asks afterwards."""
    rows, key, cascade = _rows(), os.urandom(16), os.urandom(16)
    begun = Begun(key, cascade, "", None, is_root=True, name="trip", at=time.time())
    claim = rows.claim_of(begun)
    rows.claimed(claim)
    await database.apply(Batch(_OWN, claims=[claim]))
    ended: list[float] = []

    async def wait() -> None:
        await ledger.settled(cascade.hex(), 60)
        ended.append(time.perf_counter())

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(_WAITS + key[0] / 256 * _LOOK)  # at any moment between two looks at a file
    rows.add([Closed(key, _RECEIPT)])
    batch = Batch(_OWN)
    rows.take_changes(batch)
    await database.apply(batch)
    written = time.perf_counter()
    await waiting
    await asyncio.sleep(_WAITS)
    began = time.perf_counter()
    await ledger.settled(cascade.hex(), 60)
    return max(0.0, ended[0] - written), time.perf_counter() - began


def verdict_round_trips(backend: str, sizes: LedgerSizes) -> list[Result]:
    """Measure the time from the last receipt to the verdict of a ledger, in round trips of the engine."""
    found: dict[str, list[list[tuple[float, float, float]]]] = {one: [] for one in sizes.stores}

    def piece(store: str) -> float:
        found[store].append(run_fresh(backend, partial(_verdicts, store, sizes.verdicts)))
        return 0.0

    pieces = {one: partial(piece, one) for one in found}
    interleave(f"{backend}: verdicts", pieces, sizes.rounds_large)
    return [
        _verdict_result(store, name, about, at, rounds)
        for store, rounds in found.items()
        for name, about, at in (
            ("verdict_round_trips", "from the last receipt to the verdict, for a ledger that waits", 0),
            ("read_round_trips", "from the question for a verdict that is there to the answer", 1),
        )
    ]  # fmt: skip


def _verdict_result(
    store: str, name: str, about: str, at: int, rounds: list[list[tuple[float, float, float]]]
) -> Result:
    def medians(place: int) -> Samples:
        return Samples(
            tuple(statistics.median(times[place] for times in one) * 1e3 for one in rounds)
        )

    ours, trips = medians(at), medians(2)
    ratios = [a / b for a, b in zip(ours.values, trips.values, strict=True)]
    rows: tuple[Row, ...] = (row("quiesce, p50", ours, "ms"), row("round trip, p50", trips, "ms"))
    return Result(
        f"{store}_{name}", f"{about}, p50, in round trips of the engine", rows, min(ratios),
        low=min(ratios), median=statistics.median(ratios), high=max(ratios),
        limit=_ROUND_TRIPS, base="round trip, p50",
    )  # fmt: skip
