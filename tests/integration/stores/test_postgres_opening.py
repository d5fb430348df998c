"""Opening a store in PostgreSQL says what is wrong, who has to act, and never a password."""

from __future__ import annotations

import contextlib
import importlib
import logging
import secrets
import socket
import ssl
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from quiesce.errors import SdkMissing, StoreLost, UsageError
from quiesce.mesh.store.postgres_address import explain_opening, parse_address
from quiesce.mesh.store.postgres_database import PostgresDatabase
from quiesce.mesh.store.rows import Batch, EdgeRow, Notice, Replica
from tests.integration.stores.postgres_proxy import proxy
from tests.integration.stores.test_postgres import opened, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.stores.postgres_server import PostgresServer

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

CERTIFICATE = Path(__file__).with_name("loopback.pem")
OTHERS = Path(__file__).with_name("other.pem")
SECRET = "not/the:pass@word"  # noqa: S105 - it is the one that must not be shown
QUOTED = "not%2Fthe%3Apass%40word"


@pytest.fixture(name="address")
def new_address(postgres: PostgresServer) -> str:
    """Return the address of a schema that does not exist yet."""
    return postgres.address(options=f"?schema=mesh_{secrets.token_hex(6)}")


async def refused(address: str, *, seconds: float = 30.0) -> str:
    """Open a store that cannot be opened; return the whole text of the error, which has no secret in it."""
    database = PostgresDatabase(address, seconds=seconds)
    try:
        with pytest.raises((UsageError, StoreLost)) as caught:
            await database.open()
    finally:
        await database.close()
    text = "".join(traceback.format_exception(caught.value))
    secret = address.partition("://")[2].partition("@")[0].partition(":")[2]
    assert SECRET not in text
    assert not secret or secret not in text
    assert database.label in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_a_wrong_password_is_not_shown(postgres: PostgresServer) -> None:
    """The error says that user or password are wrong, and shows neither."""
    text = await refused(postgres.address(password=QUOTED))
    assert text.startswith("UsageError: the store postgresql://127.0.0.1:")
    assert "refuses the user or the password" in text
    assert "owner" not in text


async def test_what_somebody_has_to_put_right(postgres: PostgresServer) -> None:
    """A database that does not exist, and TLS that the server does not offer, are errors of the address."""
    assert "UsageError" in (text := await refused(postgres.address("nowhere")))
    assert "the database does not exist: make it" in text
    text = await refused(postgres.address(options="?sslmode=require"))
    assert text.startswith("UsageError")
    assert "no TLS connection" in text
    text = await refused(postgres.address(options="?sslmode=verify-full&sslrootcert=nowhere.pem"))
    assert "there is no file nowhere.pem" in text
    assert "UsageError" in await refused(postgres.address(options="?sslmode=perhaps"))


