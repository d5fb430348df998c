"""The servers for the tests of stores: one of each kind for each process of pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.stores import nats_server
from tests.integration.stores.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.stores.nats_server import NatsServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL."""
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run a NATS server."""
    with nats_server.running(tmp_path_factory.mktemp("nats")) as one:
        yield one
