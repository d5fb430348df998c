"""Streams beside a generator that a task pumps into an asyncio.Queue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import quiesce
from benchmarks._harness import Result, compare, interleave, run_fresh
from benchmarks._queues import (
    QUEUE_PEERS,
    generate,
    generator_alone,
    generator_peer,
    generator_queue,
)
from benchmarks._subjects import now

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from benchmarks._sizes import ResourceSizes

    Way = Callable[[int], Coroutine[Any, Any, float]]

BUFFER = 64
UNBUFFERED, BUFFERED = "quiesce stream", f"quiesce stream, buffer={BUFFER}"
QUEUE_OF_ONE = "asyncio.Queue(1)"
QUEUE_AS_LARGE = f"asyncio.Queue({BUFFER})"
QUEUE_UNBOUNDED = "asyncio.Queue()"
QUEUES = {QUEUE_OF_ONE: 1, QUEUE_AS_LARGE: BUFFER, QUEUE_UNBOUNDED: 0}
ALONE = "no hand-over at all"


async def through_stream(buffer: int, count: int) -> float:
    """Read a generator through a stream; return seconds an item."""
    async with quiesce.Scope("benchmark"):
        begin = now()
        received = 0
        async for _ in quiesce.stream(generate(count), buffer=buffer):
            received += 1
        seconds = now() - begin
    assert received == count
    return seconds / count


WAYS: dict[str, Way] = {
    **{name: partial(generator_queue, maxsize) for name, maxsize in QUEUES.items()},
    UNBUFFERED: partial(through_stream, 0),
    BUFFERED: partial(through_stream, BUFFER),
    ALONE: generator_alone,
}


def stream(backend: str, sizes: ResourceSizes) -> list[Result]:
    """Compare how fast the items of a generator get to another task.

    Each limit is on the ratio to the queue of the same size: without a buffer, to a queue of one item,
    which also hands over one by one; with a buffer, to a queue of the buffer's size.
    """

    def piece(way: Way, count: int) -> float:
        return run_fresh(backend, partial(way, count)) * 1e6

    pieces = {name: partial(piece, way, sizes.items_streamed) for name, way in WAYS.items()}
    peers = {
        f"{peer.name}, room for 1": partial(
            piece, partial(generator_peer, peer, 1), sizes.items_peers
        )
        for peer in QUEUE_PEERS
        if peer.found
    }
    found = interleave(
        f"{backend}: stream",
        pieces | peers,
        sizes.rounds,
        seldom=peers.keys(),
        rounds_seldom=sizes.rounds_peers,
    )
    about = f"{sizes.items_streamed:,} items of a generator to another task"
    compared = partial(compare, unit="us an item", at_least=True)
    return [
        compared(
            "stream_overhead",
            f"{about}, one by one",
            found,
            ours=UNBUFFERED,
            base=QUEUE_OF_ONE,
            against=(QUEUE_AS_LARGE, QUEUE_UNBOUNDED),
            limit=0.5,
        ),
        compared(
            "stream_buffered",
            f"{about}, with a buffer",
            {name: found[name] for name in (*QUEUES, BUFFERED)},
            ours=BUFFERED,
            base=QUEUE_AS_LARGE,
            against=(QUEUE_OF_ONE, QUEUE_UNBOUNDED),
            limit=1.5,
        ),
    ]
