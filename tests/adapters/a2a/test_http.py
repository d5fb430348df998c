"""The A2A adapter under real servers: JSON-RPC, REST and gRPC, signals, and restarts."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore

from quiesce.integrations.a2a import DurablePushSender, MemoryOutbox, QuiescentRequestHandler
from tests.adapters.a2a import kit
from tests.adapters.a2a.handlers import first_only
from tests.adapters.a2a.server import rest_body, serving, webhook

pytestmark = [
    pytest.mark.backends("asyncio"),
    pytest.mark.real_time,
    pytest.mark.quiesce(allow=[*kit.LEFT_TO_THE_COLLECTOR, "thread:*"]),  # gRPC has its own
]


async def test_json_rpc_serves_what_the_sdk_serves(tmp_path: Path) -> None:
    """Card, blocking and streaming sends, questions, cancellation; in one server."""
    async with webhook() as hook, serving("quiesce", tmp_path) as server:
        card = await server.client.get("/.well-known/agent-card.json")
        assert card.json()["name"] == "tried"
        done = await server.send("artifact complete", webhook=hook.url)
        assert kit.state_of(done) == "completed"
        async with server.stream("update complete") as events:
            told = [event["result"] async for event in events]
        assert "completed" in str(told[-1]).lower()
        answer = await server.call("get", {"id": done["id"]})
        assert kit.state_of(answer["result"].get("task", answer["result"])) == "completed"
        waiting = await server.send("wait k complete", blocking=False)
        answer = await server.call("cancel", {"id": waiting["id"]})
        assert kit.state_of(answer["result"].get("task", answer["result"])) == "canceled"
        refused = await server.call("send", kit.sending("complete", task_id=done["id"]))
        assert "terminal" in refused["error"]["message"]
        assert await hook.until("completed")
        await server.stop()


async def test_rest_serves_what_the_sdk_serves(tmp_path: Path) -> None:
    """A send, the question for its task, and a drain that answers who waits."""
    async with webhook() as hook, serving("quiesce", tmp_path, "grace=0.3") as server:
        path = "/rest/message:send" if kit.FIRST else "/rest/v1/message:send"
        body = rest_body(kit.sending("complete", webhook=hook.url))
        answer = (await server.client.post(path, json=body)).json()
        assert kit.state_of(answer["task"]) == "completed"
        tasks = "/rest/tasks/" if kit.FIRST else "/rest/v1/tasks/"
        found = (await server.client.get(tasks + answer["task"]["id"])).json()
        assert kit.state_of(found) == "completed"
        waiting = asyncio.ensure_future(
            server.client.post(path, json=rest_body(kit.sending("wait k complete")))
        )
        await server.waits("k")
        server.process.send_signal(signal.SIGTERM)
        assert kit.state_of((await waiting).json()["task"]) == "failed"
        await server.ended()
        assert sorted(server.store.states().values()) == ["completed", "failed"]


@first_only
async def test_grpc_serves_what_the_sdk_serves() -> None:
    """A blocking send, a stream, and a drain while one is waited for."""
    before = open_files()
    await serve_by_grpc()
    deadline = time.monotonic() + 20
    while open_files() > before and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)  # gRPC's own threads close what they poll with after the stop
    assert open_files() <= before


def open_files() -> int:
    """Count the files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def serve_by_grpc() -> None:
    """Serve and call an agent."""
    import grpc  # noqa: PLC0415 - slow, and for this alone
    from a2a.server.request_handlers import GrpcHandler  # noqa: PLC0415 - the same
    from a2a.types import a2a_pb2_grpc  # noqa: PLC0415 - the same

    agent = kit.Agent()
    handler = QuiescentRequestHandler(
        agent_executor=agent,
        task_store=InMemoryTaskStore(),
        agent_card=kit.card(),
        push_config_store=InMemoryPushNotificationConfigStore(),
        push_sender=DurablePushSender(MemoryOutbox(), allow_private=True),
    )
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    port = server.add_insecure_port("127.0.0.1:0")
    async with webhook() as hook, handler:
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            metadata = [("a2a-version", "1.0")]
            done = await stub.SendMessage(
                kit.request("complete", webhook=hook.url), metadata=metadata
            )
            assert kit.state_of(done.task) == "completed"
            stream = stub.SendStreamingMessage(kit.request("update complete"), metadata=metadata)
            told = [event async for event in stream]
            assert kit.state_of(told[-1].status_update) == "completed"
            assert await hook.until("completed")
            call = stub.SendMessage(kit.request("wait k complete"), metadata=metadata)
            waiting = asyncio.ensure_future(_answer(call))
            await agent.waits("k")
            await handler.drain(grace=0.1, cleanup=1)
            assert kit.state_of((await waiting).task) == "failed"
        await server.stop(0)


async def _answer(call: Any) -> Any:
    return await call


async def test_a_blocking_send_does_not_hold_up_a_server_that_is_told_to_end(
    tmp_path: Path,
) -> None:
    """The server waits for its requests, and this one for its task: the drain begins before."""
    async with serving("quiesce", tmp_path, "grace=0.2") as server:
        sending = asyncio.ensure_future(server.send("wait k complete"))
        await server.waits("k")
        async with asyncio.timeout(5):
            await server.stop()
        assert kit.state_of(await sending) == "failed"


async def test_a_new_server_waits_for_the_outbox_of_the_one_before(tmp_path: Path) -> None:
    """It starts while the old one drains, and goes on with what that one leaves."""
    async with webhook() as hook, serving("quiesce", tmp_path, "grace=1") as old:
        await old.send("wait k complete", blocking=False, webhook=hook.url)
        await old.waits("k")
        old.process.send_signal(signal.SIGTERM)
        async with serving("quiesce", tmp_path) as new:
            assert await old.ended() is not None
            assert kit.state_of(await new.send("complete")) == "completed"
            await new.stop()
        assert sorted(new.store.states().values()) == ["completed", "failed"]
        assert hook.states().count("failed") == 1
