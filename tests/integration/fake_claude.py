"""A stand-in for the CLI that claude-agent-sdk starts: stream-json over stdio, and no network.

`fake_claude.py --journal FILE [--think FILE] [--flush SECONDS] [--stubborn]`; what the SDK adds to
the command line is not read. It answers `initialize`, and a prompt with one assistant message and
the result; in between it thinks, until the file is there. When its input has ended it takes its
time to flush, as the real one writes its session, and goes; with `--stubborn`, SIGTERM does not
make it go sooner. The journal tells how far it is, a line each: its process id, then `terminated`
for a SIGTERM, and `flushed`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

VERSION = "9.9.9"  # newer than what any version of the SDK asks for
SESSION = "00000000-0000-0000-0000-000000000000"
THINKING_SECONDS_MAX = 10.0  # if the test dies, we do not stay


class FakeClaude:
    """The process."""

    def __init__(self, journal: Path, *, think: Path | None, flush: float, stubborn: bool) -> None:
        self.journal = journal
        self.think = think
        self.flush = flush
        self.stubborn = stubborn

    def run(self) -> None:
        """Answer until the input ends, then flush."""
        signal.signal(signal.SIGTERM, self.terminate)
        self.note(os.getpid())
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "control_request":
                answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
                say(type="control_response", response=answer)
            elif message["type"] == "user":
                self.answer()
        wait(self.flush)
        self.note("flushed")

    def answer(self) -> None:
        """Answer a prompt."""
        say(type="system", subtype="init", session_id=SESSION, claude_code_version=VERSION)
        content = [{"type": "text", "text": "I am on it."}]
        message = {"role": "assistant", "model": "fake", "content": content}
        say(type="assistant", message=message, session_id=SESSION, parent_tool_use_id=None)
        if self.think is not None:
            wait(THINKING_SECONDS_MAX, until=self.think)
        say(
            type="result",
            subtype="success",
            duration_ms=1,
            duration_api_ms=1,
            is_error=False,
            num_turns=1,
            session_id=SESSION,
            total_cost_usd=0.0,
            result="Done.",
        )

    def terminate(self, *_: object) -> None:
        """Go in the middle of whatever it is, or do not."""
        self.note("terminated")
        if not self.stubborn:
            os._exit(128 + signal.SIGTERM)

    def note(self, event: object) -> None:
        """Tell the test."""
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(f"{event}\n")


def say(**message: Any) -> None:
    """Tell the SDK, which may have stopped listening."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)  # noqa: T201 - the protocol is spoken on stdout


def wait(seconds: float, *, until: Path | None = None) -> None:
    """Let time pass, or less of it if a file appears, although signals come."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not (until and until.exists()):
        time.sleep(min(left, 0.02))


def main() -> None:
    """Read the command line and run."""
    if sys.argv[-1] == "-v":
        print(VERSION)  # noqa: T201 - older versions of the SDK start the CLI once to ask
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--think", type=Path)
    parser.add_argument("--flush", type=float, default=0.0)
    parser.add_argument("--stubborn", action="store_true")
    options, _ = parser.parse_known_args()
    FakeClaude(
        options.journal, think=options.think, flush=options.flush, stubborn=options.stubborn
    ).run()
    os._exit(0)  # Python would try again to write what nobody reads, and fail


if __name__ == "__main__":
    main()
