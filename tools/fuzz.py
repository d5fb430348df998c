#!/usr/bin/env python3
"""Feed the mesh's parsers many almost valid inputs, and check that each input is parsed or refused cleanly.

`python tools/fuzz.py --inputs 10_000_000 --seed 1` runs for a night. CI tries 100,000 of the same inputs
(tests/unit/mesh/test_wire_fuzz.py). If an input breaks a parser, the tool prints the input and the command that
tries it again, and the exit code is 1. The exit code is also 1 if memory has grown, or if a parser hangs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.unit.mesh.fuzzing import BLOCK, TARGETS, Found, Fuzzer  # noqa: E402 - the paths first

ROUND = 10 * BLOCK  # inputs of one kind, in turn
WARM = 0.1  # the share of inputs after which every cache is full, and memory is measured
PROGRESS_SECONDS = 5.0
HANG_SECONDS = 300
BLOCKS_GROWN_MAX = 2000  # blocks of Python's memory, each of at most 512 bytes
BYTES_GROWN_MAX = 16 * 1024 * 1024  # the memory of the process, with fragmentation


@dataclass
class Memory:
    """The memory of the process: the exact number of Python's blocks, and the bytes that the system counts."""

    blocks: int
    resident: int


def measure() -> Memory:
    """Return the memory after a garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Memory(sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE"))


def hang(*_: object) -> NoReturn:
    """Raise an error, in a parser that does not end."""
    message = f"no end after {HANG_SECONDS} s"
    raise TimeoutError(message)


def replay(name: str, seed: int, number: int) -> str:
    """Return the command that tries the inputs of one block again."""
    block = number // BLOCK * BLOCK
    told = ["--target", name, "--seed", str(seed), "--first", str(block), "--inputs", str(BLOCK)]
    return shlex.join(["python", "tools/fuzz.py", *told])


def say(text: str) -> None:
    """Write a line for the user, on stderr."""
    sys.stderr.write(text + "\n")


def tell(done: int, total: int, begin: float, memory: Memory, at_first: Memory | None) -> None:
    """Write how far the run is."""
    seconds = time.monotonic() - begin
    grown = memory.blocks - at_first.blocks if at_first else 0
    say(
        f"{done:,} of {total:,} inputs, {done / seconds:,.0f} a second,"
        f" {(total - done) * seconds / done:.0f} s left, {memory.resident / 2**20:.1f} MiB,"
        f" {grown:+} blocks"
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="how many inputs (default: 100_000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the inputs (default: 0)")
    parser.add_argument("--target", choices=TARGETS, help="one parser; by default all in turn")
    parser.add_argument(
        "--first", type=int, default=0, help=f"the first input of each, a multiple of {BLOCK}"
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    if options.first % BLOCK:
        parser.error(f"--first must be a multiple of {BLOCK}")
    return options


def run(fuzzers: list[Fuzzer], first: int, inputs: int) -> tuple[Memory, Memory]:
    """Run the inputs; return the memory after warming up, and at the end."""
    begin = told = time.monotonic()
    warm: Memory | None = None
    done = 0
    share = -(-inputs // len(fuzzers))
    while done < inputs:
        for fuzzer in fuzzers:
            count = min(ROUND, share - fuzzer.inputs, inputs - done)
            signal.alarm(HANG_SECONDS)
            fuzzer.run(first + fuzzer.inputs, count)
            signal.alarm(0)
            done += count
        if warm is None and done >= inputs * WARM:
            warm = measure()
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            tell(done, inputs, begin, measure(), warm)
    last = measure()
    return warm or last, last


def main() -> int:
    """Run what the command line asks for; return 1 if a parser broke."""
    options = parse()
    names = [options.target] if options.target else list(TARGETS)
    fuzzers = [Fuzzer(name, options.seed) for name in names]
    signal.signal(signal.SIGALRM, hang)
    begin = time.monotonic()
    try:
        warm, last = run(fuzzers, options.first, options.inputs)
    except Found as found:
        say(f"BROKEN: {found}\n    {replay(found.name, options.seed, found.number)}")
        return 1
    seconds = time.monotonic() - begin
    grown = Memory(last.blocks - warm.blocks, last.resident - warm.resident)
    is_grown = grown.blocks > BLOCKS_GROWN_MAX or grown.resident > BYTES_GROWN_MAX
    slowest = max(fuzzers, key=lambda fuzzer: fuzzer.slowest_seconds)
    figures = {
        "inputs": sum(fuzzer.inputs for fuzzer in fuzzers),
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "taken": {fuzzer.name: fuzzer.right for fuzzer in fuzzers},
        "slowest_seconds": round(slowest.slowest_seconds, 3),
        "slowest_input": replay(slowest.name, options.seed, slowest.slowest_number),
        "memory_grown_blocks": grown.blocks,
        "memory_grown_bytes": grown.resident,
    }
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        sys.stdout.writelines(f"{name.replace('_', ' '):20} {it}\n" for name, it in figures.items())
    if is_grown:
        say("MEMORY HAS GROWN")
    return 1 if is_grown else 0


if __name__ == "__main__":
    sys.exit(main())
