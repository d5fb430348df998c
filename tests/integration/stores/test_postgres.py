"""A store in PostgreSQL keeps the rules of every store, and survives what happens to connections and servers."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import asyncpg
import pytest

from quiesce.errors import ReplicaBuried, StoreLost, UsageError
from quiesce.mesh.store.postgres_database import PostgresDatabase
from quiesce.mesh.store.rows import Batch, EdgeRow, Notice, Replica
from quiesce.testing.store_rules import database_rules
from tests.integration.stores.postgres_proxy import proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from quiesce.testing.store_rules import Rule
    from tests.integration.stores.postgres_server import PostgresServer

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

WITHIN = 60.0  # seconds, a guard
KEYS = [number.to_bytes(16, "big") for number in range(200)]


@pytest.fixture(name="address")
def new_address(postgres: PostgresServer) -> str:
    """Return the address of a schema that does not exist yet."""
    return postgres.address(options=f"?schema=mesh_{secrets.token_hex(6)}")


def row(number: int, owner: str = "a1", body: bytes = b"", began_at: float = 1.0) -> EdgeRow:
    """Make a row."""
    return EdgeRow(
        key=KEYS[number], side="hop", agent="hotel", owner=owner, cascade=bytes(16), body=body, began_at=began_at
    )  # fmt: skip


@asynccontextmanager
async def opened(
    address: str, *owners: str, seconds: float = 30.0
) -> AsyncIterator[PostgresDatabase]:
    """Open a database, and enroll incarnations."""
    database = PostgresDatabase(address, seconds=seconds)
    with anyio.fail_after(WITHIN):
        try:
            await database.open()
            for owner in owners:
                await database.enroll(Replica(incarnation=owner, agent="hotel", name="h", lease=10))
            yield database
        finally:
            await database.close()


@asynccontextmanager
async def session(address: str) -> AsyncIterator[Any]:
    """Open a connection beside the store, in its schema."""
    url, _, schema = address.partition("?schema=")
    connection = await asyncpg.connect(url, server_settings={"search_path": schema or "public"})
    try:
        yield connection
    finally:
        await connection.close(timeout=WITHIN)


@asynccontextmanager
async def locked_row(address: str) -> AsyncIterator[Any]:
    """Hold a lock on the row of key 1 in another session."""
    async with session(address) as other, other.transaction():
        await other.execute("SELECT FROM quiesce_rows WHERE key = $1 FOR UPDATE", KEYS[1])
        yield other


async def waiting(address: str) -> int:
    """Count the sessions of stores that wait for a lock."""
    select = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'quiesce'"
    async with session(address) as other:
        found: int = await other.fetchval(select)
        return found


async def until_waiting(address: str, number: int = 1) -> None:
    """Wait until so many sessions wait for a lock."""
    while await waiting(address) < number:
        pass


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds; the caller bounds it."""
    while not holds():  # noqa: ASYNC110 - of another process
        await anyio.sleep(0.002)


async def cut(address: str) -> int:
    """End all sessions of stores; return their number."""
    async with session(address) as other:
        ended = await other.fetch(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'quiesce'"
        )
        return len(ended)


@pytest.mark.parametrize("rule", database_rules(), ids=lambda rule: rule.__name__)
async def test_it_keeps_the_rules_of_every_store(rule: Rule, address: str) -> None:
    """Every rule of a database holds for PostgreSQL."""
    await rule(lambda: PostgresDatabase(address))


async def test_a_batch_takes_one_round_trip(postgres: PostgresServer, address: str) -> None:
    """A batch with everything in it is one question to the server, and so is a wake-up of the others."""
    schema = address.partition("?")[2]
    async with proxy(postgres.port) as before:
        through = postgres.address(port=before.port, options=f"?{schema}")
        async with opened(through, "a1") as database:
            asked = []
            for number in range(20):
                there = await database.notices(["a1"])
                begun = before.questions
                batch = Batch(
                    "a1", claims=[row(number)], puts=[row(100)], notices=[Notice("a1", "cancel", KEYS[1])],
                    drops=[("hop", KEYS[150])], handled=[one.number for one in there],
                )  # fmt: skip
                await database.apply(batch)
                asked.append(before.questions - begun)
            assert asked[-1] == 2  # the second is the wake-up, which `run` sends if it runs


