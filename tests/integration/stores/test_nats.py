"""A store in NATS keeps the rules of every store, on a real server, and says what is wrong with one it cannot use."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quiesce import Scope
from quiesce.errors import ReplicaBuried, StoreLost, UsageError
from quiesce.mesh.store.nats_database import NatsDatabase
from quiesce.mesh.store.nats_link import NatsLink, NotNowError
from quiesce.mesh.store.rows import Batch, Notice
from quiesce.testing.store_rules import database_rules
from tests.integration.stores import nats_server
from tests.integration.stores.nats_server import NatsServer, address
from tests.integration.stores.nats_store import (
    CASCADE,
    ask_server,
    new_bucket,
    opened,
    read_server,
    replica,
    row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.testing.store_rules import Rule

pytestmark = [pytest.mark.real_time, pytest.mark.backends("asyncio", "uvloop")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Return a running server."""
    with nats_server.running(tmp_path_factory.mktemp("nats")) as one:
        yield one


@pytest.mark.parametrize("rule", database_rules(), ids=lambda rule: rule.__name__)
async def test_a_stream_keeps_the_rules_of_every_store(rule: Rule, server: NatsServer) -> None:
    """Every rule of a database holds for a stream on a NATS server."""
    bucket = new_bucket()
    await rule(lambda: NatsDatabase(address(server, bucket=bucket), seconds=60.0))


async def test_concurrent_first_opens_make_one_store(server: NatsServer) -> None:
    """Many processes may open a new store at the same time."""
    where = address(server, bucket=new_bucket())
    databases = [NatsDatabase(where, seconds=60.0) for _ in range(8)]
    try:
        await asyncio.gather(*(database.open() for database in databases))
        await asyncio.gather(
            *(database.enroll(replica(f"a{number}")) for number, database in enumerate(databases))
        )
        assert len(await databases[0].replicas()) == 8
    finally:
        await asyncio.gather(*(database.close() for database in databases))


async def test_a_connection_belongs_to_no_scope(server: NatsServer) -> None:
    """A store that is opened inside a scope leaves no task there, so that the scope can close before the store."""
    database = NatsDatabase(address(server, bucket=new_bucket()), seconds=60.0)
    try:
        async with Scope("caller", adopt=True) as scope:
            await database.open()
            listening = asyncio.create_task(database.run(lambda: None))
            await database.enroll(replica("a1"))
            listening.cancel()
            await asyncio.wait([listening])
            async with asyncio.timeout(60):
                await scope.idle()
        await database.beat("a1")
    finally:
        await database.close()


def test_a_store_may_be_opened_again_in_another_loop(server: NatsServer) -> None:
    """A store that was closed may be opened again, also in another event loop."""
    database = NatsDatabase(address(server, bucket=new_bucket()), seconds=60.0)

    async def use(*names: str) -> None:
        await database.open()
        try:
            await asyncio.gather(*(database.enroll(replica(name)) for name in names))
            await asyncio.gather(*(database.beat(name) for name in names))
        finally:
            await database.close()

    asyncio.run(use("a1", "a2", "a3"))
    asyncio.run(use("b1", "b2", "b3"))


# Answers that are lost.