async def test_a_server_that_does_not_listen_is_lost(postgres: PostgresServer) -> None:
    """A refused connection may be a server that starts: `open` tries until its limit, and waiting may help."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        text = await refused(postgres.address(port=taken.getsockname()[1]), seconds=0.3)
    assert text.startswith("StoreLost")


@pytest.mark.parametrize(
    ("code", "kind"), [(socket.EAI_NONAME, UsageError), (socket.EAI_AGAIN, StoreLost)]
)
async def test_a_host_is_unknown_or_cannot_be_looked_up_now(
    code: int, kind: type[Exception]
) -> None:
    """A name that does not exist is an error of the address; a name server that is down may come back."""
    found = explain_opening(
        socket.gaierror(code, "said"), parse_address("postgresql://u:p@nowhere/d")
    )
    assert type(found) is kind


async def test_a_database_that_is_read_only_is_refused(postgres: PostgresServer) -> None:
    """Where transactions are read-only, the error names the setting."""
    async with session(postgres.address()) as admin:
        await admin.execute("CREATE DATABASE readonly")
        await admin.execute("ALTER DATABASE readonly SET default_transaction_read_only = on")
        try:
            text = await refused(postgres.address("readonly"))
        finally:
            await admin.execute("DROP DATABASE readonly WITH (FORCE)")
    assert text.startswith("UsageError")
    assert "set default_transaction_read_only to off" in text


@pytest.mark.backends("asyncio")  # of the server
async def test_a_standby_is_refused(postgres: PostgresServer) -> None:
    """A standby cannot be written: the error says to name the primary."""
    try:
        await anyio.to_thread.run_sync(postgres.restart_as_standby)
        text = await refused(postgres.address())
    finally:
        await anyio.to_thread.run_sync(postgres.restart)
    assert text.startswith("UsageError")
    assert "its server is a standby" in text


async def test_tables_of_another_version_are_refused(address: str) -> None:
    """Tables that another version of quiesce has made are refused, with both versions in the message."""
    async with opened(address), session(address) as other:
        await other.execute("UPDATE quiesce_schema SET version = 99")
    assert "version 99, and this version of quiesce needs version 1" in await refused(address)


@contextlib.asynccontextmanager
async def other_user(postgres: PostgresServer) -> AsyncIterator[str]:
    """Make a user without rights; yield the beginning of statements that grant to it."""
    async with session(postgres.address()) as admin:
        await admin.execute(f"CREATE ROLE worker LOGIN PASSWORD '{postgres.password}'")
        try:
            yield "worker"
        finally:
            await admin.execute("DROP OWNED BY worker")
            await admin.execute("DROP ROLE worker")


async def test_a_user_needs_few_rights(postgres: PostgresServer, address: str) -> None:
    """What a user lacks is named; with the grants of the page, the store does all it can do."""
    schema = address.partition("schema=")[2]
    mine = postgres.address(user="worker", options=f"?schema={schema}")
    async with other_user(postgres), session(postgres.address()) as admin:
        assert "may not do what the store needs" in await refused(mine)
        async with opened(address):
            pass
        assert "lacks USAGE on the schema, SELECT on quiesce_schema" in await refused(mine)
        await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO worker")
        text = await refused(mine)
        assert (
            "lacks SELECT on quiesce_schema, SELECT on quiesce_rows, INSERT on quiesce_rows" in text
        )
        await admin.execute(
            f"GRANT SELECT ON {schema}.quiesce_schema TO worker;"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.quiesce_rows, {schema}.quiesce_replicas TO worker;"
            f"GRANT SELECT, INSERT, DELETE ON {schema}.quiesce_notices TO worker"
        )
        async with opened(mine, "a1") as database:
            row = EdgeRow(
                key=bytes(16),
                side="hop",
                agent="h",
                owner="a1",
                cascade=b"",
                began_at=1,
                keep_until=1,
            )
            await database.apply(Batch("a1", puts=[row], notices=[Notice("a1", "cancel", b"")]))
            (notice,) = await database.notices(["a1"])
            await database.apply(Batch("a1", claims=[row], handled=[notice.number]))
            assert await database.prune(2.0) == 1
            await database.beat("a1")
            assert await database.end("a1", is_dead=True)
            assert await database.inherit("a1", "a2", "")
            await database.forget("a1")
            assert await database.replicas() == []


async def test_settings_that_may_lose_changes_are_logged(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what a crash loses with synchronous_commit=off and fsync=off; the store works."""
    async with session(postgres.address()) as admin:
        await admin.execute("CREATE DATABASE hasty")
        await admin.execute("ALTER DATABASE hasty SET synchronous_commit = off")
        try:
            with caplog.at_level(logging.WARNING, logger="quiesce.store"):
                async with opened(postgres.address("hasty")):
                    pass
        finally:
            await admin.execute("DROP DATABASE hasty WITH (FORCE)")
    hasty, unsafe = sorted(
        (record.getMessage() for record in caplog.records), key=len, reverse=True
    )
    assert "synchronous_commit=off" in hasty
    assert "fsync=off" in unsafe
    assert postgres.password not in hasty + unsafe


