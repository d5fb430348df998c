"""What a shared store needs of the system that keeps its rows: SQLite, PostgreSQL, NATS, or another one.

`quiesce.testing.databases` has the tests that each of them passes. Rules for all of them:

1. A change has lasted when its method returns: no later failure of this process loses it.
2. After an error, a change is there as a whole or not at all, or the rest of it comes with the same change written
   again. So callers repeat a change until it succeeds.
3. Only one `apply` gets a row by a claim, of all that claim it. It is never given to another, also after `prune`.
4. `apply` writes nothing for an incarnation that is not alive.
5. Every method ends within the time limit of the store, by an answer or by `StoreLost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.store.rows import Batch, EdgeRow, Notice, Replica, Side

__all__: list[str] = []

SCHEMA = 1
"""The version of the tables. A store of another version is refused."""


class Database(Protocol):
    """A place in which several processes keep rows.

    All methods but `close` raise `StoreLost` if the database does not answer in time, or cannot write now.
    """

    @property
    def label(self) -> str:
        """The address for messages, without credentials."""

    @property
    def is_one_machine(self) -> bool:
        """Whether only processes of one machine can use the store."""

    async def open(self) -> None:
        """Connect, and make the tables if there are none.

        *Raises*: `UsageError` if the database cannot be used as it is: wrong version, read-only, unsafe settings.
        """

    async def born_at(self) -> float:
        """Return when the tables were made, in seconds since 1970: the store knows nothing of before."""

    async def run(self, wake: Callable[[], None]) -> None:
        """Listen for changes by other processes until cancelled. Call `wake` in the event loop after each.

        One call may stand for many changes, and a change may be missed: callers read again from time to time.
        """

    async def close(self) -> None:
        """Close the connections. Idempotent; may be called after a failed `open`."""

    # Rows.

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write a batch. Return, for each claim that was lost, the row that is there, by key.

        *Raises*: `ReplicaBuried` if the incarnation is not alive: nothing was written.
        """

    async def find(self, side: Side, keys: Iterable[bytes]) -> dict[bytes, EdgeRow]:
        """Return the rows of one side with these keys, by key."""

    async def owned(self, owner: str) -> list[EdgeRow]:
        """Return the rows of an incarnation that are not over."""

    async def cascade(self, cascade: bytes) -> list[EdgeRow]:
        """Return all rows of a cascade."""

    async def roots(self, most: int) -> list[EdgeRow]:
        """Return the first hops of the newest cascades, at most `most`, newest first."""

    async def notices(self, owners: Iterable[str]) -> list[Notice]:
        """Return the notices for some incarnations, oldest first."""

    async def prune(self, now: float, most: int = 1000) -> int:
        """Remove rows whose `keep_until` is before `now`, at most `most`; return their number."""

    # Replicas.

    async def enroll(self, replica: Replica) -> None:
        """Add an incarnation; it is alive from now on."""

    async def beat(self, incarnation: str) -> None:
        """Record that an incarnation is alive.

        *Raises*: `ReplicaBuried` if it is not alive in the store.
        """

    async def replicas(self, agent: str | None = None) -> list[Replica]:
        """Return the incarnations of an agent, or of all agents."""

    async def end(self, incarnation: str, *, is_dead: bool, why: str = "") -> bool:
        """Record that an incarnation is dead, or has left. Return False if it was not alive."""

    async def inherit(self, incarnation: str, heir: str, before: str) -> bool:
        """Make `heir` the heir of a dead incarnation whose heir is `before`. Return False if its heir is another."""

    async def forget(self, incarnation: str) -> None:
        """Remove an incarnation that is not alive, and the notices for it."""
