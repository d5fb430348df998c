"""Rows in an SQLite file, for processes of one machine.

One thread at a time uses the connection. Each change is one transaction that takes the write lock at its beginning.
Other processes learn of a change from the file of the write-ahead log, whose time is looked at many times a second: that
costs a system call, and no lock.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from quiesce.core.current import detached
from quiesce.errors import ReplicaBuried, StoreLost, UsageError
from quiesce.mesh.store.database import SCHEMA
from quiesce.mesh.store.rows import EdgeRow, Notice, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.store.rows import Batch, Side

__all__: list[str] = []

_T = TypeVar("_T")

_BUSY_SECONDS = 5.0  # for the write lock, which other processes hold for milliseconds
_LOOK_SECONDS = 0.01
_KEYS_MAX = 500  # in one statement

_TABLES = """
CREATE TABLE IF NOT EXISTS quiesce_schema (version INTEGER NOT NULL, born_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS quiesce_rows (
    key BLOB NOT NULL, side TEXT NOT NULL, agent TEXT NOT NULL, owner TEXT NOT NULL, cascade BLOB NOT NULL,
    above BLOB NOT NULL, state TEXT NOT NULL, root TEXT, began_at REAL NOT NULL, keep_until REAL, body BLOB NOT NULL,
    PRIMARY KEY (key, side)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS quiesce_rows_owner ON quiesce_rows (owner) WHERE state <> 'over';
CREATE INDEX IF NOT EXISTS quiesce_rows_cascade ON quiesce_rows (cascade);
CREATE INDEX IF NOT EXISTS quiesce_rows_root ON quiesce_rows (began_at) WHERE root IS NOT NULL;
CREATE INDEX IF NOT EXISTS quiesce_rows_keep ON quiesce_rows (keep_until) WHERE keep_until IS NOT NULL;
CREATE TABLE IF NOT EXISTS quiesce_replicas (
    incarnation TEXT PRIMARY KEY, agent TEXT NOT NULL, name TEXT NOT NULL, host TEXT NOT NULL, boot TEXT NOT NULL,
    pid INTEGER NOT NULL, started INTEGER NOT NULL, lease REAL NOT NULL, fences INTEGER NOT NULL,
    state TEXT NOT NULL, beat_at REAL NOT NULL, heir TEXT NOT NULL, why TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS quiesce_notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS quiesce_notices_owner ON quiesce_notices (owner);
"""
_ROW = "key, side, agent, owner, cascade, above, state, root, began_at, keep_until, body"
_REPLICA = "incarnation, agent, name, host, boot, pid, started, lease, fences, state, beat_at, heir, why"  # fmt: skip


class SqliteDatabase:
    """Rows in an SQLite file.

    Args:
        path: The file. It is made if it does not exist.
        syncs: Whether each change waits for the disk, so that it survives a loss of power.
    """

    rolls_back = True
    """Whether nothing of a change is there after `StoreLost`."""

    def __init__(self, path: str | os.PathLike[str], *, syncs: bool = False) -> None:
        """Describe the file; `open` makes it."""
        self.path: Path = Path(path).absolute()
        self._syncs = syncs
        self._file: sqlite3.Connection | None = None
        self._one = anyio.CapacityLimiter(1)
        self._in_use = threading.Lock()  # also by the thread of a task that was cancelled

    @property
    def is_one_machine(self) -> bool:
        """Whether only processes of one machine can use the store."""
        return True

    @property
    def label(self) -> str:
        """The address for messages."""
        return f"sqlite://{self.path}"

    async def _do(self, work: Callable[..., _T], *args: Any) -> _T:
        """Run a function with the connection in a thread."""
        if self._file is None:
            message = f"the store {self.label} is not open: call open() first"
            raise UsageError(message)
        try:
            with detached():  # the thread belongs to the store, not to the caller's scope
                return await anyio.to_thread.run_sync(
                    partial(self._do_alone, work, self._file, *args), limiter=self._one
                )
        except sqlite3.Error as error:
            message = f"the store {self.label} cannot be used now: {error}"
            raise StoreLost(message) from error

    def _do_alone(self, work: Callable[..., _T], *args: Any) -> _T:
        with self._in_use:
            return work(*args)

    async def open(self) -> None:
        """Open the file, and make its tables if there are none."""
        if not self.path.parent.is_dir():
            message = f"the folder of the store {self.label} does not exist: make it first"
            raise UsageError(message)
        with detached():
            await anyio.to_thread.run_sync(self._open, limiter=self._one)

    def _open(self) -> None:
        made = not self.path.exists()
        try:
            file = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            message = f"the store {self.label} cannot be opened: {error}"
            raise UsageError(message) from error
        try:
            if made:
                self.path.chmod(0o600)
            file.execute("PRAGMA journal_mode=WAL")
            file.execute(f"PRAGMA synchronous={'FULL' if self._syncs else 'NORMAL'}")
            self._make_tables(file)
        except sqlite3.OperationalError as error:
            file.close()
            if "locked" in str(error) or "busy" in str(error):
                message = f"the store {self.label} cannot be used now: {error}"
                raise StoreLost(message) from error
            message = (
                f"the store {self.label} cannot be used ({error}): name a file that this process may write, in a folder"
                " in which it may make files"
            )
            raise UsageError(message) from error
        except sqlite3.DatabaseError as error:
            file.close()
            message = f"{self.path} is not an SQLite file ({error}): name another file"
            raise UsageError(message) from error
        except BaseException:
            file.close()
            raise
        self._file = file

    def _make_tables(self, file: sqlite3.Connection) -> None:
        file.execute("BEGIN IMMEDIATE")
        try:
            for statement in _TABLES.split(";"):
                file.execute(statement)
            self._check_version(file)
            file.execute("COMMIT")
        except BaseException:
            file.execute("ROLLBACK")
            raise

    def _check_version(self, file: sqlite3.Connection) -> None:
        found = file.execute("SELECT version FROM quiesce_schema").fetchone()
        if found is None:
            file.execute("INSERT INTO quiesce_schema VALUES (?, ?)", (SCHEMA, time.time()))
        elif found[0] != SCHEMA:
            message = (
                f"the store {self.label} has tables of version {found[0]}, and this version of quiesce needs version"
                f" {SCHEMA}: run the version of quiesce that made them, or name another file"
            )
            raise UsageError(message)

    async def born_at(self) -> float:
        """Return when the tables were made."""
        return await self._do(_born_at)

    async def run(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each change of the file, until cancelled."""
        log = f"{self.path}-wal"
        before = _change_of(log)
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            now = _change_of(log)
            if now != before:
                before = now
                wake()

    async def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with anyio.CancelScope(shield=True), detached():  # bounded: no thread uses it for long
                await anyio.to_thread.run_sync(
                    partial(self._do_alone, file.close), limiter=self._one
                )

    # Rows.

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write a batch in one transaction. Return the rows of lost claims, by key."""
        return await self._do(_changing(_apply), batch)

    async def find(self, side: Side, keys: Iterable[bytes]) -> dict[bytes, EdgeRow]:
        """Return the rows of one side with these keys, by key."""
        return await self._do(_find, side, list(keys))

    async def owned(self, owner: str) -> list[EdgeRow]:
        """Return the rows of an incarnation that are not over."""
        where = "owner = ? AND state <> 'over' ORDER BY began_at"
        return await self._do(_rows, where, (owner,))

    async def cascade(self, cascade: bytes) -> list[EdgeRow]:
        """Return all rows of a cascade."""
        return await self._do(_rows, "cascade = ? ORDER BY began_at", (cascade,))

    async def roots(self, most: int) -> list[EdgeRow]:
        """Return the first hops of the newest cascades."""
        return await self._do(_rows, "root IS NOT NULL ORDER BY began_at DESC LIMIT ?", (most,))

    async def notices(self, owners: Iterable[str]) -> list[Notice]:
        """Return the notices for some incarnations, oldest first."""
        return await self._do(_notices, list(owners))

    async def prune(self, now: float, most: int = 1000) -> int:
        """Remove rows that are not needed any more; return their number."""
        return await self._do(_changing(_prune), now, most)

    # Replicas.

    async def enroll(self, replica: Replica) -> None:
        """Add an incarnation."""
        await self._do(_changing(_enroll), replica)

    async def beat(self, incarnation: str) -> None:
        """Record that an incarnation is alive."""
        await self._do(_changing(_beat), incarnation)

    async def replicas(self, agent: str | None = None) -> list[Replica]:
        """Return the incarnations of an agent, or of all agents."""
        return await self._do(_replicas, agent)

    async def end(self, incarnation: str, *, is_dead: bool, why: str = "") -> bool:
        """Record that an incarnation is dead, or has left."""
        return await self._do(_changing(_end), incarnation, "dead" if is_dead else "left", why)

    async def inherit(self, incarnation: str, heir: str, before: str) -> bool:
        """Make `heir` the heir of a dead incarnation, if its heir is `before`."""
        return await self._do(_changing(_inherit), incarnation, heir, before)

    async def forget(self, incarnation: str) -> None:
        """Remove an incarnation that is not alive."""
        await self._do(_changing(_forget), incarnation)


def _change_of(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - a hundred times a second
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


# Functions that run in the thread, with the connection.


def _changing(work: Callable[..., _T]) -> Callable[..., _T]:
    """Return a function that does its work in a transaction."""

    def change(file: sqlite3.Connection, *args: Any) -> _T:
        file.execute("BEGIN IMMEDIATE")
        try:
            result = work(file, *args)
            file.execute("COMMIT")
        except BaseException:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise
        return result

    return change


def _born_at(file: sqlite3.Connection) -> float:
    born: float = file.execute("SELECT born_at FROM quiesce_schema").fetchone()[0]
    return born


def _apply(file: sqlite3.Connection, batch: Batch) -> dict[bytes, EdgeRow]:
    _check_alive(file, batch.owner)
    lost: dict[bytes, EdgeRow] = {}
    for row in batch.claims:
        insert = f"INSERT INTO quiesce_rows ({_ROW}) VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"  # noqa: S608 - names
        if not file.execute(insert, _values(row)).rowcount:
            lost.update(_find(file, row.side, [row.key]))
    replace = f"INSERT OR REPLACE INTO quiesce_rows ({_ROW}) VALUES (?,?,?,?,?,?,?,?,?,?,?)"  # noqa: S608 - names
    file.executemany(replace, map(_values, batch.puts))
    file.executemany(
        "INSERT INTO quiesce_notices (owner, kind, key, body) VALUES (?,?,?,?)",
        ((one.owner, one.kind, one.key, one.body) for one in batch.notices),
    )
    file.executemany("DELETE FROM quiesce_rows WHERE side = ? AND key = ?", batch.drops)
    file.executemany(
        "DELETE FROM quiesce_notices WHERE number = ?", ((number,) for number in batch.handled)
    )
    return lost


def _check_alive(file: sqlite3.Connection, incarnation: str) -> None:
    found = file.execute(
        "SELECT state, why FROM quiesce_replicas WHERE incarnation = ?", (incarnation,)
    ).fetchone()
    if found is None or found[0] != "alive":
        raise ReplicaBuried(incarnation, "" if found is None else found[1])


def _values(row: EdgeRow) -> tuple[Any, ...]:
    return (
        row.key, row.side, row.agent, row.owner, row.cascade, row.above, row.state, row.root, row.began_at,
        row.keep_until, row.body,
    )  # fmt: skip


def _row(found: tuple[Any, ...]) -> EdgeRow:
    key, side, agent, owner, cascade, above, state, root, began_at, keep_until, body = found
    return EdgeRow(
        key=key, side=side, agent=agent, owner=owner, cascade=cascade, above=above, state=state, root=root,
        began_at=began_at, keep_until=keep_until, body=body,
    )  # fmt: skip


def _rows(file: sqlite3.Connection, where: str, args: tuple[object, ...]) -> list[EdgeRow]:
    select = f"SELECT {_ROW} FROM quiesce_rows WHERE {where}"  # noqa: S608 - fixed texts
    return [_row(found) for found in file.execute(select, args)]


def _find(file: sqlite3.Connection, side: str, keys: list[bytes]) -> dict[bytes, EdgeRow]:
    found: dict[bytes, EdgeRow] = {}
    for first in range(0, len(keys), _KEYS_MAX):
        some = keys[first : first + _KEYS_MAX]
        marks = ",".join("?" * len(some))
        for row in _rows(file, f"side = ? AND key IN ({marks})", (side, *some)):
            found[row.key] = row
    return found


def _notices(file: sqlite3.Connection, owners: list[str]) -> list[Notice]:
    marks = ",".join("?" * len(owners))
    select = f"SELECT owner, kind, key, body, number FROM quiesce_notices WHERE owner IN ({marks}) ORDER BY number"  # noqa: S608 - marks
    return [Notice(*found) for found in file.execute(select, owners)]


def _prune(file: sqlite3.Connection, now: float, most: int) -> int:
    old = "SELECT key, side FROM quiesce_rows WHERE keep_until < ? LIMIT ?"
    delete = f"DELETE FROM quiesce_rows WHERE (key, side) IN ({old})"  # noqa: S608 - a fixed text
    return file.execute(delete, (now, most)).rowcount


def _enroll(file: sqlite3.Connection, one: Replica) -> None:
    file.execute(
        f"INSERT INTO quiesce_replicas ({_REPLICA}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608 - names
        (
            one.incarnation, one.agent, one.name, one.host, one.boot, one.pid, one.started, one.lease, one.fences,
            "alive", time.time(), "", "",
        ),
    )  # fmt: skip


def _beat(file: sqlite3.Connection, incarnation: str) -> None:
    _check_alive(file, incarnation)
    update = "UPDATE quiesce_replicas SET beat_at = ? WHERE incarnation = ?"
    file.execute(update, (time.time(), incarnation))


def _replicas(file: sqlite3.Connection, agent: str | None) -> list[Replica]:
    select = f"SELECT {_REPLICA} FROM quiesce_replicas WHERE ? IS NULL OR agent = ?"  # noqa: S608 - names
    return [_replica(found) for found in file.execute(select, (agent, agent))]


def _replica(found: tuple[Any, ...]) -> Replica:
    (
        incarnation, agent, name, host, boot, pid, started, lease, fences, state, beat_at, heir, why,
    ) = found  # fmt: skip
    return Replica(
        incarnation=incarnation, agent=agent, name=name, host=host, boot=boot, pid=pid, started=started, lease=lease,
        fences=bool(fences), state=state, age=max(0.0, time.time() - beat_at), heir=heir, why=why,
    )  # fmt: skip


def _end(file: sqlite3.Connection, incarnation: str, state: str, why: str) -> bool:
    update = (
        "UPDATE quiesce_replicas SET state = ?, why = ? WHERE incarnation = ? AND state = 'alive'"
    )
    return file.execute(update, (state, why, incarnation)).rowcount > 0


def _inherit(file: sqlite3.Connection, incarnation: str, heir: str, before: str) -> bool:
    update = (
        "UPDATE quiesce_replicas SET heir = ? WHERE incarnation = ? AND state = 'dead' AND heir = ?"
    )
    return file.execute(update, (heir, incarnation, before)).rowcount > 0


def _forget(file: sqlite3.Connection, incarnation: str) -> None:
    delete = "DELETE FROM quiesce_replicas WHERE incarnation = ? AND state <> 'alive'"
    if file.execute(delete, (incarnation,)).rowcount:
        file.execute("DELETE FROM quiesce_notices WHERE owner = ?", (incarnation,))
