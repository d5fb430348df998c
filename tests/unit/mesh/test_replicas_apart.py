"""Replicas whose callers have other stores: what they say has lasted, and reaches the replica that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.mesh import Hop, Patience, Settled
from quiesce.mesh.runtime import shared_node
from tests.loops import let_others_run
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import Gate, Town, deliver, nothing, town
from tests.unit.mesh.test_replicas import cascade_hop

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh.store.rows import Batch, EdgeRow

pytestmark = pytest.mark.real_time

SLOW = Patience(retry_first=0.02, ask_in_doubt=60.0, ask_every=3600.0)


def elsewhere(folder: Path) -> str:
    """Return the address of a second store."""
    (folder / "other").mkdir()
    return f"sqlite://{folder / 'other' / 'mesh.db'}"


class Line:
    """The way to a town, which notes when a call leaves and when its answer comes."""

    def __init__(self, here: Town) -> None:
        """Begin without a call."""
        self.here = here
        self.log: list[str] = []

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Carry a call."""
        self.log.append("called")
        reply = await self.here.call(to, path, body)
        self.log.append("answered")
        return reply

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""


class Slow(Gate):
    """A file that is read many times before a change is written."""

    log: list[str] | None = None

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write after some reads, and note it."""
        if self.log is None:
            return await super().apply(batch)
        for _ in range(50):
            await self.find("hop", [b"?" * 16])
        found = await super().apply(batch)
        self.log.append("written")
        return found


async def test_a_receipt_that_comes_to_another_replica_is_passed_on(tmp_path: Path) -> None:
    """A balancer brings it to any replica of the sender, and the one that has sent the message gets it."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        first, second = await here.add("a", patience=SLOW), await here.add("a")
        here.replicas["a"] = [second]
        agent = await here.add("b", store=elsewhere(tmp_path))
        async with first.cascade("trip") as cascade:
            await here.hand(agent, leave)
        done.set()
        verdict = await cascade.settled(30)
        assert isinstance(verdict, Settled), verdict


async def test_a_request_to_end_that_comes_to_another_replica_is_passed_on(tmp_path: Path) -> None:
    """The replica that works ends its work, though no call ever comes to it."""

    async def work(hop: Hop) -> None:
        hop.spawn(anyio.sleep_forever)

    async with town(tmp_path) as here:
        root = await here.add("a", store=elsewhere(tmp_path))
        first, second = await here.add("b"), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(first, work)
        here.replicas["b"] = [second]
        await cascade.cancel()
        verdict = await cascade.settled(30)
        assert verdict.receipt.cancelled == 1


async def test_a_receipt_is_taken_when_it_has_lasted(tmp_path: Path) -> None:
    """The agent forgets what was taken, so the sender has to have it for good."""
    done, gate = anyio.Event(), Gate(tmp_path / "mesh.db")

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        line = Line(here)
        root = await here.add("a", store=gate, patience=SLOW)
        agent = await here.add("b", store=elsewhere(tmp_path), transport=line)
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        await root.opened.written()
        gate.may_write = anyio.Event()
        done.set()
        await until(lambda: line.log)
        for _ in range(10):
            await let_others_run()
        assert line.log == ["called"]
        gate.may_write.set()
        assert isinstance(await cascade.settled(30), Settled)


async def test_a_receipt_leaves_when_it_has_lasted(tmp_path: Path) -> None:
    """A sender that has a receipt never hears another one for the same message, whatever happens to the agent."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        line, slow = Line(here), Slow(tmp_path / "mesh.db")
        root = await here.add("a", store=elsewhere(tmp_path), patience=SLOW)
        agent = await here.add("b", store=slow, transport=line)
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        await agent.opened.written()
        slow.log = line.log
        done.set()
        assert isinstance(await cascade.settled(30), Settled)
        assert line.log.index("written") < line.log.index("called")


async def test_a_message_that_finds_no_room_after_its_claim_may_come_again(tmp_path: Path) -> None:
    """Its row must not say that somebody works on it."""
    gate, told, ran = Gate(tmp_path / "mesh.db"), list[str](), list[str]()
    refused = anyio.Event()

    async def wait(hop: Hop) -> None:
        ran.append(hop.mark)
        await refused.wait()

    async with town(tmp_path) as here:
        root = await here.add("a")
        agent = await here.add("b", store=gate, hops_max=1)

        async def bring(header: str) -> None:
            told.append(await deliver(agent, header, wait))
            if "s=not-now" in told[-1]:
                refused.set()

        async with root.cascade("trip") as cascade:
            hop = cascade_hop()
            async with hop.delegate("http://b") as one, hop.delegate("http://b") as two:
                gate.may_write = anyio.Event()
                async with anyio.create_task_group() as group:
                    group.start_soon(bring, one.header)
                    group.start_soon(bring, two.header)
                    await let_others_run()
                    gate.may_write.set()
                assert len(ran) == 1
                for handing in (one, two):
                    await deliver(agent, handing.header, wait)
        assert len(ran) == 2
        assert isinstance(await cascade.settled(30), Settled)


async def test_work_of_a_replica_that_was_declared_dead_is_cancelled(tmp_path: Path) -> None:
    """Another replica reports it as lost, so it must not go on."""
    ended = anyio.Event()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def leave(hop: Hop) -> None:
        hop.spawn(work)

    gate = Gate(tmp_path / "mesh.db")
    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b", store=gate)
        async with root.cascade("trip"):
            await here.hand(agent, leave)
        (own,) = await gate.replicas("b")
        await gate.end(own.incarnation, is_dead=True)
        with anyio.fail_after(20):
            await ended.wait()


async def test_the_answer_to_a_copy_has_its_sender_ask(tmp_path: Path) -> None:
    """The replica that works may have been told no address, so the sender does not wait for a receipt by post."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, first, second = await here.add("a"), await here.add("b"), await here.add("b")
        async with root.cascade("trip") as cascade:
            header = await here.hand(first, leave)
            assert (await deliver(second, header, nothing)).endswith(";s=working;d=ask")
        done.set()
        assert isinstance(await cascade.settled(30), Settled)


async def test_a_fence_is_set_before_the_replica_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others believe in its end from its first entry on; a replica that has left kills nobody."""
    log: list[object] = []

    class Fence:
        def kill_in(self, seconds: float) -> None:
            """Note the time."""
            log.append(seconds > 0)

        def close(self) -> None:
            """Note the end."""
            log.append("closed")

    class Listing(Gate):
        async def enroll(self, replica: Any) -> None:
            """Note whether the entry says that the replica fences itself."""
            log.append(f"listed {replica.fences}")
            await super().enroll(replica)

    monkeypatch.setattr(shared_node, "Fence", Fence)
    async with town(tmp_path) as here:
        await here.add("a", store=Listing(tmp_path / "mesh.db"), fence=True, lease_seconds=2)
    assert log[:2] == [True, "listed True"]
    assert log[-1] == "closed"
    assert log.count("closed") == 1


async def test_an_heir_without_the_id_of_a_message_posts_no_receipt(tmp_path: Path) -> None:
    """Nobody would take it by its key: the sender asks for it."""

    async def work(hop: Hop) -> None:
        hop.spawn(anyio.sleep_forever)

    async with town(tmp_path) as here:
        line = Line(here)
        root = await here.add("a", store=elsewhere(tmp_path))
        old = await here.add("b", replica="b-0")
        async with root.cascade("trip") as cascade:
            await here.hand(old, work)
        here.replicas["b"].remove(old)
        await here.add("b", replica="b-0", transport=line)
        verdict = await cascade.settled(30)
        assert verdict.receipt.lost == 1
        assert line.log == []
