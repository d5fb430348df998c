"""The tables of a store in PostgreSQL, and what `open` looks at before they are used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from quiesce.errors import UsageError
from quiesce.mesh.store.database import SCHEMA

if TYPE_CHECKING:
    from quiesce.mesh.store.postgres_address import PostgresAddress

__all__: list[str] = []

_log = logging.getLogger("quiesce.store")

_VERSION_MIN = 140_000  # PostgreSQL 14: the first that can wait for the end of another session

# A heartbeat changes a row of quiesce_replicas in place: it is no column of an index, and a page has room for it.
_TABLES = """
CREATE TABLE quiesce_rows (
    key bytea NOT NULL, side text NOT NULL, agent text NOT NULL, owner text NOT NULL, cascade bytea NOT NULL,
    above bytea NOT NULL, state text NOT NULL, root text, began_at double precision NOT NULL,
    keep_until double precision, body bytea NOT NULL,
    PRIMARY KEY (key, side)
);
CREATE INDEX quiesce_rows_owner ON quiesce_rows (owner) WHERE state <> 'over';
CREATE INDEX quiesce_rows_cascade ON quiesce_rows (cascade);
CREATE INDEX quiesce_rows_root ON quiesce_rows (began_at) WHERE root IS NOT NULL;
CREATE INDEX quiesce_rows_keep ON quiesce_rows (keep_until) WHERE keep_until IS NOT NULL;
CREATE TABLE quiesce_replicas (
    incarnation text PRIMARY KEY, agent text NOT NULL, name text NOT NULL, host text NOT NULL, boot text NOT NULL,
    pid bigint NOT NULL, started bigint NOT NULL, lease double precision NOT NULL, fences boolean NOT NULL,
    state text NOT NULL, beat_at timestamptz NOT NULL, heir text NOT NULL, why text NOT NULL,
    ended_by text NOT NULL, inherited_by text NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE quiesce_notices (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL, kind text NOT NULL, key bytea NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX quiesce_notices_owner ON quiesce_notices (owner, number);
CREATE TABLE quiesce_schema (version integer NOT NULL, born_at double precision NOT NULL);
"""
_NEEDED = {
    "quiesce_schema": ["SELECT"],
    "quiesce_rows": ["SELECT", "INSERT", "UPDATE", "DELETE"],
    "quiesce_replicas": ["SELECT", "INSERT", "UPDATE", "DELETE"],
    "quiesce_notices": ["SELECT", "INSERT", "DELETE"],
}
_SERVER = """
SELECT current_setting('server_version_num')::int AS version, current_setting('transaction_read_only') = 'on' AS read_only,
    pg_is_in_recovery() AS standby, current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit
"""
_FOUND = """
SELECT count(DISTINCT space.oid) > 0 AS has_schema, count(found.oid) > 0 AS has_tables
FROM pg_namespace space LEFT JOIN pg_class found ON found.relnamespace = space.oid AND found.relname = 'quiesce_schema'
WHERE space.nspname = $1
"""


async def prepare(connection: Any, address: PostgresAddress) -> None:
    """Check the server and its settings, and make the tables if there are none.

    *Raises*: `UsageError` if the store cannot be used as it is.
    """
    server = await connection.fetchrow(_SERVER)
    if server["version"] < _VERSION_MIN:
        message = f"the store {address.label} is in a PostgreSQL older than 14: use a newer server"
        raise UsageError(message)
    if server["read_only"]:
        why = (
            "its server is a standby: name the primary in the address, or several hosts and"
            " target_session_attrs=read-write"
            if server["standby"]
            else "transactions are read-only there: set default_transaction_read_only to off for the user, the database or the server"
        )
        message = f"the store {address.label} cannot be written: {why}"
        raise UsageError(message)
    found = await connection.fetchrow(_FOUND, address.schema)
    if not found["has_tables"]:
        await _make_tables(connection, address)
    await _check_grants(connection, address)
    version = await connection.fetchval("SELECT version FROM quiesce_schema")
    if version != SCHEMA:
        message = (
            f"the store {address.label} has tables of version {version}, and this version of quiesce needs version"
            f" {SCHEMA}: run the version of quiesce that made them, or name another schema"
        )
        raise UsageError(message)
    _warn(server, address)


async def _make_tables(connection: Any, address: PostgresAddress) -> None:
    """Make the tables. One process at a time does it; the others wait, and find them."""
    async with connection.transaction():
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('quiesce ' || $1, 0))"
        await connection.execute(lock, address.schema)
        found = await connection.fetchrow(_FOUND, address.schema)
        if not found["has_schema"]:
            quoted = address.schema.replace('"', '""')
            await connection.execute(f'CREATE SCHEMA "{quoted}"')
        if not found["has_tables"]:
            await connection.execute(_TABLES)
            first = "INSERT INTO quiesce_schema VALUES ($1, extract(epoch FROM clock_timestamp()))"
            await connection.execute(first, SCHEMA)


async def _check_grants(connection: Any, address: PostgresAddress) -> None:
    """Raise `UsageError` if the user lacks a grant that an open store needs."""
    usage = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = $1"
    lacks = [] if await connection.fetchval(usage, address.schema) else ["USAGE on the schema"]
    pairs = [(table, grant) for table, grants in _NEEDED.items() for grant in grants]
    missing = await connection.fetch(
        "SELECT needed.allows, needed.name FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS needed (name, allows, place)"
        " LEFT JOIN pg_class found ON found.relname = needed.name AND found.relkind IN ('r', 'p')"
        " AND found.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $3)"
        " WHERE NOT COALESCE(has_table_privilege(found.oid, needed.allows), false) ORDER BY needed.place",
        [table for table, _ in pairs],
        [grant for _, grant in pairs],
        address.schema,
    )  # fmt: skip
    lacks += [f"{one['allows']} on {one['name']}" for one in missing]
    if lacks:
        message = f"the user of the store {address.label} lacks {', '.join(lacks)}: grant them"
        raise UsageError(message)


def _warn(server: Any, address: PostgresAddress) -> None:
    """Say in the log what a crash of the server may lose by its settings."""
    if server["fsync"] == "off":
        _log.warning(
            "the server of the store %s has fsync=off: if its machine crashes, all rows may be lost or damaged",
            address.label,
        )
    if server["synchronous_commit"] == "off":
        _log.warning(
            "the server of the store %s has synchronous_commit=off: if it crashes, the changes of its last moments are"
            " lost, and a message may run twice",
            address.label,
        )