def lose_answers(database: NatsDatabase, monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Lose the first answers to commits; return the list of those that were."""
    publish, lost = NatsLink.publish, list[int]()

    async def publish_and_lose(
        self: NatsLink, messages: list[tuple[str, bytes, dict[str, str]]]
    ) -> int:
        number = await publish(self, messages)
        if len(lost) < most:
            lost.append(number)
            raise NotNowError("the answer was lost")
        return number

    monkeypatch.setattr(NatsLink, "publish", publish_and_lose)
    return lost


async def test_a_commit_without_an_answer_is_written_once(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch whose answer is lost is found to be written: its claims are won, and its notice is there once."""
    async with opened(address(server, bucket=new_bucket()), "a1", "a2") as database:
        await database.apply(Batch("a2", claims=[row(2, "a2")]))
        lost = lose_answers(database, monkeypatch, 1)
        batch = Batch("a1", claims=[row(1), row(2)], notices=[Notice("a2", "cancel", b"k" * 16)])
        there = await database.apply(batch)
        assert lost
        assert there == {row(2).key: row(2, "a2")}
        assert len(await database.notices(["a2"])) == 1


async def test_a_state_without_an_answer_is_changed_once(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`end` and `inherit` say that they have succeeded if only the answer was lost."""
    async with opened(address(server, bucket=new_bucket()), "a1", "a2") as database:
        lose_answers(database, monkeypatch, 1)
        assert await database.end("a1", is_dead=True)
        lose_answers(database, monkeypatch, 1)
        assert await database.inherit("a1", "a2", "")


async def test_what_a_cancelled_call_leaves_is_written_by_the_next(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that wait are written in one commit; if the one that writes is cancelled, the others still win."""
    async with opened(address(server, bucket=new_bucket()), "a1") as database:
        publish, is_written, sizes = NatsLink.publish, asyncio.Event(), list[int]()

        async def publish_and_hang(
            self: NatsLink, messages: list[tuple[str, bytes, dict[str, str]]]
        ) -> int:
            sizes.append(len(messages))
            number = await publish(self, messages)
            if len(sizes) == 2:
                is_written.set()
                await asyncio.Event().wait()
            return number

        monkeypatch.setattr(NatsLink, "publish", publish_and_hang)
        calls = [
            asyncio.create_task(database.apply(Batch("a1", claims=[row(number)])))
            for number in range(10)
        ]
        await is_written.wait()
        calls[1].cancel()  # the first was written alone, and the second writes for all others
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results.pop(1), asyncio.CancelledError)
        assert results == [{}] * 9
        assert sizes[:2] == [3, 19]
        assert len(await database.owned("a1")) == 10


async def test_calls_that_change_one_row_come_one_after_the_other(server: NatsServer) -> None:
    """Calls that share a commit change different rows; of those that change one row, the last call wins."""
    async with opened(address(server, bucket=new_bucket()), "a1") as database:
        batches = [
            Batch("a1", claims=[row(1)]),
            Batch("a1", drops=[("hop", row(2).key)]),
            Batch("a1", puts=[row(2)]),
            Batch("a1", drops=[("hop", row(2).key)]),
            Batch("a1", puts=[row(2, state="closed")]),
            Batch("a1", claims=[row(2)]),
        ]
        *_, there = await asyncio.gather(*map(database.apply, batches))
        assert there == {row(2).key: row(2, state="closed")}
        assert await database.owned("a1") == [row(1), row(2, state="closed")]


async def test_nothing_is_left_of_rows_that_were_removed(server: NatsServer) -> None:
    """A row that moves, is dropped, or is pruned leaves no index entry, and what replaces it goes by itself."""
    bucket = new_bucket()
    async with opened(address(server, bucket=bucket), "a1", "a2") as database:
        rows = [row(number) for number in range(3)]
        await database.apply(Batch("a1", claims=rows, notices=[Notice("a1", "cancel", b"k")]))
        (notice,) = await database.notices(["a1"])
        moved = replace(rows[0], owner="a2", state="over", keep_until=1.0)
        await database.apply(Batch("a1", handled=[notice.number]))
        await database.apply(
            Batch("a2", puts=[moved], drops=[("hop", one.key) for one in rows[1:]])
        )
        assert await database.prune(time.time()) == 1
        await database.end("a1", is_dead=False)
        await database.forget("a1")
    left = await read_server(server, bucket)
    assert {subject for subject, (data, _) in left.items() if data} == {
        f"{bucket}.s.schema",
        f"{bucket}.s.a.a2",
    }
    assert {headers.get("Nats-TTL") for data, headers in left.values() if not data} == {"60"}


async def test_a_dying_replica_writes_before_its_end_or_never(server: NatsServer) -> None:
    """What `apply` has acknowledged was written before `end` has: the heir sees all of it, and nothing comes later."""
    where = address(server, bucket=new_bucket())
    async with opened(where, "a1") as first, opened(where, "a2") as second:
        acknowledged: set[bytes] = set()
        has_begun = asyncio.Event()

        async def write() -> None:
            for number in itertools.count():
                await first.apply(Batch("a1", claims=[row(number)]))
                acknowledged.add(row(number).key)
                if number == 4:
                    has_begun.set()

        writing = asyncio.create_task(write())
        await has_begun.wait()
        assert await second.end("a1", is_dead=True, why="it was time")
        left = {one.key for one in await second.owned("a1")}
        with pytest.raises(ReplicaBuried, match="it was time"):
            await writing
        assert acknowledged <= left
        assert {one.key for one in await second.owned("a1")} == left


# Many and large rows.


async def test_more_rows_than_an_answer_has(server: NatsServer) -> None:
    """Rows are read, and removed, also if there are more of them than one answer of the server may have."""
    where = address(server, bucket=new_bucket())
    async with opened(where, "a1") as database:
        rows = [row(number, body=b"x" * 12_000) for number in range(1100)]
        await database.apply(Batch("a1", puts=rows))
        assert await database.owned("a1") == rows
        assert await database.cascade(CASCADE) == rows
        over = [replace(one, state="over", keep_until=1.0) for one in rows]
        await database.apply(Batch("a1", puts=over))
        assert await database.owned("a1") == []
        assert await database.prune(time.time(), 1000) == 1000
        assert await database.prune(time.time(), 1000) == 100
        assert await database.cascade(CASCADE) == []


async def test_a_row_that_is_needed_again_is_not_pruned(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that changes while it is pruned is judged again."""
    where = address(server, bucket=new_bucket())
    async with opened(where, "a1") as owner, opened(where) as cleaner:
        await owner.apply(Batch("a1", puts=[row(1, keep_until=1.0), row(2, keep_until=1.0)]))
        publish, puts = NatsLink.publish, [Batch("a1", puts=[row(1)])]

        async def publish_later(
            self: NatsLink, messages: list[tuple[str, bytes, dict[str, str]]]
        ) -> int:
            if puts:
                await owner.apply(puts.pop())
            return await publish(self, messages)

        monkeypatch.setattr(NatsLink, "publish", publish_later)
        assert await cleaner.prune(time.time()) == 1
        assert await owner.cascade(CASCADE) == [row(1)]


async def test_the_newest_roots_of_many(server: NatsServer) -> None:
    """The newest cascades are found also after newer ones were removed."""
    async with opened(address(server, bucket=new_bucket()), "a1") as database:
        rows = [row(number, root="trip") for number in range(40)]
        await database.apply(Batch("a1", puts=rows))
        await database.apply(Batch("a1", drops=[("hop", one.key) for one in rows[20:]]))
        assert await database.roots(3) == [rows[19], rows[18], rows[17]]
        assert len(await database.roots(100)) == 20


async def test_a_row_that_is_too_large_is_refused_alone(server: NatsServer) -> None:
    """A row that the server would not take is its caller's error; others go on."""
    async with opened(address(server, bucket=new_bucket()), "a1") as database:
        large = Batch("a1", puts=[row(1, body=bytes(2**20))])
        with pytest.raises(UsageError, match="Raise max_payload"):
            await database.apply(large)
        await database.apply(Batch("a1", puts=[row(2, body=bytes(2**20 - 4096))]))
        assert len(await database.owned("a1")) == 1


async def test_the_age_is_by_the_clock_of_the_server(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is wrong sees the right age of a heartbeat."""
    async with opened(address(server, bucket=new_bucket()), "a1") as database:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 86_400.0)
        (one,) = await database.replicas()
        assert one.age < 60.0


# Servers that come and go.


async def test_a_killed_server_loses_nothing_that_was_acknowledged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Calls go on after the server was killed and started again, and every acknowledged row is there."""
    with nats_server.running(tmp_path_factory.mktemp("killed")) as one:
        async with opened(address(one), "a1", "a2") as database:
            acknowledged: set[bytes] = set()
            tried: list[bytes] = []
            woken, is_over = asyncio.Event(), asyncio.Event()
            goes_on = asyncio.Semaphore(0)

            async def write(first: int) -> None:
                for number in itertools.count(first, 10):
                    tried.append(row(number).key)
                    try:
                        await database.apply(Batch("a1", claims=[row(number)]))
                    except StoreLost:
                        continue
                    acknowledged.add(row(number).key)
                    goes_on.release()
                    if is_over.is_set():
                        return

            listening = asyncio.create_task(database.run(woken.set))
            writing = [asyncio.create_task(write(number)) for number in range(5)]
            for _ in range(3):
                for _ in range(20):
                    await goes_on.acquire()
                woken.clear()
                await asyncio.to_thread(one.restart)
                await asyncio.wait_for(woken.wait(), 60)
            is_over.set()
            await asyncio.gather(*writing)
            await database.beat("a2")
            left = {found.key for found in await database.owned("a1")}
            assert acknowledged <= left
            assert left == set(await database.find("hop", tried)), "no row is there by half"
            listening.cancel()
            await asyncio.wait([listening])


async def test_a_server_that_is_gone_is_a_lost_store(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Every method ends within the limit while there is no server, and works after the server is back."""
    with nats_server.running(tmp_path_factory.mktemp("gone")) as one:
        async with opened(address(one), "a1", seconds=60.0) as patient:
            async with opened(address(one), "a2", seconds=0.3) as database:
                one.kill()
                for call in (
                    database.apply(Batch("a2", claims=[row(1, "a2")])),
                    database.find("hop", [b"k"]),
                    database.replicas(),
                    database.end("a1", is_dead=True),
                    database.beat("a2"),
                ):
                    with pytest.raises(StoreLost, match="cannot be used now"):
                        await asyncio.wait_for(call, 60)
                with pytest.raises(StoreLost, match="cannot be used now"):
                    await NatsDatabase(address(one), seconds=0.3).open()
            one.start()
            await patient.beat("a1")
            assert len(await patient.replicas()) == 2


async def test_a_store_that_has_lost_what_it_had_is_used_again(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A store whose stream ends before what was heard of is reported, and used as it is: a wake-up cannot stop it."""
    bucket = new_bucket()
    async with opened(address(server, bucket=bucket), "a1") as database:
        woken = asyncio.Event()
        listening = asyncio.create_task(database.run(woken.set))
        while not woken.is_set():  # the listener may need a moment to begin
            await ask_server(server, f"{bucket}.wake", b"forged 99999999")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), 0.5)
        await database.apply(Batch("a1", claims=[row(1)]))
        assert await database.owned("a1") == [row(1)]
        assert "has lost messages that it had acknowledged" in caplog.text
        listening.cancel()
        await asyncio.wait([listening])


@pytest.mark.backends("asyncio")  # it takes ten seconds, and nothing in it depends on the loop
async def test_a_cluster_goes_on_without_one_of_three_and_comes_back_without_two(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With one node of three lost all goes on; with two lost calls are bounded, and go on after a restart."""
    with nats_server.running_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        where = address(*nodes, options="replicas=3&sync=always")
        async with (
            opened(where, "a1") as first,
            opened(where, "a2") as second,
            opened(where, seconds=2.0) as hurried,
        ):
            await second.enroll(replica("a3"))
            for number in range(20):  # a reader at any node sees what was written at another
                await first.apply(Batch("a1", claims=[row(number)]))
                assert await second.find("hop", [row(number).key])
            await asyncio.to_thread(nodes[0].kill)
            await first.apply(
                Batch("a1", claims=[row(100)], notices=[Notice("a2", "cancel", b"k")])
            )
            assert len(await second.notices(["a2"])) == 1
            await asyncio.to_thread(nodes[1].kill)
            with pytest.raises(StoreLost):
                await asyncio.wait_for(hurried.apply(Batch("a3", claims=[row(200, "a3")])), 60)
            for node in nodes[:2]:
                node.start()
            await first.apply(Batch("a1", claims=[row(101)]))
            assert len(await second.owned("a1")) == 22
