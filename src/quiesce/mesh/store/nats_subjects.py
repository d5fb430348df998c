"""Names and contents of what a shared store keeps in a stream of NATS JetStream.

The stream keeps the last message of each subject. A message without a body is a tombstone: the server removes it
after a minute. Below, `P` is the bucket and `.s`:

- `P.schema`: the version.
- `P.a.<incarnation>`: a replica. Each of its commits writes it again, and nobody else does.
- `P.d.<incarnation>`: the end of a replica, and its heir. No commit of the replica is taken if it is there.
- `P.r.<side>.<key>`: a row.
- `P.x.<day>.<hour>.<owner>.<live or over>.<cascade>.<kind>.<key>.<began>`: finds a row. Each row has one such message,
  which the batch that writes the row writes too. Day and hour are those of `keep_until`.
- `P.n.<owner>.<batch>.<number>`: a notice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from quiesce.errors import UsageError
from quiesce.mesh.store.rows import EdgeRow, Notice, Replica

if TYPE_CHECKING:
    from quiesce.mesh.store.rows import Side

__all__: list[str] = []

_HOUR = 3600.0
_FIRST_DAY = 20_000  # since 1970, in 2024: rows of earlier days count as rows of this day
_LAST_DAY = 1_000_000  # and of later ones, also infinity, as rows of this one
_BUCKET_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_COPIES = frozenset({1, 3, 5})


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """What the address of a store says."""

    servers: tuple[str, ...]
    """The URLs of the servers, without credentials."""
    bucket: str
    replicas: int
    user: str | None
    password: str | None
    is_synced: bool
    """Whether the operator states that the servers write to the disk before they acknowledge."""

    @property
    def label(self) -> str:
        """The address without credentials."""
        hosts = ",".join(server.partition("://")[2] for server in self.servers)
        return f"{self.servers[0].partition('://')[0]}://{hosts}/{self.bucket}"

    def without_secrets(self, text: str) -> str:
        """Return a text without the credentials, for messages and logs."""
        for secret in (self.password, self.user if self.password is None else None):
            if secret:
                text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        return text


def read_address(address: str) -> NatsAddress:
    """Return the parts of `nats://user:password@host,host/bucket?replicas=3&sync=always`.

    *Raises*: `UsageError`, without the address: it may have credentials.
    """
    try:
        parts = urlsplit(address)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        replicas = int(options.pop("replicas", ["1"])[-1])
    except ValueError:
        raise UsageError(f"the address of the store is not valid. {_FORM}") from None
    if parts.scheme not in {"nats", "tls"}:
        raise UsageError(f"the address of a NATS store begins with nats:// or tls://. {_FORM}")
    sync = options.pop("sync", [None])[-1]
    if options or sync not in {None, "always"} or replicas not in _COPIES:
        raise UsageError(
            f"the options in the address of the store are replicas=1, 3 or 5, and sync=always. {_FORM}"
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, has_password, password = credentials.partition(":")
    bucket = parts.path.strip("/") or "quiesce"
    if not _BUCKET_CHARACTERS.issuperset(bucket):
        raise UsageError("the bucket in the address of the store has letters, digits, _ and - only")
    names = [host.strip() for host in hosts.split(",")]
    if not all(names):
        raise UsageError(f"the address of the store names no server. {_FORM}")
    return NatsAddress(
        tuple(f"{parts.scheme}://{name}" for name in names), bucket, replicas,
        unquote(user) or None, unquote(password) if has_password else None, sync == "always",
    )  # fmt: skip


_FORM = "Write it as nats://user:password@host:4222,host:4222/bucket?replicas=3&sync=always"


def token(text: str) -> str:
    """Return a text as one token of a subject."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E") or "%"


