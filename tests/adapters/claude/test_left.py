"""A cancelled reader of a query: the CLI is gone before the cancellation is passed on, as with the SDK."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions

from quiesce import Scope
from quiesce.integrations.claude import query
from tests.adapters.claude.host import Custom, hosted, until
from tests.leaving import ANYWHERE, ON_ASYNCIO, consume, uncollected

pytestmark = pytest.mark.real_time

CLI = (
    "--think",
    "{}",
)  # it does not see the end of its input, so it is there until the grace is over
GRACE_SECONDS = 0.3


async def cancel(way: Any, *flags: str) -> None:
    """Cancel a reader while the CLI thinks; look at the CLI in an open scope, at once."""
    with uncollected(), hosted(*CLI, *flags) as host:
        async with Scope("test") as scope:
            messages = query(prompt="x", options=host.options(), grace=GRACE_SECONDS)
            async for message in messages:
                if isinstance(message, AssistantMessage):
                    break
            reading = anyio.Event()
            reading.set()
            kept = await way(consume(messages, reading), reading)
            assert not host.alive()
            assert not scope.frontier().in_flight
            assert messages.report is not None
            assert kept


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("way", ON_ASYNCIO)
async def test_the_cli_is_gone_when_its_reader_was_cancelled_on_asyncio(way: Any) -> None:
    """In every way of being cancelled, with the task or the exception kept."""
    await cancel(way)


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("way", ANYWHERE)
async def test_the_cli_is_gone_when_its_reader_was_cancelled(way: Any) -> None:
    """In anyio's ways of being cancelled, which are trio's as well."""
    await cancel(way)


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("way", ANYWHERE)
async def test_a_stubborn_cli_is_killed_in_the_cancellation(way: Any) -> None:
    """The grace bounds it; then there are SIGTERM and SIGKILL."""
    await cancel(way, "--stubborn")


@pytest.mark.backends("asyncio", "trio")
async def test_a_cancelled_reader_does_not_wait_for_a_transport_that_does_not_close() -> None:
    """It is waited for within a bound: what was given up is in the report."""
    transport = Custom(closes=False)
    async with Scope("test"):
        messages = query(prompt="x", options=ClaudeAgentOptions(), transport=transport, grace=0.05)
        with anyio.fail_after(20):
            with anyio.move_on_after(0.1):
                await anext(messages)
        await until(lambda: messages.report is not None)
    assert messages.report is not None
    assert [item.kind for item in messages.report.cancelled] == ["transport"]


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("way", ["dropped", "kept in a cycle"])
async def test_a_query_that_was_left_ends_while_its_scope_is_open(way: str) -> None:
    """Dropped after `break`, it is closed, be it by the garbage collector; nobody closes the scope."""
    with hosted() as host:
        async with Scope("test") as scope:
            messages: Any = query(prompt="x", options=host.options())
            async for _ in messages:
                break
            if way == "kept in a cycle":
                cycle: list[Any] = [messages]
                cycle.append(cycle)
                del cycle
            del messages
            gc.collect()
            await scope.idle()
            assert not host.alive()
