"""A store in NATS says what is wrong with a server, a user or an address that it cannot use."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quiesce.errors import UsageError
from quiesce.mesh.store.nats_database import NatsDatabase
from quiesce.mesh.store.nats_subjects import read_address
from quiesce.mesh.store.rows import Batch
from quiesce.testing.store_rules import database_rules
from tests.integration.stores import nats_server
from tests.integration.stores.nats_server import NatsServer, address
from tests.integration.stores.nats_store import (
    ask_server,
    new_bucket,
    opened,
    row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.real_time, pytest.mark.backends("asyncio", "uvloop")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Return a running server."""
    with nats_server.running(tmp_path_factory.mktemp("nats")) as one:
        yield one


def holds_no_secret(text: str) -> bool:
    """Return whether a text has no part of the password."""
    return "s3cret" not in text and "wr0ng" not in text


async def test_a_wrong_password_does_not_leak(
    server: NatsServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A password that the server refuses is named neither in the error nor in a log."""
    caplog.set_level(logging.DEBUG)
    where = address(server, user="keeper:wr0ng")
    with pytest.raises(UsageError, match="refuse its user or password") as caught:
        await NatsDatabase(where, seconds=60.0).open()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert holds_no_secret(told + "".join(capfd.readouterr()))
    assert "keeper" not in NatsDatabase(where).label


async def test_a_user_without_permissions_is_told(server: NatsServer) -> None:
    """A user who may not use JetStream gets the server's words about what is not permitted."""
    with pytest.raises(UsageError, match=r"may not use it: .*[Pp]ermissions [Vv]iolation"):
        await NatsDatabase(address(server, user="guest:guest"), seconds=60.0).open()


async def test_the_documented_permissions_are_enough(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A user with the permissions on the page about stores in NATS can do all that a store does."""
    caplog.set_level(logging.DEBUG)
    page = (Path(__file__).parents[3] / "docs/explanation/stores-nats.md").read_text()
    for subject in re.findall(r'"([^"]*quiesce[^"]*|[$]JS[^"]*)"', nats_server.CONFIG):
        assert f'"{subject.replace("quiesce", "BUCKET")}"' in page
    with nats_server.running(tmp_path_factory.mktemp("member")) as one:
        where = address(one, user="member:member")
        for rule in database_rules():
            if rule.__name__ in {"a_change_wakes_others", "notices_come_in_order"}:
                await rule(lambda: NatsDatabase(where, seconds=60.0))
        async with opened(where, "b1") as database:
            await database.apply(Batch("b1", claims=[row(1, "b1", root="", keep_until=1.0)]))
            assert len(await database.roots(1)) == 1
            assert await database.prune(time.time()) == 1
    assert "iolation" not in caplog.text


async def test_a_server_without_jetstream_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A server that keeps nothing cannot be a store."""
    with (
        nats_server.running(tmp_path_factory.mktemp("core"), jetstream=False) as one,
        pytest.raises(UsageError, match="no JetStream answers"),
    ):
        await NatsDatabase(address(one), seconds=60.0).open()


async def test_copies_need_a_cluster(server: NatsServer) -> None:
    """One server cannot keep three copies."""
    where = address(server, bucket=new_bucket(), options="replicas=3&sync=always")
    with pytest.raises(UsageError, match="has no cluster"):
        await NatsDatabase(where, seconds=60.0).open()


async def test_rows_of_another_version_are_refused(server: NatsServer) -> None:
    """A store that another version of quiesce has made is refused, with both versions in the message."""
    bucket = new_bucket()
    where = address(server, bucket=bucket)
    async with opened(where):
        pass
    await ask_server(server, f"{bucket}.s.schema", b'{"version": 99}')
    with pytest.raises(UsageError, match="version 99, and this version of quiesce needs version 1"):
        await NatsDatabase(where, seconds=60.0).open()


async def test_a_stream_of_another_kind_is_refused(server: NatsServer) -> None:
    """A stream that somebody has made for something else is not used."""
    bucket = new_bucket()
    config = {"name": bucket, "subjects": [f"{bucket}.s.>"], "storage": "memory"}
    await ask_server(server, f"$JS.API.STREAM.CREATE.{bucket}", json.dumps(config).encode())
    with pytest.raises(UsageError, match="storage is 'memory' and not 'file'"):
        await NatsDatabase(address(server, bucket=bucket), seconds=60.0).open()


async def test_an_operator_who_does_not_state_the_sync_is_warned_once(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """No client sees when a server writes to its disk, so the store says once what may be lost."""
    database = NatsDatabase(address(server, bucket=new_bucket(), options=""), seconds=60.0)
    for _ in range(2):
        await database.open()
        await database.close()
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "sync_interval: always" in warnings[0]
    assert holds_no_secret(warnings[0])


@pytest.mark.backends("trio")
async def test_trio_is_told_of_the_alternatives() -> None:
    """The client of NATS needs asyncio; on trio the error says what to do."""
    with pytest.raises(UsageError, match="SQLite"):
        await NatsDatabase("nats://127.0.0.1:1").open()


@pytest.mark.parametrize(
    "where",
    [
        "nats://me:s3cret@", "http://me:s3cret@host", "nats://me:s3cret@host/a.b", "nats://me:s3cret@host/b?replicas=2",
        "nats://me:s3cret@host/b?replicas=x", "nats://me:s3cret@host/b?sync=never", "nats://me:s3cret@host/b?secret",
        "nats://me:s3cret@host/b?other=s3cret",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_its_secrets(where: str) -> None:
    """An address that cannot be read is not repeated in the error."""
    with pytest.raises(UsageError) as caught:
        NatsDatabase(where)
    assert holds_no_secret(str(caught.value))


@pytest.mark.parametrize("credentials", ["me:s3cret%2F", "s3cret%2F"])
def test_secrets_are_taken_out_of_texts(credentials: str) -> None:
    """A text of the client or of the server is shown without the password, or the token."""
    where = read_address(f"nats://{credentials}@host")
    assert holds_no_secret(where.without_secrets("cannot connect to s3cret/@host, s3cret%2F@host"))
    assert where.label == "nats://host/quiesce"


def test_a_missing_package_is_named() -> None:
    """Without nats-py, the import says what to install."""
    program = (
        "import sys; sys.modules['nats'] = None\n"
        "from quiesce.errors import SdkMissing\n"
        "try:\n    import quiesce.mesh.store.nats_database\n"
        "except SdkMissing as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'quiesce[nats]'" in done.stdout
