"""Tools that are called over HTTP inside of hops."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

import quiesce
from quiesce.integrations.mcp import connect_http, versions
from quiesce.mesh import Node, Settled, Unknown
from tests.adapters.mcp.mesh_kit import listening

if TYPE_CHECKING:
    from pathlib import Path

httpx: Any = importlib.import_module("httpx2" if versions.SECOND else "httpx")  # the SDK's own

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.quiesce(allow=["generator:*"])  # the SDK reads no stream to its end
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("has_address", [False, True])
async def test_over_http_as_well(tmp_path: Path, has_address: bool) -> None:  # noqa: FBT001 - a parameter
    """Receipts are asked for over the session, or of the server's own node."""
    with listening(str(tmp_path / "tools")) as url:
        async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
            session = await connect_http(
                scope, f"{url}/mcp", node=node, address=url if has_address else None
            )
            async with node.cascade("work") as cascade:
                await session.call_tool("later", {"path": str(tmp_path / "done")})
            settled = await cascade.settled(within=10)
            assert isinstance(settled, Settled), settled
            assert settled.receipt.hops == 2
            assert settled.assumptions == ()
            await session.aclose()


@pytest.mark.quiesce(allow=["generator:*"])  # the SDK reads no stream to its end
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("is_instrumented", [False, True])
async def test_over_http_a_call_has_one_edge(tmp_path: Path, is_instrumented: bool) -> None:  # noqa: FBT001 - a parameter
    """Also to a peer, in a session that the hop itself has opened: the requests below it are no messages."""
    with listening(str(tmp_path / "tools")) as url:
        made = Node("host", store=tmp_path / "host", peers=[url])
        async with made as node, quiesce.Scope("test") as scope:
            undo = node.instrument() if is_instrumented else None
            async with node.cascade("work") as cascade:
                session = await connect_http(scope, f"{url}/mcp", node=node, address=url)
                await session.call_tool("later", {"path": str(tmp_path / "done")})
                await session.aclose()
            settled = await cascade.settled(within=10)
            if undo is not None:
                undo.undo()
            assert isinstance(settled, Settled), settled
            assert settled.receipt.hops == 2
            assert settled.assumptions == ()


@pytest.mark.quiesce(allow=["generator:*"])  # the SDK reads no stream to its end
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("by", ["tool call", "request"])
async def test_a_task_that_a_tool_leaves_is_held_and_nothing_is_assumed(
    tmp_path: Path, by: str
) -> None:
    """The message takes its way through streams of the SDK, whose loops are known: no verdict has to name them."""
    with listening(str(tmp_path / "tools")) as url:
        made = Node("host", store=tmp_path / "host", peers=[url])
        async with made as node, quiesce.Scope("test") as scope:
            undo = node.instrument()
            options: Any = {"node": node, "address": url} if by == "tool call" else {}
            async with node.cascade("work") as cascade:
                session = await connect_http(scope, f"{url}/mcp", **options)
                await session.call_tool("leave")
            open_yet = await cascade.settled(within=0.5)
            assert isinstance(open_yet, Unknown), open_yet
            undo.undo()
            await session.call_tool("release")
            settled = await cascade.settled(within=10)
            assert isinstance(settled, Settled), settled
            assert settled.assumptions == ()
            await session.aclose()


@pytest.mark.quiesce(allow=["generator:*"])  # the SDK reads no stream to its end
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("has_node", [False, True])
async def test_what_a_callback_of_the_client_sends_is_not_part_of_the_call(
    tmp_path: Path, *, has_node: bool
) -> None:
    """It is the program's own request to a peer: the node was not instrumented, so the verdict names the request."""
    with listening(str(tmp_path / "tools")) as url:
        made = Node("host", store=tmp_path / "host", peers=[url])
        async with made as node, quiesce.Scope("test") as scope, httpx.AsyncClient() as http:
            sent: list[int] = []

            async def tell(*_: Any) -> None:
                sent.append((await http.post(f"{url}/nowhere")).status_code)

            options: Any = {"node": node, "address": url} if has_node else {}
            session = await connect_http(scope, f"{url}/mcp", **options)
            async with node.cascade("work") as cascade:
                await session.call_tool("report", progress_callback=tell)
            settled = await cascade.settled(within=10)
            assert sent == [404]
            assert isinstance(settled, Unknown), settled
            assert "tell" in str(settled)
            assert settled.assumptions == ()
            await session.aclose()
