"""What a client asks of its agent: each request's life, from before it is sent until its answer."""

from __future__ import annotations

import asyncio
import gc
import inspect
from typing import Any

import acp
import pytest

import quiesce
from quiesce.errors import SdkUnknown, UsageError
from quiesce.integrations.acp import (
    AgentLost,
    ConnectionClosed,
    connect_to_agent,
    scope_of,
    sdk_connection,
)
from tests.adapters.acp.agents import stays_flat
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

CONTENT = {"type": "text", "text": "soon"}
UPDATE = {"sessionUpdate": "agent_message_chunk", "content": CONTENT}


class Slow(Memory):
    """A transport that does not get rid of a message; it may take a cancellation for its own."""

    def __init__(self, *, swallows: bool = False) -> None:
        """Send nothing."""
        super().__init__()
        self._swallows = swallows

    async def send(self, message: dict[str, Any]) -> None:
        """Wait for ever, or until somebody cancels."""
        self.sent.put_nowait(message)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self._swallows:
                raise


def ask(connection: Any, what: str) -> asyncio.Task[Any]:
    """Send a request or a notification, in a task."""
    send = connection.ext_method if what == "request" else connection.ext_notification
    return asyncio.create_task(send("it", {}))


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("what", ["request", "notification"])
async def test_closing_tells_those_whose_transport_takes_for_ever(
    what: str, *, swallows: bool
) -> None:
    """Nobody waits for a transport longer than for its connection, and no cancellation is left."""
    memory = Slow(swallows=swallows)
    connection: Any = connect_to_agent(Client(), memory)
    task = ask(connection, what)
    await memory.sent.get()
    assert f"{what} _it" in str(scope_of(connection).frontier())
    await connection.close()
    with pytest.raises(ConnectionClosed):
        await task
    assert not task.cancelling()


@pytest.mark.parametrize("first", ["loss", "cancellation"])
@pytest.mark.parametrize("what", ["request", "notification"])
async def test_a_cancellation_at_the_time_of_a_loss_is_not_lost(what: str, first: str) -> None:
    """Whoever is told of both in the same turn of the event loop is cancelled."""
    memory = Slow()
    async with connect_to_agent(Client(), memory) as connection:
        task = ask(connection, what)
        await memory.sent.get()
        memory.coming.put_nowait(None)  # it is read in the next turn
        if first == "loss":
            await asyncio.sleep(0)
        await settle(task)


async def test_a_loss_tells_those_whose_transport_takes_for_ever() -> None:
    """An agent that is gone is told to a caller that has not got rid of its request."""
    memory = Slow()
    async with connect_to_agent(Client(), memory) as connection:
        task = ask(connection, "request")
        await memory.sent.get()
        memory.coming.put_nowait(None)
        with pytest.raises(AgentLost):
            await task


@pytest.mark.parametrize("answer", [{"result": {}}, {"error": {"code": 1, "message": "no"}}])
async def test_a_caller_that_is_cancelled_with_its_answer_on_the_way(answer: Any) -> None:
    """It is cancelled, the agent is not told, and an error that nobody sees is no complaint."""
    memory = Memory()
    async with connect_to_agent(Client(), memory) as connection:
        task = ask(connection, "request")
        request = await memory.sent.get()
        memory.coming.put_nowait({"id": request["id"], **answer})
        await asyncio.sleep(0)
        assert not scope_of(connection).frontier().in_flight
        await settle(task)
        assert memory.sent.empty()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"error": {"code": 7, "message": "too late", "data": 1}}, "too late"),
        ({"error": "too late"}, "Error"),
        ({"method": None, "error": {}}, "Error"),
    ],
)
async def test_an_error_of_the_agent_is_raised(answer: Any, text: str) -> None:
    """It is the SDK's, also where the agent's own is not what the protocol says."""
    async with connected() as (agent, connection):
        task = ask(connection, "request")
        request = await agent.hear()
        await agent.say(id=request["id"], **answer)
        with pytest.raises(acp.RequestError, match=text) as raised:
            await task
        assert raised.value.code == (7 if text == "too late" else -32603)


