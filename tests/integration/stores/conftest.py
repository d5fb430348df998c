"""A PostgreSQL for the tests of stores: one server for each process of pytest, one schema for each test."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.integration.stores.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

schemas = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """Run a server."""
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def address(server: PostgresServer) -> str:
    """Return the address of a schema that does not exist yet."""
    return server.address(options=f"?schema=mesh_{next(schemas)}")
