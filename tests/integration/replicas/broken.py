"""Ways to break the library in an agent's process, to see that the rig finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable


def claims_always_win() -> None:
    """Let each replica run each message that comes to it."""

    async def claim(self: Any, record: Any) -> None:
        self.rows.claimed(self.rows.claim_of(record))

    _replace("shared_store.SharedStore.claim", claim)


def nobody_inherits() -> None:
    """Leave the work of a dead replica to nobody."""

    async def look(_: Any, **__: Any) -> None:
        """Do nothing."""

    _replace("replica_watch.ReplicaWatch.look", look)


def the_stopped_are_dead() -> None:
    """Believe that a replica without heartbeats is dead."""

    def proof(other: Any, own: Any, **_: Any) -> str:
        return "" if other.incarnation == own.incarnation or other.age < other.lease else "late"

    _replace("replica_watch.proof_of_death", proof)


def _replace(where: str, by: object) -> None:
    mock.patch(f"quiesce.mesh.store.{where}", by).start()


WAYS: dict[str, Callable[[], None]] = {
    "claims": claims_always_win,
    "heirs": nobody_inherits,
    "proofs": the_stopped_are_dead,
}
"""By the name of `--mutant`, what breaks the library."""
