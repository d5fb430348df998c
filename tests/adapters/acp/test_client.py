"""The client side of the ACP adapter: connections over streams and transports."""

from __future__ import annotations

import asyncio
import inspect
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import acp
import pytest

import quiesce
from quiesce.errors import ArgumentError, PeerLost, ScopeClosed, UsageError
from quiesce.integrations.acp import (
    AgentLost,
    ConnectionClosed,
    connect_to_agent,
    scope_of,
)
from quiesce.testing import sweep
from tests.adapters.acp.fake_agent import (
    PERMISSION,
    TEXT,
    Client,
    FakeAgent,
    Memory,
    connected,
    prompt,
    settle,
)

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


def test_the_signature_is_the_sdks_and_some_more() -> None:
    """What the installed SDK takes can be given in the same way."""
    theirs = inspect.signature(acp.connect_to_agent).parameters
    ours = inspect.signature(connect_to_agent).parameters
    assert set(theirs) <= set(ours)
    assert list(ours)[:3] == list(theirs)[:3]


async def test_requests_and_updates_come_through() -> None:
    """An answer goes to its caller, an update to the client, and the object is the SDK's own."""
    client = Client()
    async with connected(client) as (agent, connection):
        assert isinstance(connection, type(client.connection))
        assert client.connection is connection
        asking = prompt(connection)
        request = await agent.hear()
        content = {"type": "text", "text": "soon"}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        await agent.say(method="session/update", params={"sessionId": "s", "update": update})
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        assert (await asking).stop_reason == "end_turn"
        await client.updated.wait()
        assert client.updates == ["s soon"]


async def test_answers_out_of_order_go_to_their_callers() -> None:
    """Many requests may be in flight, and be answered in any order."""
    async with connected() as (agent, connection):
        asking = [
            asyncio.create_task(connection.ext_method("echo", {"number": number}))
            for number in range(20)
        ]
        heard = [await agent.hear() for _ in asking]
        for request in reversed(heard):
            await agent.say(id=request["id"], result=request["params"])
        assert [(await task)["number"] for task in asking] == list(range(20))


@pytest.mark.parametrize("way", ["cancel", "timeout", "scope"])
async def test_a_request_that_is_given_up_is_cancelled_at_the_agent(way: str) -> None:
    """However its caller gives up, the agent is told the request's id; others go on."""
    async with connected() as (agent, connection):
        other = asyncio.create_task(connection.ext_method("other", {}))
        kept = await agent.hear()

        async def ask() -> None:
            async with asyncio.timeout(0.02 if way == "timeout" else None):
                await connection.prompt(prompt=TEXT, session_id="s")

        if way == "scope":
            scope = await quiesce.Scope.open("asking")
            scope.spawn(ask)
        else:
            asking = asyncio.create_task(ask())
        request = await agent.hear()
        if way == "cancel":
            await settle(asking)
        elif way == "timeout":
            with pytest.raises(TimeoutError):
                await asking
        else:
            await scope.aclose()
        told = await agent.hear()
        assert told["method"] == "$/cancel_request"
        assert told["params"] == {"requestId": request["id"]}
        assert "id" not in told
        await agent.say(id=request["id"], error={"code": -32800, "message": "cancelled"})
        await agent.say(id=kept["id"], result={"still": "there"})
        assert await other == {"still": "there"}


async def test_a_prompt_that_is_given_up_may_cancel_its_session_too() -> None:
    """For agents that do not know `$/cancel_request`, `session/cancel` follows if asked for."""
    async with connected(cancel_session=True) as (agent, connection):
        asking = prompt(connection, "that one")
        await agent.hear()
        await settle(asking)
        assert (await agent.hear())["method"] == "$/cancel_request"
        told = await agent.hear()
        assert told["method"] == "session/cancel"
        assert told["params"] == {"sessionId": "that one"}


