"""A tool that is called inside of a hop is part of its cascade, over the session's own connection."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import quiesce
from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.mcp import (
    ServerLost,
    SessionPool,
    connect_stdio,
    take_part,
    versions,
)
from quiesce.mesh import Node, Settled, SettledWithLosses, Unknown
from quiesce.mesh.transport.links import REQUEST_KEY
from quiesce.testing import sweep
from tests.adapters.mcp.mesh_kit import (
    ASK,
    CALL,
    QUICK,
    Told,
    client,
    greeted,
    plain_server,
    real,
    served,
)
from tests.adapters.mcp.mesh_server import low_server, server
from tests.adapters.mcp.servers import notes, until
from tests.adapters.mcp.servers import plain_server as stranger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
both = pytest.mark.parametrize("make", [server, low_server], ids=["high", "low"])


# --- the client alone ---------------------------------------------------------------------------


async def test_a_receipt_on_the_answer_is_all_there_is(tmp_path: Path) -> None:
    """Nobody is asked; the user's own `meta` goes along."""
    async with client(tmp_path) as there:
        async with there.node.cascade("work") as cascade:
            await there.session.call_tool("closed", meta={"colour": "red"})
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2
        meta = (await there.heard(CALL))["params"]["_meta"]
        assert meta["colour"] == "red"
        assert REQUEST_KEY in meta
        assert there.count(ASK) == 0


@pytest.mark.parametrize("how", ["working", "silent", "garbage", "error"])
async def test_what_is_not_told_is_asked_for(tmp_path: Path, how: str) -> None:
    """Over the same connection; nobody takes the server for one that takes no part."""
    async with client(tmp_path) as there:
        async with there.node.cascade("work") as cascade:
            try:
                await there.session.call_tool(how)
            except versions.Error:
                assert how == "error"
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2
        assert there.count(ASK) == 1


async def test_a_refusal_is_known_to_have_run_nothing(tmp_path: Path) -> None:
    """The error tells it."""
    async with client(tmp_path) as there:
        async with there.node.cascade("work") as cascade:
            with pytest.raises(versions.Error):
                await there.session.call_tool("refused")
        settled = await cascade.settled(within=5)
        assert settled.receipt.hops == 1
        assert settled.receipt.unknown == 0
        assert there.count(ASK) == 0


async def test_outside_of_a_hop_nothing_is_handed_over(tmp_path: Path) -> None:
    """Nor in one of another node; nor by anything but a tool."""
    async with client(tmp_path) as there:
        await there.session.call_tool("silent")
        async with Node("other") as other, other.cascade("other"):
            await there.session.call_tool("silent")
        async with there.node.cascade("work"):
            await there.session.list_tools()
        calls = [line for line in there.seen.lines() if REQUEST_KEY in line]
        assert calls == []


@pytest.mark.parametrize("how", ["closed", "error", "hang"])
async def test_a_server_that_takes_no_part_is_handed_nothing(tmp_path: Path, how: str) -> None:
    """It has said so in the handshake: its edge is opaque, whatever becomes of the call."""
    async with client(tmp_path, "--stranger") as there:
        async with there.node.cascade("work") as cascade:
            with anyio.move_on_after(0.2 if how == "hang" else 5):
                try:
                    await there.session.call_tool(how)
                except versions.Error:
                    assert how == "error"
        assert "_meta" not in (await there.heard(CALL))["params"]
        settled = await cascade.settled(within=5)
        assert settled.receipt.opaque == 1
        (note,) = [note for note in settled.receipt.notes if note.status == "opaque"]
        assert note.name.startswith(f"mcp:{there.session.name}:")
        assert note.why == "it takes no part in the mesh: it announced no node in the handshake"
        assert settled.receipt.unknown == 0
        assert not isinstance(settled, Settled)
        assert isinstance(await cascade.settled(require="participants"), Settled)


async def test_a_server_of_which_nothing_is_known_tells_by_its_answer(tmp_path: Path) -> None:
    """A handshake of the user's own tells nothing."""

    async def handshake(session: Any) -> None:
        await session.initialize()

    with notes() as seen:
        async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
            session = await connect_stdio(
                scope,
                plain_server("--stranger", *seen.options),
                node=node,
                handshake=handshake,
                **QUICK,
            )
            async with node.cascade("work") as cascade:
                await session.call_tool("silent")
            assert REQUEST_KEY in "".join(seen.lines())
            settled = await cascade.settled(within=5)
            assert settled.receipt.opaque == 1
            assert "takes no part in the mesh: it answered without a receipt" in str(settled)
            await session.aclose()


