"""What `store=` names: a path is a file of one node, and an address is a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiesce.errors import ArgumentError
from quiesce.mesh.store.store_address import store_of


@pytest.mark.parametrize(
    "store", ["a.journal", "a:b/c.journal", "./sqlite:x", "C:\\a.journal", Path("x") / "sqlite:a"]
)
def test_a_path_is_a_file(store: str | Path) -> None:
    """A colon alone does not make an address of a path."""
    journal, database = store_of(store, durability="process")
    assert journal is not None
    assert database is None


@pytest.mark.parametrize(
    ("store", "path"),
    [
        ("sqlite:///var/lib/a%20b.db", Path("/var/lib/a b.db")),
        ("sqlite:mesh.db", Path("mesh.db").absolute()),
    ],
)
def test_an_address_is_a_database(store: str, path: Path) -> None:
    """The path in it is absolute after three slashes, and its escapes are resolved."""
    journal, database = store_of(store, durability="process")
    assert journal is None
    assert database is not None
    assert database.label == f"sqlite://{path}"


@pytest.mark.parametrize(
    "store", ["mysql://host/mesh", "sqlite://mesh.db", "sqlite://host/mesh.db", "sqlite:///", 7]
)
def test_any_other_address_is_refused(store: object) -> None:
    """A mistake does not make a file with a strange name."""
    with pytest.raises(ArgumentError, match="sqlite:///"):
        store_of(store, durability="process")  # type: ignore[arg-type]  # wrong on purpose
