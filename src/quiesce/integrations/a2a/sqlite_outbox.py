"""An outbox in a file, which outlives the process and its death by SIGKILL.

All of SQLite is done by one thread of its own, in the order of the calls. One process at a time has
the file: it is locked, and whoever opens it next waits some seconds for the one before to end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quiesce.core import arguments
from quiesce.errors import UsageError
from quiesce.integrations.a2a.outbox import DeadLetter, Note, Push, Target

try:
    import fcntl as _fcntl

    fcntl: Any = _fcntl
except ImportError:  # not on Windows: there nobody is kept from opening it twice
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SqliteOutbox"]

T = TypeVar("T")

_LOCK_POLL_SECONDS = 0.05
_SCHEMA = """
create table if not exists tasks (
    id text primary key, user text not null, tenant text not null, targets text not null);
create table if not exists pushes (
    number integer primary key autoincrement, task text not null, url text not null,
    headers text not null, body blob not null, status text not null,
    attempts integer not null default 0, error text);
create table if not exists dead (
    number integer primary key autoincrement, task text not null, url text not null,
    body blob not null, attempts integer not null, why text not null, at real not null);
"""


class SqliteOutbox:
    """An outbox in a file.

    The file has what the pushes say, and the credentials of their receivers: only its owner may
    read it.

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
        self._dead_max = dead_max
        self._lock_seconds = arguments.seconds("lock_seconds", lock_seconds)
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None

    async def open(self) -> None:
        """Make or open the file.

        *Raises*: `UsageError` if another process has it.
        """
        if self._thread is not None:
            return
        await self._take()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quiesce-outbox")
        try:
            await self._do(self._connect)
        except BaseException:
            await self.close()
            raise

    async def _take(self) -> None:
        if fcntl is None:
            return
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + self._lock_seconds
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() >= deadline:
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
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute(f"pragma synchronous={self._synchronous}")
        connection.executescript(_SCHEMA)
        self._connection = connection

    async def close(self) -> None:
        """Close the file; what is pending stays in it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            connection, self._connection = self._connection, None
            if connection is not None:
                closing = thread.submit(connection.close)
                await asyncio.wait([asyncio.wrap_future(closing)])
            thread.shutdown(wait=True)  # it has nothing left to do
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _do(self, work: Callable[[], T]) -> T:
        thread = self._thread
        if thread is None:
            message = f"the outbox {self.path} is not open: open() it, or enter its handler"
            raise UsageError(message)
        return await asyncio.wrap_future(thread.submit(work))

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self._connection is None:
            message = f"the outbox {self.path} is closed"
            raise UsageError(message)
        return self._connection.execute(statement, values)

    async def write(self, note: Note, pushes: Sequence[Push], ended: Sequence[str] = ()) -> None:
        """Keep what is known of a task, and its pushes, in one step."""
        await self._do(lambda: self._write(note, pushes, ended))

    def _write(self, note: Note, pushes: Sequence[Push], ended: Sequence[str]) -> None:
        self._execute("begin immediate")
        try:
            for task in ended:
                self._execute("delete from tasks where id = ?", task)
            targets = json.dumps([[target.url, target.headers] for target in note.targets])
            self._execute(
                "insert or replace into tasks values (?, ?, ?, ?)",
                note.task_id, note.user, note.tenant, targets,
            )  # fmt: skip
            for push in pushes:
                cursor = self._execute(
                    "insert into pushes (task, url, headers, body, status) values (?, ?, ?, ?, ?)",
                    push.task_id, push.url, json.dumps(push.headers), push.body, push.status,
                )  # fmt: skip
                push.number = cursor.lastrowid or 0
            self._execute("commit")
        except BaseException:
            self._execute("rollback")
            raise

    async def sent(self, push: Push) -> None:
        """Forget a push."""
        await self._do(lambda: self._execute("delete from pushes where number = ?", push.number))

    async def failed(self, push: Push, why: str) -> None:
        """Keep that a delivery has failed."""
        statement = "update pushes set attempts = ?, error = ? where number = ?"
        await self._do(lambda: self._execute(statement, push.attempts, why, push.number))

    async def dead(self, push: Push, why: str) -> None:
        """Give a push up, and keep it among the dead letters."""
        await self._do(lambda: self._dead(push, why))

    def _dead(self, push: Push, why: str) -> None:
        self._execute("begin immediate")
        self._execute("delete from pushes where number = ?", push.number)
        self._execute(
            "insert into dead (task, url, body, attempts, why, at) values (?, ?, ?, ?, ?, ?)",
            push.task_id, push.url, push.body, push.attempts, why, time.time(),
        )  # fmt: skip
        kept = "select number from dead order by number desc limit ?"
        self._execute(f"delete from dead where number not in ({kept})", self._dead_max)  # noqa: S608 - ours
        self._execute("commit")

    async def pending(self) -> list[Push]:
        """Give what was not delivered, oldest first."""
        columns = "task, url, headers, body, status, number, attempts"
        statement = f"select {columns} from pushes order by number"  # noqa: S608 - ours
        found = await self._do(lambda: self._execute(statement).fetchall())
        return [
            Push(task, url, json.loads(headers), body, status, number, attempts)
            for task, url, headers, body, status, number, attempts in found
        ]

    async def unfinished(self) -> list[Note]:
        """Give the tasks that have not ended, as far as is known here."""
        statement = "select id, user, tenant, targets from tasks"
        found = await self._do(lambda: self._execute(statement).fetchall())
        return [
            Note(
                task, user, tenant,
                targets=tuple(Target(url, headers) for url, headers in json.loads(targets)),
            )
            for task, user, tenant, targets in found
        ]  # fmt: skip

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Forget tasks; their pushes stay."""
        await self._do(lambda: self._forget(task_ids))

    def _forget(self, task_ids: Sequence[str]) -> None:
        self._execute("begin immediate")
        for task in task_ids:
            self._execute("delete from tasks where id = ?", task)
        self._execute("commit")

    async def dead_letters(self) -> list[DeadLetter]:
        """Give what was given up, oldest first."""
        statement = "select task, url, body, attempts, why, at from dead order by number"
        found = await self._do(lambda: self._execute(statement).fetchall())
        return [DeadLetter(*row) for row in found]
