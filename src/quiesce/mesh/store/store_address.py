"""What the argument `store=` of a node names: a file of one process, or a database that several processes share."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from quiesce.errors import ArgumentError
from quiesce.mesh.store.journal import Journal

if TYPE_CHECKING:
    from quiesce.mesh.store.database import Database

__all__: list[str] = []

# A word and a colon: an address, also if it is misspelled. It may have a password, so no message repeats it.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_WAYS = "a path, sqlite:///path, postgresql://… or nats://…"


def store_of(
    store: str | os.PathLike[str] | Database | None, *, durability: str
) -> tuple[Journal | None, Database | None]:
    """Return the file or the database that an address names.

    *Raises*: `ArgumentError` if it names neither; `SdkMissing` if the driver of the database is not installed.
    """
    if store is None:
        return None, None
    if not isinstance(store, str | os.PathLike):
        if callable(getattr(store, "apply", None)):
            return None, store
        message = f"store must be {_WAYS}, or a Database, not {store!r}"
        raise ArgumentError(message)
    text = os.fspath(store)
    scheme = _SCHEME.match(text)
    if scheme is None:
        if not text:
            message = f"store must be {_WAYS}, and not empty"
            raise ArgumentError(message)
        return Journal(store, durability=durability), None
    return None, _database(scheme[1], text, is_power=durability == "power")


def _database(scheme: str, address: str, *, is_power: bool) -> Database:
    if scheme == "sqlite":
        from quiesce.mesh.store.sqlite_database import SqliteDatabase  # noqa: PLC0415 - only if it is used

        return SqliteDatabase(_path_of(address), syncs=is_power)
    if scheme in {"postgresql", "postgres"} and "://" in address:
        from quiesce.mesh.store.postgres_database import PostgresDatabase  # noqa: PLC0415 - the same

        return PostgresDatabase(address)
    if scheme in {"nats", "tls"} and "://" in address:
        from quiesce.mesh.store.nats_database import NatsDatabase  # noqa: PLC0415 - the same

        return NatsDatabase(address)
    message = f"store must be {_WAYS}, not an address that begins with {scheme}:"
    raise ArgumentError(message)


def _path_of(address: str) -> Path:
    """Return the path in an address like `sqlite:///absolute/path.db` or `sqlite:relative.db`."""
    parts = urlsplit(address)
    path = unquote(parts.path)
    if parts.netloc or not Path(path).name:
        message = f"the store {address!r} does not name a file: write sqlite:///absolute/path.db, or sqlite:relative.db"
        raise ArgumentError(message)
    return Path(path)
