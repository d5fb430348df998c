"""Programs for test_guard_packages.py, with claude-agent-sdk, and fake_cli.py as its CLI.

`left`: the loop over `query()` is left on the result, as in seed 002. `ended`: it is read to its
end. `owned_left`: left on the result, read through `quiesce.stream`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from quiesce import Scope, stream
from tests.integration import guard_programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAKE_CLAUDE = Path(__file__).parents[1] / "adapters" / "claude" / "fake_cli.py"


def make_command(folder: Path) -> Path:
    """Write the CLI that the SDK starts."""
    command = folder / "claude"
    journal = folder / "journal"
    command.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -I -S '{FAKE_CLAUDE}' --journal '{journal}' \"$@\"\n"
    )
    command.chmod(0o700)
    return command


def ask() -> AsyncIterator[Any]:
    """Return the messages of one conversation."""
    messages: AsyncIterator[Any] = query(prompt="Hello?", options=ClaudeAgentOptions(cli_path=CLI))
    return messages


async def left() -> None:
    """Leave the loop on the result."""
    async for message in ask():
        if isinstance(message, ResultMessage):
            break


async def ended() -> None:
    """Read to the end."""
    async for _ in ask():
        pass


async def owned_left() -> None:
    """Leave the loop on the result, of a stream that the scope owns."""
    async with Scope("host"):
        async for message in stream(ask()):
            if isinstance(message, ResultMessage):
                break


SCENARIOS = {"left": left, "ended": ended, "owned_left": owned_left}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        CLI = make_command(Path(temporary))
        guard_programs.main(SCENARIOS)
