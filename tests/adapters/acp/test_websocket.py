"""The WebSocket bridge: what is bounded, what clients may do, and how it ends. Real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import InvalidStatus

import quiesce
from quiesce.integrations.acp import open_websocket_server, serve_websocket
from quiesce.testing import sweep
from tests.adapters.acp import bridge_server as acp_bridge_server
from tests.adapters.acp.agents import CYCLES
from tests.adapters.acp.bridge import (
    INITIALIZE,
    PROMPT,
    Agent,
    check_health,
    closed,
    message,
    open_client,
    serving,
    status_of,
)

if TYPE_CHECKING:
    from quiesce.integrations.acp import WebSocketServer

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

HEALTH_CHECKS = {"asyncio": 5 * CYCLES, "uvloop": 2 * CYCLES}


# Limits.


async def test_there_are_no_more_connections_than_allowed() -> None:
    """One too many gets 503, and may come in when another has left."""
    async with serving(connections_max=2) as server:
        first, second = [await open_client(server.port) for _ in range(2)]
        with pytest.raises(InvalidStatus) as refusal:
            await open_client(server.port)
        assert refusal.value.response.status_code == 503
        assert refusal.value.response.headers["Retry-After"]
        await second.close()
        await first.close()
        await server.idle()
        assert server.stats.open == 0
        await open_client(server.port)


async def test_handshakes_at_the_same_time_are_counted() -> None:
    """Many that come at once do not slip in together."""
    async with serving(connections_max=3) as server:
        clients = await asyncio.gather(
            *(open_client(server.port) for _ in range(12)), return_exceptions=True
        )
        assert server.stats.open == 3
        assert sum(not isinstance(client, BaseException) for client in clients) == 3


async def test_sockets_that_say_nothing_are_bounded() -> None:
    """Beyond the connections, only some sockets may wait for their handshake."""
    async with serving(connections_max=1) as server:
        idle = []
        for _ in range(40):
            one = socket.create_connection(("127.0.0.1", server.port))
            idle.append(one)
        last = idle[-1]
        last.setblocking(False)  # noqa: FBT003 - the library's way
        with suppress(ConnectionResetError):
            assert await asyncio.get_running_loop().sock_recv(last, 1) == b""
        assert server.stats.refused == 40 - 33
        for one in idle:
            one.close()


async def test_a_message_that_is_too_long_ends_its_connection() -> None:
    """It is closed with 1009; others go on."""
    async with serving(message_bytes_max=1000) as server:
        rude, other = [await open_client(server.port) for _ in range(2)]
        await rude.send("x" * 2000)
        assert await closed(rude) == 1009
        await other.send(message(5, "session/new", cwd="/", mcpServers=[]))
        assert json.loads(await other.recv())["result"]["sessionId"] == "s"


async def test_a_binary_frame_ends_its_connection() -> None:
    """Messages are text; the code says so."""
    async with serving() as server:
        client = await open_client(server.port)
        await client.send(b"{}")
        assert await closed(client) == 1003


@pytest.mark.parametrize("frame", ["what?", "[]", "{", ""])
async def test_a_text_that_is_no_message_is_ignored(frame: str) -> None:
    """The connection goes on."""
    async with serving() as server:
        client = await open_client(server.port)
        await client.send(frame)
        await client.send(message(5, "session/new", cwd="/", mcpServers=[]))
        assert json.loads(await client.recv())["id"] == 5


async def test_a_message_may_have_newlines() -> None:
    """JSON that was written for people is understood."""
    async with serving() as server:
        client = await connect(f"ws://127.0.0.1:{server.port}")
        await client.send('{"a":\n' + "[" * 100_000)  # and what is none is passed over
        await client.send(json.dumps(json.loads(INITIALIZE), indent=2))
        assert json.loads(await client.recv())["result"]["protocolVersion"] == 1


async def test_an_idle_connection_is_closed() -> None:
    """Nothing was said, and nothing is being done: it is closed with 1001."""
    async with serving(idle_seconds=0.05) as server:
        client = await open_client(server.port)
        assert await closed(client) == 1001
        assert client.protocol.close_reason == "idle"
        await server.idle()
        assert server.stats.failed == 0


async def test_a_connection_with_a_prompt_is_not_idle() -> None:
    """However long a prompt says nothing, its connection is kept."""
    agent = Agent()
    async with serving(lambda: agent, idle_seconds=0.05) as server:
        client = await open_client(server.port)
        await client.send(PROMPT)
        await agent.asked.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.recv()
        agent.go_on.set()
        assert json.loads(await client.recv())["id"] == 1
        assert await closed(client) == 1001


async def test_a_unix_socket_can_be_served(tmp_path: Path) -> None:
    """The library's own options are passed on."""
    path = str(tmp_path / "agent.sock")
    server = await open_websocket_server(
        Agent, None, None, websockets_options={"unix": True, "path": path}
    )
    async with unix_connect(path) as client:
        await client.send(INITIALIZE)
        assert json.loads(await client.recv())["id"] == 0
        assert "from nowhere" in str(server.frontier())
    assert (await server.drain(grace=5)).ok


