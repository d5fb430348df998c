"""Ways in which a handler leaves work behind, as ordinary servers are written.

Each is a row of docs/howto/work-that-outlives-a-request.md. The work writes down its own end, where it is done: in
a coroutine, a thread, a callback, or a process of its own. `Ways` has what an app starts in its lifespan.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import quiesce
from quiesce.mesh import CascadeCancelled, JournalBroken, current_hop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.integration.mesh.truth import Piece

DAEMON_SECONDS = 60.0  # a guard: a daemon thread works until its cascade has a verdict

_PROGRAM = """
import json, os, select, sys, time
seconds, key = json.loads(sys.argv[1])
if not select.select([0], [], [], seconds)[0]:  # else its agent has died, and it ends as well
    os.write(1, (json.dumps({"t": time.monotonic(), "is": "end", "key": key}) + "\\n").encode())
"""


@dataclass(eq=False)
class Job:
    """Work that is left behind by a handler."""

    cascade: str
    piece: Piece
    seconds: float
    send: Callable[[], Awaitable[object]]
    """Sends the messages that it sends."""
    told: threading.Event | None = None
    """If there is one: it works until its cascade has a verdict, not for some seconds."""

    async def run(self) -> None:
        """Do it in a coroutine; what belongs to no cascade is declared, as docs/howto/mesh.md asks for."""
        with self.piece, contextlib.nullcontext() if self.piece.joined else quiesce.detached():
            if self.told is None:
                await asyncio.sleep(self.seconds)
            else:
                await asyncio.to_thread(self.told.wait, DAEMON_SECONDS)
            try:
                await self.send()
            except (CascadeCancelled, JournalBroken):
                pass  # or it would end the worker, and the jobs after it would wait for ever
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # else tasks of a worker were cancelled with its hop, and the worker was not

    def run_here(self) -> None:
        """Do it in a thread; it sends nothing."""
        with self.piece:
            if self.told is None:
                time.sleep(self.seconds)
            else:
                self.told.wait(DAEMON_SECONDS)


@dataclass(eq=False)
class Ways:
    """What an app has started to do work in, and all ways to leave work to it."""

    jobs: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)
    jobs_done: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)
    threaded: queue.Queue[Job] = field(default_factory=queue.Queue)
    deque: collections.deque[Job] = field(default_factory=collections.deque)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    parts: list[tuple[Any, Job]] = field(default_factory=list)
    more_parts: asyncio.Condition = field(default_factory=asyncio.Condition)
    pool: concurrent.futures.ThreadPoolExecutor = field(
        default_factory=lambda: concurrent.futures.ThreadPoolExecutor(8)
    )
    told: dict[str, threading.Event] = field(default_factory=lambda: collections.defaultdict(threading.Event))  # fmt: skip
    kept: set[Any] = field(default_factory=set)
    stream: Any = None
    scope: Any = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the workers, as a lifespan does, and end them."""
        import anyio  # noqa: PLC0415 - only agents have it

        self.stream, items = anyio.create_memory_object_stream[Job](1000)
        threading.Thread(target=self._work_in_thread, daemon=True).start()
        workers = [
            asyncio.create_task(worker)
            for worker in (
                self._take(), self._take(), self._take_and_say(), self._receive(items), self._wake_up(),
                self._take_part(),
            )
        ]  # fmt: skip
        try:
            async with quiesce.Scope("app") as self.scope:
                yield
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self.stream.close()
            items.close()
            self.pool.shutdown(wait=False)

    # Workers.

    async def _take(self) -> None:
        while True:
            job = await self.jobs.get()
            await job.run()

    async def _take_and_say(self) -> None:
        while True:
            job = await self.jobs_done.get()
            try:
                await job.run()
            finally:
                self.jobs_done.task_done()

    async def _receive(self, items: Any) -> None:
        async for job in items:
            await job.run()

    async def _wake_up(self) -> None:
        while True:
            await self.woken.wait()
            self.woken.clear()
            while self.deque:
                await self.deque.popleft().run()

    async def _take_part(self) -> None:
        while True:
            async with self.more_parts:
                await self.more_parts.wait_for(lambda: self.parts)
                part, job = self.parts.pop(0)
            try:
                async with part:
                    await job.run()
            except CascadeCancelled:
                pass
            del part, job  # or it would live until the next one is there

    def _work_in_thread(self) -> None:
        while True:
            self.threaded.get().run_here()

    # What a handler does.

    async def leave(self, pattern: str, job: Job) -> None:
        """Leave a job behind, in one of the patterns."""
        way: Callable[[Job], Awaitable[None] | None] = getattr(
            self, "_" + pattern.replace("-", "_")
        )
        waiting = way(job)
        if waiting is not None:
            await waiting

    def _task(self, job: Job) -> None:
        task = asyncio.create_task(job.run())
        self.kept.add(task)
        task.add_done_callback(lambda _: job.piece.end())  # one that was cancelled before it began
        task.add_done_callback(self.kept.discard)

    def _queue(self, job: Job) -> None:
        self.jobs.put_nowait(job)

    async def _queue_done(self, job: Job) -> None:
        await self.jobs_done.put(job)

    def _queue_thread(self, job: Job) -> None:
        self.threaded.put(job)

    def _stream(self, job: Job) -> None:
        self.stream.send_nowait(job)

    def _deque(self, job: Job) -> None:
        self.deque.append(job)
        self.woken.set()

    _deque_send = _deque

    async def _working(self, job: Job) -> None:
        hop = current_hop()
        part = contextlib.nullcontext() if hop is None else hop.working("job")
        async with self.more_parts:
            self.parts.append((part, job))
            self.more_parts.notify()

    def _spawn(self, job: Job) -> None:
        self.scope.spawn(job.run)

    def _later(self, job: Job) -> None:
        asyncio.get_running_loop().call_later(job.seconds / 2, self._task, job)

    def _callback(self, job: Job) -> None:
        asyncio.get_running_loop().call_later(job.seconds, job.piece.end)

    def _to_thread(self, job: Job) -> None:
        task = asyncio.create_task(asyncio.to_thread(job.run_here))
        self.kept.add(task)
        task.add_done_callback(self.kept.discard)

    def _executor(self, job: Job) -> None:
        asyncio.get_running_loop().run_in_executor(None, job.run_here)

    def _pool(self, job: Job) -> None:
        self.pool.submit(job.run_here)

    def _thread(self, job: Job) -> None:
        threading.Thread(target=job.run_here).start()

    def _timer(self, job: Job) -> None:
        threading.Timer(job.seconds, job.piece.end).start()

    def _popen(self, job: Job) -> None:
        self.kept = {one for one in self.kept if not (isinstance(one, subprocess.Popen) and one.poll() is not None)}  # fmt: skip
        self.kept.add(subprocess.Popen(_command(job), stdin=subprocess.PIPE))

    async def _exec(self, job: Job) -> None:
        self.kept = {one for one in self.kept if not (isinstance(one, asyncio.subprocess.Process) and one.returncode is not None)}  # fmt: skip
        try:
            made = await asyncio.create_subprocess_exec(
                *_command(job), stdin=asyncio.subprocess.PIPE
            )
        except asyncio.CancelledError:  # asyncio has killed it
            job.piece.say_end()
            raise
        self.kept.add(made)

    def _daemon(self, job: Job) -> None:
        job.told = self.told[job.cascade]
        threading.Thread(target=job.run_here, daemon=True).start()


def _command(job: Job) -> list[str]:
    """Return the command of a child process that does a job, and says so on the agent's standard output."""
    job.piece.hand_over()
    return [sys.executable, "-S", "-E", "-c", _PROGRAM, json.dumps([job.seconds, job.piece.key])]
