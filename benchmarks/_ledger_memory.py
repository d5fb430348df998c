"""What a node keeps after many cascades that are settled: entries of its tables, and the memory of the process.

Each figure is measured in a process of its own, which runs this module.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import Result, Row, progress
from benchmarks._ledger_places import places
from benchmarks._ledger_town import agents, send

if TYPE_CHECKING:
    from benchmarks._ledger_sizes import LedgerSizes
    from quiesce.mesh import Node
    from tests.unit.mesh.replicas import Town

_ROOT = Path(__file__).parent.parent
_STATM = Path("/proc/self/statm")
_WARM = 200
_AT_ONCE = 16
_SECONDS_MAX = 600


def _resident() -> float:
    if not _STATM.exists():
        return 0.0
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024


def _entries(node: Node) -> int:
    """Return the number of entries of the tables that a shared store adds to a node."""
    shared = node.opened.shared
    assert shared is not None
    tables = [*vars(shared.store.rows).values(), *vars(shared.names).values()]
    return sum(len(table) for table in tables if isinstance(table, dict))


async def _cascades(town: Town, count: int) -> tuple[int, float]:
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await send(town, town.next_of("a"), 1, 1)

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
    for _ in range(500):  # the last receipts are on their way
        if not sum(map(_entries, town.all)):
            break
        await asyncio.sleep(0.01)
    gc.collect()
    return sum(map(_entries, town.all)), _resident()


async def measured(folder: str, address: str, count: int) -> list[tuple[int, float]]:
    """Return entries and kilobytes: at first, after some cascades, and after as many again."""
    async with agents(Path(folder), address) as town:
        await _cascades(town, _WARM)
        return [await _cascades(town, number) for number in (1, count, count)]


def memory(_: str, sizes: LedgerSizes) -> list[Result]:
    """Look at the tables and the memory of nodes after many cascades: the tables are empty again."""
    results = []
    for store in sizes.stores:
        progress(f"memory: {store}")
        command = [sys.executable, "-m", "benchmarks._ledger_memory", str(places().folder())]
        done = subprocess.run(  # noqa: S603 - itself
            [*command, places().address(store), str(sizes.cascades)],
            cwd=_ROOT, capture_output=True, text=True, check=True, timeout=_SECONDS_MAX,
        )  # fmt: skip
        found: list[tuple[int, float]] = json.loads(done.stdout)
        names = ("before", f"after {sizes.cascades:,}", f"after {2 * sizes.cascades:,}")
        rows = [
            Row(f"{name}, {what}", one[at], one[at], one[at], unit)
            for at, what, unit in ((0, "tables", "entries"), (1, "process", "KB"))
            for name, one in zip(names, found, strict=True)
        ]
        about = "entries of the shared store's tables in four nodes, after settled cascades of one message"
        grown = (found[2][1] - found[1][1]) * 1024 / sizes.cascades
        note = f"the process grew by {grown:,.0f} bytes a cascade in the second half; nodes remember for keep_seconds"
        results.append(
            Result(f"{store}_entries_left", about, tuple(rows), float(found[2][0]), notes=(note,))
        )
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
