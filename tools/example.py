#!/usr/bin/env python3
"""Run an example with the SDK that it needs: `make example NAME=mcp_sessions`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.integration import subjects  # noqa: E402 - the path first

EXAMPLES = ROOT / "examples"
SUBJECTS = {
    "a2a_agent.py": "a2a-sdk-1.3.0",
    "a2a_mesh.py": "a2a-sdk-1.3.0",
    "acp_agent.py": "agent-client-protocol-0.12.1",
    "acp_websocket.py": "agent-client-protocol-0.12.1",
    "asgi_server.py": "mcp-2.3.0",
    "claude_query.py": "claude-agent-sdk-0.2.182",
    "mcp_sessions.py": "mcp-2.3.0",
}
"""By name of an example that needs an SDK: the test subject that has this SDK."""


def names() -> list[str]:
    """Return the names of the examples that can be run."""
    helpers = {"claude_query_cli", "mcp_sessions_server"}  # other examples start these
    return sorted({path.stem for path in EXAMPLES.glob("*.py")} - helpers)


def environment(file: str) -> dict[str, str]:
    """Return the environment that an example runs in."""
    if file in SUBJECTS:
        return subjects.environment(SUBJECTS[file])
    return dict(os.environ)


def main() -> None:
    """Replace this process by the example that the command line names."""
    name = sys.argv[1].removesuffix(".py") if len(sys.argv) > 1 else ""
    if name not in names():
        sys.stderr.write(f"name an example: make example NAME=…, one of: {', '.join(names())}\n")
        sys.exit(2)
    file = f"{name}.py"
    os.execve(sys.executable, [sys.executable, str(EXAMPLES / file)], environment(file))  # noqa: S606 - our own


if __name__ == "__main__":
    main()
