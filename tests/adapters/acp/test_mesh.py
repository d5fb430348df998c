"""A prompt inside of a hop is part of its cascade: over one connection, without any address."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import acp
import pytest

from quiesce import Scope
from quiesce.errors import UsageError
from quiesce.integrations.acp import (
    AgentLost,
    connect_to_agent,
    run_agent,
    scope_of,
)
from quiesce.mesh import (
    Cascade,
    Memory,
    Node,
    Patience,
    Settled,
    Unknown,
    current_hop,
)
from quiesce.mesh.transport.links import REQUEST_KEY, RESPONSE_KEY
from quiesce.testing import sweep
from tests.adapters.acp.agents import Agent, busy, forever
from tests.adapters.acp.fake_agent import TEXT, Client, FakeAgent
from tests.adapters.acp.mesh_kit import (
    OFFER,
    TIMES,
    Told,
    ends,
    leaving,
    lone_agent,
    lone_client,
    pair,
)

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

PROGRAM = str(Path(__file__).with_name("mesh_agent.py"))
DONE = {"stopReason": "end_turn"}


# --- a client and its agent ---------------------------------------------------------------------


async def test_a_prompt_is_a_hop_of_its_cascade(tmp_path: Path) -> None:
    """Its end comes on the answer: nobody is asked for it."""
    seen: list[Any] = []

    async def prompt(_: Agent) -> None:
        seen.append(current_hop())

    async with pair(tmp_path, prompt) as there:
        async with there.editor.cascade("work") as cascade:
            assert (await there.prompt()).stop_reason == "end_turn"
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2
        assert seen[0].cascade == cascade.id
        assert there.connection._conn.send_request.__self__._asks == 0


async def test_work_that_outlives_its_prompt_is_waited_for(tmp_path: Path) -> None:
    """Its receipt comes later, over the same connection."""
    gate = asyncio.Event()
    async with pair(tmp_path, leaving(gate)) as there:
        async with there.editor.cascade("work") as cascade:
            await there.prompt()
        early = await cascade.settled(within=0.05)
        assert isinstance(early, Unknown)
        frontier = await cascade.frontier()
        assert [entry.name for entry in frontier.busy] == ["coder"]
        gate.set()
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2


async def test_what_others_put_into_meta_passes_through(tmp_path: Path) -> None:
    """The agent gets what was meant for it, and the client what the agent has answered."""
    got: list[dict[str, Any]] = []

    class Reading(Agent):
        async def prompt(self, **given: Any) -> Any:
            got.append(given)
            return acp.PromptResponse(stop_reason="end_turn", field_meta={"cost": 3})

    async with pair(tmp_path, Reading()) as there, there.editor.cascade("work"):
        answer = await there.prompt(colour="red")
    assert got[0]["colour"] == "red"
    assert not [name for name in got[0] if "quiesce" in name]
    assert answer.field_meta == {"cost": 3}


async def test_a_failure_is_told_and_raised(tmp_path: Path) -> None:
    """The caller gets the error as it is, and the cascade knows of it."""

    async def prompt(_: Agent) -> None:
        raise acp.RequestError(-32000, "not today", {"day": "Monday"})

    async with pair(tmp_path, prompt) as there:
        async with there.editor.cascade("work") as cascade:
            with pytest.raises(acp.RequestError, match="not today") as caught:
                await there.prompt()
        settled = await cascade.settled(within=5)
    assert caught.value.data == {"day": "Monday"}
    assert settled.receipt.failed == 1
    assert settled.receipt.unknown == 0


async def test_a_prompt_that_its_caller_gives_up_is_known_to_have_ended(tmp_path: Path) -> None:
    """There is no answer to read: the agent is asked."""
    async with pair(tmp_path, forever) as there:
        async with there.editor.cascade("work") as cascade:
            asking = asyncio.create_task(there.prompt())
            await there.agent.begun.wait()
            asking.cancel()
        settled = await cascade.settled(within=5)
        assert there.agent.ended.is_set()
        assert settled.receipt.hops == 2
        assert settled.receipt.cancelled >= 1
        assert settled.receipt.unknown == 0


async def test_a_cascade_that_is_cancelled_ends_at_the_agent(tmp_path: Path) -> None:
    """Also what its prompt has left behind."""
    gate = asyncio.Event()
    async with pair(tmp_path, leaving(gate)) as there:
        async with there.editor.cascade("work") as cascade:
            await there.prompt()
        await cascade.cancel()
        settled = await cascade.settled(within=5)
        assert settled.receipt.cancelled == 1
        assert not there.coder.frontier().in_flight


async def test_receipts_are_posted_where_both_have_an_address(tmp_path: Path) -> None:
    """Then nothing is asked over the connection."""
    gate, memory = asyncio.Event(), Memory()
    editor = {"url": "http://editor", "transport": memory}
    coder = {"url": "http://coder", "peers": ["http://editor"], "transport": memory}
    async with pair(tmp_path, leaving(gate), editor, **coder) as there:
        async with there.editor.cascade("work") as cascade:
            await there.prompt()
        gate.set()
        assert isinstance(await cascade.settled(within=5), Settled)
        assert there.connection._conn.send_request.__self__._asks == 0


async def test_a_drain_of_the_connection_does_not_wait_for_receipts(tmp_path: Path) -> None:
    """Nobody sees that they are asked for; what is open then is unknown, at once."""
    gate = asyncio.Event()
    async with pair(tmp_path, leaving(gate)) as there:
        async with there.editor.cascade("work") as cascade:
            await there.prompt()
        assert not scope_of(there.connection).frontier().in_flight
        async with asyncio.timeout(5):
            report = await scope_of(there.connection).drain(grace=60)
        assert report.ok, report
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Unknown)
        assert settled.receipt.unknown == 1
        gate.set()


# --- the client alone ---------------------------------------------------------------------------


async def test_outside_of_a_hop_nothing_is_handed_over(tmp_path: Path) -> None:
    """The agent gets what it would get without a node."""
    async with lone_client(tmp_path, OFFER) as (agent, connection, _):
        asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
        request = await agent.hear()
        assert "_meta" not in request["params"]
        await agent.say(id=request["id"], result=DONE)
        await asking


async def test_an_agent_that_takes_no_part_is_handed_nothing(tmp_path: Path) -> None:
    """It has said so in the handshake; whatever it answers, its edge is opaque."""
    async with lone_client(tmp_path, {"protocolVersion": 1}) as (agent, connection, node):
        async with node.cascade("work") as cascade:
            for answer in ({"result": DONE}, {"error": {"code": -1, "message": "no"}}):
                asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
                request = await agent.hear()
                assert "_meta" not in request["params"]
                await agent.say(id=request["id"], **answer)
                await asyncio.wait([asking])
                asking.exception()
        settled = await cascade.settled(within=5)
        assert settled.receipt.opaque == 2
        assert settled.receipt.unknown == 0
        assert not isinstance(settled, Settled)
        assert isinstance(await cascade.settled(require="participants"), Settled)


async def test_an_agent_of_which_nothing_is_known_tells_by_its_answer(tmp_path: Path) -> None:
    """Without a handshake it is handed an edge, and is opaque if it answers without a word of it."""
    async with lone_client(tmp_path, None) as (agent, connection, node):
        async with node.cascade("work") as cascade:
            asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
            request = await agent.hear()
            assert REQUEST_KEY in request["params"]["_meta"]
            await agent.say(id=request["id"], result=DONE)
            await asking
        assert (await cascade.settled(within=5)).receipt.opaque == 1


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (None, {"error": {"code": -1, "message": "no"}}),
        (OFFER, {"error": {"code": -1, "message": "no", "data": "text"}}),
        (OFFER, {"result": DONE}),
        (OFFER, {"result": {**DONE, "_meta": {RESPONSE_KEY: "nonsense"}}}),
        (OFFER, {"result": {**DONE, "_meta": {RESPONSE_KEY: 3}}}),
        (OFFER, {"result": {**DONE, "_meta": "nonsense"}}),
    ],
)
async def test_an_answer_that_says_nothing_leaves_its_edge_in_doubt(
    tmp_path: Path, greeting: Any, answer: Any
) -> None:
    """The agent may be at work: it is asked, and nobody takes it for one that takes no part."""
    async with lone_client(tmp_path, greeting) as (agent, connection, node):
        async with node.cascade("work") as cascade:
            asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
            request = await agent.hear()
            await agent.say(id=request["id"], **answer)
            await asyncio.wait([asking])
            asking.exception()
            call = await agent.hear()
        assert call["method"] == "_quiesce/receipts"
        edge = request["params"]["_meta"][REQUEST_KEY].split("-")[2]
        assert call["params"]["asks"] == [[edge, False]]
        assert isinstance(await cascade.settled(within=0), Unknown)
        receipt = {"s": "done", "n": 1}
        await agent.say(id=call["id"], result={"v": 0, "answers": [[edge, receipt]]})
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Settled), settled
        assert settled.receipt.hops == 2


async def asked_for(agent: FakeAgent, connection: Any, node: Node) -> tuple[Cascade, Any]:
    """Answer a prompt without a word of its edge; return the question that comes of it."""
    async with node.cascade("work") as cascade:
        asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
        request = await agent.hear()
        await agent.say(id=request["id"], result=DONE)
        await asking
    return cascade, await agent.hear()


async def test_what_was_answered_and_is_not_known_there_is_unknown(tmp_path: Path) -> None:
    """Something between the two drops what comes along with a prompt: the agent may be at work on it."""
    async with lone_client(tmp_path, OFFER) as (agent, connection, node):
        cascade, call = await asked_for(agent, connection, node)
        answers = [[edge, "never"] for edge, _ in call["params"]["asks"]]
        await agent.say(id=call["id"], result={"v": 0, "answers": answers})
        settled = await cascade.settled(within=5)
        assert isinstance(settled, Unknown), settled
        assert "drops the Cascade headers" in str(settled)


async def test_a_prompt_that_was_handed_nothing_stays_opaque(tmp_path: Path) -> None:
    """Also if another handshake says meanwhile that the agent takes part."""
    async with lone_client(tmp_path, {"protocolVersion": 1}) as (agent, connection, node):
        async with node.cascade("work") as cascade:
            asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
            request = await agent.hear()
            assert REQUEST_KEY not in request["params"].get("_meta", {})
            again = asyncio.create_task(connection.initialize(protocol_version=1))
            await agent.say(id=(await agent.hear())["id"], result=OFFER)
            await again
            await agent.say(id=request["id"], result=DONE)
            await asking
        settled = await cascade.settled(within=5)
        assert settled.receipt.opaque == 1
        assert settled.receipt.lost == 0


@pytest.mark.parametrize("answer", [{"error": {}}, {"result": 3}, {"result": {"v": 1}}, {}])
async def test_a_call_that_is_not_answered_decides_nothing(tmp_path: Path, answer: Any) -> None:
    """It is made again."""
    soon = Patience(retry_most=0.2)  # of what is no node, too
    async with lone_client(tmp_path, OFFER, patience=soon) as (agent, connection, node):
        cascade, call = await asked_for(agent, connection, node)
        await agent.say(id=call["id"], **answer)
        again = await agent.hear()
        assert again["method"] == call["method"]
        assert again["id"] != call["id"]
        assert isinstance(await cascade.settled(within=0), Unknown)


@pytest.mark.parametrize(
    "greeting", [OFFER, {"protocolVersion": 1}], ids=["takes part", "does not"]
)
async def test_what_is_not_sent_is_known_not_to_have_been(tmp_path: Path, greeting: Any) -> None:
    """A connection that is lost, or closed, takes no message."""
    async with (
        lone_client(tmp_path, greeting) as (agent, connection, node),
        node.cascade("work") as cascade,
    ):
        await agent.leave()
        with pytest.raises(AgentLost):
            await connection.prompt(prompt=TEXT, session_id="s")
        before = (await cascade.settled(within=0)).receipt
        with pytest.raises(AgentLost):
            await connection.prompt(prompt=TEXT, session_id="s")
        await connection.close()
        with pytest.raises(ConnectionError):
            await connection.prompt(prompt=TEXT, session_id="s")
        after = (await cascade.settled(within=0)).receipt
        assert (after.unknown, after.opaque) == (before.unknown, before.opaque)


@pytest.mark.parametrize("how", ["the agent goes", "the client closes"])
async def test_the_end_of_a_connection_makes_unknown_what_is_open(tmp_path: Path, how: str) -> None:
    """At once, because nobody can be asked any more: both what was answered and what was not."""
    async with lone_client(tmp_path, OFFER) as (agent, connection, node):
        async with node.cascade("work") as cascade:
            asking = [
                asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
                for _ in range(2)
            ]
            first = await agent.hear()
            await agent.hear()
            await agent.say(id=first["id"], result=DONE)
            await asking[0]
            await (agent.leave() if how == "the agent goes" else connection.close())
            await asyncio.wait(asking)
            assert isinstance(asking[1].exception(), ConnectionError)
        settled = await cascade.settled(within=2)
        assert isinstance(settled, Unknown)
        assert settled.receipt.unknown == 2
        assert "has ended" in str(settled)


@pytest.mark.parametrize("who", ["connection", "node"])
async def test_a_question_ends_with_the_one_who_asks(tmp_path: Path, who: str) -> None:
    """The agent is told so: it need not keep the answer."""
    async with lone_client(tmp_path, OFFER) as (agent, connection, node):
        async with node.cascade("work"):
            asking = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
            request = await agent.hear()
            await agent.say(id=request["id"], result=DONE)
            await asking
        call = await agent.hear()
        await (connection.close() if who == "connection" else node.aclose())
        withdrawn = await agent.hear()
        assert withdrawn["method"] == "$/cancel_request"
        assert withdrawn["params"] == {"requestId": call["id"]}


async def test_a_question_that_is_withdrawn_is_not_answered(tmp_path: Path) -> None:
    """What it waits for is there for whoever asks next."""
    gate = asyncio.Event()
    async with lone_agent(tmp_path, leaving(gate)) as (peer, _, _):
        told = Told()
        told.prompt(peer)
        await peer.answer()
        told.ask(peer, wait=25)
        peer.send({"method": "$/cancel_request", "params": {"requestId": 7}})
        told.ask(peer, 8)
        await peer.result(8)
        gate.set()
        told.ask(peer, 9, wait=25)
        last = await peer.receive()
        assert last is not None
        assert last["id"] == 9


async def test_only_a_prompt_and_extension_requests_hand_over(tmp_path: Path) -> None:
    """What opens a session does no work of the cascade."""
    async with lone_client(tmp_path, OFFER) as (agent, connection, node), node.cascade("work"):
        for call, hands_over in (
            (connection.new_session(cwd="/", mcp_servers=[]), False),
            (connection.ext_method("index", {"path": "/"}), True),
        ):
            asking = asyncio.create_task(call)
            request = await agent.hear()
            assert ("_meta" in request["params"]) is hands_over
            await agent.say(id=request["id"], error={"code": -1, "message": "no"})
            await asyncio.wait([asking])
            asking.exception()


async def test_a_node_that_is_not_open_is_refused(tmp_path: Path) -> None:
    """The error says what to do, and nothing is left open."""
    async with FakeAgent() as agent:
        with pytest.raises(UsageError, match="is not open"):
            connect_to_agent(Client(), agent.writer, agent.reader, node=Node("editor"))


async def test_a_name_has_one_connection_at_a_time(tmp_path: Path) -> None:
    """Or one agent would be taken at its word about what another was handed."""
    async with (
        lone_client(tmp_path, None, address="coder") as (_, connection, node),
        FakeAgent() as other,
    ):
        with pytest.raises(UsageError, match="acp:coder already"):
            connect_to_agent(Client(), other.writer, other.reader, node=node, address="coder")
        await connection.close()
        again = connect_to_agent(Client(), other.writer, other.reader, node=node, address="coder")
        await again.close()


# --- cancellation -------------------------------------------------------------------------------


async def _work_that_goes_on() -> None:
    """Prompt, with work that goes on for a while, and wait for the end of all of it."""

    async def prompt(_: Agent) -> None:
        asyncio.get_running_loop().create_task(busy(0.1))

    async with Node("coder") as coder, Node("editor") as editor, Scope("both") as scope:
        here, there = ends()
        agent: Any = Agent(prompt)
        scope.spawn(partial(run_agent, agent, there.writer, there.reader, node=coder, **TIMES))
        connection: Any = connect_to_agent(Client(), here.writer, here.reader, node=editor)
        async with editor.cascade("work") as cascade:
            await connection.prompt(prompt=TEXT, session_id="s")
        settled = await cascade.settled(within=5, require="participants")
        assert agent.ended.is_set()
        assert isinstance(settled, Settled | Unknown), settled
        await connection.close()
        here.close()


@pytest.mark.sampled(1, "depth")
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.parametrize("depth", [1, 2])
def test_cancelled_at_every_step(backend: Any, depth: int) -> None:
    """Nothing is left, nothing is late, and the cancellation comes through; also twice."""
    result = sweep(_work_that_goes_on, backend=backend, depth=depth, runs_max=150)
    assert result.ok, str(result)
    assert result.points > 3


def test_cancelled_at_every_step_of_every_task() -> None:
    """Also the one that handles the prompt, the loops, and the close."""
    lost = (ConnectionError, acp.RequestError)
    result = sweep(
        _work_that_goes_on, where="all", clock="mock", cancel=("native", "scope"), raises=lost
    )
    assert result.ok, str(result)


def test_the_page_of_the_protocol_has_the_names() -> None:
    """What others are to write and read is documented."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
    text = page.read_text(encoding="utf-8")
    for name in (REQUEST_KEY, RESPONSE_KEY, "_quiesce/receipts", "_quiesce/probe"):
        assert f"`{name}`" in text, name