@pytest.mark.parametrize("how", ["the server exits", "the session is closed"])
async def test_the_end_of_a_connection_makes_unknown_what_is_open(tmp_path: Path, how: str) -> None:
    """At once, both what was answered and what was not: the next connection is another server."""
    async with client(tmp_path) as there:
        async with there.node.cascade("work") as cascade:
            await there.session.call_tool("busy")
            await there.heard(ASK)
            if how == "the server exits":
                with pytest.raises(ServerLost):
                    await there.session.call_tool("exit")
            else:
                await there.session.aclose()
        settled = await cascade.settled(within=3)
        assert isinstance(settled, Unknown)
        assert settled.receipt.unknown == 1 + (how == "the server exits")
        assert "has ended" in str(settled)


async def test_what_is_not_sent_is_known_not_to_have_been(tmp_path: Path) -> None:
    """A call that the SDK itself refuses, and one for which there is no server."""
    async with client(tmp_path, restarts_max=0) as there:
        async with there.node.cascade("work") as cascade:
            with pytest.raises(ValueError, match="validation error"):
                await there.session.call_tool(["no name"])
            assert there.count(CALL) == 0
            with pytest.raises(ServerLost):
                await there.session.call_tool("exit")
            with pytest.raises(ServerLost):
                await there.session.call_tool("closed")
        settled = await cascade.settled(within=3)
        assert settled.receipt.hops == 1
        assert settled.receipt.unknown == 1
        assert there.count(ASK) == 0


async def test_a_session_that_waits_for_receipts_can_be_drained(tmp_path: Path) -> None:
    """They are no calls of the user's: nobody sees them, and nothing waits for them."""
    async with client(tmp_path) as there:
        async with there.node.cascade("work"):
            await there.session.call_tool("busy")
        await there.heard(ASK)
        assert not there.session.frontier().in_flight
        with anyio.fail_after(5):
            assert (await there.session.drain(grace=60)).ok


async def test_a_pool_hands_over_as_well(tmp_path: Path) -> None:
    """Each of its sessions has a link of its own."""
    with notes() as seen:
        async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
            pool = SessionPool(scope, {"one": plain_server(*seen.options)}, node=node, **QUICK)
            session = await pool.session("one")
            async with node.cascade("work") as cascade:
                await session.call_tool("working")
            assert isinstance(await cascade.settled(within=5), Settled)
            await pool.aclose()


@pytest.mark.backends("asyncio")
async def test_a_node_that_is_not_open_is_refused() -> None:
    """Before anything is started."""
    async with quiesce.Scope("test") as scope:
        with pytest.raises(UsageError, match="is not open"):
            await connect_stdio(scope, stranger(), node=Node("host"))


# --- the server alone ---------------------------------------------------------------------------


@both
async def test_a_call_is_a_hop_of_its_cascade(tmp_path: Path, make: Callable[[], Any]) -> None:
    """The answer has its receipt; a call that hands over nothing is none, and its answer says nothing."""
    async with Node("tools", store=tmp_path / "tools") as node, served(make(), node) as there:
        greeting = await there.greet()
        assert REQUEST_KEY in greeting["result"]["capabilities"]["experimental"]
        told = Told()
        answer = await there.ask(CALL, **told.call("where"))
        assert answer["result"]["content"][0]["text"] == told.header[3:35]
        assert await there.end(told, answer) == "done"
        plain = await there.ask(CALL, name="where", arguments={})
        assert plain["result"]["content"][0]["text"] == "none"
        assert told.answer(plain) is None


async def test_a_tool_is_not_given_what_is_the_meshs(tmp_path: Path) -> None:
    """It could pass it on, and two would work on what one is waited for."""
    async with greeted(tmp_path, low_server()) as (_, there):
        told = Told()
        call = told.call("meta")
        call["_meta"]["colour"] = "red"
        answer = await there.ask(CALL, **call)
        assert "red" in answer["result"]["content"][0]["text"]
        assert told.header not in answer["result"]["content"][0]["text"]
        assert await there.end(told, answer) == "done"


