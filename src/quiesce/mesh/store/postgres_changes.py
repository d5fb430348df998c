"""The statement that writes a batch into PostgreSQL: one round trip, and a transaction by itself.

It begins with a lock on the row of the incarnation. The lock lets heartbeats pass, and not `end`: whichever of the two
comes first, the other one waits for it, and then looks at the row again. All other parts take their rows from a join with
that row, so they write nothing if it is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.mesh.store.rows import Batch, EdgeRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__: list[str] = []

_FIELDS = {
    "key": "bytea", "side": "text", "agent": "text", "owner": "text", "cascade": "bytea", "above": "bytea",
    "state": "text", "root": "text", "began_at": "float8", "keep_until": "float8", "body": "bytea",
}  # fmt: skip
ROW = ", ".join(_FIELDS)
_SET = ", ".join(f"{name} = excluded.{name}" for name in _FIELDS if name not in {"key", "side"})

_ALIVE = (
    "WITH alive AS MATERIALIZED (SELECT incarnation FROM quiesce_replicas WHERE incarnation = $1 AND state = 'alive'"
    " FOR KEY SHARE)"
)  # fmt: skip


class _Statement:
    """A statement under construction, with its arguments."""

    def __init__(self, owner: str) -> None:
        self.parts = [_ALIVE]
        self.arguments: list[Any] = [owner]

    def add(self, text: str, types: Iterable[str], columns: Iterable[Sequence[Any]]) -> None:
        """Add a part; `{given}` in it stands for a table of these columns."""
        given = []
        for kind, column in zip(types, columns, strict=True):
            self.arguments.append(column)
            given.append(f"${len(self.arguments)}::{kind}[]")
        self.parts.append(text.format(given=f"unnest({', '.join(given)})"))


def statement_of(batch: Batch) -> tuple[str, list[Any]]:
    """Return the statement for a batch in which no row comes twice, and its arguments.

    Its result is one row with `key` and `side` for each claim that was won. `alive` is in every row, and there is at least
    one.
    """
    made = _Statement(batch.owner)
    insert = f"(INSERT INTO quiesce_rows ({ROW}) SELECT given.* FROM alive, {{given}} AS given"  # noqa: S608 - names
    if batch.claims:
        claim = f"claimed AS {insert} ON CONFLICT (key, side) DO NOTHING RETURNING key, side)"
        made.add(claim, _FIELDS.values(), _columns(batch.claims))
    if batch.puts:
        put = f"put AS {insert} ON CONFLICT (key, side) DO UPDATE SET {_SET})"
        made.add(put, _FIELDS.values(), _columns(batch.puts))
    if batch.notices:
        made.add(
            "noticed AS (INSERT INTO quiesce_notices (owner, kind, key, body) SELECT given.owner, given.kind, given.key,"
            " given.body FROM alive, {given} WITH ORDINALITY AS given (owner, kind, key, body, place)"
            " ORDER BY given.place)",
            ["text", "text", "bytea", "bytea"],
            zip(*((one.owner, one.kind, one.key, one.body) for one in batch.notices), strict=True),
        )
    if batch.drops:
        made.add(
            "dropped AS (DELETE FROM quiesce_rows AS old USING alive, {given} AS given (side, key)"
            " WHERE old.side = given.side AND old.key = given.key)",
            ["text", "bytea"],
            zip(*batch.drops, strict=True),
        )
    if batch.handled:
        made.add(
            "handled AS (DELETE FROM quiesce_notices AS old USING alive, {given} AS given (number)"
            " WHERE old.number = given.number)",
            ["bigint"],
            [batch.handled],
        )
    won = "LEFT JOIN claimed ON true" if batch.claims else ""
    columns = "claimed.key, claimed.side" if batch.claims else "NULL AS key, NULL AS side"
    parts = ", ".join(made.parts)
    select = f"SELECT here.alive, {columns} FROM (SELECT EXISTS (SELECT FROM alive) AS alive) AS here {won}"  # noqa: S608 - fixed texts
    return f"{parts} {select}", made.arguments


def _columns(rows: list[EdgeRow]) -> list[list[Any]]:
    return [[getattr(row, name) for row in rows] for name in _FIELDS]


def split(batch: Batch) -> list[Batch]:
    """Return batches with the same effect, one after the other, in each of which no row comes twice.

    It is one batch, unless a row is claimed, and put or dropped at the same time. Rows are in the order of their keys, so
    that two batches do not wait for each other.
    """
    claims = {(row.side, row.key): row for row in reversed(batch.claims)}
    drops = set(batch.drops)
    puts = {(row.side, row.key): row for row in batch.puts if (row.side, row.key) not in drops}
    first = Batch(batch.owner, claims=_ordered(claims.values()))
    rest = Batch(
        batch.owner, puts=_ordered(puts.values()), notices=batch.notices, drops=sorted(drops, key=lambda drop: drop[1]),
        handled=batch.handled,
    )  # fmt: skip
    if first and rest and (claims.keys() & (puts.keys() | drops)):
        return [first, rest]
    rest.claims = first.claims
    return [rest]


def _ordered(rows: Iterable[EdgeRow]) -> list[EdgeRow]:
    return sorted(rows, key=lambda row: row.key)
