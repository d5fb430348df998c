"""Starting a program from a parent that has much memory: `fork` copies its page tables, `vfork` does not."""

from __future__ import annotations

import mmap
import os
import subprocess
from contextlib import contextmanager
from functools import partial
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from benchmarks._harness import OURS, Result, compare, interleave
from benchmarks._process_spawns import spawn_and_reap
from benchmarks._process_starters import (
    ASYNCIO,
    OUTPUTS,
    POPEN,
    PROGRAM,
    UVLOOP,
    Starter,
    run_on,
    starters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._process_starters import Wiring
    from benchmarks._sizes import ProcessSizes

PREEXEC = "Popen with preexec_fn"
_MEGABYTE = 1 << 20


async def start_with_preexec(wiring: Wiring) -> int:
    """Start a program with a function between fork and exec, which rules out `vfork`."""
    out = OUTPUTS[wiring]
    with subprocess.Popen(  # noqa: ASYNC220, S603 - on purpose
        [PROGRAM],
        stdin=DEVNULL,
        stdout=out,
        stderr=out,
        preexec_fn=os.setsid,  # noqa: PLW1509 - this is measured
    ) as process:
        process.communicate()
        return process.wait()


@contextmanager
def grown(megabytes: int) -> Iterator[None]:
    """Hold that much more memory inside the block, all of it touched, in small pages as in a Python program."""
    if not megabytes:
        yield
        return
    size = megabytes * _MEGABYTE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1
        yield


def spawn_rss(backend: str, sizes: ProcessSizes) -> list[Result]:
    """Compare a start from a parent that has much memory with a start from a small parent."""
    everyone = starters(backend)
    chosen = [everyone[name] for name in (OURS, POPEN, ASYNCIO, UVLOOP) if name in everyone]
    chosen.append(Starter(PREEXEC, "asyncio", start_with_preexec))

    def piece(starter: Starter, megabytes: int) -> float:
        with grown(megabytes):
            once = partial(spawn_and_reap, starter, sizes.starts_grown)
            seconds, _ = run_on(starter.loop, once)
            return seconds * 1e3

    both = (0, sizes.grown_megabytes)
    pieces = {
        f"{starter.name}, +{megabytes} MB": partial(piece, starter, megabytes)
        for starter in chosen
        for megabytes in both
    }
    found = interleave(
        f"{backend}: spawn_rss",
        pieces,
        sizes.rounds_grown,
        seldom=[name for name in pieces if not name.startswith(OURS)],
        rounds_seldom=sizes.rounds_peers,
    )
    small, large = (f", +{megabytes} MB" for megabytes in both)
    factors = ", ".join(
        f"{starter.name} {found[starter.name + large].best / found[starter.name + small].best:.2f}"
        for starter in chosen
        if starter.name != OURS
    )
    return [
        compare(
            "spawn_rss",
            f"a start from a parent with {both[1]} MB more, to one without, p50 of "
            f"{sizes.starts_grown} a round",
            found,
            unit="ms a program",
            limit=1.5,
            ours=OURS + large,
            base=OURS + small,
            notes=(f"the same factor of others: {factors}",),
        )
    ]
