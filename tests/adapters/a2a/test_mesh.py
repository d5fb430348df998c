"""A2A agents in the mesh, behind real sockets, called by real clients of the SDK."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from quiesce import detached
from quiesce.core import process_exit
from quiesce.errors import ArgumentError
from quiesce.integrations.a2a import CASCADE_EXTENSION, quiesce_client
from quiesce.integrations.a2a.mesh.extension import take_ids
from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import CascadeFront, Settled, Unknown
from quiesce.mesh.transport.address_policy import Allowance
from tests.adapters.a2a import kit
from tests.adapters.a2a import mesh_kit as mesh

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = mesh.MARKS


first_only = pytest.mark.skipif(not kit.FIRST, reason="0.3 executes them at the same time")


async def test_a_cascade_through_three_agents_settles_when_the_last_work_has_ended(
    tmp_path: Path,
) -> None:
    """None waits for the next, and the last leaves work behind that outlives its request."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "b", "c")
        a, _, c = [await town.build(name) for name in "abc"]
        async with await quiesce_client(node, a.url, config=mesh.polling()) as client:
            async with node.cascade("trip") as cascade:
                await mesh.send(client, "hand b hand_c_leave__k__complete_complete complete")
            await c.agent.waits("k")
            assert isinstance(await cascade.settled(mesh.SOON), Unknown)
            c.agent.release("k")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.hops == 4


@pytest.mark.parametrize("way", ["polling", "blocking", "streaming"])
async def test_work_that_outlives_its_message_keeps_the_cascade_open(
    tmp_path: Path, way: str
) -> None:
    """However the message was sent, and although its task is completed."""
    config = None if way == "streaming" else getattr(mesh, way)()
    async with mesh.one(tmp_path, config) as (place, node, client):
        async with node.cascade("one") as cascade:
            await mesh.send(client, "leave k complete")
        await place.agent.waits("k")
        assert isinstance(await cascade.settled(mesh.SOON), Unknown)
        place.agent.release("k")
        settled = await cascade.settled(5)
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.hops == 2


async def test_the_mesh_may_not_be_around_an_app_that_drains(tmp_path: Path) -> None:
    """The node would be drained apart from the tasks; the message has the right order."""
    async with mesh.town(tmp_path) as town:
        with pytest.raises(ArgumentError, match=r"quiesce_app\(agent, node=node\)"):
            await town.build("a", lambda place: place.node.asgi(place.app))


@pytest.mark.parametrize("how", ["front", "quiesce", "both"])
async def test_what_is_around_an_app_that_drains_changes_nothing(tmp_path: Path, how: str) -> None:
    """The node is opened once, the message is taken once, and the outermost drain has all of it."""
    outer: list[Quiesce] = []

    def around(place: mesh.Place) -> Any:
        app = place.app
        if how != "front":
            outer.append(Quiesce(app, grace=0.1, cleanup=1, hold_signal=False, exit_code=False))
            app = outer[0]
        return app if how == "quiesce" else CascadeFront(place.node, app)

    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a", around)
        async with await quiesce_client(node, place.url, config=mesh.blocking()) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "leave k complete")
            await place.agent.waits("k")
            if outer:
                report = await outer[0].drain()
                assert [len(report.cancelled), report.ok] == [1, False]
            else:
                place.agent.release("k")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.hops == 2
            assert settled.receipt.cancelled == len(outer)
            assert settled.ok is not bool(outer)


async def test_a_client_that_leaves_does_not_end_the_hop(tmp_path: Path) -> None:
    """The request is gone, the execution goes on, and its sender asks for its end."""
    async with mesh.one(tmp_path, mesh.blocking()) as (place, node, client):
        async with node.cascade("one") as cascade:
            sending = asyncio.create_task(mesh.send(client, "wait k complete"))
            await place.agent.waits("k")
            sending.cancel()
            await asyncio.wait([sending])
        assert isinstance(await cascade.settled(mesh.SOON), Unknown)
        place.agent.release("k")
        settled = await cascade.settled(5)
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.hops == 2


