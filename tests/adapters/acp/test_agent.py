"""The agent side of the ACP adapter: how it is called, and what it says and hears."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import acp
import pytest
from acp.core import AgentSideConnection

import quiesce
from quiesce.errors import ArgumentError, ScopeClosed
from quiesce.integrations.acp import run_agent, sdk_connection
from tests.adapters.acp.agents import Agent, cancelled, forever, quick, run, served, waiting, wire

if TYPE_CHECKING:
    from tests.adapters.known_faults import Way

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

old_sdk = pytest.mark.skipif(sdk_connection.TAKES_MESSAGES, reason="gone in 0.12")
new_sdk = pytest.mark.skipif(not sdk_connection.TAKES_MESSAGES, reason="new in 0.12")


# --- the call -----------------------------------------------------------------------------------


def test_the_signature_is_the_sdks_and_some_more() -> None:
    """What the installed SDK takes can be given in the same way."""
    theirs = inspect.signature(acp.run_agent).parameters
    ours = inspect.signature(run_agent).parameters
    assert set(theirs) <= set(ours)
    assert list(ours)[:5] == list(theirs)[:5]
    same = ("input_stream", "output_stream", "use_unstable_protocol", "stdio_buffer_limit_bytes")
    assert [ours[name].default for name in same] == [theirs[name].default for name in same]


async def test_an_argument_that_the_sdk_does_not_have_is_refused() -> None:
    """The error names the argument, and those that there are."""
    async with wire() as (writer, reader, _):
        with pytest.raises(ArgumentError, match=r"no argument 'colour'.*observers"):
            await run(Agent(), writer, reader, colour="red")


@old_sdk
@pytest.mark.parametrize("name", ["queue", "dispatcher_factory", "sender_factory"])
async def test_what_the_adapter_needs_for_itself_is_refused(name: str) -> None:
    """The error says so."""
    async with wire() as (writer, reader, _):
        with pytest.raises(ArgumentError, match=f"sets {name} itself"):
            await run(Agent(), writer, reader, **{name: object()})


async def test_streams_in_the_wrong_order_are_refused() -> None:
    """The error says what is wanted, in which order."""
    async with wire() as (writer, reader, _):
        with pytest.raises(ArgumentError, match=r"StreamWriter and an asyncio\.StreamReader"):
            await run(Agent(), reader, writer)


@pytest.mark.parametrize("name", ["grace", "cleanup"])
async def test_times_must_be_seconds(name: str) -> None:
    """A negative time is refused, before anything is started."""
    async with wire() as (writer, reader, _):
        with pytest.raises(ArgumentError, match=name):
            await run(Agent(), writer, reader, **{name: -1})


async def test_what_the_agent_raises_when_it_is_connected_is_raised() -> None:
    """An agent that cannot be made is the caller's to hear of, and the streams are closed."""

    def broken(_: object) -> Any:
        message = "no agent today"
        raise LookupError(message)

    async with wire() as (writer, reader, peer):
        with pytest.raises(LookupError, match="today"):
            await run(broken, writer, reader)
        assert await peer.receive() is None


async def test_an_agent_may_be_made_by_a_function() -> None:
    """The function is given the connection, as the SDK does it."""
    made = []

    def make(connection: Any) -> Agent:
        made.append(connection)
        return Agent()

    async with quick(make) as (task, peer):
        peer.send({"id": 1, "method": "_echo", "params": {"a": 1}})
        assert await peer.result() == {"method": "echo", "a": 1}
        assert isinstance(made[0], AgentSideConnection)
        await cancelled(task)


async def test_a_scope_that_is_closing_takes_no_agent() -> None:
    """The caller is told, and the streams are closed."""
    scope = await quiesce.Scope.open("outer")
    await scope.aclose()
    async with wire() as (writer, reader, peer):
        with pytest.raises(ScopeClosed):
            await run(Agent(), writer, reader, scope=scope)
        assert await peer.receive() is None


