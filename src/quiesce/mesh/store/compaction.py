"""Makes a smaller journal while the node goes on: a draft gets the node's current knowledge, in small steps.

A node may remember a million messages. To write them in one step would take seconds, in which the node answers no
calls. So the draft is written in slices of a few milliseconds. Records that the node writes meanwhile go to both files.
These invariants hold:

1. After every step, the draft has, for each edge, either nothing or exactly the node's current knowledge. An edge that
   the draft does not have yet is *pending*. When no edge is pending, the draft says all that the journal says.
2. The draft takes up an edge in one step, in its state at that step. Later records about the edge follow in the draft.
   Earlier records do not, because the state includes them. (With both, a receipt would be counted twice, or would be
   that of an unknown edge.)
3. An edge that was over before the compaction began does not change any more. So it is not copied, and not checked.
4. If the compaction is cancelled or fails, the journal stays as it is and in use.
5. The compaction does not begin while records wait to be written: the draft would have their contents twice.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from quiesce.core.tree import logger
from quiesce.mesh.protocol.facts import (
    Aged,
    Begun,
    Born,
    Counted,
    EdgeClosed,
    Gone,
    Keep,
    Over,
    Sent,
    Stay,
    Taken,
    Tallied,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quiesce.mesh.protocol.detector import Detector
    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.knowledge import Knowledge
    from quiesce.mesh.store.journal import Journal

__all__: list[str] = []

_COMPACT_FROM = 4 * 1024 * 1024
_SLICE = 400  # edges; about a millisecond
_PUT_BYTES = 256 * 1024  # per thread call: starting a thread costs more than a slice
_SYNC_BYTES = 8 * 1024 * 1024  # per sync: other users wait for the disk during a sync
_REST_BYTES = 64 * 1024  # written in the step in which the draft replaces the journal
_WHOLE = Begun | Over | Gone | Keep | Born | Stay | Counted
_ROUNDS_MAX = 5  # rounds of syncing until at most _REST_BYTES are left


class Compaction:
    """The making of one smaller journal."""

    def __init__(self, journal: Journal, known: Knowledge) -> None:
        """Begin, in this step. From now on the draft gets the records that the journal gets."""
        self._journal = journal
        self._draft = journal.draft(self.follow)
        self._known = known
        # The pending hops; and the pending edges of the hop being taken up, each with that hop. Both are
        # reversed, because removing the last entry of a dict takes constant time.
        self._hops: dict[bytes, None] = dict.fromkeys(reversed(known.hop_records))
        self._edges: dict[bytes, bytes] = {}
        self._sent: set[bytes] = set()  # open edges that the draft has
        known.freeze()
        self._is_all = False
        self._items = self._take_up([known.long_over_receipts, known.frozen_receipts])

    # The contents of the draft (1, 2). No other step of the node may come between the steps of one edge.

    def _take_up(self, tables: list[dict[bytes, bytes | None]]) -> Iterator[list[Record]]:
        known = self._known
        if head := known.head():
            yield head
        for is_long, table in zip((True, False), tables, strict=True):
            for edge, packed in table.items():
                yield [Over(edge, packed, is_long)]
        while self._hops:
            hop, _ = self._hops.popitem()
            found = known.hop_records.get(hop)  # None if the hop is over by now
            self._edges = {} if found is None else dict.fromkeys(reversed(found.edges), hop)
            yield known.records_of(hop)
            while self._edges:
                edge, _ = self._edges.popitem()
                self._sent.add(edge)
                yield known.records_of_sent(edge, known.edge_records[edge])
        self._is_all = True

    def slice(self, count: int) -> bool:
        """Take up `count` edges. Return whether there may be more."""
        if self._draft.is_dropped:  # a dropped draft gets no more records
            return False
        self._draft.add(chain.from_iterable(islice(self._items, count)))
        return not self._is_all

    def follow(self, records: Iterable[Record]) -> Iterator[Record]:
        """Return the records that the draft needs, of the records that the journal gets in this step."""
        for record in records:
            if isinstance(record, Sent):
                if record.hop not in self._hops:
                    self._sent.add(record.edge)
                    yield record
            elif isinstance(record, EdgeClosed):
                yield from self._follow_closed(record)
            elif isinstance(record, Taken):
                if record.edge in self._sent:  # otherwise the edge is taken up as a taken one
                    yield record
            elif isinstance(record, Aged):
                self._draft.drop()  # the draft has old receipts as new ones: a later compaction starts over
                return
            # The first or the final record of an edge, or a record of an edge that the draft has.
            elif isinstance(record, _WHOLE) or record.edge not in self._hops:
                yield record

    def _follow_closed(self, record: EdgeClosed) -> Iterator[Record]:
        if record.edge in self._sent:
            self._sent.remove(record.edge)
            yield record
        elif record.edge in self._edges:  # the draft needs only the receipt of a closed edge
            yield Tallied(self._edges.pop(record.edge), record.receipt)

    # The course of a compaction.

    async def run(self) -> None:
        """Make the journal smaller.

        *Cancel safety*: if cancelled, the journal is unchanged and the draft is deleted.

        *Raises*: `OSError` if the disk is full or fails. Then, too, the journal is unchanged and the draft is deleted.
        """
        draft, unsynced = self._draft, 0
        try:
            more = True
            while more:
                began = time.perf_counter()
                more = self.slice(_SLICE)
                # Leave half of the time to other tasks.
                await anyio.sleep(time.perf_counter() - began)
                if draft.waiting >= _PUT_BYTES:
                    unsynced += draft.waiting
                    is_much = unsynced >= _SYNC_BYTES
                    await _in_thread(partial(draft.put, draft.take(), sync=is_much))
                    unsynced = 0 if is_much else unsynced
                if draft.is_dropped:
                    return
            for _ in range(_ROUNDS_MAX):
                await _in_thread(partial(draft.put, draft.take(), sync=True))
                if draft.waiting <= _REST_BYTES:
                    break
            if not draft.is_dropped:
                self.replace()
        finally:
            self.end()

    def replace(self) -> None:
        """Replace the journal by the draft, in this step."""
        self._draft.add([Counted(self._journal.count)])
        self._draft.replace()

    def run_at_once(self) -> None:
        """Make the journal smaller in one step, while the node opens and does not serve calls yet.

        *Raises*: `OSError` if the disk is full or fails. Then the journal is unchanged.
        """
        try:
            while self.slice(_SLICE):
                pass
            self._draft.put(self._draft.take(), sync=True)
            self.replace()
        finally:
            self.end()

    def end(self) -> None:
        """End the compaction after success, failure or cancellation."""
        self._draft.drop()
        self._known.unfreeze()


async def _in_thread(put: Callable[[], None]) -> None:
    # A limiter of its own, because the program may use up the default one. A cancelled caller does not wait for a disk
    # that hangs: a draft may be dropped while a thread writes to it.
    limiter = anyio.CapacityLimiter(1)
    await anyio.to_thread.run_sync(put, limiter=limiter, abandon_on_cancel=True)


def is_worth(journal: Journal, known: Knowledge) -> bool:
    """Return whether a journal that was just opened is large and mostly obsolete."""
    if journal.size <= _COMPACT_FROM:
        return False
    receipts = len(known.over_receipts) + len(known.long_over_receipts)
    return journal.lines > 2 * (receipts + 4 * len(known.hop_records) + len(known.edge_records))


class Tidying:
    """Decides when the journal of an open node is made smaller, and does it."""

    def __init__(self, name: str, journal: Journal, detector: Detector) -> None:
        self._name = name
        self._journal = journal
        self._detector = detector
        self._has_failed = False
        self.at: float = _COMPACT_FROM
        """The size from which on a compaction is due."""

    def is_over(self) -> bool:
        """Return whether the journal has grown beyond that size."""
        return self._journal.size > self.at

    def is_due(self) -> bool:
        """Return whether to call `run` now. While `run` is under way, return False."""
        is_due = self.is_over()
        if is_due:
            self.at = math.inf
        return is_due

    async def run(self) -> None:
        """Make the journal smaller. If that fails, keep the journal, and try again when it has grown.

        *Cancel safety*: as that of `Compaction.run()`.
        """
        journal = self._journal
        if self._detector.is_volatile:  # (5)
            self.at = 0.0  # due as soon as the waiting records are written
            return
        try:
            await Compaction(journal, self._detector.known).run()
        except Exception as error:  # noqa: BLE001 - after any failure the journal stays in use
            level = logging.DEBUG if self._has_failed else logging.ERROR  # a full disk stays full
            text = "node %r could not make its journal smaller, and tries again when the journal has grown"
            logger.log(level, text, self._name, exc_info=error)
            self._has_failed = True
            self.at = journal.size + max(_COMPACT_FROM, journal.size // 4)
        else:
            self._has_failed = False
            self.at = max(_COMPACT_FROM, 2 * journal.size)
