"""Runs a test of an adapter once more, with stores that other replicas could share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.mesh.runtime import node
from quiesce.mesh.store.store_address import store_of

if TYPE_CHECKING:
    import pytest


def share_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, give each node an SQLite file that others may share, where it asks for a file of its own."""

    def shared(store: Any, **options: Any) -> Any:
        return store_of(None if store is None else f"sqlite://{store}.db", **options)

    monkeypatch.setattr(node, "store_of", shared)
