"""A store in PostgreSQL keeps the rules of every store, and survives what happens to connections and servers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from quiesce.mesh.store.postgres_database import PostgresDatabase
from quiesce.testing.store_rules import database_rules
from tests.integration.stores.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.testing.store_rules import Rule

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

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


@pytest.mark.parametrize("rule", database_rules(), ids=lambda rule: rule.__name__)
async def test_it_keeps_the_rules_of_every_store(rule: Rule, address: str) -> None:
    """Every rule of a database holds for PostgreSQL."""
    await rule(lambda: PostgresDatabase(address))
