"""An outbox in a file, which outlives the process, also if SIGKILL ends the process.

One thread of its own makes all calls of SQLite, in order. A lock lets one process at a time use the file.
The next process that opens it waits some seconds for the lock.

1. A call that has begun runs to its end, although its caller is cancelled; the caller gets the
   cancellation after that. So the caller knows whether a push is in the file.
2. A change that fails is rolled back, and does not block the next change.
3. When `open` has failed or `close` has ended, no thread, no lock and no open file is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quiesce.core import arguments
from quiesce.core.lock_files import close_lock_file, open_lock_file
from quiesce.errors import UsageError
from quiesce.integrations.a2a.outlasting import outlast
from quiesce.integrations.a2a.push.push_outbox import (
    DeadLetter,
    Push,
    PushTarget,
    TaskNote,
)

try:
    import fcntl as _fcntl

    fcntl: Any = _fcntl
except ImportError:  # on Windows: there the file is not locked
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["SqliteOutbox"]

T = TypeVar("T")

_LOCK_POLL_SECONDS = 0.05
_VERSION = 2
_TABLES = """
create table if not exists tasks (id text primary key, user text, tenant text, targets text)

create table if not exists pushes (
    number integer primary key, task text, url text, headers text, body blob, status text,
    attempts integer, id text unique, at real, cascade text, error text)

create table if not exists dead (
    number integer primary key, task text, url text, body blob, attempts integer, why text, at real,
    id text unique, headers text)
