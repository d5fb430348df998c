"""Pushes of A2A agents as messages of a cascade, over real sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from a2a.server.tasks import InMemoryTaskStore
from starlette.responses import PlainTextResponse

from quiesce.integrations.a2a import DurablePushSender, MemoryOutbox, SqliteOutbox, quiesce_client
from quiesce.mesh import Node, Settled, Unknown, current_hop
from tests.adapters.a2a import kit
from tests.adapters.a2a import mesh_kit as mesh
from tests.adapters.a2a.pushing_handler import LOCAL, SOON
from tests.adapters.a2a.server import webhook

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = mesh.MARKS


class Receiver:
    """A receiver of pushes that takes part; it works on each until it is let go."""

    def __init__(self, folder: Path, url: str, peers: Any) -> None:
        """Answer 200 to all."""
        self.node = Node(
            "receiver",
            url=url,
            store=folder / "receiver.journal",
            peers=peers,
            patience=mesh.QUICK,
        )
        self.app = self.node.asgi(self._serve)
        self.statuses: list[int] = []
        self.marks: list[str] = []
        self.asked: set[str] = set()
        self.taken: set[str] = set()
        self.go = asyncio.Event()
        self.arrived = asyncio.Event()
        self.work: list[Any] = []

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        hop = current_hop()
        self.marks.append("" if hop is None else hop.mark)
        self.asked.add(headers["x-quiesce-push"])
        self.work.append(asyncio.create_task(self.go.wait()))
        self.arrived.set()
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.taken.add(headers["x-quiesce-push"])
        await PlainTextResponse("", status)(scope, receive, send)


def pushing(outbox: Any = None, **options: Any) -> dict[str, Any]:
    """Return the options of an agent that pushes."""
    sender = DurablePushSender(
        outbox or MemoryOutbox(), allow_private=LOCAL, backoff=SOON, **options
    )
    return {"outbox": sender}


def sending_to(url: str) -> Any:
    """Return the configuration of a client whose tasks are pushed."""
    if kit.FIRST:
        from a2a.types import TaskPushNotificationConfig  # noqa: PLC0415 - not in 0.3

        return mesh.blocking(push_notification_config=TaskPushNotificationConfig(url=url))
    from a2a.types import PushNotificationConfig  # noqa: PLC0415 - not in 1.x

    return mesh.blocking(push_notification_configs=[PushNotificationConfig(url=url)])


async def received(town: mesh.Town, folder: Path, around: Any = None) -> Receiver:
    """Start a receiver that takes part."""
    town.plan("r")
    receiver = Receiver(folder, town.urls["r"], town.urls.values())
    await town.serve("r", around(receiver) if around else receiver.app)
    return receiver


async def test_what_a_push_leads_to_is_part_of_the_cascade(tmp_path: Path) -> None:
    """Each is an edge of the hop that it tells of, also those that are sent after it was executed."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "r")
        receiver = await received(town, tmp_path)
        place = await town.build("a", **pushing())
        config = sending_to(f"{receiver.node.url}/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            await place.handler.idle()
            assert all(receiver.marks)
            assert isinstance(await cascade.settled(mesh.SOON), Unknown)
            receiver.go.set()
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.hops == 2 + len(receiver.marks)


async def test_a_push_that_is_tried_again_has_the_same_edge(tmp_path: Path) -> None:
    """A peer that says nothing of it is asked, and as long as it says nothing, it is not known."""
    async with mesh.town(tmp_path) as town, mesh.script() as node, webhook() as hook:
        town.peers = [hook.url.removesuffix("/hook")]
        place = await town.build("a", **pushing())
        hook.statuses = [500, 500]
        async with await quiesce_client(node, place.url, config=sending_to(hook.url)) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            await place.handler.idle()
        edges = [headers["cascade"] for headers in hook.headers]
        assert len(set(edges)) == len(edges) == hook.requests - 2
        tries = {(headers["x-quiesce-push"], headers["cascade"]) for headers in hook.tries}
        assert len(tries) == len(edges)
        settled = await cascade.settled(mesh.SOON, require="participants")
        assert isinstance(settled, Unknown), str(settled)


async def test_a_receiver_that_fails_is_sent_the_push_again_as_another_message(
    tmp_path: Path,
) -> None:
    """It has worked on the first one, and takes no copy; the hop is open until it has taken one."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "r")
        receiver = await received(town, tmp_path)
        receiver.statuses = [500, 503]
        receiver.go.set()
        place = await town.build("a", **pushing())
        config = sending_to(f"{receiver.node.url}/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert len(set(receiver.marks)) == len(receiver.marks) == settled.receipt.hops - 2
            assert receiver.taken == receiver.asked
            assert len(receiver.marks) == len(receiver.taken) + 2


async def test_a_push_whose_answer_was_lost_is_not_worked_on_twice(tmp_path: Path) -> None:
    """The second attempt is refused, as one that was taken; so it was delivered."""
    lost: list[int] = []

    def losing(receiver: Receiver) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def nowhere(message: Any) -> None:
                del message

            if scope["type"] == "http" and scope["path"] == "/hook" and not lost:
                lost.append(1)
                await receiver.app(scope, receive, nowhere)
                await PlainTextResponse("", 502)(scope, receive, send)
            else:
                await receiver.app(scope, receive, send)

        return app

    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "r")
        receiver = await received(town, tmp_path, losing)
        receiver.go.set()
        place = await town.build("a", **pushing())
        config = sending_to(f"{receiver.node.url}/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert lost
            assert len(receiver.marks) == len(receiver.asked)
            assert len(set(receiver.marks)) == len(receiver.marks) == settled.receipt.hops - 2
            assert not await place.app.state.push_sender.dead_letters()


async def test_a_push_that_reaches_nobody_was_not_sent(tmp_path: Path) -> None:
    """It becomes a dead letter, and nothing of the cascade is in doubt."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a", **pushing(attempts_max=2))
        config = sending_to("http://127.0.0.1:9/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert not settled.receipt.opaque
            assert settled.receipt.hops == 2
            assert await place.app.state.push_sender.dead_letters()


async def test_a_push_that_waits_keeps_its_cascade_open(tmp_path: Path) -> None:
    """Its receiver has been down so far."""
    async with mesh.town(tmp_path) as town, mesh.script() as node, webhook() as hook:
        hook.gate = asyncio.Event()
        place = await town.build("a", **pushing())
        async with await quiesce_client(node, place.url, config=sending_to(hook.url)) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            await hook.asked(1)
            assert isinstance(await cascade.settled(mesh.SOON), Unknown)
            hook.gate.set()
            assert isinstance(await cascade.settled(5, require="participants"), Settled)


async def test_a_receiver_that_is_no_peer_is_sent_no_ids_and_never_asked(tmp_path: Path) -> None:
    """Clients say where pushes go: they could have any server asked that the agent reaches."""
    async with mesh.town(tmp_path) as town, mesh.script() as node, webhook() as hook:
        place = await town.build("a", **pushing())
        hook.extra = "Cascade-Receipt: 00-123456789abc;s=working;d=ask\r\n"
        async with await quiesce_client(node, place.url, config=sending_to(hook.url)) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            settled = await cascade.settled(5, require="participants")
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.opaque == len(hook.headers)
        assert not any("cascade" in headers for headers in hook.headers)
        assert all("x-quiesce-push" in headers for headers in hook.headers)


class OwnSender:
    """Sends pushes as nobody knows."""

    def __init__(self) -> None:
        """Start with nothing sent."""
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.count = 0

    async def send_notification(self, *_: Any) -> None:
        """Take its time."""
        self.count += 1
        self.asked.set()
        await self.go.wait()


async def test_what_a_sender_of_ones_own_sends_is_opaque(tmp_path: Path) -> None:
    """It is waited for, and what comes of it is not known; a task without a receiver is all there is."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        sender = OwnSender()
        place = await town.build("a", push_sender=sender)
        config = sending_to("http://127.0.0.1:9/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            await sender.asked.wait()
            said = await cascade.settled(mesh.SOON, require="participants")
            assert isinstance(said, Unknown), str(said)
            sender.go.set()
            settled = await cascade.settled(5, require="participants")
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.opaque == sender.count
            assert isinstance(await cascade.settled(5), Unknown)
        async with await quiesce_client(node, place.url, config=mesh.blocking()) as client:
            async with node.cascade("two") as cascade:
                await mesh.send(client, "complete")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)


class BrokenStore(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """A store that takes no completed task."""

    async def save(self, task: Any, *args: Any, **options: Any) -> None:
        """Refuse it."""
        if kit.state_of(task) == "completed":
            raise OSError("the disk is full")
        await super().save(task, *args, **options)


async def test_the_push_of_a_state_that_was_not_stored_was_not_sent(tmp_path: Path) -> None:
    """Nobody waits for what never leaves."""
    async with mesh.town(tmp_path) as town, mesh.script() as node, webhook() as hook:
        place = await town.build("a", store=BrokenStore(), **pushing())
        async with await quiesce_client(node, place.url, config=sending_to(hook.url)) as client:
            async with node.cascade("one") as cascade:
                await mesh.sent(client, "complete")
            settled = await cascade.settled(5, require="participants")
            assert isinstance(settled, Settled), str(settled)
        assert "completed" not in hook.states()


async def test_the_next_process_sends_a_push_with_the_edge_that_it_had(tmp_path: Path) -> None:
    """The header is in the outbox, with the push; and the node's journal knows the edge."""
    store = InMemoryTaskStore()
    async with mesh.script() as node, webhook() as hook:
        hook.statuses = [503] * 9999
        peers = [hook.url.removesuffix("/hook")]
        async with mesh.town(tmp_path) as town:
            town.peers = peers
            outbox = SqliteOutbox(tmp_path / "outbox")
            place = await town.build("a", store=store, **pushing(outbox, attempts_max=9999))
            async with await quiesce_client(node, place.url, config=sending_to(hook.url)) as client:
                async with node.cascade("one"):
                    await mesh.send(client, "complete")
                await hook.asked(1)
            port = int(place.url.rpartition(":")[2])
        outbox = SqliteOutbox(tmp_path / "outbox")
        await outbox.open()
        waiting = [push.cascade for push in await outbox.pending()]
        await outbox.close()
        assert waiting
        assert all(waiting)
        hook.statuses = []
        async with mesh.town(tmp_path) as town:
            town.plan("a", port=port)
            town.peers = peers
            outbox = SqliteOutbox(tmp_path / "outbox")
            place = await town.build("a", store=store, **pushing(outbox))
            await place.handler.idle()
            pushes = [one for one in hook.headers if "x-quiesce-push" in one]
            assert [headers.get("cascade") for headers in pushes] == waiting


async def test_the_failure_of_a_task_is_pushed_before_its_hop_has_ended(tmp_path: Path) -> None:
    """Not by the end of the server, long after the verdict: 0.3 leaves such a task as it was."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "r")
        receiver = await received(town, tmp_path)
        receiver.go.set()
        place = await town.build("a", **pushing())
        config = sending_to(f"{receiver.node.url}/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.sent(client, "update raise")
            settled = await cascade.settled(5)
            assert settled.receipt.failed == 1, str(settled)
            assert await mesh.state(place, place.agent.task_ids[0]) == "failed"
            pushed = len(receiver.marks)
        await place.handler.aclose()
        assert len(receiver.marks) == pushed
        assert all(receiver.marks)


async def test_the_end_of_a_cancelled_task_is_pushed_as_part_of_its_cascade(tmp_path: Path) -> None:
    """It is the last that the hop has to say, and whoever hears it may have work to do."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a", "r")
        receiver = await received(town, tmp_path)
        receiver.go.set()
        place = await town.build("a", **pushing())
        config = sending_to(f"{receiver.node.url}/hook")
        async with await quiesce_client(node, place.url, config=config) as client:
            async with node.cascade("one") as cascade:
                sending = asyncio.create_task(mesh.send(client, "update wait k complete"))
                await place.agent.waits("k")
            await cascade.cancel()
            await asyncio.wait([sending])
            settled = await cascade.settled(5)
            assert settled.receipt.cancelled, str(settled)
            pushed = len(receiver.marks)
        assert await mesh.state(place, place.agent.task_ids[0]) == "canceled"
        await place.handler.aclose()
        assert len(receiver.marks) == pushed
        assert all(receiver.marks)
