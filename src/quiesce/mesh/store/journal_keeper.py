"""How a node keeps its journal: also while the disk is full, and when an old copy was put in its place.

What holds:

1. Records are written in the order in which they were made, each once. Those of a write that failed are kept, and
   are written before any other as soon as a write succeeds: what the node knows is what is written, and these.
2. With `on_journal_failure="refuse"` nothing is done meanwhile that rests on a record which is not written.
3. With `"serve"` the node goes on as one without a journal: its receipts say that they are volatile. That it may is
   written when it is opened, and that it has written everything, when it is closed. If its process dies, the next one, in
   either mode, knows that it may not know: of messages from before it the node says `unknown`, never `never`, and a
   hop that was running may have sent messages that nobody wrote down. So it is with `durability="process"`, if the
   machine was started anew since, or is another.
4. A journal says since when it has had everything. The node tells others how many records it has, signed; they say
   it back with their next call. A journal with fewer records than it once had is an old copy: it begins anew, as
   one that knows nothing of what was before. A caller that says again and again what another journal has told it
   reaches two nodes at one address: that is logged.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from quiesce.core.tree import logger
from quiesce.errors import JournalBroken, UsageError
from quiesce.mesh.store.compaction import Compaction, Tidying, is_worth

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.engine import Engine
    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.store.journal import Journal

__all__ = ["Health"]

MODES = ("refuse", "serve")
RETRY_SECONDS = 1.0
_BEHIND_MAX = 100_000  # records
_STRAYS, _STRAYS_MAX = 10, 1024
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT = "none"  # no run of a machine


def _boot() -> str:
    """Return the run of the machine that this is; empty, where the system does not say."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a node can do its part now; see `Node.health`."""

    state: Literal["closed", "ready", "draining", "refusing", "behind"]
    """`refusing`: it cannot write its journal, and takes no messages until a write succeeds. `behind`: the same, but
    it goes on without (`on_journal_failure="serve"`). `draining`: it takes no more messages."""
    why: str = ""
    """What is wrong, for people."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.state == "ready"

    @property
    def takes_messages(self) -> bool:
        """Whether a message would be worked on."""
        return self.state in {"ready", "behind"}


class Keeping:
    """The journal of a node that is open.

    Args:
        journal: the file.
        engine: what the node knows; nothing yet.
        mode: what to do when it cannot be written, one of `MODES`.
        random: gives random bytes.
    """

    def __init__(
        self, journal: Journal, engine: Engine, mode: str, random: Callable[[int], bytes]
    ) -> None:
        """Start with nothing open."""
        self._journal = journal
        self._engine = engine
        self._name = engine.detector.name
        self._serves = mode == "serve"
        self._random = random
        self._behind: list[Record] = []  # (1)
        self._retry_at = 0.0
        self._strays: dict[str, int] = {}
        self._is_warned = False
        self._is_opened = False
        self._boot = ""
        self.error: BaseException | None = None
        """Why the journal could not be written the last time; None: it could."""
        self.tidying: Tidying = Tidying(self._name, journal, engine.detector)

    @property
    def is_refusing(self) -> bool:
        """Whether nothing may be done that rests on a record (2)."""
        return self.error is not None and not (self._serves and len(self._behind) <= _BEHIND_MAX)

    def why(self) -> str:
        """Return what is wrong, and what is to be done about it."""
        return (
            f"it cannot write {self._journal.path} ({self.error}). It resumes when a write succeeds,"
            " which is tried every second"
        )

    def broken(self) -> JournalBroken:
        """Return the error of what cannot be done now."""
        return JournalBroken(f"node {self._name!r} takes no messages: {self.why()}")

    # When it is opened, and closed.

    def open(self) -> None:
        """Read the journal into the engine.

        *Raises*: `JournalInUse`, `JournalBroken`; `UsageError` if it is another node's.
        """
        detector = self._engine.detector
        detector.boot = _boot()
        self._boot = _NO_BOOT if self._serves else "" if self._journal.syncs else detector.boot
        self._journal.open_into(detector.restore)
        born = detector.born
        if born is not None and born.node != self._name:
            self._journal.close()
            message = (
                f"the journal {self._journal.path} is that of node {born.node!r}, and this one is"
                f" {self._name!r}: give each node a journal of its own; if it was renamed, move the old"
                " journal away when nothing waits for it any more"
            )
            raise UsageError(message)
        if born is None or not detector.has_all:  # (3)
            self._begin_anew()
        elif born.boot != self._boot:
            detector.bear(born.at, born.key, self._boot)

    def _begin_anew(self) -> None:
        wall, key = self._engine.horizon.wall(), self._random(16).hex()
        self._engine.detector.bear(wall, key, self._boot)

    def opened(self) -> None:
        """Make the journal smaller, if that is worth it: a process that lives for short has no other time."""
        self._is_opened = True
        if self.error is None and is_worth(self._journal, self._engine.detector):
            try:
                Compaction(self._journal, self._engine.detector).run_at_once()
            except Exception:  # noqa: BLE001 - whatever it is, the journal there was goes on
                text = "node %r could not have a smaller journal, and tries again when it has grown"
                logger.exception(text, self._name)

    def close(self) -> None:
        """Close the file."""
        if self._behind:
            text = "node %r is closed, and %d records were not written: %s"
            logger.error(text, self._name, len(self._behind), self.why())
        elif self._is_opened and self._boot:
            self._complete()
        self._journal.close()

    def _complete(self) -> None:
        """Write that the journal has everything, and that it is on the disk: its node ends well (3)."""
        born = self._engine.detector.born
        assert born is not None  # noqa: S101 - since it was opened
        try:
            self._journal.write([replace(born, boot="")])
            self._journal.sync()
        except OSError:
            logger.exception("node %r could not write the end of its journal", self._name)

    # Writing.

    def write(self, records: list[Record]) -> bool:
        """Write records; returns whether what rests on them may be done."""
        if self.error is None:
            try:
                self._journal.write(records)
            except BaseException as error:  # noqa: BLE001 - raised again, if it is not an `Exception`
                return self._failed(records, error)
            return True
        self._behind += records
        if self._serves and time.monotonic() < self._retry_at:
            return not self.is_refusing
        return self.retry() or not self.is_refusing

    def retry(self) -> bool:
        """Write what could not be written; returns whether all is written."""
        if self.error is None:
            return True
        behind, self._behind = self._behind, []
        self._retry_at = time.monotonic() + RETRY_SECONDS
        try:
            self._journal.write(behind)
        except BaseException as error:  # noqa: BLE001 - likewise
            self._failed(behind, error)
            return False
        self.error = None
        self._engine.detector.is_volatile = False
        logger.warning("node %r can write its journal again, and resumes", self._name)
        return True

    def _failed(self, records: list[Record], error: BaseException) -> bool:
        """Keep what could not be written; return whether what rests on it may be done all the same."""
        self._fail(records, error)
        if not isinstance(error, Exception):
            raise error
        return not self.is_refusing

    def _fail(self, records: list[Record], error: BaseException) -> None:
        self._behind = [*records, *self._behind]
        first, self.error = self.error is None, error
        self._journal.drop_draft()  # what is known is no longer what was written
        self._engine.detector.is_volatile = True
        if first:
            what = "goes on without it" if self._serves else "takes no messages"
            logger.critical("node %r %s: %s", self._name, what, self.why(), exc_info=error)

    def withdraw(self, edge: bytes) -> None:
        """Forget a hop that was to begin, and must not: its record could not be written."""
        self._engine.detector.withdraw(edge)
        self._behind = [one for one in self._behind if getattr(one, "edge", None) != edge]

    # What others are told of it (4).

    def seen(self) -> str:
        """Return how far the journal has come, for others to say back."""
        return self._signed(self._journal.count)

    def _signed(self, count: int) -> str:
        born = self._engine.detector.born
        assert born is not None  # noqa: S101 - since it was opened
        key = bytes.fromhex(born.key)
        own, signed = (
            blake2b(text, digest_size=8, key=key).hexdigest()
            for text in (b"journal", b"%x" % count)
        )
        return f"{own}.{count:x}.{signed}"

    def check(self, seen: str, caller: str = "") -> None:
        """Compare what was said of this journal at some time with what it is now."""
        own, _, rest = seen.partition(".")
        try:
            count = int(rest.partition(".")[0], 16)
        except ValueError:
            return
        if own != self.seen().partition(".")[0]:
            self._stray(caller)
            return
        if count <= self._journal.count or not hmac.compare_digest(self._signed(count), seen):
            return
        logger.critical(
            "node %r: the journal %s has %d records, and once had %d: an old copy was put in its place, or the"
            " machine lost what was written. Never restore a journal. Of messages from before now it says"
            " `unknown`",
            self._name,
            self._journal.path,
            self._journal.count,
            count,
        )
        self._begin_anew()

    def _stray(self, caller: str) -> None:
        """Count how often a caller was told of another journal since it was told of this one."""
        if len(self._strays) >= _STRAYS_MAX:
            self._strays.clear()
        self._strays[caller] = times = self._strays.get(caller, 0) + 1
        if times == _STRAYS and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "node %r: callers at %s reach another node at this address, too. Give each replica an address of its"
                " own, or verdicts are unknown or wrong",
                self._name,
                caller or "an address that is not known",
            )
