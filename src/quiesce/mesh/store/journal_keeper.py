"""How a node uses its journal, also while the disk is full and after an old copy has replaced the journal.

These guarantees hold:

1. Each record is written once, in the order in which the records were made. If a write fails, its records are kept, and
   are written first as soon as a write succeeds. The node's knowledge is the written records plus the kept ones.
2. With `on_trouble="refuse"`, the node does nothing meanwhile that depends on an unwritten record.
3. With `"serve"`, the node goes on as if it did not have a journal, and its receipts say that they are volatile. When
   the node opens, it writes that this may happen. When it closes, it writes that the journal is complete. If the process
   dies in between, the next process, in either mode, knows that records may be missing. For messages from before its
   start the node then answers `unknown`, never `never`, and a hop that was running may have sent messages without a
   record. The same holds with `durability="process"` if the machine has restarted since, or is another machine.
4. A journal has the time since when it is complete. The node tells other nodes the number of its records, signed, and
   they repeat it in their next call. A journal with fewer records than it once had is an old copy. The node then starts
   the journal anew, without knowledge of earlier messages. A caller that keeps repeating the number of another journal
   reaches two nodes at one address. The node logs that.
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
_NO_BOOT = "none"  # differs from the boot id of every machine


def _boot() -> str:
    """Return the id of this start of the machine; empty if the system does not have one."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a node: whether it works on messages, and why not; see `Node.health`."""

    state: Literal["closed", "ready", "draining", "refusing", "behind"]
    """`refusing`: the node cannot write its journal, and rejects messages until a write succeeds. `behind`: the node
    cannot write its journal, but goes on (`on_trouble="serve"`). `draining`: the node rejects new messages."""
    why: str = ""
    """What is wrong, as a sentence."""

    @property
    def ok(self) -> bool:
        """Whether the node is ready."""
        return self.state == "ready"

    @property
    def takes_messages(self) -> bool:
        """Whether the node works on new messages."""
        return self.state in {"ready", "behind"}