async def test_a_parked_task_has_ended_for_the_message_that_parked_it(tmp_path: Path) -> None:
    """Nothing more comes of that message; what comes of the next one belongs to that."""
    async with mesh.one(tmp_path, mesh.blocking()) as (place, node, client):
        async with node.cascade("first") as first:
            (event,) = await mesh.send(client, "park")
        assert isinstance(await first.settled(5), Settled)
        task = mesh.task_of(event)
        again = {"task_id": task.id, "context_id": task.context_id}
        async with node.cascade("second") as second:
            await mesh.send(client, "leave k park", **again)
        await place.agent.waits("k")
        assert isinstance(await second.settled(mesh.SOON), Unknown)
        async with node.cascade("third") as third:
            await mesh.send(client, "complete", **again)
        assert isinstance(await third.settled(5), Settled)
        assert isinstance(await second.settled(mesh.SOON), Unknown)
        place.agent.release("k")
        assert isinstance(await second.settled(5), Settled)


async def test_a_message_behind_another_is_in_flight_until_it_was_executed(tmp_path: Path) -> None:
    """Its request is answered at once; 1.x executes one message of a task after the other."""
    async with mesh.one(tmp_path, mesh.polling()) as (place, node, client):
        async with node.cascade("first") as first:
            (event,) = await mesh.send(client, "wait k update park")
        await place.agent.waits("k")
        task = mesh.task_of(event)
        again = {"task_id": task.id, "context_id": task.context_id}
        async with node.cascade("second") as second:
            sending = asyncio.create_task(mesh.send(client, "wait l complete", **again))
            while len(place.node.opened.running_hops) < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            place.agent.release("k")
            await sending
        await place.agent.waits("l")
        assert isinstance(await first.settled(5), Settled)
        assert isinstance(await second.settled(mesh.SOON), Unknown)
        place.agent.release("l")
        assert isinstance(await second.settled(5), Settled)


@first_only
async def test_a_stranger_with_the_id_of_a_message_is_not_taken_for_it(tmp_path: Path) -> None:
    """Clients choose the ids of messages; one that is in no cascade is executed in none."""
    async with mesh.one(tmp_path, mesh.polling()) as (place, node, client):
        async with node.cascade("first"):
            (event,) = await mesh.send(client, "wait k update park")
        await place.agent.waits("k")
        task = mesh.task_of(event)
        request = mesh.outgoing("wait l complete", task_id=task.id, context_id=task.context_id)
        async with node.cascade("second") as second:
            sending = asyncio.create_task(mesh.all_of(client, request))
            while len(place.node.opened.running_hops) < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            stranger = kit.sending("leave m complete")
            stranger["message"]["messageId"] = request.message.message_id
            with detached():  # or it would leave this hop, untracked
                assert "result" in await mesh.call(place.url, stranger)
            place.agent.release("k")
            await sending
        async with asyncio.timeout(5):
            await place.agent.waits("l")
        assert isinstance(await second.settled(mesh.SOON), Unknown)
        place.agent.release("l")
        assert isinstance(await second.settled(5), Settled)  # and nothing of the stranger's


@first_only
async def test_a_message_whose_cascade_was_cancelled_meanwhile_is_not_executed(
    tmp_path: Path,
) -> None:
    """It waits behind another, which goes on; nobody would know of what it does."""
    async with mesh.one(tmp_path, mesh.polling()) as (place, node, client):
        async with node.cascade("first") as first:
            (event,) = await mesh.send(client, "wait k park")
        await place.agent.waits("k")
        task = mesh.task_of(event)
        again = {"task_id": task.id, "context_id": task.context_id}
        async with node.cascade("second") as second:
            sending = asyncio.create_task(mesh.send(client, "complete", **again))
            while len(place.node.opened.running_hops) < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        await second.cancel()
        await asyncio.wait([sending])
        settled = await second.settled(5)
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.cancelled
        place.agent.release("k")
        assert isinstance(await first.settled(5), Settled)
        await place.handler.idle()
        assert place.agent.executed == 1
        assert await mesh.state(place, task.id) == "input-required"


