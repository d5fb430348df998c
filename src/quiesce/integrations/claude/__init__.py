"""The Claude Agent SDK with an owner: `query()` and `ClaudeSDKClient` that can always be ended.

The same calls as in `claude_agent_sdk`, from 0.1.50 on, on asyncio, uvloop and trio (also with the
versions from 0.1.51 to 0.1.66, whose SDK has asyncio alone). What they start belongs to a scope: the
CLI with its whole process group, the SDK's tasks, and the hooks, permission callbacks and tools that
are in flight. docs/howto/claude.md says what to change in a program.
"""

from __future__ import annotations

from quiesce.integrations import sdk

sdk.require("claude-agent-sdk", extra="claude", oldest="0.1.50")

from quiesce.integrations.claude import private  # noqa: E402 - it needs the SDK
from quiesce.integrations.claude.asking import Query, query  # noqa: E402 - likewise
from quiesce.integrations.claude.client import ClaudeSDKClient  # noqa: E402 - likewise

__all__ = ["ClaudeSDKClient", "Query", "query"]

private.install()
