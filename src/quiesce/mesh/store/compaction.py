"""A smaller journal, while the node goes on: what is known is written anew, a little at a time.

A million messages may be remembered; to write them in one step would take seconds, in which the node
answers nobody. So it is done in slices of a few milliseconds, and what is written meanwhile goes to both
files. What holds:

1. After every step the draft says of each edge either nothing, or exactly what is known of it by then. An
   edge that it does not tell of yet is *pending*. When none is, it says all that the journal says.
2. That is so because the draft takes up an edge in one step, as it stands in that step; a record about it
   that is written later follows it, and one that was written before does not: it is in what was taken up.
   (To write both would be wrong: a receipt would be counted twice, or be that of an edge nobody knows.)
3. What came to be over before the compaction has begun does not change any more, so it needs no care, and
   no copy is made of it.
4. Whoever stops it, or whatever fails, the journal is as it was, and goes on.
5. It does not begin while records wait to be written: the draft would have what they say, and then they would follow.
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
    from quiesce.mesh.store.journal import Journal

__all__: list[str] = []

_COMPACT_FROM = 4 * 1024 * 1024
_SLICE = 400  # edges; about a millisecond
_PUT_BYTES = 256 * 1024  # a thread that comes and goes costs others more than a slice
_SYNC_BYTES = 8 * 1024 * 1024  # the more is synced at once, the longer do others wait for the disk
_REST_BYTES = 64 * 1024  # may be written in the step in which the draft takes the journal's place
_WHOLE = Begun | Over | Gone | Keep | Born | Stay | Counted
_ROUNDS_MAX = 5  # of syncing, until so little is left


class Compaction:
    """The making of one smaller journal."""

    def __init__(self, journal: Journal, detector: Detector) -> None:
        """Begin, in this step: from now on the draft is told what is written."""
        self._journal = journal
        self._draft = journal.draft(self.follow)
        self._detector = detector
        # Turned round: the last is taken out first, which costs the same however many there are.
        self._hops: dict[bytes, None] = dict.fromkeys(reversed(detector._hops))  # pending
        self._edges: dict[bytes, bytes] = {}  # pending, of a hop that is not; and that hop
        self._sent: set[bytes] = set()  # those that the draft has, and that are open
        detector._frozen, detector._over = detector._over, {}
        self._is_all = False
        self._items = self._take_up([detector._long_over, detector._frozen])

    # What the draft has (1, 2): no step of this may be interrupted by another one of the node.

    def _take_up(self, tables: list[dict[bytes, bytes | None]]) -> Iterator[list[Record]]:
        detector = self._detector
        if head := detector.head():
            yield head
        for is_long, table in zip((True, False), tables, strict=True):
            for edge, packed in table.items():
                yield [Over(edge, packed, is_long)]
        while self._hops:
            hop, _ = self._hops.popitem()
            found = detector._hops.get(hop)  # else it is over by now
            self._edges = {} if found is None else dict.fromkeys(reversed(found.edges), hop)
            yield detector.records_of(hop)
            while self._edges:
                edge, _ = self._edges.popitem()
                self._sent.add(edge)
                yield detector.records_of_sent(edge, detector._edges[edge])
        self._is_all = True

    def slice(self, count: int) -> bool:
        """Take up so many edges; returns whether there may be more."""
        if self._draft.is_dropped:  # it hears of nothing any more
            return False
        self._draft.add(chain.from_iterable(islice(self._items, count)))
        return not self._is_all

    def follow(self, records: Iterable[Record]) -> Iterator[Record]:
        """Return what the draft has to be told of records that are written in this step."""
        for record in records:
            if isinstance(record, Sent):
                if record.hop not in self._hops:
                    self._sent.add(record.edge)
                    yield record
            elif isinstance(record, EdgeClosed):
                yield from self._follow_closed(record)
            elif isinstance(record, Taken):
                if record.edge in self._sent:  # else it is taken up as one that was
                    yield record
            elif isinstance(record, Aged):
                self._draft.drop()  # it has taken for new what is old now: it is made anew, later
                return
            # Of one that nothing was known of, or all that is to be known of it; or of one that it has.
            elif isinstance(record, _WHOLE) or record.edge not in self._hops:
                yield record

    def _follow_closed(self, record: EdgeClosed) -> Iterator[Record]:
        if record.edge in self._sent:
            self._sent.remove(record.edge)
            yield record
        elif record.edge in self._edges:  # it never gets there: its receipt is what counts
            yield Tallied(self._edges.pop(record.edge), record.receipt)

    # Its course.

    async def run(self) -> None:
        """Make the journal smaller.

        *Cancel safety*: the journal is as before then, and nothing is left of the draft.

        *Raises*: `OSError` if there is no room, or the disk fails; likewise.
        """
        draft, unsynced = self._draft, 0
        try:
            more = True
            while more:
                began = time.perf_counter()
                more = self.slice(_SLICE)
                await anyio.sleep(time.perf_counter() - began)  # half of the time is for others
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
        """Put the draft in the place of the journal, in this step."""
        self._draft.add([Counted(self._journal.count)])
        self._draft.replace()

    def run_at_once(self) -> None:
        """Make the journal smaller in one step: as long as nobody waits for the node, when it is opened.

        *Raises*: `OSError` if there is no room, or the disk fails; the journal is as before then.
        """
        try:
            while self.slice(_SLICE):
                pass
            self._draft.put(self._draft.take(), sync=True)
            self.replace()
        finally:
            self.end()

    def end(self) -> None:
        """End the draft, however it went."""
        self._draft.drop()
        detector = self._detector
        if detector._frozen:  # else it has aged since
            detector._frozen.update(detector._over)
            detector._over, detector._frozen = detector._frozen, {}


async def _in_thread(put: Callable[[], None]) -> None:
    # A limit of its own: the threads that a program may have at once can all be busy. Nobody waits for
    # a disk that hangs: a draft may be dropped while a thread is at it.
    limiter = anyio.CapacityLimiter(1)
    await anyio.to_thread.run_sync(put, limiter=limiter, abandon_on_cancel=True)


def is_worth(journal: Journal, detector: Detector) -> bool:
    """Return whether a journal that was just opened is large, and most of what is in it is not needed."""
    needed = len(detector._over) + len(detector._long_over) + 4 * len(detector._hops)
    return journal.size > _COMPACT_FROM and journal.lines > 2 * (needed + len(detector._edges))


class Tidying:
    """When a node's journal is made smaller, while it is open."""

    def __init__(self, name: str, journal: Journal, detector: Detector) -> None:
        self._name = name
        self._journal = journal
        self._detector = detector
        self._has_failed = False
        self.at: float = _COMPACT_FROM
        """The size from which on it is due."""

    def is_over(self) -> bool:
        """Return whether the journal has grown beyond that size."""
        return self._journal.size > self.at

    def is_due(self) -> bool:
        """Return whether `run` is to be called now; not again before that has ended."""
        is_due = self.is_over()
        if is_due:
            self.at = math.inf
        return is_due

    async def run(self) -> None:
        """Make the journal smaller; if that cannot be done, the journal goes on until it has grown.

        *Cancel safety*: as that of `Compaction.run()`.
        """
        journal = self._journal
        if self._detector.is_volatile:  # (5)
            self.at = 0.0  # it is due as soon as they are written
            return
        try:
            await Compaction(journal, self._detector).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the journal there was goes on
            level = logging.DEBUG if self._has_failed else logging.ERROR  # a full disk stays full
            text = "node %r could not have a smaller journal, and tries again when it has grown"
            logger.log(level, text, self._name, exc_info=error)
            self._has_failed = True
            self.at = journal.size + max(_COMPACT_FROM, journal.size // 4)
        else:
            self._has_failed = False
            self.at = max(_COMPACT_FROM, 2 * journal.size)
