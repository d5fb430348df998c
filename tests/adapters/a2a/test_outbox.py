"""The outbox in a file: cancelled anywhere, on a full or broken disk, and of another version."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.a2a import MemoryOutbox, SqliteOutbox
from quiesce.integrations.a2a.push.push_outbox import Push, PushTarget, TaskNote
from quiesce.testing import sweep

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.integrations.a2a import Outbox

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

TARGET = PushTarget("http://receiver.test/hook", {"Authorization": "Bearer a secret"})
NOTE = TaskNote("task", "user", "tenant", (TARGET,))


def push(task_id: str = "task", **options: Any) -> Push:
    """Return a push."""
    return Push(task_id, TARGET.url, dict(TARGET.headers), b"{}", "working ", **options)


async def use(path: Path) -> None:
    """Do all that an outbox is used for, once."""
    outbox = SqliteOutbox(path)
    await outbox.open()
    try:
        first, second = push(), push()
        await outbox.write(NOTE, [first, second], ["another"])
        await outbox.failed(first, "busy")
        await outbox.sent(first)
        await outbox.dead(second, "gone")
        await outbox.revive()
        await outbox.forget(["task"])
        await outbox.discard([])
    finally:
        await outbox.close()


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.parametrize("depth", [1, 2])
def test_it_may_be_cancelled_anywhere(tmp_path: Path, backend: Any, depth: int) -> None:
    """At every await, once and twice: no thread, file or lock is left, and it can be opened again."""
    path = tmp_path / "outbox.db"

    def check() -> None:
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            connection.execute("begin immediate")  # nobody has it open in a change

    async def scenario() -> None:
        await use(path)

    ways: Any = ["native", "scope"] if depth == 1 else ["native"]
    found = sweep(
        scenario, backend=backend, where="all", depth=depth, cancel=ways, check=check, runs_max=150
    )
    assert found.ok, str(found)
    assert found.points > 8


async def test_a_cancelled_wait_for_another_process_leaves_nothing(tmp_path: Path) -> None:
    """Neither a thread nor the lock: the next one has it as soon as it is free."""
    first = SqliteOutbox(tmp_path / "outbox.db")
    await first.open()
    second = SqliteOutbox(tmp_path / "outbox.db")
    waiting = asyncio.ensure_future(second.open())
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await first.close()
    third = SqliteOutbox(tmp_path / "outbox.db", lock_seconds=0)
    await third.open()
    await third.close()


async def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The worker of a process pool outlives a process that is killed: the next process has the outbox all the same."""
    outbox = SqliteOutbox(tmp_path / "outbox.db", lock_seconds=0)
    await outbox.open()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        theirs.send(b"forked")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    with ours:
        assert ours.recv(6) == b"forked"
        await outbox.close()
        await outbox.open()
    await outbox.close()
    assert os.waitpid(child, 0) == (child, 0)  # noqa: ASYNC222 - it exits at once


async def test_who_closes_it_too_waits_for_the_close(tmp_path: Path) -> None:
    """When either returns, the next one can open it."""
    outbox = SqliteOutbox(tmp_path / "outbox.db", lock_seconds=0)
    await outbox.open()
    closing_it = asyncio.ensure_future(outbox.close())
    await asyncio.sleep(0)
    await outbox.close()
    again = SqliteOutbox(tmp_path / "outbox.db", lock_seconds=0)
    await again.open()
    await again.close()
    await closing_it


BROKEN = {"full": "pragma max_page_count=1", "read-only": "pragma query_only=on"}
WHOLE = {"full": "pragma max_page_count=1000000", "read-only": "pragma query_only=off"}


async def _pragma(outbox: SqliteOutbox, statement: str) -> None:
    await outbox._run_in_thread(lambda: outbox._execute(statement).fetchall())


@pytest.mark.parametrize("how", BROKEN)
async def test_a_change_that_fails_leaves_the_way_free_for_the_next(
    tmp_path: Path, how: str
) -> None:
    """On a full disk, or one that has turned read-only: what was there stays, and it recovers."""
    outbox = SqliteOutbox(tmp_path / "outbox.db")
    await outbox.open()
    kept, large = push(), push(attempts=1)
    large.body = b"x" * 100_000
    await outbox.write(NOTE, [kept])
    await _pragma(outbox, BROKEN[how])
    changes = [outbox.write(NOTE, [large]), outbox.dead(large, "x" * 100_000)]
    if how == "read-only":
        changes += [outbox.forget(["task"]), outbox.sent(kept)]
    for change in changes:
        with pytest.raises(sqlite3.OperationalError, match=r"full|readonly"):
            await change
    assert [each.id for each in await outbox.pending()] == [kept.id]
    await _pragma(outbox, WHOLE[how])
    await outbox.write(NOTE, [large])
    await outbox.dead(kept, "gone")
    assert [each.id for each in await outbox.pending()] == [large.id]
    assert [letter.id for letter in await outbox.dead_letters()] == [kept.id]
    await outbox.close()