async def test_connections_that_are_cut_are_made_again(address: str) -> None:
    """Calls go on over new connections while others are cut, and no change is lost."""
    async with opened(address, "a1") as database:
        done = anyio.Event()

        async def write(first: int) -> None:
            for number in range(first, first + 40):
                await database.apply(Batch("a1", puts=[row(number)]))

        async def cuts() -> None:
            while not done.is_set():
                await cut(address)

        async with anyio.create_task_group() as group:
            group.start_soon(cuts)
            async with anyio.create_task_group() as writers:
                for first in (0, 40, 80):
                    writers.start_soon(write, first)
            done.set()
        assert len(await database.owned("a1")) == 120


async def test_a_server_that_is_killed_comes_back(postgres: PostgresServer, address: str) -> None:
    """Calls succeed or say that the store is lost; what succeeded is there, and the store works again by itself."""
    written: list[int] = []
    failures: list[Exception] = []
    numbers = itertools.count()
    async with opened(address, "a1", seconds=0.5) as database:
        ends = anyio.Event()

        async def write() -> None:
            while not ends.is_set() and (number := next(numbers)) < len(KEYS):
                try:
                    await database.apply(Batch("a1", puts=[row(number)]))
                except Exception as error:
                    failures.append(error)
                else:
                    written.append(number)
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(write)
            await until(lambda: len(written) >= 10)
            await anyio.to_thread.run_sync(postgres.kill)
            await anyio.to_thread.run_sync(postgres.start)
            ends.set()
        assert all(isinstance(error, StoreLost) for error in failures), failures
        while True:  # a busy machine may need more than one bound
            try:
                there = {one.key for one in await database.owned("a1")}
                break
            except StoreLost:
                continue
        assert {KEYS[number] for number in written} <= there


async def test_a_server_that_is_silent_is_lost_in_time(
    postgres: PostgresServer, address: str
) -> None:
    """A call to a server that does not answer ends at the limit, with the store's address in the message."""
    schema = address.partition("?")[2]
    async with (
        proxy(postgres.port) as before,
        opened(
            postgres.address(port=before.port, options=f"?{schema}"), "a1", seconds=1.0
        ) as database,
    ):
        before.holds = True
        began = time.monotonic()
        with pytest.raises(StoreLost, match=f"127.0.0.1:{before.port}.*did not answer in time"):
            await database.apply(Batch("a1", puts=[row(1)]))
        assert time.monotonic() - began >= 0.9


async def test_a_row_that_is_locked_for_long_is_lost_for_now(address: str) -> None:
    """A change waits for a lock of another session until just before the limit, and its connection stays good."""
    async with opened(address, "a1", seconds=1.0) as database:
        await database.apply(Batch("a1", puts=[row(1)]))
        async with locked_row(address):
            with pytest.raises(StoreLost, match=r"timeout.*pg_locks|did not answer in time"):
                await database.apply(Batch("a1", puts=[row(1, body=b"late")]))
        assert (await database.find("hop", [KEYS[1]]))[KEYS[1]].body == b""


async def test_a_change_that_was_cancelled_does_not_come_late(address: str) -> None:
    """The server ends a change that was cancelled before it writes a newer one."""
    async with opened(address, "a1") as database:
        await database.apply(Batch("a1", puts=[row(1)]))
        async with locked_row(address):
            async with anyio.create_task_group() as group:
                group.start_soon(database.apply, Batch("a1", puts=[row(1, body=b"old")]))
                await until_waiting(address)
                group.cancel_scope.cancel()
            await database.apply(Batch("a1", puts=[row(2, body=b"new")]))
            assert await waiting(address) == 0
        assert (await database.find("hop", [KEYS[1]]))[KEYS[1]].body == b""


async def test_a_cancelled_task_leaves_nothing(address: str) -> None:
    """Tasks that asyncio itself cancels, at any step of a change, leave no task and a store that works."""
    async with opened(address, "a1") as database:
        for number in range(30):
            task = asyncio.ensure_future(database.apply(Batch("a1", puts=[row(number)])))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await database.apply(Batch("a1", puts=[row(100)]))
        assert await database.find("hop", [KEYS[100]])