class Keeping:
    """The journal of an open node, and the records that could not be written yet.

    Args:
        journal: The file.
        engine: The node's engine, which `open` fills from the file.
        mode: What to do when the file cannot be written, one of `MODES`.
        random: A function that returns random bytes.
    """

    def __init__(
        self, journal: Journal, engine: Engine, mode: str, random: Callable[[int], bytes]
    ) -> None:
        """Prepare; `open` opens the file."""
        self._journal = journal
        self._engine = engine
        self._name = engine.known.name
        self._serves = mode == "serve"
        self._random = random
        self._behind: list[Record] = []  # (1)
        self._retry_at = 0.0
        self._strays: dict[str, int] = {}
        self._is_warned = False
        self._is_opened = False
        self._boot = ""
        self.error: BaseException | None = None
        """Why the last write failed; None if it succeeded."""
        self.tidying: Tidying = Tidying(self._name, journal, engine.detector)

    @property
    def is_refusing(self) -> bool:
        """Whether the node must not do anything that depends on a record (2)."""
        return self.error is not None and not (self._serves and len(self._behind) <= _BEHIND_MAX)

    def why(self) -> str:
        """Return what is wrong, and when it ends."""
        return (
            f"it cannot write {self._journal.path} ({self.error}). It tries again every second, and resumes when a write"
            " succeeds"
        )

    def broken(self) -> JournalBroken:
        """Return the error for a message that the node rejects now."""
        return JournalBroken(f"node {self._name!r} rejects all messages: {self.why()}")

    # Opening and closing.

    def open(self) -> None:
        """Read the journal into the engine.

        *Raises*: `JournalInUse`, `JournalBroken`; `UsageError` if the journal belongs to another node.
        """
        detector = self._engine.detector
        detector.boot = _boot()
        self._boot = _NO_BOOT if self._serves else "" if self._journal.syncs else detector.boot
        self._journal.open_into(detector.restore)
        born = detector.known.born
        if born is not None and born.node != self._name:
            self._journal.close()
            message = (
                f"the journal {self._journal.path} belongs to node {born.node!r}, not to node {self._name!r}: give each"
                " node a journal of its own. If the node was renamed, move the old journal away once no cascade waits for"
                " the node any more"
            )
            raise UsageError(message)
        if born is None or not detector.has_all:  # (3)
            self._begin_anew()
        elif born.boot != self._boot:
            detector.known.bear(born.at, born.key, self._boot)

    def _begin_anew(self) -> None:
        wall, key = self._engine.horizon.wall(), self._random(16).hex()
        self._engine.known.bear(wall, key, self._boot)

    def opened(self) -> None:
        """Make the journal smaller if that is worth it: a short-lived process may not get to it later."""
        self._is_opened = True
        if self.error is None and is_worth(self._journal, self._engine.known):
            try:
                Compaction(self._journal, self._engine.known).run_at_once()
            except Exception:  # noqa: BLE001 - after any failure the journal stays in use
                text = "node %r could not make its journal smaller, and tries again when the journal has grown"
                logger.exception(text, self._name)

    def close(self) -> None:
        if self._behind:
            text = "node %r has closed without writing %d records: %s"
            logger.error(text, self._name, len(self._behind), self.why())
        elif self._is_opened and self._boot:
            self._complete()
        self._journal.close()

    def _complete(self) -> None:
        """Write that the journal is complete and on the disk, because its node closes in order (3)."""
        born = self._engine.known.born
        assert born is not None  # noqa: S101 - set when the journal was opened
        try:
            self._journal.write([replace(born, boot="")])
            self._journal.sync()
        except OSError:
            text = "node %r could not write that its journal is complete: the next start counts it as incomplete"
            logger.exception(text, self._name)

    # Writing.

    def write(self, records: list[Record]) -> bool:
        """Write records. Return whether the node may act on them."""
        if self.error is None:
            try:
                self._journal.write(records)
            except BaseException as error:  # noqa: BLE001 - raised again unless it is an `Exception`
                return self._failed(records, error)
            return True
        self._behind += records
        if self._serves and time.monotonic() < self._retry_at:
            return not self.is_refusing
        return self.retry() or not self.is_refusing

    def retry(self) -> bool:
        """Write the records that could not be written before. Return whether all records are written now."""
        if self.error is None:
            return True
        behind, self._behind = self._behind, []
        self._retry_at = time.monotonic() + RETRY_SECONDS
        try:
            self._journal.write(behind)
        except BaseException as error:  # noqa: BLE001 - raised again unless it is an `Exception`
            self._failed(behind, error)
            return False
        self.error = None
        self._engine.detector.is_volatile = False
        logger.warning("node %r can write its journal again, and resumes", self._name)
        return True

    def _failed(self, records: list[Record], error: BaseException) -> bool:
        """Keep records that could not be written. Return whether the node may act on them all the same."""
        self._fail(records, error)
        if not isinstance(error, Exception):
            raise error
        return not self.is_refusing

    def _fail(self, records: list[Record], error: BaseException) -> None:
        self._behind = [*records, *self._behind]
        first, self.error = self.error is None, error
        self._journal.drop_draft()  # the draft has records that the journal does not have
        self._engine.detector.is_volatile = True
        if first:
            what = "goes on without its journal" if self._serves else "rejects all messages"
            logger.critical("node %r %s: %s", self._name, what, self.why(), exc_info=error)

    def withdraw(self, edge: bytes) -> None:
        """Forget a hop that must not begin, because its record could not be written."""
        self._engine.known.withdraw(edge)
        self._behind = [one for one in self._behind if getattr(one, "edge", None) != edge]

    # The count of records that other nodes repeat (4).

    def seen(self) -> str:
        """Return the signed number of records, which other nodes repeat in their next call."""
        return self._signed(self._journal.count)

    def _signed(self, count: int) -> str:
        born = self._engine.known.born
        assert born is not None  # noqa: S101 - since it was opened
        key = bytes.fromhex(born.key)
        own, signed = (
            blake2b(text, digest_size=8, key=key).hexdigest()
            for text in (b"journal", b"%x" % count)
        )
        return f"{own}.{count:x}.{signed}"

    def check(self, seen: str, caller: str = "") -> None:
        """Compare the number of records that a caller repeats with the journal as it is now."""
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
            "node %r: the journal %s has %d records, but once had %d. An old copy has replaced it, or the machine has lost"
            " written records. For messages from before now, the node answers `unknown`. Never restore a journal from a"
            " copy",
            self._name,
            self._journal.path,
            self._journal.count,
            count,
        )
        self._begin_anew()

    def _stray(self, caller: str) -> None:
        """Count how often a caller has repeated the number of another journal."""
        if len(self._strays) >= _STRAYS_MAX:
            self._strays.clear()
        self._strays[caller] = times = self._strays.get(caller, 0) + 1
        if times == _STRAYS and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "node %r: callers at %s reach another node at this node's address, too. Give each replica an address of"
                " its own. Otherwise verdicts are unknown or wrong",
                self._name,
                caller or "an unknown address",
            )