async def test_ids_in_the_message_do_where_headers_get_lost(tmp_path: Path) -> None:
    """The hop is opened from them, and nobody carries its answer: its sender asks."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        async with httpx.AsyncClient(transport=mesh.Dropping(), headers=mesh.VERSION) as http:
            config = mesh.polling(httpx_client=http)
            async with await quiesce_client(node, place.url, config=config) as client:
                async with node.cascade("one") as cascade:
                    await mesh.send(client, "leave k complete")
                await place.agent.waits("k")
                assert isinstance(await cascade.settled(mesh.SOON), Unknown)
                place.agent.release("k")
                settled = await cascade.settled(5)
                assert isinstance(settled, Settled), str(settled)
                assert settled.receipt.hops == 2


async def test_a_copy_of_a_message_is_refused(tmp_path: Path) -> None:
    """It is executed once, and the copy is answered with an error of the protocol."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        way = mesh.Dropping()
        async with httpx.AsyncClient(transport=way, headers=mesh.VERSION) as http:
            config = mesh.blocking(httpx_client=http)
            async with await quiesce_client(node, place.url, config=config) as client:
                async with node.cascade("one") as cascade:
                    await mesh.send(client, "complete")
                answer = await http.post(f"{place.url}/", content=way.bodies[-1], headers=mesh.JSON)
                assert "not worked on" in answer.json()["error"]["message"]
                assert answer.json()["error"]["code"] == -32602
                assert place.agent.executed == 1
                assert isinstance(await cascade.settled(5), Settled)


@pytest.mark.parametrize("ids", ["no header", {"cascade": 7}, {"cascade": "00-", "to": "OWN"}])
async def test_ids_that_are_none_open_no_hop(tmp_path: Path, ids: Any) -> None:
    """What is not of the protocol is refused or not looked at; nothing breaks."""
    async with mesh.town(tmp_path) as town:
        place = await town.build("a")
        if isinstance(ids, dict) and "to" in ids:
            ids = ids | {"to": place.url}
        params = kit.sending("complete")
        params["message"]["metadata"] = {CASCADE_EXTENSION: ids}
        answer = await mesh.call(place.url, params)
        is_refused = isinstance(ids, dict) and "to" in ids
        assert answer.get("error", {}).get("code") == (-32602 if is_refused else None)
        assert not place.node.opened.running_hops


async def test_ids_for_another_agent_open_no_hop(tmp_path: Path) -> None:
    """Who passes a message on as it came does not make its receiver answer for it."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        params = kit.sending("complete")
        async with node.cascade("one") as cascade:
            with node.opened.running_hops[cascade._begun().edge].delegate(
                "http://elsewhere"
            ) as handing:
                ids = {"cascade": handing.header, "to": "http://elsewhere"}
                params["message"]["metadata"] = {CASCADE_EXTENSION: ids}
                assert "result" in await mesh.call(place.url, params)
                handing.not_sent()
        assert not place.node.opened.engine.detector.knows(handing.edge_id)
        message = mesh.with_metadata({CASCADE_EXTENSION: ids})
        assert (
            take_ids(message, None) is None
        )  # nor of a node that has no address: none are sent to it
        assert not mesh.metadata_of(message)


async def test_the_ids_are_neither_stored_nor_seen_by_the_executor(tmp_path: Path) -> None:
    """They are secrets, and for this agent alone."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        client = await quiesce_client(node, place.url, config=mesh.blocking())
        async with client, node.cascade("one"):
            (event,) = await mesh.send(client, "complete")
        assert not mesh.metadata_of(place.agent.heard[0])
        task = kit.to_dict(mesh.task_of(event))
        assert task["history"]
        assert ";b=" not in str(task["history"])


