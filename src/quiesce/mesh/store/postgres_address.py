"""The address of a store in PostgreSQL, and what an error of the driver means for its user.

A password never gets into a message: texts of the driver and the server are only quoted after the secrets are struck
out, and no error is the cause of another one.
"""

from __future__ import annotations

import importlib
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from quiesce.errors import QuiesceError, SdkMissing, StoreLost, UsageError

if TYPE_CHECKING:
    from types import ModuleType

__all__: list[str] = []

_SCHEMA = "quiesce"
_NAME_MAX = 63  # bytes of a name in PostgreSQL
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_PASSWORDS = ("password", "sslpassword")
_IS_WRITTEN = "write it as postgresql://user:password@host:port/database?schema=quiesce"

# What may be over when the change is tried again, on another connection: by the code of the error or its beginning.
_PASSING = (
    "08",  # the connection
    "25006",  # read-only: the server has become a standby, and another one takes its place
    "40",  # rolled back: a deadlock
    "53",  # no room, too many connections
    "57P",  # the server stops, or starts
    "58",  # the server's disk
)  # fmt: skip
_TOO_LONG = ("57014", "55P03")  # the server has given up: a statement or a lock took too long
_UNWRITABLE = "22"  # a value that no column can keep


def driver(extra: str = "postgres") -> ModuleType:
    """Return the module of the driver.

    *Raises*: `SdkMissing` if it is not installed.
    """
    try:
        return importlib.import_module("asyncpg")
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
    message = f"a store in PostgreSQL needs asyncpg: pip install 'quiesce[{extra}]'"
    raise SdkMissing(message, name="asyncpg")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The parts of an address."""

    label: str
    """For messages: without the user and the password."""
    dsn: str = field(repr=False)
    """For the driver: without the schema, the user and the password."""
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    schema: str
    secrets: tuple[str, ...] = field(repr=False)
    files: tuple[str, ...] = ()
    """The files that the address names: certificates, keys, passwords."""

    def strike(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def parse_address(address: str) -> PostgresAddress:
    """Return the parts of an address.

    *Raises*: `UsageError` if it is not the address of a database.
    """
    try:
        parts = urlsplit(address)
        is_odd = "@" in parts.path or "@" in parts.query or bool(parts.fragment)
        pairs = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query) and not is_odd
        )
    except ValueError:  # its text may quote the password
        message = f"the address of the store is not a URL: {_IS_WRITTEN}"
        raise UsageError(message) from None
    if parts.scheme not in {"postgresql", "postgres"}:
        message = f"the address of the store does not begin with postgresql://: {_IS_WRITTEN}"
        raise UsageError(message)
    if is_odd:
        message = (
            "the address of the store cannot be read, as the password in it has characters with a meaning in a URL: write"
            " them as %XX, such as %2F for / and %23 for #"
        )  # fmt: skip
        raise UsageError(message)
    options = {"application_name": "quiesce", **dict(pairs)}
    known, _, hosts = parts.netloc.rpartition("@")
    user, _, password = (unquote(part) for part in known.partition(":"))
    database = parts.path.removeprefix("/") or options.get("dbname") or options.get("database")
    if not database:
        message = f"the address of the store names no database: {_IS_WRITTEN}"
        raise UsageError(message)
    schema = options.pop("schema", _SCHEMA)
    if not schema or "\0" in schema or len(schema.encode()) > _NAME_MAX:
        message = f"the schema in the address of the store must have 1 to {_NAME_MAX} bytes: choose another name"
        raise UsageError(message)
    user, password = user or options.pop("user", ""), password or options.pop("password", "")
    secrets = (password, *(options.get(name, "") for name in _PASSWORDS))
    query = urlencode(options)
    return PostgresAddress(
        label=f"postgresql://{_place(hosts, options)}/{unquote(database)}?schema={schema}",
        dsn=f"postgresql://{hosts}{parts.path}{'?' if query else ''}{query}",
        user=user or None,
        password=password or None,
        schema=schema,
        secrets=tuple(secret for secret in secrets if secret),
        files=tuple(options[name] for name in _FILES if options.get(name)),
    )


def _place(hosts: str, options: dict[str, str]) -> str:
    """Return the host and the port for messages."""
    place = hosts or options.get("host") or os.environ.get("PGHOST") or "localhost"
    if ":" in place.rpartition("]")[2] or "," in place:
        return place
    return f"{place}:{options.get('port') or os.environ.get('PGPORT') or 5432}"


# Errors.


def _code(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def _is_lost(error: BaseException) -> bool:
    """Return whether the driver has lost the connection."""
    asyncpg = driver()
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return False  # the driver's errors about arguments
    return isinstance(error, (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError))


def may_pass(error: BaseException) -> bool:
    """Return whether another try, on another connection, may succeed."""
    return _is_lost(error) or _code(error).startswith(_PASSING)


def is_sound(error: BaseException) -> bool:
    """Return whether the server has said that it has done nothing, and can be asked again on the same connection."""
    return isinstance(error, QuiesceError) or (bool(_code(error)) and not may_pass(error))


def explain(error: BaseException, address: PostgresAddress) -> QuiesceError:
    """Return the error for the user of an open store."""
    if isinstance(error, QuiesceError):
        return error
    said = _said(error, address)
    if isinstance(error, ValueError) or _code(error).startswith(_UNWRITABLE):
        return UsageError(
            f"the store {address.label} cannot keep a value ({said}): PostgreSQL keeps no text with a zero character or half"
            " of a surrogate pair: take it out of the names of agents and cascades"
        )
    if _code(error) in _TOO_LONG:
        said = f"{said}. Another session may hold a lock: see pg_stat_activity and pg_locks"
    return StoreLost(f"the store {address.label} cannot be used now: {said}")


def explain_opening(error: BaseException, address: PostgresAddress) -> QuiesceError:
    """Return the error for the caller of `open`: `UsageError` if the operator has to act, `StoreLost` if waiting may help."""
    what = f"the store {address.label} cannot be opened"
    said = _said(error, address)
    if isinstance(error, QuiesceError):
        return error
    for codes, advice in _ADVICE.items():
        if _code(error).startswith(codes):
            return UsageError(f"{what}: {advice.format(said=said)}")
    if isinstance(error, ssl.SSLError) or "SSL" in said:
        return UsageError(
            f"{what}: no TLS connection ({said}): correct sslmode and sslrootcert in the address, or the server's certificate"
        )
    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
        return UsageError(f"{what}: its host is unknown ({said}): correct the host in the address")
    if may_pass(error) or _code(error) in _TOO_LONG:
        return StoreLost(f"the store {address.label} cannot be used now: {said}")
    return UsageError(f"{what} ({said}): correct the address or the server's settings")


_PG_HBA = (
    "its server does not let this user in: check the user in the address, and the lines of pg_hba.conf for this machine,"
    " user and database"
)
_GRANTS = (
    "the user may not do what the store needs ({said}): grant CREATE on the database once, or make the schema and its"
    " tables as an administrator and grant their use"
)
_ADVICE = {
    "28P01": "its server refuses the user or the password: correct them in the address, or in the server",
    "28": _PG_HBA,
    "3D000": "the database does not exist: make it (CREATE DATABASE), or correct the address",
    "42501": _GRANTS,
}


def _said(error: BaseException, address: PostgresAddress) -> str:
    """Return one line for a message. The details of the server are left out: they may quote rows."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    first = str(error.args[0]) if error.args and _code(error) else str(error)
    line = next(iter(first.strip().splitlines()), "") or type(error).__name__
    return address.strike(line)