@pytest.mark.parametrize("answer", [{"result": {"a": 1}}, {"method": None, "result": {"a": 1}}])
async def test_an_answer_may_have_what_is_null(answer: Any) -> None:
    """Some agents send every field: a method that is null is none."""
    async with connected() as (agent, connection):
        task = ask(connection, "request")
        request = await agent.hear()
        await agent.say(id=request["id"], **answer)
        assert await task == {"a": 1}


def nested(depth: int) -> Any:
    """Make what no encoder goes to the bottom of."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("params", "error"), [({"a": object()}, TypeError), ({"a": nested(100_000)}, RecursionError)]
)
async def test_what_cannot_be_encoded_is_the_callers_own_error(params: Any, error: Any) -> None:
    """The connection goes on, and nothing is in flight."""
    async with connected() as (agent, connection):
        with pytest.raises(error):
            await connection.ext_method("bad", params)
        assert not scope_of(connection).frontier().in_flight
        task = ask(connection, "request")
        await agent.say(id=(await agent.hear())["id"], result={})
        assert await task == {}


async def test_the_scope_around_is_busy_while_a_request_is_in_flight() -> None:
    """Whoever asks, and wherever: the request is the connection's, and that is the scope's."""

    async def connect() -> Any:
        return connect_to_agent(Client(), memory)

    memory = Memory()
    async with asyncio.timeout(5):
        scope = await quiesce.Scope.open("program")
        connection = await scope.spawn(connect)
        await scope.idle()
        task = ask(connection, "request")
        request = await memory.sent.get()
        idle = asyncio.create_task(scope.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        memory.coming.put_nowait({"id": request["id"], "result": {}})
        await task
        await idle
        assert (await scope.aclose()).ok


async def test_in_a_drain_an_agent_can_be_told_but_not_asked() -> None:
    """To cancel the turn that the drain waits for is no new work; another request is."""
    async with connected() as (agent, connection):
        asking = prompt(connection)
        request = await agent.hear()
        scope = scope_of(connection)
        draining = asyncio.create_task(scope.drain(grace=5))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionClosed):
            await connection.ext_method("new", {})
        await connection.cancel(session_id="s")
        assert (await agent.hear())["method"] == "session/cancel"
        await agent.say(id=request["id"], result={"stopReason": "cancelled"})
        assert (await asking).stop_reason == "cancelled"
        assert (await draining).ok


async def test_a_prompt_is_told_of_a_close_although_an_update_is_being_handled() -> None:
    """The handler ends with the connection, and so does the prompt, which may wait for it."""

    class Busy(Client):
        async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
            self.updated.set()
            await asyncio.Event().wait()

    client = Busy()
    async with connected(client) as (agent, connection):
        asking = prompt(connection)
        await agent.hear()
        await agent.say(method="session/update", params={"sessionId": "s", "update": UPDATE})
        await client.updated.wait()
        await connection.close()
        with pytest.raises(ConnectionClosed):
            await asking


async def test_a_request_is_told_by_the_line_that_awaits_it() -> None:
    """Not by a line of the SDK, nor by one of quiesce's."""
    async with connected() as (agent, connection):

        async def inner() -> None:
            await connection.ext_method("it", {})

        async def outer() -> None:
            await inner()

        task = asyncio.create_task(outer())
        await agent.hear()
        (entry,) = scope_of(connection).frontier().in_flight
        line = inspect.getsourcelines(inner)[1] + 1
        assert entry.where == f"{__file__}:{line}"
        await settle(task)


async def test_a_request_that_is_all_of_its_task_is_told_by_who_has_started_that() -> None:
    """As far as that is known: it is, in a scope that adopts."""
    async with (
        connected() as (agent, connection),
        quiesce.Scope("program", adopt=True, grace=0),
    ):
        task = ask(connection, "request")
        await agent.hear()
        (entry,) = scope_of(connection).frontier().in_flight
        assert entry.where is not None
        assert entry.where.startswith(__file__)
        await settle(task)


async def test_a_connection_cannot_be_used_from_another_event_loop() -> None:
    """The error says so, and nothing is sent."""
    memory = Memory()
    async with connect_to_agent(Client(), memory) as connection:
        with pytest.raises(UsageError, match="another thread or event loop"):
            await asyncio.to_thread(asyncio.run, connection.ext_method("it", {}))
        assert memory.sent.empty()