"""
_PUSH = "task, url, headers, body, status, attempts, id, at, cascade"


class SqliteOutbox:
    """An outbox in a file.

    The file holds the bodies of pushes and the credentials of their receivers, so only its owner may
    read it.

    *Cancel safety*: a call that has begun runs to its end; then the cancellation is raised.

    Args:
        path: The file; it is created if it does not exist.
        synchronous: SQLite's setting of this name: `"NORMAL"` survives the death of the process.
            `"FULL"` survives the death of the machine as well, and is slower.
        dead_max: How many dead letters are kept; beyond that, the oldest are removed.
        lock_seconds: How many seconds to wait for another process to release the file.
    """

    durable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "NORMAL",
        dead_max: int = 1000,
        lock_seconds: float = 10.0,
    ) -> None:
        """Check the options; `open` creates the file."""
        self.path: Path = Path(path)
        self._synchronous = arguments.one_of("synchronous", synchronous, ("NORMAL", "FULL"))
        self._dead_max = arguments.size("dead_max", dead_max)
        self._lock_seconds = arguments.seconds("lock_seconds", lock_seconds)
        self._thread: ThreadPoolExecutor | None = None
        self._closing: Future[None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None

    async def open(self) -> None:
        """Create or open the file.

        *Raises*: `UsageError` if another process uses the file, or if it cannot be opened.
        """
        if self._thread is not None:
            return
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quiesce-outbox")
        try:
            await self._take_lock()
            await self._run_in_thread(self._connect)
        except (OSError, sqlite3.Error) as error:
            await self.close()
            raise UsageError(_explained(self.path, error)) from error
        except BaseException:
            await self.close()
            raise

    async def _take_lock(self) -> None:
        if fcntl is None:
            return
        lock = open_lock_file(f"{self.path}.lock")
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._lock_seconds
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if clock() >= deadline:
                        message = (
                            f"the outbox {self.path} is in use by another process: give each server"
                            " process its own outbox file"
                        )
                        raise UsageError(message) from None
                    await asyncio.sleep(_LOCK_POLL_SECONDS)
                else:
                    break
        except BaseException:
            close_lock_file(lock)
            raise
        self._lock = lock

    def _connect(self) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(self.path, isolation_level=None)
        self._execute("pragma journal_mode=wal")
        self._execute(f"pragma synchronous={self._synchronous}")
        ((version,),) = self._execute("pragma user_version").fetchall()
        if version not in {0, _VERSION}:
            message = (
                f"the outbox {self.path} has format {version}, and this quiesce reads format"
                f" {_VERSION}: deliver its pushes with the quiesce that wrote it, or pass another file"
            )
            raise UsageError(message)
        with self._change():
            for statement in _TABLES.strip().split("\n\n"):
                self._execute(statement)
            self._execute(f"pragma user_version={_VERSION}")

    async def close(self) -> None:
        """Close the file; pending pushes stay in it."""
        thread, self._thread = self._thread, None
        if thread is None:
            if self._closing is not None:
                await outlast(asyncio.wrap_future(self._closing))
            return
        self._closing = thread.submit(self._close_file)
        try:
            await outlast(asyncio.wrap_future(self._closing))
        finally:
            self._closing = None
            thread.shutdown(wait=True)  # returns at once: the thread is idle

    def _close_file(self) -> None:
        connection, self._connection = self._connection, None
        lock, self._lock = self._lock, None
        try:
            if connection is not None:
                connection.close()
        finally:
            if lock is not None:
                close_lock_file(lock)

    async def _run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        thread = self._thread
        if thread is None:
            message = f"the outbox {self.path} is not open: call its open(), or open the handler that uses it"
            raise UsageError(message)
        return await outlast(asyncio.wrap_future(thread.submit(work, *args)))

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self._connection is None:
            message = f"the outbox {self.path} is closed: call open() again"
            raise UsageError(message)
        return self._connection.execute(statement, values)

    def _rows(self, statement: str) -> list[Any]:
        return self._execute(statement).fetchall()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Run the block as one transaction, which is rolled back if the block raises (2)."""
        self._execute("begin immediate")
        try:
            yield
            self._execute("commit")
        except BaseException:
            # If the disk is full, SQLite has rolled back by itself.
            if self._connection is not None and self._connection.in_transaction:
                self._execute("rollback")
            raise

    async def write(
        self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str] = ()
    ) -> None:
        """Store the note of a task and its pushes, and remove the notes of `ended` tasks, in one transaction."""
        await self._run_in_thread(self._write, note, pushes, ended)

    def _write(self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str]) -> None:
        with self._change():
            self._delete("tasks", ended)
            targets = json.dumps([[target.url, target.headers] for target in note.targets])
            self._execute(
                "insert or replace into tasks (id, user, tenant, targets) values (?, ?, ?, ?)",
                note.task_id, note.user, note.tenant, targets,
            )  # fmt: skip
            for push in pushes:
                self._insert(push)

    def _insert(self, push: Push) -> None:
        self._execute(
            f"insert into pushes ({_PUSH}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - ours
            push.task_id, push.url, json.dumps(push.headers), push.body, push.status,
            push.attempts, push.id, push.at, push.cascade,
        )  # fmt: skip

    async def sent(self, push: Push) -> None:
        """Remove a push."""
        await self._run_in_thread(self._execute, "delete from pushes where id = ?", push.id)

    async def failed(self, push: Push, why: str) -> None:
        """Record that an attempt has failed."""
        statement = "update pushes set attempts = ?, error = ?, cascade = ? where id = ?"
        await self._run_in_thread(
            self._execute, statement, push.attempts, why, push.cascade, push.id
        )

    async def dead(self, push: Push, why: str) -> None:
        """Move a push to the dead letters."""
        await self._run_in_thread(self._dead, push, why)

    def _dead(self, push: Push, why: str) -> None:
        with self._change():
            self._execute("delete from pushes where id = ?", push.id)
            self._execute(
                "insert into dead (task, url, body, attempts, why, at, id, headers)"
                " values (?, ?, ?, ?, ?, ?, ?, ?)",
                push.task_id, push.url, push.body, push.attempts, why, time.time(),
                push.id, json.dumps(push.headers),
            )  # fmt: skip
            kept = "select number from dead order by number desc limit ?"
            self._execute(f"delete from dead where number not in ({kept})", self._dead_max)  # noqa: S608 - ours

    async def pending(self) -> list[Push]:
        """Return the pushes that were not delivered, oldest first."""
        statement = f"select {_PUSH} from pushes order by number"  # noqa: S608 - ours
        found = await self._run_in_thread(self._rows, statement)
        return [
            Push(
                task, url, json.loads(headers), body, status, attempts, push_id, at, cascade=cascade
            )
            for task, url, headers, body, status, attempts, push_id, at, cascade in found
        ]

    async def unfinished(self) -> list[TaskNote]:
        """Return the notes of the tasks that have not ended."""
        found = await self._run_in_thread(self._rows, "select id, user, tenant, targets from tasks")
        return [
            TaskNote(
                task, user, tenant,
                targets=tuple(PushTarget(url, headers) for url, headers in json.loads(targets)),
            )
            for task, user, tenant, targets in found
        ]  # fmt: skip

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Remove the notes of tasks; their pushes stay."""
        await self._run_in_thread(self._forget, "tasks", task_ids)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        statement = "select task, url, body, attempts, why, at, id from dead order by number"
        return [DeadLetter(*row) for row in await self._run_in_thread(self._rows, statement)]

    async def revive(self, ids: Sequence[str] | None = None) -> list[Push]:
        """Turn dead letters, all of them without `ids`, into pushes behind the waiting ones; return these."""
        return await self._run_in_thread(self._revive, ids)

    def _revive(self, ids: Sequence[str] | None) -> list[Push]:
        with self._change():
            statement = "select task, url, headers, body, id from dead order by number"
            found = [
                Push(task, url, json.loads(headers), body, id=push_id)
                for task, url, headers, body, push_id in self._rows(statement)
                if ids is None or push_id in ids
            ]
            for push in found:
                self._insert(push)
            self._delete("dead", [push.id for push in found])
            return found

    async def discard(self, ids: Sequence[str]) -> int:
        """Remove dead letters; return the number removed."""
        return await self._run_in_thread(self._forget, "dead", ids)

    def _forget(self, table: str, ids: Sequence[str]) -> int:
        with self._change():
            return self._delete(table, ids)

    def _delete(self, table: str, ids: Sequence[str]) -> int:
        statement = f"delete from {table} where id = ?"  # noqa: S608 - ours
        return sum(self._execute(statement, one).rowcount for one in ids)


def _explained(path: Path, error: OSError | sqlite3.Error) -> str:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        hint = (
            "the file is not an outbox, or is damaged; move it away, with its undelivered pushes, or"
            " pass another file"
        )
    else:
        hint = "pass a file in a folder that this process may write to"
    return f"the outbox {path} cannot be opened: {error}; {hint}"
