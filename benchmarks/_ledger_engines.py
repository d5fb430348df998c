"""What each store is measured against: its driver alone, which upserts the same rows, and one round trip."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread

from quiesce.mesh.store.store_address import store_of

if TYPE_CHECKING:
    from quiesce.mesh.store.database import Database
    from quiesce.mesh.store.rows import Batch, EdgeRow

_NAMES = (
    "key", "side", "agent", "owner", "cascade", "above", "state", "root", "began_at", "keep_until", "body",
)  # fmt: skip
_TYPES = (
    "bytea", "text", "text", "text", "bytea", "bytea", "text", "text", "float8", "float8", "bytea",
)  # fmt: skip


def database_at(address: str) -> Database:
    """Return the database of an address, as a node makes it."""
    _, database = store_of(address, durability="process")
    assert database is not None
    return database


def _values(row: EdgeRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in _NAMES)


class Engine(Protocol):
    """One connection of a driver."""

    async def open(self) -> None:
        """Connect to a store whose tables are there."""

    async def upsert(self, batch: Batch) -> None:
        """Insert or replace the rows of a batch."""

    async def round_trip(self) -> None:
        """Ask the least that can be asked."""

    async def close(self) -> None:
        """Close the connection."""


class SqliteEngine:
    """The module `sqlite3`, without threads for the changes."""

    def __init__(self, address: str) -> None:
        """Name the file."""
        self._path = urlsplit(address).path

    async def open(self) -> None:
        """Open the file."""
        self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")

    async def upsert(self, batch: Batch) -> None:
        """Insert or replace the rows of a batch in one transaction."""
        marks = ",".join("?" * len(_NAMES))
        replace = f"INSERT OR REPLACE INTO quiesce_rows ({', '.join(_NAMES)}) VALUES ({marks})"  # noqa: S608 - names
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany(replace, map(_values, (*batch.claims, *batch.puts)))
        self._file.execute("COMMIT")

    async def round_trip(self) -> None:
        """Select 1 in a thread, as an asyncio program has to."""
        await anyio.to_thread.run_sync(partial(self._file.execute, "SELECT 1"))

    async def close(self) -> None:
        """Close the file."""
        self._file.close()


class PostgresEngine:
    """The driver asyncpg."""

    def __init__(self, address: str) -> None:
        """Name the schema."""
        self._address, _, _ = address.partition("?")
        self._schema = parse_qs(urlsplit(address).query)["schema"][0]

    async def open(self) -> None:
        """Connect."""
        import asyncpg  # noqa: PLC0415 - only if it is measured

        settings = {"search_path": self._schema}
        self._connection = await asyncpg.connect(self._address, server_settings=settings)
        given = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(_TYPES, 1))
        changes = ", ".join(f"{name} = excluded.{name}" for name in _NAMES[2:])
        self._upsert = (
            f"INSERT INTO quiesce_rows ({', '.join(_NAMES)}) SELECT * FROM unnest({given})"  # noqa: S608 - names
            f" ON CONFLICT (key, side) DO UPDATE SET {changes}"
        )

    async def upsert(self, batch: Batch) -> None:
        """Insert or replace the rows of a batch in one statement."""
        rows = [*batch.claims, *batch.puts]
        columns = [[getattr(row, name) for row in rows] for name in _NAMES]
        await self._connection.execute(self._upsert, *columns)

    async def round_trip(self) -> None:
        """Select 1."""
        await self._connection.fetchval("SELECT 1")

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


class NatsEngine:
    """The client nats-py: as many messages as a commit of the store has, all at a time, each acknowledged."""

    def __init__(self, address: str) -> None:
        """Name the bucket."""
        parts = urlsplit(address)
        self._server = f"nats://{parts.hostname}:{parts.port}"
        self._user, self._password = "keeper", "s3cret:of@the/mesh"
        self._bucket = parts.path.strip("/")

    async def open(self) -> None:
        """Connect."""
        from nats.aio.client import Client  # noqa: PLC0415 - only if it is measured

        self._client = Client()
        await self._client.connect(
            self._server, user=self._user, password=self._password, pending_size=2**28
        )

    async def upsert(self, batch: Batch) -> None:
        """Publish two messages for each new row, three for each that is over, and one more."""
        messages = [("entry", b"1" * 200)]
        for row in (*batch.claims, *batch.puts):
            key = row.key.hex()
            messages.append((f"r.{key}", json.dumps(str(_values(row))).encode()))
            messages.append((f"x.{row.state}.{key}", b"1"))
            if row.state == "over":
                messages.append((f"x.open.{key}", b""))
        await asyncio.gather(*(self._publish(subject, data) for subject, data in messages))

    async def _publish(self, subject: str, data: bytes) -> None:
        done = await self._client.request(f"{self._bucket}.s.{subject}", data, timeout=60)
        assert b'"seq"' in done.data, done.data

    async def round_trip(self) -> None:
        """Read one message."""
        ask = json.dumps({"last_by_subj": f"{self._bucket}.s.schema"}).encode()
        await self._client.request(f"$JS.API.DIRECT.GET.{self._bucket}", ask, timeout=60)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


_ENGINES: dict[str, Any] = {
    "sqlite": SqliteEngine,
    "postgres": PostgresEngine,
    "nats": NatsEngine,
}


async def engine_at(store: str, address: str) -> Engine:
    """Connect the driver alone to a store."""
    made: Engine = _ENGINES[store](address)
    await made.open()
    return made
