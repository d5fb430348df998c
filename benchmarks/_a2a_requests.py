"""Requests to an A2A server, beside the bare SDK: blocking sends, streams, and a slow webhook.

The limits are on the time that a client sees: real HTTP, the SDK's JSON-RPC routes, uvicorn.
Other rows show the server's processor time for a call, and the time of the handler alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._a2a_serving import DURABLE, MEMORY, Connection, body, handling, served
from benchmarks._harness import BARE, Result, Samples, compare, interleave, run_fresh
from benchmarks._subjects import wall
from tests.adapters.a2a import kit
from tests.adapters.a2a.server import webhook

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from a2a.server.request_handlers import RequestHandler

    Step = Callable[[Connection], Awaitable[None]]
    Calls = Callable[[RequestHandler, int], Coroutine[Any, Any, None]]

WAYS = (BARE, MEMORY, DURABLE)
LEAST = 0.95  # of the bare SDK's speed
MOST_DELAY = 0.1  # of the bare SDK's delay
IN_FLIGHT = 8
HOOK_SECONDS = 0.2
EVENTS = 8  # besides the task's first two states, and its last state
_WARM = 5
_UPDATES = "update " * EVENTS + "complete"
_COMPLETE = b"TASK_STATE_COMPLETED" if kit.FIRST else b'"completed"'


async def send(connection: Connection) -> None:
    """Send a message, and wait for the answer, which comes when its task is complete."""
    answer = await connection.call(body("send", kit.sending("complete")))
    if _COMPLETE not in answer:
        message = f"the task is not complete: {answer!r}"
        raise RuntimeError(message)


async def stream(connection: Connection) -> None:
    """Send a message, and read its events to the end."""
    answer = await connection.call(body("stream", kit.sending(_UPDATES)), streamed=True)
    if _COMPLETE not in answer:
        message = f"the stream ends before its task: {answer!r}"
        raise RuntimeError(message)


async def handled_sends(handler: RequestHandler, count: int) -> None:
    """Send messages to the handler, without HTTP."""
    for _ in range(count):
        await handler.on_message_send(kit.request("complete"), kit.call_context())


async def handled_streams(handler: RequestHandler, count: int) -> None:
    """Send messages to the handler, without HTTP, and read their events."""
    for _ in range(count):
        request = kit.request(_UPDATES)
        async for _ in handler.on_message_send_stream(request, kit.call_context()):
            pass


async def _clients(port: int, count: int, step: Step) -> tuple[float, float]:
    """Make `count` calls, some at a time; return the seconds, and the server's processor time."""
    connections = [await Connection(port).open() for _ in range(IN_FLIGHT)]

    async def client(connection: Connection, left: Iterator[int]) -> None:
        for _ in left:
            await step(connection)

    warming = iter(range(_WARM * IN_FLIGHT))
    await asyncio.gather(*(client(connection, warming) for connection in connections))
    cpu, begin = await connections[0].cpu(), wall()
    left = iter(range(count))
    await asyncio.gather(*(client(connection, left) for connection in connections))
    seconds = wall() - begin
    cpu = await connections[0].cpu() - cpu
    for connection in connections:
        await connection.close()
    return seconds, cpu


def _over_http(backend: str, count: int, rounds: int, name: str, step: Step) -> list[Result]:
    """Compare the time by the clock, and the server's processor time, measured in the same turns."""
    spent: dict[str, list[float]] = {way: [] for way in WAYS}

    def piece(way: str) -> float:
        with served(way, backend) as port:
            seconds, cpu = run_fresh(backend, partial(_clients, port, count, step))
        spent[way].append(cpu / count * 1e6)
        return seconds / count * 1e6

    pieces = {way: partial(piece, way) for way in WAYS}
    found = interleave(f"a2a {name}", pieces, rounds)
    used = {way: Samples(tuple(values)) for way, values in spent.items()}
    about = f"a second, over HTTP, {IN_FLIGHT} in flight"
    note = f"{DURABLE}: with a SqliteOutbox, so that tasks and pushes outlive the process"
    return [
        compare(
            f"{name}_ratio", f"{name} {about}", found,
            unit="us", limit=LEAST, at_least=True, notes=(note,),
        ),
        compare(
            f"{name}_cpu", "the same, a second of the server's processor time", used,
            unit="us", limit=None, at_least=True,
        ),
    ]  # fmt: skip


def _by_hand(backend: str, count: int, rounds: int, name: str, calls: Calls) -> Result:
    """Compare the time of the handler alone."""

    async def piece(way: str) -> float:
        with tempfile.TemporaryDirectory(prefix="quiesce-bench-") as folder:
            async with handling(way, Path(folder)) as handler:
                await calls(handler, _WARM)
                gc.collect()
                begin = time.process_time()  # of all threads
                await calls(handler, count)
                return (time.process_time() - begin) / count * 1e6

    pieces = {way: partial(run_fresh, backend, partial(piece, way)) for way in WAYS}
    found = interleave(f"a2a {name}, handler", pieces, rounds)
    about = "a second of processor time, without HTTP: calls of the handler, one at a time"
    return compare(
        f"{name}_handler", f"{name} {about}", found, unit="us", limit=None, at_least=True
    )


def requests(backend: str = "asyncio", count: int = 400, rounds: int = 5) -> list[Result]:
    """Compare blocking sends."""
    return [
        *_over_http(backend, count, rounds, "requests", send),
        _by_hand(backend, count, rounds, "requests", handled_sends),
    ]


def streams(backend: str = "asyncio", count: int = 400, rounds: int = 5) -> list[Result]:
    """Compare streams of eleven events."""
    fewer = max(IN_FLIGHT, count // 4)
    return [
        *_over_http(backend, fewer, rounds, "stream", stream),
        _by_hand(backend, fewer, rounds, "stream", handled_streams),
    ]


async def _stored(port: int) -> float:
    """Send messages with a slow webhook; return the seconds until the last task's end is stored.

    The first push of a process is not measured, because it loads the certificates.
    """
    seconds = 0.0
    async with webhook() as hook:
        connection = await Connection(port).open()
        for delay in (0.0, HOOK_SECONDS):
            hook.delay = delay
            sending = kit.sending("complete", blocking=False, webhook=hook.url)
            begin = wall()
            answer = json.loads(await connection.call(body("send", sending)))["result"]
            task_id = answer.get("task", answer)["id"]
            while _COMPLETE not in await connection.call(body("get", {"id": task_id})):
                await asyncio.sleep(0.001)
            seconds = wall() - begin
            await hook.until("completed")
        await connection.close()
    return seconds


def push_storage_delay(backend: str = "asyncio", count: int = 400, rounds: int = 5) -> list[Result]:
    """Compare how long a slow webhook keeps a state from being stored."""
    del count  # one task a turn

    def piece(way: str) -> float:
        with served(way, backend) as port:
            run_fresh(backend, partial(_clients, port, IN_FLIGHT, send))  # to warm up
            return run_fresh(backend, partial(_stored, port)) * 1e3

    found = interleave("a2a push", {way: partial(piece, way) for way in WAYS}, rounds)
    about = f"until COMPLETED is stored, with a webhook that takes {HOOK_SECONDS * 1e3:.0f} ms"
    return [
        compare(
            "push_storage_delay_ratio", about, found,
            ours=DURABLE, against=(), unit="ms", limit=MOST_DELAY,
        )
    ]  # fmt: skip
