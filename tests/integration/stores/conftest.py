"""The servers for the tests of stores: one of each kind for each process of pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.stores.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL."""
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.close()
