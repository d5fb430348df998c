"""An outbox in a file, which outlives the process and its death by SIGKILL.

All of SQLite is done by one thread of its own, in the order of the calls. One process at a time has
the file: it is locked, and the next process that opens it waits some seconds for the one before to end.

1. What was begun is ended, although its caller is cancelled; the cancellation is passed on after. So a
   push is in the file or is not, and its writer can know.
2. A change that fails leaves nothing of itself, and nothing in the way of the next one.
3. However `open` and `close` end, there is no thread after, no lock and no open file.
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
except ImportError:  # not on Windows: there nothing keeps a second process from opening it
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

    The file has what the pushes say, and the credentials of their receivers: only its owner may
    read it.

    *Cancel safety*: what was begun is ended, and then the cancellation is passed on.

    Args:
        path: The file; it is made if it is not there.
        synchronous: SQLite's word for how hard to try: `"NORMAL"` outlives the death of the
            process, `"FULL"` that of the machine as well, and is slower.
        dead_max: How many dead letters are kept; the oldest go first.
        lock_seconds: How long to wait for another process to let go of the file.
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
        """Describe it; `open` makes the file."""
        self.path: Path = Path(path)
        self._synchronous = arguments.one_of("synchronous", synchronous, ("NORMAL", "FULL"))
        self._dead_max = arguments.size("dead_max", dead_max)
        self._lock_seconds = arguments.seconds("lock_seconds", lock_seconds)
        self._thread: ThreadPoolExecutor | None = None
        self._closing: Future[None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None

    async def open(self) -> None:
        """Make or open the file.

        *Raises*: `UsageError` if another process has it, or if it cannot be opened.
        """
        if self._thread is not None:
            return
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quiesce-outbox")
        try:
            await self._take()
            await self._do(self._connect)
        except (OSError, sqlite3.Error) as error:
            await self.close()
            raise UsageError(_explained(self.path, error)) from error
        except BaseException:
            await self.close()
            raise

    async def _take(self) -> None:
        if fcntl is None:
            return
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                            " process an outbox of its own"
                        )
                        raise UsageError(message) from None
                    await asyncio.sleep(_LOCK_POLL_SECONDS)
                else:
                    break
        except BaseException:
            os.close(lock)
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
                f"the outbox {self.path} is of another quiesce ({version}, not {_VERSION}): deliver what"
                " it has with that one, or give another file"
            )
            raise UsageError(message)
        with self._change():
            for statement in _TABLES.strip().split("\n\n"):
                self._execute(statement)
            self._execute(f"pragma user_version={_VERSION}")

    async def close(self) -> None:
        """Close the file; what is pending stays in it."""
        thread, self._thread = self._thread, None
        if thread is None:
            if self._closing is not None:
                await outlast(asyncio.wrap_future(self._closing))
            return
        self._closing = thread.submit(self._shut)
        try:
            await outlast(asyncio.wrap_future(self._closing))
        finally:
            self._closing = None
            thread.shutdown(wait=True)  # it has nothing left to do

    def _shut(self) -> None:
        connection, self._connection = self._connection, None
        lock, self._lock = self._lock, None
        try:
            if connection is not None:
                connection.close()
        finally:
            if lock is not None:
                os.close(lock)

    async def _do(self, work: Callable[..., T], *args: Any) -> T:
        thread = self._thread
        if thread is None:
            message = f"the outbox {self.path} is not open: open() it, or enter its handler"
            raise UsageError(message)
        return await outlast(asyncio.wrap_future(thread.submit(work, *args)))

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self._connection is None:
            message = f"the outbox {self.path} is closed"
            raise UsageError(message)
        return self._connection.execute(statement, values)

    def _found(self, statement: str) -> list[Any]:
        return self._execute(statement).fetchall()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Make several changes one, or none (2)."""
        self._execute("begin immediate")
        try:
            yield
            self._execute("commit")
        except BaseException:
            # SQLite has taken it back by itself if the disk is full.
            if self._connection is not None and self._connection.in_transaction:
                self._execute("rollback")
            raise

    async def write(
        self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str] = ()
    ) -> None:
        """Keep what is known of a task, and its pushes, in one step."""
        await self._do(self._write, note, pushes, ended)

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
        """Forget a push."""
        await self._do(self._execute, "delete from pushes where id = ?", push.id)

    async def failed(self, push: Push, why: str) -> None:
        """Keep that a delivery has failed."""
        statement = "update pushes set attempts = ?, error = ?, cascade = ? where id = ?"
        await self._do(self._execute, statement, push.attempts, why, push.cascade, push.id)

    async def dead(self, push: Push, why: str) -> None:
        """Move a push to the dead letters."""
        await self._do(self._dead, push, why)

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
        """Return what was not delivered, oldest first."""
        statement = f"select {_PUSH} from pushes order by number"  # noqa: S608 - ours
        found = await self._do(self._found, statement)
        return [
            Push(
                task, url, json.loads(headers), body, status, attempts, push_id, at, cascade=cascade
            )
            for task, url, headers, body, status, attempts, push_id, at, cascade in found
        ]

    async def unfinished(self) -> list[TaskNote]:
        """Return the tasks that have not ended, as far as is known here."""
        found = await self._do(self._found, "select id, user, tenant, targets from tasks")
        return [
            TaskNote(
                task, user, tenant,
                targets=tuple(PushTarget(url, headers) for url, headers in json.loads(targets)),
            )
            for task, user, tenant, targets in found
        ]  # fmt: skip

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Forget tasks; their pushes stay."""
        await self._do(self._forget, "tasks", task_ids)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return what was given up, oldest first."""
        statement = "select task, url, body, attempts, why, at, id from dead order by number"
        return [DeadLetter(*row) for row in await self._do(self._found, statement)]

    async def revive(self, ids: Sequence[str] | None = None) -> list[Push]:
        """Make pushes of dead letters again, behind those that wait; of all, without ids."""
        return await self._do(self._revive, ids)

    def _revive(self, ids: Sequence[str] | None) -> list[Push]:
        with self._change():
            statement = "select task, url, headers, body, id from dead order by number"
            found = [
                Push(task, url, json.loads(headers), body, id=push_id)
                for task, url, headers, body, push_id in self._found(statement)
                if ids is None or push_id in ids
            ]
            for push in found:
                self._insert(push)
            self._delete("dead", [push.id for push in found])
            return found

    async def discard(self, ids: Sequence[str]) -> int:
        """Forget dead letters; return how many there were."""
        return await self._do(self._forget, "dead", ids)

    def _forget(self, table: str, ids: Sequence[str]) -> int:
        with self._change():
            return self._delete(table, ids)

    def _delete(self, table: str, ids: Sequence[str]) -> int:
        statement = f"delete from {table} where id = ?"  # noqa: S608 - ours
        return sum(self._execute(statement, one).rowcount for one in ids)


def _explained(path: Path, error: OSError | sqlite3.Error) -> str:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        hint = "move it away, with what was not delivered, or give another file"
    else:
        hint = "give a file in a folder that this process may write to"
    return f"the outbox {path} cannot be opened: {error}; {hint}"