# --- the conversation ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/prompt", {"sessionId": 7}, -32602),
        ("no/such", {}, -32601),
        ("session/prompt", {"sessionId": "one", "prompt": []}, -32603),
    ],
)
async def test_errors_are_answered_as_the_sdk_does(
    method: str, params: dict[str, Any], code: int
) -> None:
    """Bad parameters, an unknown method, a handler that fails: each has its code."""

    async def fail(_: Agent) -> None:
        message = "out of order"
        raise LookupError(message)

    answers = []
    ways: tuple[Way, ...] = ("bare", "quiesce")
    for way in ways:
        async with (
            quiesce.Scope("old versions leave tasks", adopt=True, services=["acp.*.loop"]),
            served(way, Agent(fail)) as (task, peer),
        ):
            peer.send({"id": 1, "method": method, "params": params})
            answers.append(await peer.answer())
            peer.writer.write_eof()
            await task
    assert answers[0] == answers[1]
    assert answers[1] is not None
    assert answers[1]["error"]["code"] == code


async def test_a_result_that_cannot_be_sent_is_answered_with_an_error() -> None:
    """The bare SDK leaves such a request without an answer."""

    class Odd(Agent):
        async def ext_method(self, method: str, params: dict[str, Any]) -> Any:
            del method, params
            return {"a": object()}

    async with quick(Odd()) as (task, peer):
        peer.send({"id": 1, "method": "_odd", "params": {}})
        assert await peer.error() == -32603
        await cancelled(task)


async def test_what_is_no_message_is_passed_over() -> None:
    """Neither noise nor an id that cannot be one ends the session."""
    async with quick(Agent()) as (task, peer):
        peer.writer.write(b"\n  \nhello\n[1]\n3\n{broken\n")
        peer.writer.write(b'{"a":' + b"[" * 100_000 + b"\n")
        peer.send({"id": [1], "method": "_echo", "params": {}})
        answer = await peer.receive()
        assert answer is not None
        assert answer["error"]["code"] == -32600
        peer.send({"method": "$/cancel_request", "params": {"requestId": []}})
        peer.send({"method": "$/cancel_request"}, {"method": 7}, {"id": 2, "result": None})
        peer.send({"id": 3, "method": "_echo", "params": {}})
        assert await peer.answer(3) is not None
        await cancelled(task)


async def test_an_id_in_use_is_refused() -> None:
    """Two requests in flight with one id could not be told apart."""
    released = asyncio.Event()
    async with quick(Agent(waiting(released))) as (task, peer):
        peer.prompt(1)
        peer.prompt(1)
        assert await peer.error(1) == -32600
        released.set()
        assert await peer.result(1) == {"stopReason": "end_turn"}
        await cancelled(task)


async def test_messages_may_come_in_pieces_and_be_long() -> None:
    """A message is as long as it is, up to the limit, and comes as it comes."""
    text = "x" * 300_000
    async with quick(Agent()) as (task, peer):
        line = b'{"jsonrpc":"2.0","id":1,"method":"_echo","params":{"a":"' + text.encode() + b'"}}'
        for piece in (line[:10], line[10:200_000], line[200_000:], b'\n{"jsonrpc":"2.0",'):
            peer.writer.write(piece)
            await peer.writer.drain()
            await asyncio.sleep(0)
        peer.writer.write(b'"id":2,"method":"_echo","params":{}}\n')
        peer.reader._limit = 1 << 20  # type: ignore[attr-defined]  # of the test's own reader
        answer = await peer.answer(1)
        assert answer is not None
        assert answer["result"]["a"] == text
        assert await peer.answer(2) is not None
        await cancelled(task)


async def test_a_message_that_is_too_long_ends_the_session() -> None:
    """Memory is bounded, whatever a peer sends."""
    async with quick(Agent(), stdio_buffer_limit_bytes=1000) as (task, peer):
        peer.writer.write(b"{" * 2000)
        assert (await task).ok


async def test_the_agent_can_ask_its_client() -> None:
    """A response goes to the handler that waits for it."""

    async def ask(agent: Agent) -> str:
        return str((await agent.client.ext_method("which", {}))["reason"])

    async with quick(Agent(ask)) as (task, peer):
        peer.prompt()
        asked = await peer.receive()
        assert asked is not None
        peer.send({"id": asked["id"], "result": {"reason": "refusal"}})
        assert await peer.result() == {"stopReason": "refusal"}
        await cancelled(task)