async def test_tls_is_checked(postgres: PostgresServer) -> None:
    """With `verify-full`, a certificate of `sslrootcert` is accepted, and one that nobody has signed is not."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    async with proxy(postgres.port, tls) as before:
        good = f"?sslmode=verify-full&sslrootcert={CERTIFICATE}&schema=tls"
        async with opened(postgres.address(port=before.port, options=good), "a1", "a2") as database:
            assert len(await database.replicas()) >= 2
            await database.forget("a1")
        bad = f"?sslmode=verify-full&sslrootcert={OTHERS}"
        text = await refused(postgres.address(port=before.port, options=bad))
        assert text.startswith("UsageError")
        assert "no TLS connection" in text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("mysql://u:hidden@h/d", "does not begin with postgresql://"),
        ("postgresql://u:hid/den@h/d", "characters with a meaning in a URL"),
        ("postgresql://u:hid?den@h/d", "characters with a meaning in a URL"),
        ("postgresql://u:hid#den@h/d", "characters with a meaning in a URL"),
        ("postgresql://u:hidden@[h/d", "is not a URL"),
        ("postgresql://u:hidden@h/d?schema", "is not a URL"),
        ("postgresql://u:hidden@h", "names no database"),
        ("postgresql://u:hidden@h/d?schema=", "must have 1 to 63 bytes"),
    ],
)
def test_an_address_that_is_not_one_is_refused(address: str, said: str) -> None:
    """The message says what is wrong, and does not quote the address."""
    with pytest.raises(UsageError, match=said) as caught:
        PostgresDatabase(address)
    assert "den" not in "".join(traceback.format_exception(caught.value)).replace("hidden@h", "")


@pytest.mark.parametrize(
    ("address", "label"),
    [
        ("postgresql://u:p%40q@h:1/d", "postgresql://h:1/d?schema=quiesce"),
        ("postgres://u:p@q@h/d?schema=x", "postgresql://h:5432/d?schema=x"),
        ("postgresql://u@a:1,b:2/d", "postgresql://a:1,b:2/d?schema=quiesce"),
        (
            "postgresql:///d?host=/run/pg&user=u&password=p",
            "postgresql:///run/pg:5432/d?schema=quiesce",
        ),
        ("postgresql://u:p@[::1]:7/my%20db", "postgresql://[::1]:7/my db?schema=quiesce"),
    ],
)
def test_the_label_has_no_credentials(
    address: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The label has the host, the port, the database and the schema, and so has what is printed of the address."""
    monkeypatch.delenv("PGPORT", raising=False)
    assert PostgresDatabase(address).label == label
    assert "u:p" not in repr(parse_address(address))
    assert "password" not in repr(parse_address(address))


@pytest.mark.backends("trio")
async def test_trio_is_refused() -> None:
    """On trio, `open` says which event loops work, and what else there is."""
    database = PostgresDatabase("postgresql://h/d")
    with pytest.raises(UsageError, match=r"needs asyncio or uvloop.*SQLite"):
        await database.open()
    await database.close()


def test_the_driver_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asyncpg, the error has the command that installs it."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SdkMissing, match=r"pip install 'quiesce\[postgres\]'"):
        PostgresDatabase("postgresql://h/d")


async def test_a_store_that_is_not_open_says_so(address: str) -> None:
    """A use before `open`, or after `close`, is the caller's mistake; to close twice is not."""
    database = PostgresDatabase(address)
    with pytest.raises(UsageError, match="is not open"):
        await database.find("hop", [])
    await database.open()
    await database.close()
    await database.close()
    with pytest.raises(UsageError, match="is not open"):
        await database.run(lambda: None)
    await database.open()
    assert await database.replicas() == []
    await database.close()


async def test_a_text_that_cannot_be_kept_is_named(address: str) -> None:
    """A zero character in a name is the caller's mistake: to try again would not help."""
    async with opened(address) as database:
        for bad in ("a\0b", "a\udc00b"):
            with pytest.raises(UsageError, match="cannot keep a value"):
                await database.enroll(Replica(incarnation=bad, agent="h", name="n", lease=1))
        assert await database.replicas() == []


def test_a_time_limit_is_above_zero() -> None:
    """A time limit of 0 is no time limit."""
    with pytest.raises(UsageError, match="above 0"):
        PostgresDatabase("postgresql://h/d", seconds=0)
