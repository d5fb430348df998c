"""Programs for test_claude_stream.py: each asks claude-agent-sdk once, and stops reading too early.

`claude_programs.py FOLDER SCENARIO:BACKEND:MODE...` runs them all at once. Each is a fork of its own,
for importing the SDK takes longer than any of them; what it prints, and its exit code, are in a
folder of its own. In the mode `bare` the SDK's generator is read as it is; in the mode `owned`,
through `quiesce.stream`, and the program runs in a scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import trio
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, query

import quiesce

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable

FAKE_CLAUDE = Path(__file__).parents[1] / "adapters" / "claude" / "fake_cli.py"
FLUSH_SECONDS = 1.0  # far more than it takes to see that the CLI is still there
PATIENCE_SECONDS = 0.05
AT_ONCE_MAX = 6
BACKENDS = ("asyncio", "trio")


def say(line: str) -> None:
    """Print a line for the test."""
    print(line, flush=True)  # noqa: T201 - that is how it is told


class Host:
    """A program that asks."""

    def __init__(self, folder: Path, *, owned: bool, arguments: str) -> None:
        self.owned = owned
        self.journal = folder / "journal"
        self.thought = folder / "thought"
        self.command = folder / "claude"
        arguments = f"--journal '{self.journal}' {arguments.format(self.thought)}"
        # -I and -S: the CLI imports nothing of ours, and starts at once.
        self.command.write_text(
            f"#!/bin/sh\nexec '{sys.executable}' -I -S '{FAKE_CLAUDE}' {arguments} \"$@\"\n"
        )
        self.command.chmod(0o700)

    def ask(self, *, resumable: bool = False) -> Any:
        """Return the messages of one conversation, as a generator or a stream."""
        options = ClaudeAgentOptions(cli_path=self.command)
        messages = query(prompt="Are you there?", options=options)
        return quiesce.stream(messages, resumable=resumable) if self.owned else messages

    def look(self, when: str) -> None:
        """Return whether the CLI is there: a process that nobody has waited for still is."""
        pid = int(self.journal.read_text().split()[0])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            say(f"{when}: CLI gone")
        else:
            say(f"{when}: CLI alive")

    def let_go_on(self) -> None:
        """Let the CLI come to the result."""
        self.thought.touch()


async def read_to_the_result(messages: AsyncIterable[Any]) -> None:
    """Leave the loop as a program does that has what it asked for."""
    async for message in messages:
        if isinstance(message, ResultMessage):
            break


async def collected(host: Host) -> None:
    """Drop a half-read stream in a cycle: the collector finds it, in another task."""

    async def read() -> None:
        messages = host.ask()
        cycle: list[Any] = [messages]
        cycle.append(cycle)
        await read_to_the_result(messages)

    async def collect() -> None:
        gc.collect()

    gc.disable()
    await read()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
    await anyio.sleep(0.1)
    say("host goes on")
    scope = quiesce.current_scope()
    if scope is not None:
        say(f"in flight: {[entry.kind for entry in scope.frontier()]}")


async def closed(host: Host) -> None:
    """Close a half-read stream, as one should."""
    async with contextlib.aclosing(host.ask()) as messages:
        await read_to_the_result(messages)
    host.look("after aclosing")


async def left(host: Host) -> None:
    """Let the program end right after the result."""
    await read_to_the_result(host.ask())


async def lose_patience(host: Host, messages: AsyncIterable[Any]) -> None:
    """Read until the CLI thinks, and no longer."""
    with anyio.CancelScope() as patience:
        async for message in messages:
            if isinstance(message, AssistantMessage):
                patience.deadline = anyio.current_time() + PATIENCE_SECONDS
    say(f"reader cancelled: {patience.cancelled_caught}")
    host.look("then")
    host.let_go_on()


async def cancelled(host: Host) -> None:
    """Cancel the reader while the CLI thinks; nobody comes back."""
    await lose_patience(host, host.ask())


async def resumed(host: Host) -> None:
    """Cancel the reader while the CLI thinks, and read on."""
    messages = host.ask(resumable=True)
    await lose_patience(host, messages)
    async for message in messages:
        say(f"then read: {type(message).__name__}")


async def overdue(host: Host) -> None:
    """Do not wait for ever for a CLI that does not go."""
    try:
        async with quiesce.Scope("short", grace=0.1, cleanup=0.2):
            await read_to_the_result(host.ask())
    except* quiesce.DrainTimeout as timeouts:
        for timeout in timeouts.exceptions:
            say(f"told: {timeout}")
    host.look("then")


FLUSHES = f"--flush {FLUSH_SECONDS}"
THINKS = FLUSHES + " --think '{}'"
STUBBORN = FLUSHES + " --stubborn"
SCENARIOS: dict[str, tuple[Callable[[Host], Awaitable[None]], str]] = {
    "collected": (collected, FLUSHES),
    "closed": (closed, FLUSHES),
    "left": (left, FLUSHES),
    "cancelled": (cancelled, THINKS),
    "resumed": (resumed, THINKS),
    "overdue": (overdue, STUBBORN),
}


def tasks() -> int:
    """Count the tasks of this event loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


async def run(host: Host, scenario: Callable[[Host], Awaitable[None]]) -> None:
    """Run one program."""
    before = tasks()
    if host.owned:
        async with quiesce.Scope("host"):
            await scenario(host)
    else:
        await scenario(host)
    host.look("at the end")
    say(f"tasks left: {tasks() - before}")


def start(folder: Path, name: str) -> None:
    """Run one program, with its output in files."""
    for fd, output in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / output, os.O_WRONLY | os.O_CREAT), fd)
    scenario, backend, mode = name.split(":")
    program, arguments = SCENARIOS[scenario]
    host = Host(folder, owned=mode == "owned", arguments=arguments)
    try:
        anyio.run(run, host, program, backend=backend)
    finally:
        host.let_go_on()


def main() -> None:
    """Start the programs, and wait for them."""
    for backend in BACKENDS:  # before the forks: they all need it
        anyio.run(anyio.lowlevel.checkpoint, backend=backend)
    gc.collect()
    gc.freeze()  # what all share is not copied by a collector that looks at it
    running: dict[int, Path] = {}
    for name in sys.argv[2:]:
        if len(running) == AT_ONCE_MAX:
            wait_for_one(running)
        folder = Path(sys.argv[1], name)
        folder.mkdir()
        pid = os.fork()
        if pid == 0:
            start(folder, name)
            return  # and through the end of the interpreter, as any program
        running[pid] = folder
    while running:
        wait_for_one(running)


def wait_for_one(running: dict[int, Path]) -> None:
    """Wait until a program has ended, and keep its exit code."""
    pid, status = os.wait()
    (running.pop(pid) / "code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