async def test_an_end_whose_answer_is_lost_has_succeeded(
    postgres: PostgresServer, address: str
) -> None:
    """`end` and `inherit` are tried again, and know their own first try from another process that was first."""
    schema = address.partition("?")[2]
    async with (
        proxy(postgres.port) as before,
        opened(address, "a1", "a2") as other,
        opened(postgres.address(port=before.port, options=f"?{schema}")) as database,
    ):

        def once(word: bytes) -> None:
            def is_asked(said: bytes) -> bool:
                found = word in said and b"bnowhere" not in said
                if found:
                    before.is_asked = lambda _: False
                return found

            before.is_asked = is_asked

        once(b"a1")
        assert await database.end("a1", is_dead=True, why="first")
        once(b"a1")
        assert await database.inherit("a1", "a2", "")
        assert before.lost == 2
        assert not await database.end("a1", is_dead=True)
        assert not await other.inherit("a1", "a3", "")
        assert not await database.inherit("a1", "a2", "")
        once(b"a2")
        await database.apply(Batch("a2", claims=[row(1, "a2")], puts=[row(2, "a2")]))
        assert before.lost == 3
        assert len(await database.owned("a2")) == 2


async def test_a_row_that_is_claimed_and_put_is_one_change(address: str) -> None:
    """A batch may have a row in several of its lists: they are written in the order of the fields."""
    async with opened(address, "a1") as database:
        batch = Batch(
            "a1", claims=[row(1), row(1, body=b"again")], puts=[row(1, body=b"put"), row(2), row(2, body=b"second"), row(3)],
            drops=[("hop", KEYS[3]), ("hop", KEYS[3])],
        )  # fmt: skip
        assert await database.apply(batch) == {}
        found = await database.find("hop", KEYS)
        assert {key: one.body for key, one in found.items()} == {
            KEYS[1]: b"put",
            KEYS[2]: b"second",
        }
        there = await database.apply(batch)
        assert there[KEYS[1]].owner == "a1"


async def test_batches_with_the_same_rows_do_not_block_each_other(address: str) -> None:
    """Two processes that write the same rows in opposite orders both succeed."""
    async with opened(address, "a1", "a2") as first, opened(address) as second:
        forth = [row(number) for number in range(50)]

        async def write(database: PostgresDatabase, owner: str, rows: list[EdgeRow]) -> None:
            for _ in range(20):
                await database.apply(Batch(owner, claims=rows[:25], puts=rows[25:]))

        async with anyio.create_task_group() as group:
            group.start_soon(write, first, "a1", forth)
            group.start_soon(write, second, "a2", forth[::-1])
        assert len(await first.owned("a1")) == 50


async def test_nothing_is_written_after_the_end(address: str) -> None:
    """In a race of changes and `end`, no row comes after `end` has returned."""
    owners = [f"r{number}" for number in range(100)]
    async with opened(address, *owners) as database, opened(address) as other:
        for owner in owners:
            seen: list[EdgeRow] = []

            async def write(owner: str = owner) -> None:
                for number in itertools.count():
                    try:
                        await database.apply(Batch(owner, puts=[row(number % 200, owner)]))
                    except ReplicaBuried:
                        return

            async def end(owner: str = owner, seen: list[EdgeRow] = seen) -> None:
                await other.beat(owner)
                await other.end(owner, is_dead=True)
                seen += await other.owned(owner)

            async with anyio.create_task_group() as group:
                group.start_soon(write)
                group.start_soon(write)
                group.start_soon(end)
            assert len(await other.owned(owner)) == len(seen)


async def test_a_change_under_way_is_waited_for_by_the_end(address: str) -> None:
    """`end` returns after a change that began before it, a heartbeat at once, and a change after it writes nothing."""
    async with opened(address, "a1") as database, opened(address) as other:
        await database.apply(Batch("a1", puts=[row(1)]))
        ended: list[bool] = []

        async def end() -> None:
            ended.append(await other.end("a1", is_dead=True))

        async with anyio.create_task_group() as group, locked_row(address):
            group.start_soon(database.apply, Batch("a1", puts=[row(1, body=b"early")]))
            await until_waiting(address)
            await other.beat("a1")
            group.start_soon(end)
            await until_waiting(address, 2)
            assert not ended
        assert ended == [True]
        assert (await other.find("hop", [KEYS[1]]))[KEYS[1]].body == b"early"
        with pytest.raises(ReplicaBuried):
            await database.apply(Batch("a1", puts=[row(2)]))


