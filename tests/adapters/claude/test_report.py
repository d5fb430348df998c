"""The reports of the adapter for claude-agent-sdk: there after every end, complete, and with true times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from claude_agent_sdk import ClaudeAgentOptions

from quiesce import Scope
from quiesce.integrations.claude import ClaudeSDKClient, query
from tests.adapters.claude.host import Custom, hosted

if TYPE_CHECKING:
    from quiesce import Report

pytestmark = [pytest.mark.real_time, pytest.mark.backends("asyncio", "trio")]

GRACE_SECONDS = 0.2


def lost(report: Report | None) -> list[tuple[str, str]]:
    """Return kind and name of what was lost."""
    assert report is not None
    return [(item.kind, item.name) for item in (*report.cancelled, *report.stuck)]


async def connected(transport: Any) -> ClaudeSDKClient:
    """Connect a client over a transport of the user's."""
    client = ClaudeSDKClient(ClaudeAgentOptions(), transport, grace=GRACE_SECONDS)
    await client.connect()
    return client


async def test_a_transport_that_was_given_up_is_in_the_report() -> None:
    """Its `close()` did not end: what it would have flushed is lost."""
    async with Scope("test"):
        client = await connected(Custom(closes=False))
        await client.disconnect()
    assert lost(client.report) == [("transport", "Custom")]


@pytest.mark.parametrize("closes", [True, False])
async def test_a_cancelled_disconnect_leaves_a_report(closes: bool) -> None:  # noqa: FBT001 - a case
    """The close is waited for before the cancellation is passed on, and so is its report there."""
    async with Scope("test"):
        client = await connected(Custom(closes=closes))
        with anyio.CancelScope() as caller:
            caller.cancel()
            await client.disconnect()
        assert caller.cancelled_caught
    assert lost(client.report) == ([] if closes else [("transport", "Custom")])


@pytest.mark.parametrize("way", ["to the end", "break", "aclose"])
async def test_a_query_has_a_report_when_it_has_ended(way: str) -> None:
    """However it ended, and not before."""
    with hosted() as host:
        async with Scope("test") as scope:
            messages: Any = query(prompt="x", options=host.options(), grace=30.0)
            reports = [messages.report]
            async for _ in messages:
                reports.append(messages.report)
                if way != "to the end":
                    break
            if way == "aclose":
                await messages.aclose()
        assert scope.report is not None
        assert not any(reports)
        assert lost(messages.report) == []


async def test_a_cli_that_was_killed_is_in_the_report_of_its_query() -> None:
    """It did not go by itself within the grace, which is part of the time that the end took."""
    with hosted("--stubborn", "--flush", "20") as host:
        async with Scope("test"):
            messages = query(prompt="x", options=host.options(), grace=GRACE_SECONDS)
            await anext(messages)
            await messages.aclose()
        assert lost(messages.report) == [("process", "claude")]
        assert messages.report is not None
        assert messages.report.seconds >= GRACE_SECONDS - 0.001


async def test_the_end_of_a_connect_that_was_cancelled_is_in_the_time_of_the_report() -> None:
    """The transport is closed before the conversation is: that took until it was given up."""
    transport = Custom(connects=False, closes=False)
    client = ClaudeSDKClient(ClaudeAgentOptions(), transport, grace=GRACE_SECONDS)
    async with Scope("test"), anyio.create_task_group() as tasks:
        tasks.start_soon(client.connect)
        await transport.connecting.wait()
        tasks.cancel_scope.cancel()
    assert lost(client.report) == [("transport", "Custom")]
    assert client.report is not None
    assert client.report.seconds >= GRACE_SECONDS - 0.001
