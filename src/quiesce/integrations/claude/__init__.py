"""The Claude Agent SDK, owned by scopes: `query()` and `ClaudeSDKClient` that always end.

The functions are those of `claude_agent_sdk`, from 0.1.50 on, on asyncio, uvloop and trio (trio works
even with the versions from 0.1.51 to 0.1.66, which support only asyncio themselves). A scope owns
everything that they start: the CLI with its whole process group, the SDK's tasks, and the hooks,
permission callbacks and tools that are running. docs/howto/claude.md says what to change in a program.

The modules, in reading order:

- `sdk_query`: `query()`: one question, and the messages that answer it.
- `sdk_client`: `ClaudeSDKClient`: a conversation that different tasks may open, use and close.
- `conversation`: one conversation with the CLI, and how all of it ends.
- `cli_process`: the CLI as a process of a scope.
- `handover`: passes messages from the task that reads the CLI to the task that yields them.
- `sdk_private`: the private names of the SDK that the adapter needs, each checked.
"""

from __future__ import annotations

from quiesce.integrations import sdk

sdk.require("claude-agent-sdk", extra="claude", oldest="0.1.50")

from quiesce.integrations.claude import sdk_private  # noqa: E402 - it needs the SDK
from quiesce.integrations.claude.sdk_client import ClaudeSDKClient  # noqa: E402 - likewise
from quiesce.integrations.claude.sdk_query import Query, query  # noqa: E402 - likewise

__all__ = ["ClaudeSDKClient", "Query", "query"]

sdk_private.install_stand_ins()
