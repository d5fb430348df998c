"""Adapters: the real SDKs, with a teardown that is right.

Each is a module of its own with the SDK's own names (`quiesce.integrations.acp.run_agent`), and none
imports another. What each mends, in which version, is in docs/reference/compatibility.md.
"""

__all__: list[str] = []