# What clients may do.


async def test_each_connection_has_an_agent_of_its_own() -> None:
    """What one is told, another does not know."""
    made: list[Agent] = []

    def make(connection: object) -> Agent:
        assert connection is not None
        made.append(Agent())
        return made[-1]

    async with serving(make) as server:
        clients = [await open_client(server.port) for _ in range(3)]
        await clients[1].send(PROMPT)
        await made[1].asked.wait()
        assert [agent.asked.is_set() for agent in made] == [False, True, False]
        frontier = str(server.frontier())
        assert "request session/prompt" in frontier
        assert "connection 2 from 127.0.0.1:" in frontier


async def test_a_client_that_leaves_ends_its_prompt() -> None:
    """The prompt has its grace, then is cancelled; nothing of the connection is left."""
    agent = Agent()
    async with serving(lambda: agent) as server:
        client = await open_client(server.port)
        await client.send(PROMPT)
        await agent.asked.wait()
        client.transport.abort()
        await server.idle()
        assert agent.outcome == "cancelled"


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end() -> None:
    """The bridge closes in time, whoever does not take what it is sent."""

    class Chatty(Agent):
        async def prompt(self, **_: Any) -> Any:
            self.asked.set()
            return {"stopReason": "end_turn", "_meta": {"text": "x" * 8_000_000}}

    agent = Chatty()
    async with serving(lambda: agent) as server:
        client = await open_client(server.port, max_queue=1, ping_interval=None)
        client.transport.pause_reading()
        await client.send(PROMPT)
        await agent.asked.wait()
        async with asyncio.timeout(5):
            report = await server.aclose()
        assert not report.stuck
        client.transport.resume_reading()
        await closed(client)


async def test_an_agent_that_cannot_be_made_fails_its_connection_alone() -> None:
    """Its client gets 1011, it is logged and counted, and the bridge goes on."""
    agents = iter([None, Agent()])

    def make() -> Agent:
        agent = next(agents)
        if agent is None:
            message = "no model"
            raise RuntimeError(message)
        return agent

    async with serving(make) as server:
        client = await connect(f"ws://127.0.0.1:{server.port}")
        assert await closed(client) == 1011
        await open_client(server.port)
        assert server.stats.failed == 1


async def test_a_health_checker_leaves_nothing(backend: str) -> None:
    """It connects, initializes and leaves, again and again: tasks and files stay as they were."""
    async with serving() as server:
        tasks, seen = len(asyncio.all_tasks()), []
        for number in range(HEALTH_CHECKS[backend]):
            await check_health(server.port, rude=number % 2 == 0)
            if number % 100 == 99:
                while len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110 - nobody can await those
                    await asyncio.sleep(0)
                await forget_timers()
                gc.collect()
                files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers
                seen.append((files, sum(map(is_ours, gc.get_objects()))))
        assert server.stats.served == HEALTH_CHECKS[backend]
        assert seen[-1][0] == seen[0][0]
        assert seen[-1][1] - seen[0][1] < 10  # the last visit's may be on their way


async def forget_timers() -> None:
    """Make asyncio forget cancelled timers, and their contexts: it does when there are many."""
    loop = asyncio.get_running_loop()
    for _ in range(1000):
        loop.call_later(1000, print).cancel()
    await asyncio.sleep(0)


