"""Replicas share any of the stores: what holds with a file holds with a server."""

from __future__ import annotations

import inspect
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.integration.stores.nats_server import address
from tests.integration.stores.nats_store import new_bucket
from tests.unit.mesh import test_ledger, test_replicas
from tests.unit.mesh.replicas import Town

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.stores.nats_server import NatsServer
    from tests.integration.stores.postgres_server import PostgresServer

    Scenario = Callable[[Path], Awaitable[None]]

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

SCENARIOS: list[Scenario] = [
    fn
    for module in (test_replicas, test_ledger)
    for name, fn in vars(module).items()
    if name.startswith("test_") and inspect.iscoroutinefunction(fn)
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda fn: fn.__name__)
async def test_it_holds_with_postgresql(
    scenario: Scenario, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scenarios of replicas and ledgers hold with PostgreSQL."""
    there = postgres.address(options=f"?schema=mesh_{secrets.token_hex(6)}")
    monkeypatch.setattr(Town, "address", there)
    await scenario(tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda fn: fn.__name__)
async def test_it_holds_with_nats(
    scenario: Scenario, nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scenarios of replicas and ledgers hold with NATS."""
    monkeypatch.setattr(Town, "address", address(nats, bucket=new_bucket()))
    await scenario(tmp_path)
