"""The stream of JetStream that keeps a shared store: its set-up and checks, and reading from it.

Reads come from any server that has a copy of the stream, and a copy may be behind. So every answer says up to which
sequence it goes, and one that does not go far enough is asked for again. Far enough is: all that this process has
written, read, or heard of in a wake-up; and, if there are several copies, all that the leader has at the moment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from quiesce.errors import UsageError
from quiesce.mesh.store.database import SCHEMA
from quiesce.mesh.store.nats_link import NotNowError, RefusedError, persist, status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nats.aio.msg import Msg

    from quiesce.mesh.store.nats_link import NatsLink
    from quiesce.mesh.store.nats_subjects import NatsAddress, Subjects

__all__: list[str] = []

_log = logging.getLogger("quiesce.mesh")

_SUBJECTS_MAX = 500  # in one question; the server answers with at most 1024 messages
_BYTES_MAX = 4 * 2**20  # in one answer
_LOWER_ANSWERS = 20  # of the leader, until it is believed that it has lost messages
_API_LEVEL = 2  # nats-server 2.12: batches
_STREAM_MISSING, _STREAM_DIFFERS = 10059, 10058


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of the stream."""

    subject: str
    number: int
    """Its sequence in the stream."""
    data: bytes
    """Empty: a tombstone."""
    written_at: float
    """In seconds since 1970, by the clock of the server."""


def _stored(message: Msg) -> Stored:
    headers = message.headers or {}
    written_at = datetime.fromisoformat(_short(headers["Nats-Time-Stamp"])).timestamp()
    return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data, written_at)


def _short(moment: str) -> str:
    """Return a time with microseconds: Python 3.11 reads no nanoseconds of any length."""
    whole, _, fraction = moment.removesuffix("Z").partition(".")
    return f"{whole}.{fraction[:6].ljust(6, '0')}+00:00"