def is_ours(thing: object) -> bool:
    """Return whether an object is of the bridge, or of what it is made of."""
    module = str(getattr(type(thing), "__module__", ""))
    ours = module.partition(".")[0] in {"quiesce", "acp", "websockets"}
    return ours and not module.startswith("quiesce.testing")  # the guard takes notes


# The end.


async def test_a_drain_lets_prompts_finish_and_turns_others_away() -> None:
    """A running prompt is answered; idle connections get 1001, new ones 503, new requests an error."""
    agent = Agent()
    async with serving(lambda: agent) as server:
        busy, idle = [await open_client(server.port) for _ in range(2)]
        await busy.send(PROMPT)
        await agent.asked.wait()
        draining = asyncio.create_task(server.drain(grace=5))
        assert await closed(idle) == 1001
        assert await status_of(server.port) == 503
        await busy.send(message(2, "session/new", cwd="/", mcpServers=[]))
        assert "error" in json.loads(await busy.recv())
        agent.go_on.set()
        assert json.loads(await busy.recv())["result"]["stopReason"] == "end_turn"
        assert await closed(busy) == 1001
        report = await draining
        assert report.ok
        assert server.report is report
        with pytest.raises(ConnectionRefusedError):
            await status_of(server.port)


async def test_a_prompt_that_outlasts_the_drain_is_in_the_report() -> None:
    """It is cancelled at the deadline, and named."""
    agent = Agent()
    async with serving(lambda: agent) as server:
        client = await open_client(server.port)
        await client.send(PROMPT)
        await agent.asked.wait()
        report = await server.drain(grace=0.05)
        assert agent.outcome == "cancelled"
        assert not report.ok
        assert "session/prompt" in str(report)
        assert await closed(client) == 1001


async def test_a_close_from_any_task_ends_everything() -> None:
    """Prompts are cancelled, clients are told, closers may be several, and cancelled."""
    agent = Agent()
    async with serving(lambda: agent) as server:
        client = await open_client(server.port)
        await client.send(PROMPT)
        await agent.asked.wait()
        closers = [asyncio.create_task(server.aclose()) for _ in range(2)]
        await asyncio.sleep(0)
        closers[0].cancel()
        await asyncio.wait(closers)
        assert closers[0].cancelled()
        assert agent.outcome == "cancelled"
        assert await closed(client) == 1001


async def test_serving_ends_with_the_scope_around() -> None:
    """`serve_websocket` returns its report when the scope around is drained."""
    servers: list[WebSocketServer] = []
    scope = await quiesce.Scope.open("program")
    listening = asyncio.Event()

    def ready(server: WebSocketServer) -> None:
        servers.append(server)
        listening.set()

    async def main() -> quiesce.Report:
        return await serve_websocket(Agent, ready=ready)

    job = scope.spawn(main)
    await listening.wait()
    client = await open_client(servers[0].port)
    assert (await scope.drain(grace=5)).ok
    assert (await job).completed == 1
    assert await closed(client) == 1001


async def test_sigterm_drains_a_program() -> None:
    """A prompt that needs the client finishes, others are turned away, the exit code is 0."""
    async with quiesce.Scope("test", grace=5):
        program = Path(acp_bridge_server.__file__)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = await quiesce.start_process([sys.executable, program], env=env, grace=5)
        port = int(await anext(aiter(process.stdout)))
        busy, idle = [await open_client(port) for _ in range(2)]
        await busy.send(PROMPT)
        question = json.loads(await busy.recv())
        process.send_signal(signal.SIGTERM)
        assert await closed(idle) == 1001
        assert await status_of(port) == 503
        await busy.send(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": {}}))
        assert json.loads(await busy.recv())["result"]["stopReason"] == "end_turn"
        assert await closed(busy) == 1001
        assert await process.wait() == 0
        assert "nothing it owned was lost" in str(process.stderr.tail())


async def scenario() -> None:
    """Serve, let a client come and go, and end."""
    async with serving() as server:
        await check_health(server.port)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_the_bridge_stands_cancellation_at_every_await(backend: Any) -> None:
    """Cancelled at any await of the program that serves, or of the bridge, nothing is left."""
    found = sweep(scenario, backend=backend, where="all", cancel=["native", "scope"])
    assert found.ok, str(found)
