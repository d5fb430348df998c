"""Messages of claude-agent-sdk's `query()` through the adapter, beside the SDK alone.

The CLI is a stand-in that writes as fast as it can, so the benchmark measures the reader: from the
first message to the result.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quiesce
from benchmarks._harness import BARE, OURS, Result, compare, interleave, run_fresh
from benchmarks._subjects import now

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Coroutine, Iterator

    Way = Callable[[Any, int], Coroutine[Any, Any, float]]

CLI = """\
import json, sys
text = {"type": "text", "text": "x" * 200}
message = {"role": "assistant", "model": "m", "content": [text]}
one = json.dumps({"type": "assistant", "message": message, "session_id": "s"})
end = {"type": "result", "subtype": "success", "duration_ms": 1, "duration_api_ms": 1,
       "is_error": False, "num_turns": 1, "session_id": "s"}
if sys.argv[-1] == "-v":
    print("9.9.9")
    sys.exit()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["type"] == "control_request":
        answer = {"subtype": "success", "request_id": asked["request_id"], "response": {}}
        print(json.dumps({"type": "control_response", "response": answer}), flush=True)
    else:
        sys.stdout.write((one + "\\n") * COUNT)
        print(json.dumps(end), flush=True)
"""


@contextmanager
def cli(count: int) -> Iterator[Path]:
    """Yield the path of a CLI that answers with `count` messages."""
    with tempfile.TemporaryDirectory(prefix="quiesce-claude-") as folder:
        program = Path(folder, "program.py")
        program.write_text(CLI.replace("COUNT", str(count)))
        command = Path(folder, "claude")
        command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -I -S '{program}' \"$@\"\n")
        command.chmod(0o700)
        yield command


async def _read(messages: AsyncIterable[object], count: int) -> float:
    """Read messages to the end; return seconds a message."""
    received, begin = 0, 0.0
    async for _ in messages:
        begin = begin or now()
        received += 1
    seconds = now() - begin
    assert received == count + 1
    return seconds / count


async def bare(command: Path, count: int) -> float:
    """Read the SDK's generator."""
    from claude_agent_sdk import ClaudeAgentOptions, query  # noqa: PLC0415 - an optional package

    return await _read(query(prompt="x", options=ClaudeAgentOptions(cli_path=command)), count)


async def ours(command: Path, count: int) -> float:
    """Read the adapter's stream."""
    from claude_agent_sdk import ClaudeAgentOptions  # noqa: PLC0415 - likewise

    from quiesce.integrations.claude import query  # noqa: PLC0415 - likewise

    async with quiesce.Scope("benchmark"):
        return await _read(query(prompt="x", options=ClaudeAgentOptions(cli_path=command)), count)


def claude_messages(backend: str, count: int, rounds: int) -> Result:
    """Compare how many messages a second a reader gets; the figure is the adapter's speed in ratio to the SDK's."""
    with cli(count) as command:

        def piece(way: Way) -> float:
            return run_fresh(backend, partial(way, command, count)) * 1e6

        found = interleave(
            f"{backend}: messages of the Claude Agent SDK",
            {BARE: partial(piece, bare), OURS: partial(piece, ours)},
            rounds,
        )
    return compare(
        "claude_messages",
        f"{count:,} messages of one query()",
        found,
        unit="us a message",
        limit=0.9,
        at_least=True,
    )


def measure(backend: str, count: int, rounds: int) -> list[Result]:
    """Compare the adapter with the SDK on the path."""
    return [claude_messages(backend, count, rounds)]