async def test_a_response_that_is_malformed_is_an_error_of_its_request() -> None:
    """The session goes on; responses that nobody has asked for are dropped."""
    agent = Agent(forever)
    async with quick(agent) as (task, peer):
        peer.send({"id": [], "result": 1}, {"id": 99, "error": 1})
        peer.send({"id": 1, "method": "_echo", "params": {}})
        assert await peer.result() == {"method": "echo"}
        asking = asyncio.create_task(agent.client.ext_method("which", {}))
        asked = await peer.receive()
        assert asked is not None
        peer.send({"id": asked["id"], "error": "in words"})
        with pytest.raises(acp.RequestError):
            await asking
        await cancelled(task)


@pytest.mark.parametrize("end", ["hang up", "close"])
async def test_nobody_waits_for_an_answer_that_cannot_come(end: str) -> None:
    """Also a task outside the session that has asked the client is told."""
    agent = Agent(forever)
    asking: list[asyncio.Task[Any]] = []
    async with quick(agent) as (task, peer):
        peer.send({"id": 1, "method": "_echo", "params": {}})
        await peer.answer()
        asking.append(asyncio.create_task(agent.client.ext_method("which", {})))
        await peer.receive()
        if end == "hang up":
            peer.writer.write_eof()
        else:
            await agent.client.close()
        await task
        with pytest.raises(ConnectionError):
            await asking[0]
        with pytest.raises(ConnectionError):
            await agent.client.ext_method("again", {})


async def test_observers_see_every_message() -> None:
    """Those that the SDK handles, and those that we do."""
    seen: list[tuple[str, str]] = []

    async def observe(event: Any) -> None:
        seen.append((event.direction.value, event.message.get("method", "answer")))

    async with quick(Agent(), observers=[observe, lambda _: 1 / 0]) as (task, peer):
        peer.send({"id": 1, "method": "_echo", "params": {}}, {"method": "_note", "params": {}})
        await peer.answer()
        await cancelled(task)
    assert sorted(seen) == [("incoming", "_echo"), ("incoming", "_note"), ("outgoing", "answer")]


@pytest.mark.skipif("receive_timeout" not in sdk_connection.PARAMETERS, reason="since 0.10")
async def test_silence_ends_the_session_if_that_is_asked_for() -> None:
    """`receive_timeout` raises what the SDK raises."""
    async with wire() as (writer, reader, _):
        with pytest.raises(acp.RequestError) as raised:
            await run(Agent(), writer, reader, receive_timeout=0.02)
        assert raised.value.data == {"details": "Agent timeout"}


@pytest.mark.skipif("receive_timeout" not in sdk_connection.PARAMETERS, reason="since 0.10")
async def test_waiting_for_a_message_is_no_work() -> None:
    """A time limit on silence does not keep the session from being idle."""
    scope = await quiesce.Scope.open("outer")
    async with quick(Agent(), scope=scope, receive_timeout=5) as (task, peer):
        peer.send({"id": 1, "method": "_echo", "params": {}})
        await peer.answer()
        await scope.idle()
        assert (await scope.drain(grace=1)).ok
        assert (await task).ok


@new_sdk
async def test_a_transport_of_the_sdk_can_be_given() -> None:
    """Messages come and go decoded, and the transport is closed in the end."""
    from acp._transport import (  # type: ignore[import-not-found]  # noqa: PLC0415 - new in 0.12
        memory_transport_pair,
    )

    ours, theirs = memory_transport_pair()
    task = asyncio.create_task(run(Agent(), ours))
    await theirs.send({"jsonrpc": "2.0", "id": 1, "method": "_echo", "params": {}})
    assert await theirs.receive() == {"jsonrpc": "2.0", "id": 1, "result": {"method": "echo"}}
    await theirs.close()
    assert (await task).completed == 1
    assert await theirs.receive() is None


async def test_a_peer_that_only_hangs_up_still_reads() -> None:
    """A handler that needs no answer of the client ends well, its updates with it."""
    released = asyncio.Event()

    async def prompt(agent: Agent) -> None:
        await released.wait()
        await agent.update("still here")

    agent = Agent(prompt)
    async with quick(agent, grace=5) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        peer.writer.write_eof()
        for _ in range(5):
            await asyncio.sleep(0)  # until the end of the input is seen
        released.set()
        update = await peer.receive()
        assert update is not None
        assert update["params"] == {"text": "still here"}
        assert "result" in (await peer.answer() or {})
        assert (await task).ok
