"""Rows in PostgreSQL, for processes of many machines.

A batch is one statement, so it takes one round trip. Other processes learn of changes by NOTIFY. It is not part of a
change: PostgreSQL lets the transactions with a NOTIFY commit only one after the other. One task sends it for all changes
of the last milliseconds.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.current import detached
from quiesce.errors import QuiesceError, ReplicaBuried, StoreLost, UsageError
from quiesce.mesh.store import postgres_address
from quiesce.mesh.store.postgres_changes import ROW, split, statement_of
from quiesce.mesh.store.postgres_link import PostgresLink
from quiesce.mesh.store.rows import Batch, EdgeRow, Notice, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.store.rows import Side

__all__: list[str] = []

_TELL_SECONDS = 0.01  # between two wake-ups of the others
_BACK_SECONDS = 0.05  # before the listener connects again, at first
_BACK_MAX_SECONDS = 5.0
_CLAIMS_AGAIN = 3

_REPLICA = (
    "incarnation, agent, name, host, boot, pid, started, lease, fences, state, heir, why,"
    " GREATEST(extract(epoch FROM clock_timestamp() - beat_at), 0)::float8 AS age"
)
# The lock is the one that `apply` waits for; an update of the state alone would let it pass.
_END = """
WITH one AS MATERIALIZED (
    SELECT incarnation FROM quiesce_replicas WHERE incarnation = $1 AND state = 'alive' FOR UPDATE
), done AS (
    UPDATE quiesce_replicas AS old SET state = $2, why = $3, ended_by = $4 FROM one
    WHERE old.incarnation = one.incarnation AND old.state = 'alive' RETURNING true
)
SELECT EXISTS (SELECT FROM done) OR EXISTS (SELECT FROM quiesce_replicas WHERE incarnation = $1 AND ended_by = $4)
"""
_INHERIT = """
WITH done AS (
    UPDATE quiesce_replicas SET heir = $2, inherited_by = $4 WHERE incarnation = $1 AND state = 'dead' AND heir = $3
    RETURNING true
)
SELECT EXISTS (SELECT FROM done) OR EXISTS (SELECT FROM quiesce_replicas WHERE incarnation = $1 AND inherited_by = $4)
"""
_ENROLL = """
INSERT INTO quiesce_replicas VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'alive', clock_timestamp(), '', '', '', '')
ON CONFLICT (incarnation) DO NOTHING
"""
_BEAT = "UPDATE quiesce_replicas SET beat_at = clock_timestamp() WHERE incarnation = $1 AND state = 'alive' RETURNING true"
_FORGET = """
WITH gone AS (DELETE FROM quiesce_replicas WHERE incarnation = $1 AND state <> 'alive' RETURNING incarnation)
DELETE FROM quiesce_notices USING gone WHERE owner = gone.incarnation
"""
# Rows that another process writes just now are left for the next time.
_PRUNE = """
WITH old AS MATERIALIZED (
    SELECT key, side FROM quiesce_rows WHERE keep_until < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM quiesce_rows AS there USING old WHERE there.key = old.key AND there.side = old.side RETURNING true
)
SELECT count(*) FROM gone
"""


class PostgresDatabase:
    """Rows in a schema of a database of PostgreSQL.

    Args:
        address: The URL of the database: `postgresql://user:password@host:port/database?schema=quiesce`. It may have the
            options of libpq as well, such as `sslmode=verify-full` and `sslrootcert`. The schema is made if it does not exist.
        seconds: The time limit of every call.
    """

    def __init__(self, address: str, *, seconds: float = 10.0) -> None:
        """Read the address; `open` connects."""
        if not seconds > 0:
            message = f"seconds={seconds!r} is no time limit: give a number above 0"
            raise UsageError(message)
        self._link = PostgresLink(address, seconds)
        self._seconds = seconds
        schema = self._link.address.schema
        # The name of a channel has at most 63 bytes.
        self._channel = f"quiesce_{hashlib.blake2b(schema.encode(), digest_size=16).hexdigest()}"
        self._self = secrets.token_hex(8)
        self._listeners = 0
        self._has_news = False
        self._news = anyio.Event()
        self._is_telling = False

    @property
    def is_one_machine(self) -> bool:
        """Whether only processes of one machine can use the store."""
        return False

    @property
    def label(self) -> str:
        """The address for messages, without credentials."""
        return self._link.address.label

    async def open(self) -> None:
        """Connect, and make the tables if there are none.

        *Raises*: `UsageError` if the operator has to act first; `StoreLost` if waiting may help.
        """
        await self._link.open()

    async def born_at(self) -> float:
        """Return when the tables were made."""
        return float(await self._one("SELECT born_at FROM quiesce_schema"))

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        try:
            await self._link.close()
        finally:
            self._news.set()  # a listener that still runs ends

    async def _all(self, statement: str, *args: object) -> list[Any]:
        found: list[Any] = await self._link.do(lambda held: held.fetch(statement, *args))
        return found

    async def _one(self, statement: str, *args: object) -> Any:
        return await self._link.do(lambda held: held.fetchval(statement, *args))

    # Wake-ups.

    async def run(self, wake: Callable[[], None]) -> None:
        """Listen for changes by other processes until cancelled, and tell them about those of this one."""
        self._listeners += 1
        pause = _BACK_SECONDS
        try:
            while True:
                began = anyio.current_time()
                try:
                    with detached():
                        await self._listen(wake)
                except QuiesceError:
                    raise  # the store was closed
                except Exception as error:
                    if not postgres_address.may_pass(error) and not postgres_address.is_sound(
                        error
                    ):
                        raise
                if anyio.current_time() - began > _BACK_MAX_SECONDS:
                    pause = _BACK_SECONDS
                await anyio.sleep(pause)
                pause = min(2 * pause, _BACK_MAX_SECONDS)
        finally:
            self._listeners -= 1

    async def _listen(self, wake: Callable[[], None]) -> None:
        """Listen with one connection until it is lost."""
        with anyio.fail_after(self._seconds):
            connection = await self._link.connect()
        is_live = True

        def hear(_: Any, __: int, ___: str, sender: str) -> None:
            if is_live and sender != self._self:
                wake()

        try:
            connection.add_termination_listener(lambda _: self._news.set())
            with anyio.fail_after(self._seconds):
                await connection.add_listener(self._channel, hear)
            wake()  # what has changed before is not told
            while self._link.is_open and not connection.is_closed():
                with anyio.move_on_after(self._seconds):
                    await self._news.wait()
                self._news = anyio.Event()
                with anyio.fail_after(self._seconds):
                    await self._tell(connection)
                await anyio.sleep(_TELL_SECONDS)
        finally:
            is_live = False
            connection.terminate()

    async def _tell(self, connection: Any) -> None:
        """Wake the others if there is something new; otherwise see whether the connection is still there."""
        if not self._has_news:
            await connection.execute("SELECT 1")
            return
        self._has_news = False
        try:
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, self._self)
        except BaseException:
            self._has_news = True
            raise

    async def _changed(self) -> None:
        """Wake the others: through `run`, or here and now if it does not run."""
        self._has_news = True
        self._news.set()
        if self._listeners or self._is_telling:
            return
        self._is_telling = True
        try:
            with suppress(
                StoreLost
            ):  # the change itself is written, and the others look again by themselves
                while self._has_news:
                    await self._link.do(self._tell)
        finally:
            self._is_telling = False

    # Rows.

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write a batch in one transaction. Return the rows of lost claims, by key."""
        lost: dict[bytes, EdgeRow] = {}
        for _ in range(_CLAIMS_AGAIN):
            parts = split(batch)
            won = await self._link.do(lambda held, parts=parts: _write(held, parts))  # type: ignore[misc]  # of this round
            claims = [
                row for part in parts for row in part.claims if (row.key, row.side) not in won
            ]
            sides: set[Side] = {row.side for row in claims}
            for side in sides:
                lost.update(await self.find(side, [row.key for row in claims if row.side == side]))
            # Rows that were removed since: nobody has them.
            batch = Batch(batch.owner, claims=[row for row in claims if row.key not in lost])
            if not batch.claims:
                await self._changed()
                return lost
        message = f"the store {self.label} cannot be used now: rows that are claimed come and go"
        raise StoreLost(message)

    async def find(self, side: Side, keys: Iterable[bytes]) -> dict[bytes, EdgeRow]:
        """Return the rows of one side with these keys, by key."""
        rows = await self._rows("side = $1 AND key = ANY($2::bytea[])", side, list(keys))
        return {row.key: row for row in rows}

    async def owned(self, owner: str) -> list[EdgeRow]:
        """Return the rows of an incarnation that are not over."""
        return await self._rows("owner = $1 AND state <> 'over' ORDER BY began_at", owner)

    async def cascade(self, cascade: bytes) -> list[EdgeRow]:
        """Return all rows of a cascade."""
        return await self._rows("cascade = $1 ORDER BY began_at", cascade)

    async def roots(self, most: int) -> list[EdgeRow]:
        """Return the first hops of the newest cascades."""
        return await self._rows("root IS NOT NULL ORDER BY began_at DESC LIMIT $1", most)

    async def _rows(self, where: str, *args: object) -> list[EdgeRow]:
        select = f"SELECT {ROW} FROM quiesce_rows WHERE {where}"  # noqa: S608 - fixed texts
        return [EdgeRow(**found) for found in await self._all(select, *args)]

    async def notices(self, owners: Iterable[str]) -> list[Notice]:
        """Return the notices for some incarnations, oldest first."""
        select = "SELECT owner, kind, key, body, number FROM quiesce_notices WHERE owner = ANY($1::text[]) ORDER BY number"
        return [Notice(*found) for found in await self._all(select, list(owners))]

    async def prune(self, now: float, most: int = 1000) -> int:
        """Remove rows that are not needed any more; return their number."""
        return int(await self._one(_PRUNE, now, most))

    # Replicas.

    async def enroll(self, replica: Replica) -> None:
        """Add an incarnation."""
        await self._one(
            _ENROLL, replica.incarnation, replica.agent, replica.name, replica.host, replica.boot, replica.pid,
            replica.started, replica.lease, replica.fences,
        )  # fmt: skip
        await self._changed()

    async def beat(self, incarnation: str) -> None:
        """Record that an incarnation is alive, by the clock of the server."""
        if not await self._one(_BEAT, incarnation):
            why = "SELECT why FROM quiesce_replicas WHERE incarnation = $1"
            raise ReplicaBuried(incarnation, await self._one(why, incarnation) or "")

    async def replicas(self, agent: str | None = None) -> list[Replica]:
        """Return the incarnations of an agent, or of all agents."""
        select = f"SELECT {_REPLICA} FROM quiesce_replicas WHERE $1::text IS NULL OR agent = $1"  # noqa: S608 - names
        return [Replica(**found) for found in await self._all(select, agent)]

    async def end(self, incarnation: str, *, is_dead: bool, why: str = "") -> bool:
        """Record that an incarnation is dead, or has left."""
        # The token tells this call, when it is tried again, from another one that was first.
        token, state = secrets.token_hex(8), "dead" if is_dead else "left"
        has_ended = bool(await self._one(_END, incarnation, state, why, token))
        await self._changed()
        return has_ended

    async def inherit(self, incarnation: str, heir: str, before: str) -> bool:
        """Make `heir` the heir of a dead incarnation, if its heir is `before`."""
        has_taken = bool(await self._one(_INHERIT, incarnation, heir, before, secrets.token_hex(8)))
        await self._changed()
        return has_taken

    async def forget(self, incarnation: str) -> None:
        """Remove an incarnation that is not alive."""
        await self._one(_FORGET, incarnation)
        await self._changed()


async def _write(connection: Any, parts: list[Batch]) -> set[tuple[bytes, str]]:
    """Write the parts of a batch. Return the key and side of each claim that was won."""
    if len(parts) == 1:
        return await _write_part(connection, parts[0])
    won: set[tuple[bytes, str]] = set()
    async with connection.transaction():
        for part in parts:
            won |= await _write_part(connection, part)
    return won


async def _write_part(connection: Any, part: Batch) -> set[tuple[bytes, str]]:
    statement, arguments = statement_of(part)
    found = await connection.fetch(statement, *arguments)
    if not found[0]["alive"]:
        why = "SELECT why FROM quiesce_replicas WHERE incarnation = $1"
        raise ReplicaBuried(part.owner, await connection.fetchval(why, part.owner) or "")
    return {(one["key"], one["side"]) for one in found if one["key"] is not None}