async def test_the_card_declares_the_extension(tmp_path: Path) -> None:
    """It is not required, has a version in its URI, and says where receipts are."""
    async with mesh.town(tmp_path) as town, httpx.AsyncClient() as http:
        place = await town.build("a")
        card = (await http.get(f"{place.url}/.well-known/agent-card.json")).json()
        (found,) = card["capabilities"]["extensions"]
        assert found["uri"] == CASCADE_EXTENSION == "urn:quiesce:cascade:00"
        assert not found.get("required")
        assert found["params"] == {"receipts": f"{place.url}/quiesce/receipts"}


@pytest.mark.parametrize("way", ["polling", "streaming"])
async def test_a_cancelled_cascade_cancels_its_tasks(tmp_path: Path, way: str) -> None:
    """The executor is cut short, its task is CANCELED, and what it has left behind ends."""
    config = None if way == "streaming" else mesh.polling()
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                sending = asyncio.create_task(mesh.send(client, "leave b wait k complete"))
                await place.agent.waits("k")
                if way == "polling":
                    await sending
            await cascade.cancel()
            await asyncio.wait([sending])
            settled = await cascade.settled(5)
            assert settled.receipt.cancelled, str(settled)
            assert isinstance(settled, Settled), str(settled)
        assert place.agent.left[0].cancelled()
        await place.handler.idle()
        assert await mesh.state(place, place.agent.task_ids[-1]) == "canceled"


async def test_an_executor_that_fails_is_a_hop_that_failed(tmp_path: Path) -> None:
    """And it has ended."""
    async with mesh.one(tmp_path, mesh.polling()) as (_, node, client):
        async with node.cascade("one") as cascade:
            await asyncio.wait([asyncio.create_task(mesh.sent(client, "turn raise"))])
        settled = await cascade.settled(5)
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.failed == 1


async def test_a_message_that_the_sdk_refuses_is_a_hop_that_has_ended(tmp_path: Path) -> None:
    """By header or by metadata: nothing of it is left in flight."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        for way in (httpx.AsyncHTTPTransport(), mesh.Dropping()):
            async with httpx.AsyncClient(transport=way, headers=mesh.VERSION) as http:
                config = mesh.blocking(httpx_client=http)
                async with await quiesce_client(node, place.url, config=config) as client:
                    async with node.cascade("one") as cascade:
                        with pytest.raises(Exception, match=r"not found|does not exist"):
                            await mesh.send(client, "complete", task_id="nobody's")
                    settled = await cascade.settled(5)
                    assert isinstance(settled, Settled), str(settled)
                    assert settled.receipt.hops == 2


async def test_receipts_are_taken_while_the_server_drains(tmp_path: Path) -> None:
    """A hop in flight needs them; a new message is refused, and its sender is told so."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "b")
        outer: list[Quiesce] = []

        def around(place: mesh.Place) -> Any:
            outer.append(Quiesce(place.app, grace=5, hold_signal=False, exit_code=False))
            return CascadeFront(place.node, outer[0])

        a = await town.build("a", around=around)
        b = await town.build("b")
        async with await quiesce_client(node, a.url, config=mesh.polling()) as client:
            async with node.cascade("one") as one:
                await mesh.send(client, "hand b leave_l_complete leave k complete")
            await a.agent.waits("k")
            await b.agent.waits("l")
            draining = asyncio.create_task(outer[0].drain())
            while not outer[0].draining:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            async with httpx.AsyncClient() as http:
                for path in ("receipts", "probe"):
                    told = await http.post(f"{a.url}/quiesce/{path}", json={"v": 0})
                    assert told.status_code == 200, told.text
            async with node.cascade("two") as two:
                with pytest.raises(Exception, match="503"):
                    await mesh.send(client, "complete")
            settled = await two.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert [note.status for note in settled.receipt.notes if note.parent] == ["refused"]
            b.agent.release("l")
            hops = a.node.opened.engine.known.hop_records
            while any(hop.edges for hop in hops.values()):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)  # the node is closed when the work here has ended
            a.agent.release("k")
            settled = await one.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert (await draining).ok