async def test_observers_see_every_message() -> None:
    """Each once, in order, whoever sends it; one that fails, or takes time, is no trouble."""
    seen: list[str] = []

    async def later(_: Any) -> None:
        await asyncio.sleep(0)
        seen.append("later")

    def observe(event: Any) -> Any:
        message = event.message
        what = message.get("method") or ("error" if "error" in message else "answer")
        seen.append(f"{event.direction.value} {what}")
        return later(event) if what == "_it" else None

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    async with connected(observers=[observe, fail]) as (agent, connection):
        task = ask(connection, "request")
        await agent.say(id=(await agent.hear())["id"], result={})
        await task
        await connection.cancel(session_id="s")
        await agent.hear()
        await agent.say(id=7, method="session/request_permission", params=PERMISSION)
        await agent.hear()
        await scope_of(connection).idle()
    assert "later" in seen
    assert [what for what in seen if what != "later"] == [
        "outgoing _it",
        "incoming answer",
        "outgoing session/cancel",
        "incoming session/request_permission",
        "outgoing error",
    ]


async def test_what_an_observer_starts_ends_with_the_connection() -> None:
    """Its caller may be long gone."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def observe(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    memory = Memory()
    connection: Any = connect_to_agent(Client(), memory, observers=[observe])
    await ask(connection, "notification")
    await begun.wait()
    await connection.close()
    assert ended.is_set()


async def test_an_sdk_that_sends_by_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is known of its private parts is checked, not assumed; nothing is left open."""
    monkeypatch.setattr(sdk_connection, "Connection", FakeAgent)
    async with quiesce.Scope("program", grace=0) as scope:
        with pytest.raises(SdkUnknown, match="_conn"):
            connect_to_agent(Client(), Memory())
        assert not scope.frontier().in_flight


async def test_many_ask_at_once_and_each_has_its_own_answer() -> None:
    """Requests, and prompts through the SDK's models, in any order."""
    memory = Memory()
    async with connect_to_agent(Client(), memory) as connection:
        tasks = [
            asyncio.create_task(connection.prompt(prompt=TEXT, session_id=str(number)))
            for number in range(64)
        ]
        asked = [await memory.sent.get() for _ in tasks]
        for request in reversed(asked):
            meta = {"session": request["params"]["sessionId"]}
            result = {"stopReason": "end_turn", "_meta": meta}
            memory.coming.put_nowait({"id": request["id"], "result": result})
        answers: list[Any] = [await task for task in tasks]
        found = [answer.field_meta["session"] for answer in answers]
        assert found == [str(number) for number in range(64)]
        assert not scope_of(connection).frontier().in_flight


async def cycle() -> None:
    """Connect, prompt, be answered; give up another prompt, and close with a third in flight."""
    async with connected() as (agent, connection):
        answered = prompt(connection)
        await agent.say(id=(await agent.hear())["id"], result={"stopReason": "end_turn"})
        await answered
        given_up = prompt(connection)
        await agent.hear()
        await settle(given_up)
        in_flight = prompt(connection)
        while (await agent.hear())["method"] != "session/prompt":
            pass
        await connection.close()
        with pytest.raises(ConnectionClosed):
            await in_flight


async def test_many_connections_leave_nothing() -> None:
    """Tasks, files and memory are what they were."""
    await stays_flat(cycle)


@pytest.mark.parametrize("around", [False, True])
async def test_a_connection_that_is_dropped_is_closed(around: bool) -> None:  # noqa: FBT001 - a case
    """Nobody can close it any more: it ends when it is collected, with no scope around it as well."""
    before = asyncio.all_tasks()
    scope = await quiesce.Scope.open("program") if around else None
    async with FakeAgent() as agent:
        await _ask_once(agent)
        gc.collect()
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 - nobody could set an event
            await asyncio.sleep(0)
    if scope is not None:
        assert not scope.frontier()
        await scope.aclose()


async def _ask_once(agent: FakeAgent) -> None:
    """Connect, ask something, and forget the connection."""
    connection: Any = connect_to_agent(Forgetful(), agent.writer, agent.reader)
    asking = asyncio.create_task(connection.ext_method("echo", {}))
    request = await agent.hear()
    await agent.say(id=request["id"], result={})
    await asking


class Forgetful(Client):
    """A client that does not keep its connection."""

    def on_connect(self, connection: Any) -> None:
        """Keep nothing."""