async def test_a_change_that_breaks_in_the_middle_is_taken_back(tmp_path: Path) -> None:
    """Nothing of it is there, and the next one is as good as ever."""
    outbox = SqliteOutbox(tmp_path / "outbox.db")
    await outbox.open()
    good, bad = push(), push()
    bad.body = object()  # type: ignore[assignment]  # which no column takes
    for change in (outbox.write(NOTE, [good, bad]), outbox.dead(bad, "gone")):
        with pytest.raises(sqlite3.Error):
            await change
        assert not await outbox.pending()
        assert not await outbox.unfinished()
    await outbox.write(NOTE, [good])
    assert [each.id for each in await outbox.pending()] == [good.id]
    await outbox.close()


async def test_a_push_that_could_not_be_written_is_not_taken_for_another(tmp_path: Path) -> None:
    """It is sent from memory; that it was must not make the file forget one that is in it."""
    outbox = SqliteOutbox(tmp_path / "outbox.db")
    await outbox.open()
    lost, kept = push(), push()
    lost.body = b"x" * 100_000
    await _pragma(outbox, BROKEN["full"])
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await outbox.write(NOTE, [lost])
    await _pragma(outbox, WHOLE["full"])
    await outbox.write(NOTE, [kept])
    await outbox.sent(lost)
    assert [each.id for each in await outbox.pending()] == [kept.id]
    await outbox.close()


@pytest.mark.parametrize("what", ["garbage", "damaged", "folder", "no folder", "newer", "older"])
async def test_a_file_that_cannot_be_opened_says_so(tmp_path: Path, what: str) -> None:
    """With its name and what to do; and nothing is left open."""
    path = tmp_path / "outbox.db"
    if what == "garbage":
        path.write_bytes(b"this is no database" * 100)
    elif what == "damaged":
        await use(path)
        path.write_bytes(path.read_bytes()[:100] + b"\xff" * 20_000)
    elif what == "folder":
        path.mkdir()
    elif what == "no folder":
        path = tmp_path / "nowhere" / "outbox.db"
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"pragma user_version={99 if what == 'newer' else 1}")
    outbox = SqliteOutbox(path, lock_seconds=0)
    for _ in range(2):  # the second time, nothing of the first is in the way
        with pytest.raises(UsageError, match=r"outbox\.db (cannot be opened|has format)"):
            await outbox.open()


def outboxes(path: Path) -> list[Outbox]:
    """Return one of each kind."""
    return [MemoryOutbox(dead_max=2), SqliteOutbox(path, dead_max=2)]


@pytest.mark.parametrize("kind", [0, 1], ids=["memory", "file"])
async def test_dead_letters_can_be_revived_and_discarded(tmp_path: Path, kind: int) -> None:
    """By their ids; the oldest go when there are too many; revived, they are as new."""
    outbox = outboxes(tmp_path / "outbox.db")[kind]
    await outbox.open()
    pushes = [push(task, attempts=3) for task in "abc"]
    await outbox.write(NOTE, pushes)
    for each in pushes:
        await outbox.dead(each, "gone")
    letters = await outbox.dead_letters()
    assert [letter.task_id for letter in letters] == ["b", "c"]
    assert [letter.id for letter in letters] == [pushes[1].id, pushes[2].id]
    assert "secret" not in repr(letters)
    assert "secret" not in repr(pushes)
    (revived,) = await outbox.revive([letters[0].id])
    assert (revived.id, revived.attempts, revived.status) == (letters[0].id, 0, "")
    assert revived.headers == TARGET.headers
    assert [each.id for each in await outbox.pending()] == [revived.id]
    assert await outbox.discard([letters[1].id, "unknown"]) == 1
    assert not await outbox.dead_letters()
    assert not await outbox.revive()
    await outbox.close()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    """With words that say which."""
    with pytest.raises(ArgumentError, match="dead_max"):
        SqliteOutbox(tmp_path / "outbox.db", dead_max=0)
    with pytest.raises(ArgumentError, match="dead_max"):
        MemoryOutbox(dead_max=0)
    with pytest.raises(ArgumentError, match="synchronous"):
        SqliteOutbox(tmp_path / "outbox.db", synchronous="OFF")