async def test_a_request_that_was_answered_is_not_cancelled() -> None:
    """Nothing is sent when its caller is cancelled after the answer has come."""
    async with connected() as (agent, connection):
        asking = prompt(connection)
        request = await agent.hear()
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        await asking
        echo = asyncio.create_task(connection.ext_method("next", {}))
        assert (await agent.hear())["method"] == "_next"
        await settle(echo)


async def test_a_request_that_was_never_sent_is_not_cancelled() -> None:
    """A caller that gives up while there is no room for its request has sent nothing."""
    async with connected() as (agent, connection):
        agent.writer.transport.set_write_buffer_limits(high=1000)
        big = asyncio.create_task(connection.ext_method("big", {"text": "x" * 4_000_000}))
        await asyncio.sleep(0)
        small = asyncio.create_task(connection.ext_method("small", {}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await settle(small)
        heard = await agent.hear()
        assert heard["method"] == "_big"
        await agent.say(id=heard["id"], result={})
        await big
        last = asyncio.create_task(connection.ext_method("last", {}))
        assert (await agent.hear())["method"] == "_last"
        await settle(last)


@pytest.mark.parametrize("what", ["request", "notification"])
async def test_closing_tells_those_who_wait_for_room(what: str) -> None:
    """Whoever waits for a stalled agent to read is told, and has sent nothing."""
    async with connected() as (agent, connection):
        agent.writer.transport.set_write_buffer_limits(high=1000)
        big = asyncio.create_task(connection.ext_method("big", {"text": "x" * 4_000_000}))
        await asyncio.sleep(0)
        method = connection.ext_method if what == "request" else connection.ext_notification
        small = asyncio.create_task(method("small", {}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert f"{what} _small" in str(scope_of(connection).frontier())
        await connection.close()
        for task in (big, small):
            with pytest.raises(ConnectionClosed):
                await task


@pytest.mark.parametrize("key", [None, "unknown", 99, 1.5])
async def test_an_answer_to_nothing_is_ignored(key: Any) -> None:
    """Whatever an agent gives as the id of an answer, the connection goes on."""
    async with connected() as (agent, connection):
        asking = prompt(connection)
        request = await agent.hear()
        await agent.say(id=key, result={})
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        assert (await asking).stop_reason == "end_turn"


async def test_requests_are_holds() -> None:
    """The frontier has the request's method and id while it is in flight, and not after."""
    async with connected() as (agent, connection):

        async def ask() -> None:
            await connection.prompt(prompt=TEXT, session_id="s")

        asking = asyncio.create_task(ask())
        request = await agent.hear()
        (entry,) = scope_of(connection).frontier().in_flight
        assert Path(__file__).name in str(entry)
        assert (entry.kind, entry.name) == ("request", "session/prompt")
        assert f"id={request['id']}" in str(entry)
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        await asking
        assert not scope_of(connection).frontier().in_flight
        await scope_of(connection).idle()


async def test_an_agent_that_hangs_up_is_told_to_all_who_wait() -> None:
    """Whoever waits for an answer gets `AgentLost`, and so does whoever asks later."""
    async with connected() as (agent, connection):
        asking = [prompt(connection) for _ in range(3)]
        for _ in asking:
            await agent.hear()
        await agent.leave()
        for task in asking:
            with pytest.raises(AgentLost, match="the agent is gone: it closed its output"):
                await task
        with pytest.raises(AgentLost) as lost:
            await connection.prompt(prompt=TEXT, session_id="s")
        assert isinstance(lost.value, PeerLost | ConnectionError)


async def test_an_agent_that_does_not_read_any_more_is_lost() -> None:
    """Its output is open, but what is written to it does not arrive: the request does not wait."""
    reading, writing = os.pipe()
    async with asyncio.timeout(5), FakeAgent() as agent:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(writing, "wb")
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        async with connect_to_agent(Client(), writer, agent.reader) as connection:
            os.close(reading)
            while not transport.is_closing():  # the event loop finds out, or our write does
                await asyncio.sleep(0)
                with suppress(AgentLost):
                    await connection.cancel(session_id="s")
            with pytest.raises(AgentLost):
                await connection.prompt(prompt=TEXT, session_id="s")
        writer.close()


async def test_a_request_that_cannot_be_written_raises_once() -> None:
    """Its caller gets the error, and is not cancelled afterwards."""
    async with asyncio.timeout(5), FakeAgent() as agent:
        connection: Any = connect_to_agent(Client(), agent.writer, agent.reader)
        waiting = prompt(connection)
        await agent.hear()
        agent.writer.transport.abort()
        with pytest.raises(AgentLost):
            await connection.prompt(prompt=TEXT, session_id="s")
        await connection.close()
        with pytest.raises(AgentLost):
            await waiting


async def test_an_answer_is_not_lost_when_the_agent_hangs_up_after_it() -> None:
    """The last thing that an agent says counts."""
    async with connected() as (agent, connection):
        asking = prompt(connection)
        request = await agent.hear()
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        await agent.leave()
        assert (await asking).stop_reason == "end_turn"


@pytest.mark.parametrize(
    "data",
    [
        b"not json\n",
        b"[1, 2]\n",
        b"17\n",
        b"\n",
        b'{"id": 99}\n',
        b'{"a":' + b"[" * 100_000 + b"\n",
    ],
    ids=["text", "list", "number", "nothing", "no question", "deep"],
)
async def test_what_is_no_message_is_ignored(data: bytes) -> None:
    """An agent that prints to its standard output does not end the connection."""
    async with connected() as (agent, connection):
        asking = prompt(connection)
        request = await agent.hear()
        await agent.say_bytes(data)
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        assert (await asking).stop_reason == "end_turn"


async def test_a_message_beyond_the_limit_ends_the_connection() -> None:
    """It is not taken into memory without a bound, and the error says so."""
    async with connected(message_bytes_max=200_000) as (agent, connection):
        asking = prompt(connection)
        await agent.hear()
        saying = asyncio.create_task(agent.say_bytes(b"x" * 4_000_000))
        with pytest.raises(AgentLost, match="a message of more than"):
            await asking
        saying.cancel()


async def test_an_agent_that_is_silent_for_too_long_is_lost() -> None:
    """`receive_timeout`, which the SDK has from 0.10 on, works with all versions."""
    async with connected(receive_timeout=0.05) as (_, connection):
        with pytest.raises(AgentLost, match="no message within"):
            await connection.prompt(prompt=TEXT, session_id="s")


async def test_closing_tells_those_who_wait_and_those_who_come_later() -> None:
    """A close from another task ends the requests in flight; the connection cannot be used after."""
    async with connected() as (agent, connection):
        asking = prompt(connection)
        await agent.hear()
        await asyncio.create_task(connection.close())
        with pytest.raises(ConnectionClosed):
            await asking
        with pytest.raises(ScopeClosed):
            await connection.ext_method("late", {})
        with pytest.raises(ConnectionError):
            await connection.cancel(session_id="s")
        assert scope_of(connection).report is not None


async def test_closing_twice_and_at_once_is_fine() -> None:
    """All closers return when the connection is closed."""
    async with connected() as (_, connection):
        await asyncio.gather(*(connection.close() for _ in range(3)))
        await connection.close()


async def test_the_scope_around_closes_the_connection() -> None:
    """A connection that nobody closes ends with the scope in which it was made."""
    async with FakeAgent() as agent:
        async with quiesce.Scope("program", grace=1) as scope:
            connection = connect_to_agent(Client(), agent.writer, agent.reader)
            assert scope_of(connection).state == "open"
        assert scope_of(connection).state == "closed"
        assert scope.report is not None
        assert scope.report.ok


async def test_a_drain_waits_for_requests_in_flight() -> None:
    """A request is work: the scope around is drained when it has its answer."""
    async with FakeAgent() as agent:
        scope = await quiesce.Scope.open("program")

        async def ask() -> str:
            connection = connect_to_agent(Client(), agent.writer, agent.reader)
            return str((await connection.prompt(prompt=TEXT, session_id="s")).stop_reason)

        asking = scope.spawn(ask)
        request = await agent.hear()
        draining = asyncio.create_task(scope.drain(grace=5))
        await asyncio.sleep(0)
        assert not draining.done()
        await agent.say(id=request["id"], result={"stopReason": "end_turn"})
        assert (await draining).ok
        assert await asking == "end_turn"


async def test_a_handler_that_fails_is_answered_and_is_no_failure_of_the_scope() -> None:
    """The agent gets the error; the scope around does not fail with it."""
    async with FakeAgent() as agent, quiesce.Scope("program", grace=1) as scope:
        connect_to_agent(Client(), agent.writer, agent.reader)
        await agent.say(id=7, method="session/request_permission", params=PERMISSION)
        answer = await agent.hear()
        assert answer["id"] == 7
        assert "error" in answer
    assert scope.report is not None
    assert scope.report.ok


async def test_a_message_transport_works_with_every_version() -> None:
    """One object that sends and receives messages can be given in place of two streams."""
    memory = Memory()
    connection: Any = connect_to_agent(Client(), memory)
    asking = prompt(connection)
    request = await memory.sent.get()
    await memory.coming.put({"id": request["id"], "result": {"stopReason": "end_turn"}})
    assert (await asking).stop_reason == "end_turn"
    given_up = prompt(connection)
    request = await memory.sent.get()
    await settle(given_up)
    told = await memory.sent.get()
    assert told["params"] == {"requestId": request["id"]}
    await connection.close()
    assert memory.closed == 1


async def test_a_transport_whose_close_hangs_does_not_hang_ours() -> None:
    """The close is bounded, and the report names what is stuck."""
    memory = Memory(close_hangs=True)
    connection = connect_to_agent(Client(), memory, close_seconds=0.1)
    await connection.close()
    report = scope_of(connection).report
    assert report is not None
    assert memory.closed == 1


async def test_a_transport_whose_close_fails_is_in_the_report() -> None:
    """The close returns, and the failure is not lost."""
    memory = Memory(error=OSError("the cable is cut"))
    connection = connect_to_agent(Client(), memory)
    await connection.close()
    report = scope_of(connection).report
    assert report is not None
    (failure,) = report.failed
    assert str(failure.error) == "the cable is cut"


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ((None,), "two asyncio streams, or one transport"),
        ((object(), object()), "asyncio.StreamWriter"),
    ],
)
async def test_wrong_streams_are_refused(streams: tuple[Any, ...], words: str) -> None:
    """The error says what to give."""
    with pytest.raises(ArgumentError, match=words):
        connect_to_agent(Client(), *streams)


async def test_an_option_that_would_bypass_us_is_refused() -> None:
    """A sender of one's own is not silently ignored."""
    async with FakeAgent() as agent:
        with pytest.raises(ArgumentError, match="sender_factory"):
            connect_to_agent(
                Client(), agent.writer, agent.reader, sender_factory=lambda *_: object()
            )


async def test_a_strange_connection_has_no_scope() -> None:
    """The error says whose connections have one."""
    with pytest.raises(ArgumentError, match="was not made by quiesce"):
        scope_of(object())  # type: ignore[arg-type]  # on purpose


@pytest.mark.backends("trio")
async def test_trio_is_refused() -> None:
    """The SDK is made for asyncio, and the error says so."""
    with pytest.raises(UsageError, match="needs asyncio"):
        connect_to_agent(Client(), Memory())


async def scenario() -> None:
    """Connect, ask, be answered, and close."""
    memory = Memory()
    async with connect_to_agent(Client(), memory) as connection:
        await memory.coming.put(
            {"id": 7, "method": "session/request_permission", "params": PERMISSION}
        )
        await memory.coming.put({"id": 0, "result": {"stopReason": "end_turn"}})
        await connection.prompt(prompt=TEXT, session_id="s")


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_a_connection_stands_cancellation_at_every_await(backend: Any) -> None:
    """Cancelled anywhere, once or twice, nothing is left."""
    assert sweep(scenario, backend=backend, depth=2, where="all", cancel=["native", "scope"]).ok
