"""What a request and a message cost a node and its journal, in time and bytes."""

from __future__ import annotations

import gc
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import OURS, Result, Row, compare, interleave, row
from benchmarks._mesh_compaction import compaction
from benchmarks._mesh_wiring import CASCADE, NAMES, new_engine
from quiesce.mesh.protocol.facts import Answer
from quiesce.mesh.protocol.receipt import Note, Receipt
from quiesce.mesh.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._mesh_sizes import MeshSizes
    from quiesce.mesh.protocol.facts import Record

    Keep = Callable[[list[Record]], object]

_SQLITE = "SQLite, WAL"
_POWER = "quiesce, power"
_PARENT = "0123456789ab"
_DONE = Receipt("done", notes=(Note("ba9876543210", _PARENT, "there", "done", 0.01234567),))
_ANSWER = Answer("closed", _DONE)


def receive(count: int, keep: Keep) -> float:
    """Take requests without further messages, with the receipt on the answer; return seconds a request."""
    engine, edges = new_engine(), [os.urandom(12) for _ in range(count)]
    gc.collect()
    begin = time.process_time()
    for edge in edges:
        engine.detector.arrive(edge, CASCADE, _PARENT, NAMES[1])
        keep(engine.take_writes())
        engine.end(engine.known.hop(edge), "done", 0.0, seconds=0.01234567)
        keep(engine.take_writes())
        engine.ride(edge, 0.0)
    return (time.process_time() - begin) / count


def send(count: int, keep: Keep) -> float:
    """Send messages whose answers have receipts; return seconds a message."""
    engine, edges = new_engine(), [os.urandom(12) for _ in range(count)]
    hop = engine.begin(os.urandom(12), CASCADE, 0.0)
    keep(engine.take_writes())
    gc.collect()
    begin = time.process_time()
    for edge in edges:
        engine.send(hop, edge, NAMES[1], 0.0)
        keep(engine.take_writes())
        engine.answered(edge, _ANSWER, "is taken", 0.0)
        keep(engine.take_writes())
    return (time.process_time() - begin) / count


def _forget(_: list[Record]) -> None:
    """Drop the records."""


def node(_: str, sizes: MeshSizes) -> list[Result]:
    """Measure the cost of a request and of a message, with a journal and without."""
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder, "a"))) as journal:
        journal.open()
        pieces = {
            "a request": partial(receive, sizes.records, _forget),
            "a request, with journal": partial(receive, sizes.records, journal.write),
            "a message": partial(send, sizes.records, _forget),
            "a message, with journal": partial(send, sizes.records, journal.write),
        }
        found = interleave(
            "node", {name: partial(_micro, piece) for name, piece in pieces.items()}, sizes.rounds
        )
    rows = tuple(row(name, samples, "us") for name, samples in found.items())
    about = "what a node's engine takes for a request that hands nothing on, and to send a message"
    return [Result(name="engine_cost", about=about, rows=rows)]


def _micro(piece: Callable[[], float]) -> float:
    return piece() * 1e6


def journal(_: str, sizes: MeshSizes) -> list[Result]:
    """Compare a commit of the journal with SQLite's; measure the bytes for an edge, and compactions."""
    written: list[list[Record]] = []
    receive(sizes.records // 2, written.append)
    pieces = {
        OURS: partial(_commit, written, "process"),
        _SQLITE: partial(_commit_to_sqlite, written),
        _POWER: partial(_commit, written[:200], "power"),
    }
    found = interleave("journal", pieces, sizes.rounds, seldom=[_POWER], rounds_seldom=1)
    sizes_of = {"receiver": receive, "sender": send}
    bytes_rows = tuple(
        Row(f"bytes an edge, {side}", size, size, size, "bytes")
        for side, work in sizes_of.items()
        for size in [_bytes_an_edge(work, sizes.records)]
    )
    both = {name: found[name] for name in (OURS, _SQLITE)}
    about = "a commit of one record, in processor time; SQLite: the same lines, synchronous=NORMAL"
    result = compare("journal_to_sqlite", about, both, unit="us a commit", limit=None, base=_SQLITE)
    power = row(f"{_POWER}, time that passes", found[_POWER], "us a commit")
    return [_with(result, (power, *bytes_rows)), compaction(sizes)]


def _with(result: Result, rows: tuple[Row, ...]) -> Result:
    return replace(result, rows=result.rows + rows)


def _commit(written: list[list[Record]], durability: str) -> float:
    clock = time.process_time if durability == "process" else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        made = Journal(Path(folder, "a"), durability=durability)
        with closing(made):
            made.open()
            gc.collect()
            begin = clock()
            for records in written:
                made.write(records)
            return (clock() - begin) / len(written) * 1e6


def _commit_to_sqlite(written: list[list[Record]]) -> float:
    from quiesce.mesh.store.record_format import record_line  # noqa: PLC0415 - the same lines

    with (
        tempfile.TemporaryDirectory() as folder,
        closing(sqlite3.connect(Path(folder, "a"), isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE lines (line BLOB)")
        gc.collect()
        begin = time.process_time()
        for records in written:
            data = b"".join(map(record_line, records))
            database.execute("INSERT INTO lines VALUES (?)", (data,))
        return (time.process_time() - begin) / len(written) * 1e6


def _bytes_an_edge(work: Callable[[int, Keep], float], count: int) -> float:
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder, "a"))) as made:
        made.open()
        work(count, made.write)
        return made.size / count
