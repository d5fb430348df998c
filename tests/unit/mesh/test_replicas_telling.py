"""What replicas tell each other and their callers: when it has lasted, to whoever waits for it, and once it is over no more."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce.mesh import Hop, Settled
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import edge_key
from quiesce.mesh.transport.node_transport import RECEIPTS
from tests.unit.mesh.meshing import until
from tests.unit.mesh.replicas import HASTE, deliver, nothing, town
from tests.unit.mesh.test_replicas import cascade_hop

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Node

pytestmark = pytest.mark.real_time


class Gate:
    """A store that writes nothing until the gate is open."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        """Close the gate."""
        assert node.opened.shared is not None
        database = node.opened.shared.store.database
        self._apply = database.apply
        self.reached = anyio.Event()
        self.open = anyio.Event()
        monkeypatch.setattr(database, "apply", self.apply)

    async def apply(self, batch: Any) -> Any:
        """Write a batch when the gate is open."""
        self.reached.set()
        await self.open.wait()
        return await self._apply(batch)


async def test_a_copy_is_told_of_an_end_only_when_that_has_lasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal of a copy has the receipt, as the first answer has it: neither leaves before the row is written."""
    gates: list[Gate] = []
    told: list[str] = []

    async def work(_: Hop) -> None:
        gates.append(Gate(agent, monkeypatch))

    async with town(tmp_path) as here:
        root, agent = await here.add("a"), await here.add("b")
        async with root.cascade("trip") as cascade:

            async def copy(header: str) -> None:
                told.append(await deliver(agent, header, nothing))

            async with cascade_hop().delegate("http://b") as handing:
                async with anyio.create_task_group() as group:
                    group.start_soon(deliver, agent, handing.header, work)
                    await until(lambda: bool(gates))
                    await gates[0].reached.wait()
                    group.start_soon(copy, handing.header)
                    await anyio.wait_all_tasks_blocked()
                    assert not told
                    gates[0].open.set()
                handing.answered(told[0])
        assert "s=closed" in told[0]
        assert isinstance(await cascade.settled(30), Settled)


async def test_a_late_copy_takes_nothing_from_the_first_message(tmp_path: Path) -> None:
    """The replica still has the id of a message that waits for others, and can post its receipt."""
    done = anyio.Event()

    async def last(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        root, agent, below = await here.add("a"), await here.add("b"), await here.add("c")

        async def middle(_: Hop) -> None:
            await here.hand(below, last)

        async with root.cascade("trip") as cascade:
            header = await here.hand(agent, middle)
            assert "s=working" in await deliver(agent, header, nothing)
            assert agent.opened.shared is not None
            name = edge_key(codec.parse_request_header(header).edge)
            assert agent.opened.shared.names.is_known(name)
            done.set()
        assert isinstance(await cascade.settled(30), Settled)


async def test_a_receipt_that_went_with_the_answer_leaves_a_row_that_is_over(
    tmp_path: Path,
) -> None:
    """Otherwise the rows of all hops that have sent messages would stay in the store for ever."""
    async with town(tmp_path) as here:
        root, agent, below = await here.add("a"), await here.add("b"), await here.add("c")

        async def middle(_: Hop) -> None:
            await here.hand(below, nothing)

        async with root.cascade("trip") as cascade:
            header = await here.hand(agent, middle)
        assert isinstance(await cascade.settled(30), Settled)
        shared = agent.opened.shared
        assert shared is not None
        await shared.store.written()
        key = edge_key(codec.parse_request_header(header).edge)
        row = (await shared.store.find("hop", [key]))[key]
        assert row.state == "over"
        assert row.keep_until is not None
        assert "s=closed" in await deliver(agent, header, nothing)


async def test_a_program_without_an_address_hears_of_an_end_in_its_store(tmp_path: Path) -> None:
    """Nobody can post to it, and it asks nobody who shares its store: the receiver notifies it."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    seldom = replace(HASTE, ask_every=3600.0)
    async with town(tmp_path) as here:
        root, agent = await here.add("a", url=None, patience=seldom), await here.add("b")
        async with root.cascade("trip") as cascade:
            await here.hand(agent, leave)
        assert not isinstance(await cascade.settled(0.05), Settled)
        done.set()
        verdict = await cascade.settled(30)
        assert isinstance(verdict, Settled), verdict


async def test_a_question_waits_for_the_end_in_another_replica(tmp_path: Path) -> None:
    """A replica that does not work on a message answers a waiting question when the one that does has told the store."""
    done = anyio.Event()

    async def leave(hop: Hop) -> None:
        hop.spawn(done.wait)

    async with town(tmp_path) as here:
        first, second = await here.add("b"), await here.add("b")
        by = int(time.time()) + 600
        handed = codec.Handed(os.urandom(16), os.urandom(12), "0" * 12, by, None)  # of a stranger
        assert "s=working" in await deliver(first, codec.request_header(handed), leave)
        body = codec.dumps({"v": 0, "asks": [[handed.edge.hex(), False]], "wait": 60})
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await second.serve_call(RECEIPTS, body))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                done.set()
        assert b'"done"' in answers[0]
