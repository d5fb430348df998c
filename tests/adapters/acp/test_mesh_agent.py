"""An agent that takes part: what it does with an edge, over a wire, a WebSocket, and as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import acp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from quiesce import Scope
from quiesce.integrations.acp import (
    REFUSED,
    REQUEST_CANCELLED,
    connect_to_agent,
    open_websocket_server,
)
from quiesce.integrations.acp.agent_process import open_agent_process
from quiesce.integrations.acp.send_buffer import SendBuffer
from quiesce.mesh import (
    Node,
    Settled,
    SettledWithLosses,
    Unknown,
)
from quiesce.mesh.transport.links import REQUEST_KEY
from tests.adapters.acp.agents import Agent, forever
from tests.adapters.acp.fake_agent import TEXT, Client
from tests.adapters.acp.mesh_kit import (
    LoneAgent,
    Told,
    leaving,
    lone_agent,
    nothing,
)

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

PROGRAM = str(Path(__file__).with_name("mesh_agent.py"))
DONE = {"stopReason": "end_turn"}


# --- the agent alone ----------------------------------------------------------------------------


async def test_the_handshake_says_that_the_agent_takes_part(tmp_path: Path) -> None:
    """In a place that the protocol has for such things."""
    async with lone_agent(tmp_path, nothing) as (peer, _, _):
        peer.send({"id": 1, "method": "initialize", "params": {"protocolVersion": 1}})
        found = await peer.result()
        assert found["agentCapabilities"]["_meta"] == {REQUEST_KEY: {"version": 0}}


async def test_a_copy_is_not_run(tmp_path: Path) -> None:
    """It is refused, and told how the first one stands."""
    count = 0

    async def prompt(_: Agent) -> None:
        nonlocal count
        count += 1

    async with lone_agent(tmp_path, prompt) as (peer, _, _):
        told = Told()
        told.prompt(peer, 1)
        assert told.answer(await peer.answer(1)).receipt.status == "done"
        told.prompt(peer, 2)
        copy = await peer.answer(2)
        assert copy is not None
        assert copy["error"]["code"] == REFUSED
        assert told.answer(copy).receipt.status == "done"
    assert count == 1


@pytest.mark.parametrize("header", ["nonsense", 3, "00-00", "x" * 5000])
async def test_what_is_no_edge_is_not_run(tmp_path: Path, header: object) -> None:
    """It would run outside of the cascade that it claims to be part of."""
    async with lone_agent(tmp_path, nothing) as (peer, agent, _):
        Told().prompt(peer, header=header)
        assert await peer.error() == -32602
        assert not agent.begun.is_set()


async def test_every_answer_says_how_its_edge_stands(tmp_path: Path) -> None:
    """Those of a request that was cancelled, of one that failed, and of one that has left work."""

    async def prompt(agent: Agent) -> None:
        if agent.begun.is_set() and answers:
            raise ValueError(answers)
        await forever(agent)

    answers: list[Any] = []
    async with lone_agent(tmp_path, prompt) as (peer, agent, _):
        told = Told()
        told.prompt(peer)
        await agent.begun.wait()
        peer.send({"method": "$/cancel_request", "params": {"requestId": 1}})
        answer = await peer.answer()
        assert answer is not None
        assert answer["error"]["code"] == REQUEST_CANCELLED
        answers.append(told.answer(answer).receipt.status)
        told = Told()
        told.prompt(peer)
        answers.append(told.answer(await peer.answer()).receipt.status)
    assert answers == ["cancelled", "failed"]


async def test_a_result_that_cannot_be_sent_still_has_its_edge_told(tmp_path: Path) -> None:
    """Once, however often the answer is made."""

    class Strange(LoneAgent):
        async def ext_method(self, method: str, params: Any) -> Any:
            return {"method": method, "strange": {1, 2}}

    async with lone_agent(tmp_path, Strange()) as (peer, _, _):
        told = Told()
        params = {"_meta": {REQUEST_KEY: told.header}}
        peer.send({"id": 1, "method": "_odd", "params": params})
        answer = await peer.answer()
        assert answer is not None
        assert answer["error"]["code"] == -32603
        assert told.answer(answer).kind == "closed"


async def test_a_cascade_that_is_told_to_end_is_answered_as_cancelled(tmp_path: Path) -> None:
    """By a call, while its prompt is being handled."""
    async with lone_agent(tmp_path, forever) as (peer, agent, _):
        told = Told()
        told.prompt(peer)
        await agent.begun.wait()
        told.ask(peer, asks=[[told.edge.hex(), True]])
        answer = await peer.answer(1)
        assert answer is not None
        assert answer["error"]["code"] == REQUEST_CANCELLED
        assert told.answer(answer) is not None
        told.ask(peer, 8, wait=25)
        assert (await peer.result(8))["answers"][0][1]["s"] == "cancelled"


async def test_a_question_waits_for_the_end(tmp_path: Path) -> None:
    """It is answered as soon as there is a receipt."""
    gate = asyncio.Event()
    async with lone_agent(tmp_path, leaving(gate)) as (peer, _, _):
        told = Told()
        told.prompt(peer)
        assert told.answer(await peer.answer()).kind == "working"
        told.ask(peer, wait=25)
        told.ask(peer, 8)
        assert (await peer.result(8))["answers"] == [[told.edge.hex(), "working"]]
        gate.set()
        assert (await peer.result(7))["answers"][0][1]["s"] == "done"


@pytest.mark.parametrize(
    "params", [None, 3, [], {}, {"v": 0, "asks": 3, "edges": 3}, {"v": float("nan")}]
)
async def test_a_call_that_is_none_is_refused(tmp_path: Path, params: Any) -> None:
    """And the session goes on."""
    async with lone_agent(tmp_path, nothing) as (peer, _, _):
        for method in ("_quiesce/receipts", "_quiesce/probe"):
            peer.send({"id": 1, "method": method, "params": params})
            assert await peer.error() == -32602
        peer.send({"method": "_quiesce/receipts", "params": params})
        peer.prompt(2)
        assert await peer.result(2) == DONE


async def test_a_draining_agent_refuses_and_answers_questions(tmp_path: Path) -> None:
    """What it refuses never runs, which it says; what it is at, it still tells."""
    gate = asyncio.Event()

    async def prompt(agent: Agent) -> None:
        await gate.wait()

    async with lone_agent(tmp_path, prompt) as (peer, agent, _):
        first, second = Told(), Told()
        first.prompt(peer)
        await agent.begun.wait()
        closing = asyncio.create_task(agent.scope.drain(grace=5))
        await agent.scope.closing()
        second.prompt(peer, 2)
        refused = await peer.answer(2)
        assert refused is not None
        assert refused["error"]["code"] == REFUSED
        assert second.answer(refused).kind == "never"
        first.ask(peer)
        assert (await peer.result(7))["answers"] == [[first.edge.hex(), "working"]]
        gate.set()
        assert first.answer(await peer.answer(1)).kind == "closed"
        await closing


async def test_a_node_that_is_drained_answers_questions(tmp_path: Path) -> None:
    """Also if the program drains it with all that is in it: those who wait have no other way to hear."""
    gate = asyncio.Event()

    async def prompt(agent: Agent) -> None:
        await gate.wait()

    async with lone_agent(tmp_path, prompt) as (peer, agent, node):
        first = Told()
        first.prompt(peer)
        await agent.begun.wait()
        scope = node.get_open_scope()
        closing = asyncio.create_task(node.drain(5))
        await scope.closing()
        first.ask(peer)
        assert (await peer.result(7))["answers"] == [[first.edge.hex(), "working"]]
        gate.set()
        assert first.answer(await peer.answer(1)).kind == "closed"
        await closing


async def test_the_last_receipt_is_sent_before_a_drain_ends(tmp_path: Path) -> None:
    """Work that has outlived its prompt ends in the drain: who waits for it is answered."""
    gate = asyncio.Event()
    async with lone_agent(tmp_path, leaving(gate)) as (peer, agent, _):
        told = Told()
        told.prompt(peer)
        assert told.answer(await peer.answer()).kind == "working"
        told.ask(peer, wait=25)
        told.ask(peer, 8)
        await peer.result(8)
        closing = asyncio.create_task(agent.scope.drain(grace=5))
        await agent.scope.closing()
        gate.set()
        assert (await peer.result(7))["answers"][0][1]["s"] == "done"
        assert (await closing).ok


async def test_work_of_a_hop_ends_with_its_session(tmp_path: Path) -> None:
    """The peer is gone: it has its grace, then it is cancelled, and the node knows."""
    gate, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await gate.wait()
        finally:
            ended.set()

    async def prompt(_: Agent) -> None:
        asyncio.get_running_loop().create_task(work())

    async with lone_agent(tmp_path, prompt) as (peer, _, node):
        told = Told()
        told.prompt(peer)
        await peer.answer()
        peer.writer.write_eof()
        assert await peer.receive() is None
        assert ended.is_set()
        assert not node.frontier().in_flight


async def test_a_process_of_a_hop_ends_with_its_session(tmp_path: Path) -> None:
    """As one does that was started without a mesh; its hop is at work until then."""
    found: list[Any] = []

    async def prompt(_: Agent) -> None:
        found.append(await asyncio.create_subprocess_exec("tail", "-f", "/dev/null"))

    async with lone_agent(tmp_path, prompt) as (peer, _, _):
        told = Told()
        told.prompt(peer)
        await peer.answer()
        told.ask(peer)
        assert (await peer.result(7))["answers"][0][1] == "working"
        peer.writer.write_eof()
        assert await peer.receive() is None
        async with asyncio.timeout(5):
            await found[0].wait()


async def test_an_agent_whose_node_is_closed_runs_nothing(tmp_path: Path) -> None:
    """Its prompts are refused: nobody could be told of their end."""
    async with lone_agent(tmp_path, nothing) as (peer, agent, node):
        await node.drain()
        told = Told()
        told.prompt(peer)
        assert await peer.error() == REFUSED
        told.ask(peer)
        assert await peer.error(7) == -32603
        assert not agent.begun.is_set()
        peer.prompt(2)
        assert await peer.result(2) == DONE


# --- WebSockets ---------------------------------------------------------------------------------


class _Socket:
    """A client's end of a WebSocket, as the SDK has message transports."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, message: dict[str, Any]) -> None:
        await self._socket.send(json.dumps(message))

    async def receive(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(await self._socket.recv())
        except ConnectionClosed:
            return None
        return found

    async def close(self) -> None:
        await self._socket.close()


async def test_over_a_websocket_as_well(tmp_path: Path) -> None:
    """One node serves all connections; a name finds it again over the next one."""
    gate = asyncio.Event()
    async with (
        Node("coder", store=tmp_path / "coder") as coder,
        Node("editor", store=tmp_path / "editor") as editor,
    ):
        server = await open_websocket_server(
            lambda _: Agent(leaving(gate)), "127.0.0.1", 0, grace=1, agent_options={"node": coder}
        )
        cascades = []
        for number in range(2):
            socket = _Socket(await connect(f"ws://127.0.0.1:{server.port}"))
            connection: Any = connect_to_agent(Client(), socket, node=editor, address="coder")
            await connection.initialize(protocol_version=1)
            async with editor.cascade("work") as cascade:
                await connection.prompt(prompt=TEXT, session_id="s")
            cascades.append(cascade)
            if number:
                gate.set()
                for one in cascades:
                    settled = await one.settled(within=10)
                    assert settled.receipt.hops == 2
                    assert settled.receipt.unknown == 0
            await connection.close()
        await server.aclose()


# --- processes ----------------------------------------------------------------------------------


async def spawned(node: Node, folder: Path, **options: Any) -> Any:
    """Start an agent that is a process, with a journal of its own."""
    agent = await open_agent_process(
        Client(), sys.executable, PROGRAM, str(folder / "coder"),
        env={"PYTHONPATH": ":".join(sys.path)}, node=node,
        transport_kwargs={"shutdown_timeout": 0.5}, **options,
    )  # fmt: skip
    await agent.connection.initialize(protocol_version=1)
    return agent


async def test_an_agent_that_is_a_process_takes_part(tmp_path: Path) -> None:
    """Over its pipes: nothing has an address."""
    async with Node("editor", store=tmp_path / "editor") as node:
        agent = await spawned(node, tmp_path)
        async with node.cascade("work") as cascade:
            await agent.connection.prompt(prompt=[acp.text_block("later")], session_id="s")
        settled = await cascade.settled(within=10)
        assert isinstance(settled, Settled), settled
        assert (tmp_path / "coder.done").exists()
        await agent.aclose()


@pytest.mark.parametrize("address", [None, "coder"])
async def test_an_agent_that_is_killed_is_never_taken_for_done(
    tmp_path: Path, address: str | None
) -> None:
    """It is unknown; if it has a name and a journal, the next one tells that its work was lost."""
    async with Node("editor", store=tmp_path / "editor") as node:
        agent = await spawned(node, tmp_path, address=address)
        async with node.cascade("work") as cascade:
            await agent.connection.prompt(prompt=[acp.text_block("never")], session_id="s")
        agent.process.send_signal(signal.SIGKILL)
        await agent.process.wait()
        await agent.aclose()
        if address is None:
            assert isinstance(await cascade.settled(within=5), Unknown)
            return
        assert isinstance(await cascade.settled(within=0.1), Unknown)
        agent = await spawned(node, tmp_path, address=address)
        settled = await cascade.settled(within=10)
        assert isinstance(settled, SettledWithLosses), settled
        assert settled.receipt.lost == 1
        await agent.aclose()


@pytest.mark.parametrize("quiet", [True, False])
async def test_an_answer_to_a_call_that_is_not_sent_is_no_loss(*, quiet: bool) -> None:
    """Only messages of the agent are missed, whether they are being sent or wait for their turn."""

    class Stuck:
        decoded = False
        receive = None
        sending = asyncio.Event()

        async def send(self, _: object) -> None:
            self.sending.set()
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    transport: Any = Stuck()
    scope = await Scope.open("session")
    outbox = SendBuffer(scope, transport, lambda _: None, flush_seconds=0.01)
    scope.spawn(outbox.pump, service=True)
    outbox.post({"id": 1, "result": None}, quiet=quiet)
    await transport.sending.wait()
    outbox.post({"id": 2, "result": None}, quiet=True)
    report = await scope.aclose()
    assert [dict(entry.details) for entry in report.undelivered] == [{"messages": 1}] * (not quiet)
