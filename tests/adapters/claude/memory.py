"""Whether memory stays flat over many queries and clients of the Claude adapter.

`python -m tests.adapters.claude.memory --uses 1000 --way query --backend trio` prints the objects that
are alive and the resident memory after every hundredth use, in one scope that stays open. It fails if a
class of quiesce or of the SDK has more objects at the end than after the first interval. The resident memory is for people to
look at. tools/claude_memory.py runs it with both versions of the SDK, on both backends.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from quiesce import Scope
from quiesce.integrations.claude import ClaudeSDKClient, query
from tests.adapters.claude.host import hosted

if TYPE_CHECKING:
    from tests.adapters.claude.host import Host

PACKAGES = (
    "quiesce.core.",
    "quiesce.channels.",
    "quiesce.streams.",
    "quiesce.processes.",
    "quiesce.integrations.",
    "claude_agent_sdk.",
)


def living() -> Counter[str]:
    """Count the objects of the adapter's classes and of the SDK's, by class."""
    gc.collect()
    kinds = (type(found) for found in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if kind.__module__.startswith(PACKAGES)
    )


async def use(way: str, host: Host, scope: Scope) -> None:
    """Ask one question, leave at the first message, and wait until nothing is in flight."""
    if way == "query":
        async for _ in query(prompt="x", options=host.options()):
            break
        await scope.idle()
    else:
        async with ClaudeSDKClient(host.options()) as client:
            await client.query("x")
            await anext(client.receive_response())


def resident_kib() -> int:
    """Return the resident memory of this process."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    ]
    return int(line.split()[1])


async def run(way: str, uses: int, every: int) -> Counter[str]:
    """Use the adapter so often; return the classes that have more objects than at the first look."""
    looks = []
    with hosted() as host:
        async with Scope("soak") as scope:
            for count in range(1, uses + 1):
                await use(way, host, scope)
                if count % every == 0:
                    looks.append(living())
                    every_object, rss = len(gc.get_objects()), resident_kib()
                    sys.stdout.write(
                        f"{count:6} uses  {looks[-1].total():6} objects of ours and the SDK's"
                        f"  {every_object:8} in all  {rss:8} KiB\n"
                    )
                    sys.stdout.flush()
    return looks[-1] - looks[0]


def main() -> None:
    """Run, and exit with 1 if something grows."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.adapters.claude.memory", description=__doc__
    )
    parser.add_argument("--uses", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--way", choices=("query", "client"), default="query")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    grown = anyio.run(run, options.way, options.uses, options.every, backend=options.backend)
    for name, more in grown.items():
        sys.stdout.write(f"{name}: {more} more\n")
    raise SystemExit(1 if grown else 0)


if __name__ == "__main__":
    main()