class Subjects:
    """The subjects of one bucket."""

    def __init__(self, bucket: str) -> None:
        """Name the subjects of this bucket."""
        self.prefix: str = f"{bucket}.s"
        self.schema: str = f"{bucket}.s.schema"
        self.wake: str = f"{bucket}.wake"
        self.entries: tuple[str, str] = (f"{bucket}.s.a.*", f"{bucket}.s.d.*")

    def entry(self, incarnation: str) -> str:
        """Return the subject of a replica."""
        return f"{self.prefix}.a.{token(incarnation)}"

    def end(self, incarnation: str) -> str:
        """Return the subject of the end of a replica."""
        return f"{self.prefix}.d.{token(incarnation)}"

    def is_entry(self, subject: str) -> bool:
        """Return whether a subject is that of a replica."""
        return subject.startswith(f"{self.prefix}.a.")

    def end_of(self, entry: str) -> str:
        """Return the subject of the end of the replica with this subject."""
        return f"{self.prefix}.d.{entry.rpartition('.')[2]}"

    def row(self, side: Side, key: bytes) -> str:
        """Return the subject of a row."""
        return f"{self.prefix}.r.{side}.{key.hex() or '%'}"

    def index(self, row: EdgeRow) -> str:
        """Return the subject that finds a row."""
        day, hour = ("-", "-") if row.keep_until is None else when(row.keep_until)
        kind = "root" if row.side == "hop" and row.root is not None else row.side
        state = "over" if row.state == "over" else "live"
        return (
            f"{self.prefix}.x.{day}.{hour}.{token(row.owner)}.{state}.{row.cascade.hex() or '%'}.{kind}"
            f".{row.key.hex() or '%'}.{round(max(row.began_at, 0.0) * 1000):015d}"
        )

    def row_of(self, index: str) -> str:
        """Return the subject of the row that an index entry finds."""
        kind, key = index.split(".")[-3:-1]
        return f"{self.prefix}.r.{'hop' if kind == 'root' else kind}.{key}"

    def owned(self, owner: str) -> str:
        """Return the index entries of rows of an owner that are not over."""
        return f"{self.prefix}.x.*.*.{token(owner)}.live.>"

    def cascade(self, cascade: bytes) -> str:
        """Return the index entries of a cascade."""
        return f"{self.prefix}.x.*.*.*.*.{cascade.hex() or '%'}.>"

    @property
    def roots(self) -> str:
        """The index entries of the first hops of all cascades."""
        return f"{self.prefix}.x.*.*.*.*.*.root.>"

    def expired(self, now: float) -> list[str]:
        """Return the index entries of rows whose time may be over: of all days before, and of today's hours."""
        day, hour = (int(part) for part in when(now))
        days = [f"{self.prefix}.x.{one}.>" for one in range(_FIRST_DAY, day)]
        return days + [f"{self.prefix}.x.{day}.{one}.>" for one in range(hour + 1)]

    def notices(self, owner: str) -> str:
        """Return the notices for an owner."""
        return f"{self.prefix}.n.{token(owner)}.*.*"

    def notice(self, owner: str, batch: str, number: int) -> str:
        """Return the subject of a notice."""
        return f"{self.prefix}.n.{token(owner)}.{batch}.{number}"

    def is_notice(self, subject: str) -> bool:
        """Return whether a subject is that of a notice."""
        return subject.startswith(f"{self.prefix}.n.")


def when(moment: float) -> tuple[str, str]:
    """Return the day since 1970, and the hour of the day."""
    hours = int(max(min(moment // _HOUR, _LAST_DAY * 24), _FIRST_DAY * 24))
    return str(hours // 24), str(hours % 24)


def _pack(head: dict[str, Any], body: bytes) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + body


def _unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    head, _, body = data.partition(b"\n")
    return json.loads(head), body


def pack_row(row: EdgeRow) -> bytes:
    """Return the message of a row."""
    head = {
        "key": row.key.hex(), "side": row.side, "agent": row.agent, "owner": row.owner, "cascade": row.cascade.hex(),
        "above": row.above.hex(), "state": row.state, "root": row.root, "began": row.began_at, "keep": row.keep_until,
    }  # fmt: skip
    return _pack(head, row.body)


def unpack_row(data: bytes) -> EdgeRow:
    """Return the row of a message."""
    head, body = _unpack(data)
    return EdgeRow(
        key=bytes.fromhex(head["key"]), side=head["side"], agent=head["agent"], owner=head["owner"],
        cascade=bytes.fromhex(head["cascade"]), above=bytes.fromhex(head["above"]), state=head["state"],
        root=head["root"], began_at=head["began"], keep_until=head["keep"], body=body,
    )  # fmt: skip


def pack_notice(notice: Notice) -> bytes:
    """Return the message of a notice."""
    return _pack({"kind": notice.kind, "key": notice.key.hex(), "owner": notice.owner}, notice.body)


def unpack_notice(data: bytes, number: int) -> Notice:
    """Return the notice of a message."""
    head, body = _unpack(data)
    return Notice(head["owner"], head["kind"], bytes.fromhex(head["key"]), body, number)


@dataclass(slots=True)
class ReplicaEntry:
    """What the stream has about a replica: its own message, and the one that ends it."""

    replica: Replica
    number: int = 0
    """The sequence of the replica's message: its own commits write it."""
    batch: str = ""
    """The last commit of the replica, by which it learns what became of one without an answer."""
    end_number: int = 0
    """The sequence of the message that ends it; 0: there is none, and it is alive."""
    change: str = ""
    """The last change of its state or heir: the same for every replica that has changed it."""

    def pack(self) -> bytes:
        """Return the replica's message."""
        one = self.replica
        head = {
            "incarnation": one.incarnation, "agent": one.agent, "name": one.name, "host": one.host, "boot": one.boot,
            "pid": one.pid, "started": one.started, "lease": one.lease, "fences": one.fences,
        }  # fmt: skip
        return _pack({"batch": self.batch, "replica": head}, b"")

    def pack_end(self) -> bytes:
        """Return the message that ends the replica, or changes its heir."""
        one = self.replica
        head = {"state": one.state, "heir": one.heir, "why": one.why}
        return _pack({"change": self.change, "replica": head}, b"")


def unpack_entry(data: bytes, number: int, end: bytes, end_number: int) -> ReplicaEntry:
    """Return the entry that two messages say; without data, the second is not there."""
    head, _ = _unpack(data)
    last: dict[str, Any] = _unpack(end)[0] if end else {"change": "", "replica": {}}
    replica = Replica(**head["replica"], **last["replica"])
    return ReplicaEntry(replica, number, head["batch"], end_number, last["change"])
