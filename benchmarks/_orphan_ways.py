"""The four ways to start a child, wait until it is ready, use it and stop it.

Each is written as a careful user of that way would write it. It records in its `Visit` the phase that it is in,
and what it knows of the child. All ways run the same programs.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.streams.text import TextReceiveStream

from benchmarks._orphan_census import MARK
from quiesce import ProcessLost, Scope, start_process
from quiesce.ready import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

GRACE_SECONDS = 0.03
USE_SECONDS = 0.001


@dataclass(frozen=True)
class Program:
    """A program to start, and the exit codes that it can have."""

    about: str
    script: str
    codes: frozenset[int]


_BY_SIGNAL = frozenset({-9, -15})
PROGRAMS = {
    "polite": Program("ends on SIGTERM", "echo ready; exec sleep 60", _BY_SIGNAL),
    "stubborn": Program("ignores SIGTERM", "trap '' TERM; echo ready; exec sleep 60", _BY_SIGNAL),
    "parent": Program(
        "has a child that holds its pipes",
        "trap '' TERM; sleep 60 & trap - TERM; echo ready; exec sleep 60",
        _BY_SIGNAL,
    ),
    "barren": Program("exits before it is ready", "exit 3", _BY_SIGNAL | {3}),
}


class Handle(Protocol):
    """The object that each library returns for a child process."""

    @property
    def returncode(self) -> int | None:
        """The child's exit code; None if it is not known."""


class StartFailed(Exception):  # noqa: N818 - named after what happened, like the library's own
    """Raised if the child has exited before it was ready."""


@dataclass
class Visit:
    """One run of one way."""

    program: Program
    mark: str
    phase: str = "starting"
    handle: Handle | None = None
    code: int | None = None
    """The child's exit code, as the way itself has learnt it."""

    @property
    def argv(self) -> list[str]:
        """The command to start."""
        return ["sh", "-c", self.program.script]

    @property
    def env(self) -> dict[str, str]:
        """The child's environment, with the mark by which the census finds the child."""
        return {**os.environ, MARK: self.mark}

    def failed(self, code: int | None) -> StartFailed:
        """Record that the child has exited too early, and return the error."""
        self.code = code
        return StartFailed(f"exited before it was ready: {code}")

    async def use(self) -> None:
        """Use the child for a moment."""
        self.phase = "using"
        await anyio.sleep(USE_SECONDS)
        self.phase = "stopping"


async def naive(visit: Visit) -> None:
    """Start the child, wait until it is ready, register it; at the end, stop all registered children."""
    registered: list[asyncio.subprocess.Process] = []
    process = await _start(visit)
    await _ready(visit, process)
    registered.append(process)
    try:
        await visit.use()
    finally:
        for each in registered:
            with suppress(ProcessLookupError):
                each.terminate()
            visit.code = await each.wait()


async def reaped_on_unwind(visit: Visit) -> None:
    """Follow the fix of seed 004: guard every step between the start and the registration."""
    process = await _start(visit)
    try:
        await _ready(visit, process)
    except BaseException:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        try:
            await asyncio.shield(process.wait())
        finally:
            process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to it
        raise
    try:
        await visit.use()
    finally:
        visit.code = await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> int:
    """Stop a registered child: SIGTERM, grace, SIGKILL."""
    with suppress(ProcessLookupError):
        process.terminate()
    with suppress(TimeoutError):
        return await asyncio.wait_for(process.wait(), GRACE_SECONDS)
    with suppress(ProcessLookupError):
        process.kill()
    return await process.wait()


async def _start(visit: Visit) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *visit.argv,
        env=visit.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    visit.handle = process
    return process


async def _ready(visit: Visit, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise visit.failed(await process.wait())


async def anyio_block(visit: Visit) -> None:
    """Use the block of `anyio.open_process`."""
    async with await anyio.open_process(visit.argv, env=visit.env) as process:
        visit.handle = process
        assert process.stdout is not None
        try:
            await TextReceiveStream(process.stdout).receive()
        except anyio.EndOfStream:
            raise visit.failed(await process.wait()) from None
        try:
            await visit.use()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
        visit.code = await process.wait()


async def owned(visit: Visit) -> None:
    """Start the child with quiesce."""
    try:
        async with Scope("visit"):
            process = await start_process(
                visit.argv, env=visit.env, ready=Line("^ready$"), grace=GRACE_SECONDS
            )
            visit.handle = process
            await visit.use()
            visit.code = await process.stop()
    except ProcessLost as error:
        raise visit.failed(error.returncode) from None


@dataclass(frozen=True)
class Way:
    """One way to run a child, and the event loops that it supports."""

    about: str
    run: Callable[[Visit], Coroutine[Any, Any, None]]
    backends: tuple[str, ...]


OURS = "quiesce"
WAYS = {
    "naive": Way("asyncio: start, wait, register", naive, ("asyncio", "uvloop")),
    "fix-004": Way("asyncio with seed 004's fix", reaped_on_unwind, ("asyncio", "uvloop")),
    "anyio": Way("anyio: async with open_process", anyio_block, ("asyncio", "trio")),
    OURS: Way("quiesce: start_process in a Scope", owned, ("asyncio", "uvloop", "trio")),
}
