"""What the tests of claude-agent-sdk share: the fake CLI in a folder, and things to hold on to."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import claude_agent_sdk
import pytest
from claude_agent_sdk import ClaudeAgentOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

FAKE_CLAUDE = Path(__file__).with_name("fake_cli.py")
PAUSE_SECONDS = 0.01


class Host:
    """A folder with a CLI that behaves as the flags say, and its journal."""

    def __init__(self, folder: Path, *flags: str) -> None:
        """Make the CLI; a `{}` in a flag is the file that it waits for while it thinks."""
        self.folder = folder
        self.journal = folder / "journal"
        self.thought = folder / "thought"
        self.command = folder / "claude"
        words = " ".join(f"'{flag}'" for flag in flags).format(self.thought)
        # -I and -S: the CLI imports nothing of ours, and starts at once.
        self.command.write_text(
            f"#!/bin/sh\nexec '{sys.executable}' -I -S '{FAKE_CLAUDE}' --journal '{self.journal}'"
            f' {words} "$@"\n'
        )
        self.command.chmod(0o700)

    def options(self, **more: Any) -> ClaudeAgentOptions:
        """Return options with this CLI."""
        return ClaudeAgentOptions(cli_path=self.command, **more)

    @property
    def notes(self) -> list[str]:
        """What the CLI has told so far."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    @property
    def pids(self) -> list[int]:
        """The processes of the CLI, its children too."""
        words = [note.removeprefix("child ") for note in self.notes]
        return [int(word) for word in words if word.isdigit()]

    def alive(self) -> list[int]:
        """Return those that run; what is dead is its parent's to bury."""
        return [pid for pid in self.pids if _runs(pid)]

    async def noted(self, event: str) -> None:
        """Wait until the CLI has told something; it is another process, so there is only looking."""
        await until(lambda: any(note.startswith(event) for note in self.notes))

    async def started(self) -> None:
        """Wait until the CLI runs."""
        await until(lambda: bool(self.pids))


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def exists(pid: int) -> bool:
    """Return whether there is such a process, be it one that nobody has buried."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(told: Callable[[], bool]) -> None:
    """Wait for what another process or thread does."""
    while not told():  # noqa: ASYNC110 - nobody here could set an event
        await anyio.sleep(PAUSE_SECONDS)


class Custom:
    """A transport of the user's."""

    def __init__(self, *, connects: bool = True, closes: bool = True) -> None:
        """Say what it does."""
        self.connects, self.closes = connects, closes
        self.connecting = anyio.Event()
        self.closed = False
        self.failure: Exception | None = None
        self._send, self._receive = anyio.create_memory_object_stream[dict[str, Any]](9)

    async def connect(self) -> None:
        """Connect, or never."""
        self.connecting.set()
        if not self.connects:
            await anyio.sleep_forever()

    async def write(self, data: str) -> None:
        """Answer every request."""
        message = json.loads(data)
        response = {"subtype": "success", "request_id": message.get("request_id"), "response": {}}
        await self._send.send({"type": "control_response", "response": response})

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Return the answers."""
        async for message in self._receive:
            yield message

    async def close(self) -> None:
        """Close, or never, or fail."""
        self.closed = True
        self._send.close()
        self._receive.close()
        if not self.closes:
            await anyio.sleep_forever()
        if self.failure is not None:
            raise self.failure

    def is_ready(self) -> bool:
        """Return that it is ready."""
        return True

    async def end_input(self) -> None:
        """Do nothing."""


def tool_server(call: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return an SDK MCP server with the tool `add`."""
    tool = claude_agent_sdk.tool("add", "Add two numbers", {"a": int, "b": int})(call)
    return claude_agent_sdk.create_sdk_mcp_server("tools", tools=[tool])


def beside_the_bare_sdk(test: Any) -> Any:
    """Mark a test in which the SDK runs alone, too, and leaves streams and generators behind."""
    marks = (
        pytest.mark.quiesce(allow=["generator:*"]),
        pytest.mark.filterwarnings("ignore:Unclosed <Memory:ResourceWarning"),
    )
    for mark in marks:
        test = mark(test)
    return test


@contextmanager
def hosted(*flags: str) -> Iterator[Host]:
    """Return a folder with a CLI, and remove it in the end."""
    folder = Path(tempfile.mkdtemp(prefix="quiesce-claude-"))
    host = Host(folder, *flags)
    try:
        yield host
    finally:
        host.thought.touch()
        shutil.rmtree(folder, ignore_errors=True)