@pytest.mark.parametrize("is_open", [False, True])
async def test_who_waits_for_receipts_does_not_hold_up_a_server_that_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """Servers wait for open requests, and such a question is one, for up to half a minute."""
    monkeypatch.setattr(process_exit, "_lost", False)  # the other agent's work is cut: a loss
    with mesh.told_by_signal() as ending:
        async with mesh.town(tmp_path) as town, mesh.script() as node:
            town.plan("a", "b")
            place = await town.build("a", ending=ending, is_open=is_open, grace=60)
            other = await town.build("b")
            async with await quiesce_client(node, place.url, config=mesh.polling()) as client:
                async with node.cascade("one"):
                    await mesh.send(client, "hand b leave_k_complete complete")
                await other.agent.waits("k")
                await place.handler.idle()
                while not place.node.opened.exchange.waiting_polls:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
                ending.by_signal()
                await asyncio.wait_for(ending.ended(), 10)


async def test_idle_waits_for_what_an_executor_has_left_in_a_hop(tmp_path: Path) -> None:
    """As it does without a mesh; and so does a drain."""
    async with mesh.one(tmp_path, mesh.blocking()) as (place, node, client):
        async with node.cascade("one"):
            await mesh.send(client, "leave k complete")
        await place.agent.waits("k")
        idle = asyncio.create_task(place.handler.idle())
        await asyncio.wait([idle], timeout=mesh.SOON)
        assert not idle.done()
        place.agent.release("k")
        await idle


@pytest.mark.skipif(not kit.FIRST, reason="0.3 serves no other")
async def test_a_message_of_an_older_protocol_is_part_of_its_cascade(tmp_path: Path) -> None:
    """A mesh may have agents of both; the card says that clients of 0.3 are served."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a", also_old=True)
        part = {"kind": "text", "text": "leave k complete"}
        message = {"messageId": "1", "role": "user", "parts": [part], "kind": "message"}
        params = {"message": message}
        body = {"jsonrpc": "2.0", "id": "1", "method": "message/send", "params": params}
        async with node.client() as http:
            async with node.cascade("one") as cascade:
                answer = (await http.post(f"{place.url}/", json=body)).json()
                assert answer["result"]["status"]["state"] == "completed", answer
            await place.agent.waits("k")
            assert isinstance(await cascade.settled(mesh.SOON), Unknown)
            place.agent.release("k")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.hops == 2


@pytest.mark.skipif(not kit.FIRST, reason="0.3 has other stubs; the way of the ids is the same")
@pytest.mark.quiesce(allow=[*kit.LEFT_TO_THE_COLLECTOR, mesh.WATCHER, "thread:*"])
async def test_a_message_by_grpc_is_part_of_its_cascade(tmp_path: Path) -> None:
    """No header travels there: the ids do, and the receipts by HTTP."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        async with mesh.by_grpc(place) as config:
            card = mesh.declared(place.url, grpc=config.port)
            async with await quiesce_client(node, card, config=config.client) as client:
                assert client.takes_part
                async with node.cascade("one") as cascade:
                    await mesh.send(client, "leave k complete")
                await place.agent.waits("k")
                assert isinstance(await cascade.settled(mesh.SOON), Unknown)
                place.agent.release("k")
                settled = await cascade.settled(5)
                assert isinstance(settled, Settled), str(settled)
                assert settled.receipt.hops == 2


async def test_a_flood_of_messages_that_others_have_refused_is_not_remembered() -> None:
    """Whoever has no right to be here could fill the journal otherwise."""

    async def no(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body"})

    async def taken(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(dict(message["headers"])[b"cascade-receipt"].decode())

    answers: list[str] = []
    async with mesh.script() as node:
        node.opened.exchange._noted._callers[""] = Allowance(1, 0.0, node.opened.clock)
        for _ in range(3):
            header = (b"cascade", mesh.edge(node).encode())
            scope = {"type": "http", "path": "/", "method": "POST", "headers": [header]}
            await CascadeFront(node, no)(scope, no, taken)  # type: ignore[arg-type]  # it reads nothing
        assert len(node.opened.engine.known.over_receipts) == 1
        assert all(answer.endswith(";s=not-now") for answer in answers)
        assert len(answers) == 3