@both
async def test_work_that_outlives_its_call_is_told_when_it_ends(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    """A question waits for it, and another is answered meanwhile."""
    async with greeted(tmp_path, make()) as (_, there):
        told = Told()
        assert told.answer(await there.ask(CALL, **told.call("never"))).kind == "working"
        await there.send(id=7, method=ASK, params=told.question(wait=25))
        meanwhile = await there.ask(ASK, 8, **told.question())
        assert meanwhile["result"]["answers"] == [[told.edge.hex(), "working"]]
        probe = await there.ask("quiesce/probe", 9, v=0, edges=[told.edge.hex()])
        assert probe["result"]["busy"][0][2] == "tools"
        await there.ask(ASK, 10, v=0, asks=[[told.edge.hex(), True]])
        assert (await there.answer(7))["result"]["answers"][0][1]["s"] == "cancelled"


@both
@pytest.mark.parametrize(("tool", "code"), [("fail", None), ("wrong", -7)])
async def test_a_failure_is_told(
    tmp_path: Path, make: Callable[[], Any], tool: str, code: int | None
) -> None:
    """Whether the SDK makes a result of it, or an error."""
    async with greeted(tmp_path, make()) as (_, there):
        told = Told()
        answer = await there.ask(CALL, **told.call(tool))
        assert await there.end(told, answer) == "failed"
        if "error" in answer and code is not None:
            assert answer["error"]["code"] == code
            assert answer["error"]["data"]["why"] == "so"


@both
async def test_a_copy_is_not_run(tmp_path: Path, make: Callable[[], Any]) -> None:
    """It is refused, and told how the first one stands."""
    async with greeted(tmp_path, make()) as (_, there):
        told = Told()
        await there.end(told, await there.ask(CALL, 1, **told.call("where")))
        copy = await there.ask(CALL, 2, **told.call("where"))
        assert copy["error"]["code"] == -32001
        assert told.answer(copy).receipt.status == "done"


@both
@pytest.mark.parametrize("header", ["nonsense", 3])
async def test_what_is_no_edge_is_not_run(
    tmp_path: Path, make: Callable[[], Any], header: object
) -> None:
    """It would run outside of the cascade that it claims to be part of."""
    async with greeted(tmp_path, make()) as (_, there):
        answer = await there.ask(CALL, **Told().call("where", header))
        assert answer["error"]["code"] == -32602


@both
async def test_a_call_that_its_client_gives_up_has_ended(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    """Nobody is there to be answered, but who asks is."""
    async with greeted(tmp_path, make()) as (node, there):
        told = Told()
        await there.send(id=1, method=CALL, params=told.call("hang"))
        assert await until(lambda: bool(node.frontier().in_flight))
        assert (await there.ask(ASK, 6, **told.question()))["result"]["answers"][0][1] == "working"
        await there.send(method="notifications/cancelled", params={"requestId": 1})
        found = await there.ask(ASK, 7, **told.question(wait=25))
        assert found["result"]["answers"][0][1]["s"] == "cancelled"


@both
async def test_a_cascade_that_is_told_to_end_is_answered_as_cancelled(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    """By a call, while the tool is at it."""
    async with greeted(tmp_path, make()) as (node, there):
        told = Told()
        await there.send(id=1, method=CALL, params=told.call("hang"))
        assert await until(lambda: bool(node.frontier().in_flight))
        await there.ask(ASK, 7, v=0, asks=[[told.edge.hex(), True]])
        answer = await there.answer(1)
        assert answer["error"]["code"] == -32800
        assert told.answer(answer) is not None


@both
@pytest.mark.parametrize("params", [{}, {"v": 0, "asks": 3, "edges": 3}])
async def test_a_call_of_the_mesh_that_is_none_is_refused(
    tmp_path: Path, make: Callable[[], Any], params: Any
) -> None:
    """And the server goes on."""
    async with greeted(tmp_path, make()) as (_, there):
        for method in (ASK, "quiesce/probe"):
            assert (await there.ask(method, **params))["error"]["code"] == -32602
        await there.send(method=ASK, params=params)
        assert "result" in await there.ask("ping", 3)


@both
async def test_a_server_whose_node_is_closed_runs_nothing(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    """What is handed over is refused; the rest is served."""
    async with greeted(tmp_path, make()) as (node, there):
        await node.drain()
        told = Told()
        assert (await there.ask(CALL, **told.call("where")))["error"]["code"] == -32001
        assert "error" in await there.ask(ASK, 7, **told.question())
        assert "result" in await there.ask(CALL, 8, name="where", arguments={})


@both
async def test_work_goes_on_when_the_connection_has_ended(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    """It is the node's; the question that waited for it is not."""
    async with Node("tools", store=tmp_path / "tools") as node:
        async with served(make(), node) as there:
            await there.greet()
            told = Told()
            await there.ask(CALL, **told.call("never"))
            await there.send(id=7, method=ASK, params=told.question(wait=25))
            await there.ask(ASK, 8, **told.question())
        assert len(node.frontier().in_flight) == 1
        assert await until(lambda: not node.opened.exchange._waiting)
        await node.aclose()


@pytest.mark.parametrize("given", [None, object(), "server"])
def test_what_is_no_server_is_refused(given: Any) -> None:
    """The error says what there is."""
    with pytest.raises(ArgumentError, match=r"FastMCP.*Server"):
        take_part(given, Node("tools"))


@both
def test_a_server_takes_part_once(make: Callable[[], Any]) -> None:
    """A second time is a mistake; so is what is no node."""
    made = make()
    with pytest.raises(ArgumentError, match="node"):
        take_part(made, "tools")  # type: ignore[arg-type]  # that is the mistake
    take_part(made, Node("tools"))
    with pytest.raises(ArgumentError, match="already takes part"):
        take_part(made, Node("tools"))


# --- both, as processes -------------------------------------------------------------------------


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("low", [(), ("--low",)], ids=["high", "low"])
async def test_a_server_that_is_a_process_takes_part(tmp_path: Path, low: tuple[str, ...]) -> None:
    """Over its pipes: nothing has an address."""
    async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, real(str(tmp_path / "tools"), *low), node=node)
        async with node.cascade("work") as cascade:
            await session.call_tool("later", {"path": str(tmp_path / "done")})
        settled = await cascade.settled(within=10)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2
        assert (tmp_path / "done").exists()
        async with node.cascade("stop") as stopped:
            await session.call_tool("never", {})
        assert isinstance(await stopped.settled(within=0.05), Unknown)
        await stopped.cancel()
        assert (await stopped.settled(within=10)).receipt.cancelled == 1
        await session.aclose()


@pytest.mark.backends("uvloop")
@pytest.mark.parametrize(
    ("address", "how"), [(None, ""), ("tools", "reconnects"), ("tools", "is another")]
)
async def test_a_server_that_is_killed_is_never_taken_for_done(
    tmp_path: Path, address: str | None, how: str
) -> None:
    """It is unknown; if it has a name and a journal, the next connection tells that its work was lost."""
    async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
        params = real(str(tmp_path / "tools"))
        session = await connect_stdio(scope, params, node=node, address=address)
        async with node.cascade("work") as cascade:
            await session.call_tool("never", {})
        process = session.process
        assert process is not None
        process.send_signal(signal.SIGKILL)
        await process.wait()
        if address is None:
            assert isinstance(await cascade.settled(within=5), Unknown)
        else:
            assert isinstance(await cascade.settled(within=0.1), Unknown)
            if how == "is another":
                await session.aclose()
                session = await connect_stdio(scope, params, node=node, address=address)
            else:
                await session.connect()
            settled = await cascade.settled(within=10)
            assert isinstance(settled, SettledWithLosses), settled
            assert settled.receipt.lost == 1
        await session.aclose()


# --- cancellation -------------------------------------------------------------------------------


async def _use() -> None:
    """Call tools inside of a hop, and wait for the end of all of it."""
    with notes() as seen:
        async with Node("host") as node, quiesce.Scope("test") as scope:
            session = await connect_stdio(scope, plain_server(*seen.options), node=node, **QUICK)
            async with node.cascade("work") as cascade:
                await session.call_tool("closed")
                await session.call_tool("working")
            assert isinstance(await cascade.settled(within=5), Settled)
            await session.aclose()


async def _serve() -> None:
    """Call a tool, and ask for its end."""
    async with Node("tools") as node, served(low_server(), node) as there:
        await there.greet()
        told = Told()
        await there.ask(CALL, **told.call("never"))
        await there.send(id=7, method=ASK, params=told.question(wait=25))
        await there.ask(ASK, 8, v=0, asks=[[told.edge.hex(), True]])
        await there.answer(7)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("scenario", [_use, _serve])
def test_cancelled_at_every_step(scenario: Callable[[], Any], backend: Any) -> None:
    """Nothing is left, nothing is late, and the cancellation comes through."""
    result = sweep(scenario, backend=backend, raises=ServerLost, runs_max=120)
    assert result.ok, str(result)
    assert result.points > 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_at_every_step_of_every_task(backend: Any) -> None:
    """Also those of the SDK's server, and the one that answers the calls."""
    result = sweep(_serve, backend=backend, where="all", clock="mock", cancel="scope", runs_max=150)
    assert result.ok, str(result)
