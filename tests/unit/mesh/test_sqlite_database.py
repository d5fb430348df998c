"""A store in an SQLite file keeps the rules of every store, and says what is wrong with a file that it cannot use."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest

from quiesce.errors import StoreLost, UsageError
from quiesce.mesh.store.rows import Batch, EdgeRow, Notice, Replica
from quiesce.mesh.store.sqlite_database import SqliteDatabase
from quiesce.testing.store_rules import database_rules
from tests.unit.mesh.meshing import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quiesce.testing.store_rules import Rule

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("rule", database_rules(), ids=lambda rule: rule.__name__)
async def test_a_file_keeps_the_rules_of_every_store(rule: Rule, tmp_path: Path) -> None:
    """Every rule of a database holds for a file."""
    await rule(lambda: SqliteDatabase(tmp_path / "rows.db"))


async def test_only_its_user_may_read_the_file(tmp_path: Path) -> None:
    """The file has the names and addresses of a mesh, so only its user may read it."""
    database = SqliteDatabase(tmp_path / "rows.db")
    await database.open()
    await database.close()
    assert (tmp_path / "rows.db").stat().st_mode & 0o777 == 0o600


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    """A file of another kind is refused by name, and not changed."""
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n" * 200)
    with pytest.raises(UsageError, match="is not an SQLite file"):
        await SqliteDatabase(path).open()
    assert path.read_text() == "buy milk\n" * 200


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The folder of the file has to exist."""
    with pytest.raises(UsageError, match=r"the folder of the store .* does not exist"):
        await SqliteDatabase(tmp_path / "none" / "rows.db").open()


async def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    """A file that another version of quiesce has made is refused, with both versions in the message."""
    path = tmp_path / "rows.db"
    database = SqliteDatabase(path)
    await database.open()
    await database.close()
    with sqlite3.connect(path) as file:
        file.execute("UPDATE quiesce_schema SET version = 99")
    file.close()
    with pytest.raises(UsageError, match="version 99, and this version of quiesce needs version 1"):
        await database.open()


async def test_a_file_that_is_locked_for_long_is_lost_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change waits for the write lock for a bounded time, and then says that the store is lost."""
    monkeypatch.setattr("quiesce.mesh.store.sqlite_database._BUSY_SECONDS", 0.05)
    path = tmp_path / "rows.db"
    database = SqliteDatabase(path)
    await database.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreLost, match="database is locked"):
            await database.apply(Batch("a1"))
    finally:
        other.close()
        await database.close()


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    """A use before `open` is the caller's mistake."""
    with pytest.raises(UsageError, match="is not open"):
        await SqliteDatabase(tmp_path / "rows.db").find("hop", [])


class Broken(list[EdgeRow]):
    """Rows that cannot be written."""

    def __iter__(self) -> Iterator[EdgeRow]:
        """Raise the error of a disk that is full."""
        message = "disk I/O error"
        raise sqlite3.OperationalError(message)


async def test_a_change_that_fails_half_way_is_not_there_at_all(tmp_path: Path) -> None:
    """What was written before the failure is taken back, and the file can be used."""
    database = SqliteDatabase(tmp_path / "rows.db")
    await database.open()
    await database.enroll(Replica(incarnation="a1", agent="a", name="a1", lease=10.0))
    key = b"e" * 16
    row = EdgeRow(key=key, side="hop", agent="a", owner="a1", cascade=b"c" * 16, began_at=1.0)
    with pytest.raises(StoreLost, match="disk I/O error"):
        await database.apply(Batch("a1", claims=[row], puts=Broken()))
    assert await database.find("hop", [key]) == {}
    assert await database.apply(Batch("a1", claims=[row])) == {}
    await database.close()


class Slow(list[EdgeRow]):
    """Rows whose writing takes until the test says so."""

    def __init__(self) -> None:
        """Begin with no row."""
        self.is_begun = threading.Event()
        self.may_end = threading.Event()

    def __iter__(self) -> Iterator[EdgeRow]:
        """Wait for the test, in the thread that writes."""
        self.is_begun.set()
        assert self.may_end.wait(60)
        return super().__iter__()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_change_waits_for_one_whose_task_was_cancelled(tmp_path: Path) -> None:
    """The thread of a cancelled change goes on, so the next change must not get into its transaction."""
    database = SqliteDatabase(tmp_path / "rows.db")
    await database.open()
    await database.enroll(Replica(incarnation="a1", agent="a", name="a1", lease=10.0))
    slow = Slow()
    first = asyncio.ensure_future(database.apply(Batch("a1", puts=slow)))
    await until(slow.is_begun.is_set)
    first.cancel()
    second = asyncio.ensure_future(
        database.apply(Batch("a1", notices=[Notice("b1", "cancel", b"e" * 16)]))
    )
    asyncio.get_running_loop().call_later(0.05, slow.may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert len(await database.notices(["b1"])) == 1
    await database.close()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_change_waits_for_one_of_another_process(tmp_path: Path) -> None:
    """What a change has read is still true when it writes: the other one has not begun before its end."""
    first, second = SqliteDatabase(tmp_path / "rows.db"), SqliteDatabase(tmp_path / "rows.db")
    for database, name in ((first, "a1"), (second, "a2")):
        await database.open()
        await database.enroll(Replica(incarnation=name, agent="a", name=name, lease=10.0))
    slow, key = Slow(), b"e" * 16
    slow.append(EdgeRow(key=key, side="hop", agent="a", owner="a1", cascade=key, began_at=1.0))
    writing = asyncio.ensure_future(first.apply(Batch("a1", claims=slow)))
    await until(slow.is_begun.is_set)
    ending = asyncio.ensure_future(second.end("a1", is_dead=True))
    await asyncio.wait([ending], timeout=0.2)
    slow.may_end.set()
    assert await writing == {}
    assert await ending
    assert list(await second.find("hop", [key])) == [key]
    for database in (first, second):
        await database.close()