async def test_a_listener_connects_again(address: str) -> None:
    """A listener whose connection is cut connects again, wakes its process, and hears the next change."""
    async with opened(address, "a1") as first, opened(address) as second:
        woken = anyio.Event()

        def wake() -> None:
            woken.set()

        async def until_woken() -> None:
            nonlocal woken
            await woken.wait()
            woken = anyio.Event()

        async with anyio.create_task_group() as group:
            group.start_soon(second.run, wake)
            await until_woken()
            for number in range(2):
                await cut(address)
                await until_woken()
                while not woken.is_set():
                    await first.apply(Batch("a1", puts=[row(number)]))
                    with anyio.move_on_after(0.2):
                        await woken.wait()
                woken = anyio.Event()
            group.cancel_scope.cancel()


async def test_a_burst_of_changes_is_few_wake_ups(postgres: PostgresServer, address: str) -> None:
    """Changes of a few milliseconds are told together, beside the changes and not in them."""
    heard: list[int] = []
    async with (
        opened(address, "a1") as first,
        opened(address) as second,
        anyio.create_task_group() as group,
    ):
        group.start_soon(first.run, lambda: None)
        group.start_soon(second.run, lambda: heard.append(1))
        await until(lambda: heard)
        heard.clear()
        began = time.monotonic()
        for number in range(150):
            await first.apply(Batch("a1", puts=[row(number)]))
        took = time.monotonic() - began
        await until(lambda: heard)
        assert len(heard) <= took / 0.01 + 2
        group.cancel_scope.cancel()


async def test_a_listener_ends_with_its_store(address: str) -> None:
    """`run` does not go on after `close`, and says that the store is not open."""
    async with opened(address) as database:
        woken = anyio.Event()
        running = asyncio.ensure_future(database.run(woken.set))
        await woken.wait()
        await database.close()
        with pytest.raises(UsageError, match="is not open"):
            await running


async def test_heartbeats_go_by_the_clock_of_the_server(address: str) -> None:
    """The age of a heartbeat is what the server counts, whatever the clocks of the processes say."""
    async with opened(address, "a1") as database:
        async with session(address) as other:
            await other.execute("UPDATE quiesce_replicas SET beat_at = beat_at - interval '1 hour'")
        (old,) = await database.replicas()
        await database.beat("a1")
        (young,) = await database.replicas()
        assert 3600 <= old.age < 3700
        assert young.age < 60


async def test_a_row_in_use_is_pruned_later(address: str) -> None:
    """`prune` waits for nobody: it leaves out a row that another session has locked."""
    async with opened(address, "a1") as database:
        over = [EdgeRow(key=KEYS[number], side="hop", agent="h", owner="a1", cascade=bytes(16), state="over", began_at=1, keep_until=5) for number in (1, 2)]  # fmt: skip
        await database.apply(Batch("a1", puts=over))
        async with locked_row(address):
            assert await database.prune(10.0) == 1
        assert await database.prune(10.0) == 1


async def test_an_empty_database_is_opened_many_times_at_once(address: str) -> None:
    """Of many that find no tables, one makes them, and all can use them."""
    databases = [PostgresDatabase(address, seconds=30) for _ in range(12)]
    try:
        with anyio.fail_after(WITHIN):
            async with anyio.create_task_group() as group:
                for database in databases:
                    group.start_soon(database.open)
            assert [await database.replicas() for database in databases] == [[]] * 12
    finally:
        for database in databases:
            await database.close()


OPENING = """
import asyncio, os, sys, traceback
from quiesce.mesh.store.postgres_database import PostgresDatabase
from quiesce.mesh.store.rows import Replica

async def main(number):
    database = PostgresDatabase(sys.argv[1], seconds=50)
    await database.open()
    await database.enroll(Replica(incarnation=f"p{number}", agent="hotel", name="h", lease=10))
    await database.close()

def run(number):
    try:
        asyncio.run(main(number))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

children = [os.fork() or run(number) for number in range(20)]
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20
"""


@pytest.mark.backends("asyncio")  # of the processes
async def test_many_processes_open_an_empty_database(address: str) -> None:
    """Twenty processes that open the store at once find one set of tables."""
    command = [sys.executable, "-W", "error", "-c", OPENING, address]
    with anyio.fail_after(WITHIN):
        done = await anyio.run_process(command, check=False)
        assert done.returncode == 0, done.stderr.decode()
        async with opened(address) as database:
            assert len(await database.replicas()) == 20
