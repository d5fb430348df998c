"""Who a replica is: what proves that its process has ended, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.mesh.store import replica_identity

if TYPE_CHECKING:
    import pytest


def test_a_process_that_cannot_be_looked_at_is_not_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lack of file descriptors, or a hidden process, is no proof that the process has ended."""
    own = replica_identity.this_replica("a", None, lease=10.0, fences=False)
    other = replica_identity.this_replica("a", None, lease=10.0, fences=False)
    assert replica_identity.proof_of_death(other, own) == ""

    def fail(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", fail)
        assert replica_identity.proof_of_death(other, own) == ""

    def hide(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", hide)
        assert replica_identity.proof_of_death(other, own) == ""