class NatsStream:
    """The stream of one bucket."""

    def __init__(self, link: NatsLink, address: NatsAddress, subjects: Subjects) -> None:
        """Describe the stream; `open` makes it."""
        self._link = link
        self._address = address
        self._subjects = subjects
        self._name = address.bucket
        self._is_copied = address.replicas > 1
        self._lower = 0
        self.born_at: float = 0.0
        """When the first process has made the stream, by its clock."""
        self.seen: int = 0
        """The highest sequence that this process knows of."""

    # Set-up.

    async def open(self) -> None:
        """Make the stream if there is none, and check it.

        *Raises*: `UsageError`, `NotNowError`.
        """
        account = await self._link.call("INFO")
        level = int(account.get("api", {}).get("level", 0))
        if level < _API_LEVEL:
            raise UsageError(
                f"the NATS server of the store {self._address.label} is too old: quiesce writes batches in one commit,"
                " which needs nats-server 2.12 or newer"
            )
        await self._make()
        await self._check_version()

    async def _make(self) -> None:
        wanted: dict[str, Any] = {
            "name": self._name,
            "description": "A shared store of quiesce. Its docs say what is in it.",
            "subjects": [f"{self._subjects.prefix}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "num_replicas": self._address.replicas,
            "allow_direct": True,
            "allow_atomic": True,
            "allow_msg_ttl": True,
        }
        try:
            found = await self._link.call(f"STREAM.INFO.{self._name}")
        except RefusedError as error:
            if error.code != _STREAM_MISSING:
                raise
            try:
                found = await self._link.call(f"STREAM.CREATE.{self._name}", wanted)
            except RefusedError as refused:
                if refused.code != _STREAM_DIFFERS:
                    raise
                found = await self._link.call(f"STREAM.INFO.{self._name}")
        self._check(found["config"], wanted)
        self._note_info(found)

    def _check(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Raise if a stream of another configuration is there already."""
        self._is_copied = int(found.get("num_replicas", 1)) > 1
        exact = ("subjects", "retention", "storage", "max_msgs_per_subject", "num_replicas")
        wrong = [
            f"{name} is {found.get(name)!r} and not {wanted[name]!r}"
            for name in (*exact, "discard", "allow_direct", "allow_atomic", "allow_msg_ttl")
            if found.get(name) != wanted[name]
        ]
        wrong += [f"{name} is set" for name in ("max_age", "mirror", "sealed") if found.get(name)]
        if found.get("persist_mode", "default") not in {"", "default"}:
            wrong.append("persist_mode is not 'default'")
        if wrong:
            raise UsageError(
                f"the stream {self._name!r} of the store {self._address.label} cannot be used: {'; '.join(wrong)}."
                " Change it (nats stream edit), or name another bucket or another number of replicas in the address"
            )

    async def _check_version(self) -> None:
        subject = self._subjects.schema
        while True:
            found = (await self.last([], all_of_them=True)).get(subject)
            if found is not None and found.data:
                break
            try:
                expected = {"Nats-Expected-Last-Subject-Sequence": "0"}
                content = json.dumps({"version": SCHEMA, "born_at": time.time()}).encode()
                await self._link.publish([(subject, content, expected)])
            except RefusedError:
                await asyncio.sleep(0.01)  # another process is at it
        told = json.loads(found.data)
        version, self.born_at = told["version"], told.get("born_at", 0.0)
        if version != SCHEMA:
            raise UsageError(
                f"the store {self._address.label} has rows of version {version}, and this version of quiesce needs"
                f" version {SCHEMA}: run the version of quiesce that made them, or name another bucket"
            )

    # Reading.

    def note(self, number: int) -> None:
        """Remember that the stream has a message of this sequence: no answer may end before it."""
        self.seen = max(self.seen, number)

    def _note_info(self, info: dict[str, Any]) -> float:
        """Compare what is known with what the leader of the stream says; return the leader's time."""
        last = int(info["state"]["last_seq"])
        if last >= self.seen:
            self.seen, self._lower = last, 0
        else:
            self._lower += 1
            if self._lower >= _LOWER_ANSWERS:
                _log.error(
                    "the store %s has lost messages that it had acknowledged: it ends at %d, and had %d. Set"
                    " `sync_interval: always` in the `jetstream` block of its servers' configuration",
                    self._address.label, last, self.seen,
                )  # fmt: skip
                self.seen, self._lower = last, 0
        return datetime.fromisoformat(_short(info["ts"])).timestamp()

    async def catch_up(self) -> float:
        """Ask the leader how far the stream goes; return its time."""
        return self._note_info(await self._link.call(f"STREAM.INFO.{self._name}"))

    async def last(self, filters: Iterable[str], *, all_of_them: bool = False) -> dict[str, Stored]:
        """Return the last messages of subjects, which may have wildcards.

        `all_of_them`: also tombstones, and the version.

        *Raises*: `NotNowError`.
        """
        wanted = list(filters)
        if self._is_copied:
            await self.catch_up()
        found: dict[str, Stored] = {}
        for first in range(0, max(len(wanted), 1), _SUBJECTS_MAX):
            some = [*wanted[first : first + _SUBJECTS_MAX], self._subjects.schema]
            await self._read(some, found)
        if all_of_them:
            return found
        found.pop(self._subjects.schema, None)
        return {subject: one for subject, one in found.items() if one.data}

    async def _read(self, filters: list[str], found: dict[str, Stored]) -> None:
        """Read the last messages of subjects, in several answers if they are large."""
        start = 0
        while True:
            answer = await self._ask(filters, start)
            if answer is None:
                await self._read_many(filters, found)
                return
            end = answer[-1].headers or {}
            for message in answer[:-1]:
                one = _stored(message)
                found[one.subject] = one
                start = max(start, one.number + 1)
            if int(end.get("Nats-Num-Pending", "0")) == 0:
                return

    async def _ask(self, filters: list[str], start: int) -> list[Msg] | None:
        """Ask once for last messages. Return None if there are too many."""
        request: dict[str, Any] = {"multi_last": filters, "max_bytes": _BYTES_MAX}
        if start:
            request["seq"] = start

        async def attempt() -> list[Msg] | None:
            payload = json.dumps(request).encode()
            answer = await self._link.ask(f"$JS.API.DIRECT.GET.{self._name}", payload, is_list=True)
            end = answer[-1]
            description = (end.headers or {}).get("Description", "")
            if status(end) == "413":
                return None
            if status(end) == "404" and description.startswith("No Results"):
                # Before the first message, there is nothing that this copy could be behind.
                if self.seen == 0 or start:
                    return answer
                await self.catch_up()
                raise NotNowError("a copy of the stream is behind")
            if status(end) != "204":
                raise NotNowError(f"the server cannot read now: {description}")
            if int((end.headers or {})["Nats-UpTo-Sequence"]) < self.seen:
                await self.catch_up()
                raise NotNowError("a copy of the stream is behind")
            return answer

        return await persist(attempt)

    async def _read_many(self, filters: list[str], found: dict[str, Stored]) -> None:
        """Read more messages than one answer may have: their names first."""
        for one in filters:
            if "*" not in one and ">" not in one:
                await self._read([one], found)
                continue
            names = await self.names(one)
            for first in range(0, len(names), _SUBJECTS_MAX):
                await self._read(names[first : first + _SUBJECTS_MAX], found)

    async def names(self, one: str) -> list[str]:
        """Return the subjects that a wildcard stands for, from the leader."""
        names: list[str] = []
        while True:
            request = {"subjects_filter": one, "offset": len(names)}
            info = await self._link.call(f"STREAM.INFO.{self._name}", request)
            self._note_info(info)
            page = info["state"].get("subjects") or {}
            names += page
            if not page or len(names) >= int(info.get("total", 0)):
                return names

    async def subject_of(self, number: int) -> str | None:
        """Return the subject of the message of a sequence."""
        payload = json.dumps({"seq": number}).encode()
        (answer,) = await self._link.ask(f"$JS.API.DIRECT.GET.{self._name}", payload)
        return None if status(answer) else str((answer.headers or {})["Nats-Subject"])
