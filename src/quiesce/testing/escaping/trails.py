"""What is seen of each hop while hops are watched: what it left, and by which way.

Hops themselves tell: what they hold when a handler has returned, and what they have recorded as untracked or opaque
when they end. The detectors of `detecting.py` add the places that hops know nothing of. What holds:

1. A place that the hop has followed is never an unseen one, whatever a detector says.
2. Nothing here holds a hop, or changes when it ends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.callsites import describe
from quiesce.core.patches import Patch
from quiesce.core.tree import TreeNode as Tree
from quiesce.core.visitors import Bond
from quiesce.mesh.routes.following import Followed
from quiesce.mesh.runtime.hop import Hop
from quiesce.mesh.runtime.hop_parts import Visit
from quiesce.testing.escaping.escape_report import Escape, escape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.core.hold import Held
    from quiesce.testing.escaping.detectors import Detectors

__all__: list[str] = []


class Trail:
    """What was seen of one hop."""

    def __init__(self, hop: Hop) -> None:
        """Begin, when the hop does."""
        self.hop: Hop | None = hop
        self.loop: object = hop._loop
        self.has_returned: bool = False
        self._covered: list[Escape] = []
        self._left: list[tuple[str, str, str]] = []
        self._noted: list[Escape] = []
        self._followed: set[str | None] = set()

    def note(self, escape: Escape) -> None:
        """Take what a detector has seen."""
        self._noted.append(escape)

    def follows(self, hold: Followed) -> None:
        """Record what the hop follows by itself."""
        self._followed.add(hold.where)
        if self.has_returned:
            self._covered.append(_escape(hold))

    def returned(self) -> None:
        """Take what the hop holds, now that its handler has returned."""
        self.has_returned = True
        if self.hop is not None:
            self._covered += map(_escape, _held(self.hop))

    def recorded(self, entries: list[tuple[str, str, str]]) -> None:
        """Take what the hop has recorded as untracked or opaque."""
        self._left += entries

    def found(self) -> Iterator[Escape]:
        """Return each place; of a hop that has not ended, what it waits for."""
        held = {} if self.hop is None else {_escape(one): one.name for one in _held(self.hop)}
        yield from set(self._covered) - held.keys()
        for one, name in held.items():
            yield Escape("held", one.route, name, one.function, one.where)
        left = self._left if self.hop is None else [*self._left, *_recorded(self.hop)]
        places = set(self._followed)
        for route, place, how in left:
            escape = escape_of(route, place, "opaque" if how == "is opaque" else "untracked")
            places.add(escape.where)
            yield escape
        yield from (one for one in self._noted if one.where not in places)  # (1)


class Trails:
    """The trails of all hops that begin while it is open."""

    def __init__(self) -> None:
        """Begin; `close()` ends it."""
        self._trails: dict[int, Trail] = {}  # of open hops, by id
        self._all: list[Trail] = []
        self.count: int = 0
        """How many hops have begun."""
        self._changed: anyio.Event | None = None
        watch.add(self)

    def close(self) -> None:
        """Watch no more."""
        watch.remove(self)

    def begun(self, hop: Hop) -> None:
        """Record a hop, from its first part on."""
        if id(hop) not in self._trails:
            trail = self._trails[id(hop)] = Trail(hop)
            self._all.append(trail)
            self.count += 1

    def of(self, hop: Hop) -> Trail | None:
        """Return that of a hop, if it is one of these."""
        return self._trails.get(id(hop))

    def ended(self, hop: Hop) -> None:
        """Record that a hop has ended."""
        trail = self._trails.pop(id(hop), None)
        if trail is not None:
            trail.recorded(_recorded(hop))
            trail.hop = None
            if self._changed is not None and hop._backend.here():
                self._changed.set()

    async def wait(self, seconds: float, loop: object) -> None:
        """Wait until every hop of this event loop has ended, or until the time is over.

        *Cancel safety*: may be cancelled at any time.
        """
        with anyio.move_on_after(seconds):
            while any(trail.loop is loop for trail in self._trails.values()):
                self._changed = anyio.Event()
                await self._changed.wait()
        self._changed = None

    def found(self) -> Iterator[Escape]:
        """Return each place."""
        for trail in list(self._all):
            yield from trail.found()


class HopWatch:
    """What is wrapped of hops while anybody watches them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # tests may run event loops in several threads
        self._open: list[Trails] = []
        self._patches: list[Patch] = []
        self.detectors: Detectors
        """What sees more than hops do; set by `detecting.py`."""

    def add(self, trails: Trails) -> None:
        """Begin to watch."""
        with self._lock:
            self._open = [*self._open, trails]
            if not self._patches:
                self._patches = [
                    Patch(Visit, "__init__", self._beginning),
                    Patch(Hop, "_part_ended", self._returning),
                    Patch(Hop, "_end", self._ending),
                    Patch(Hop, "_leave", self._leaving),
                    Patch(Followed, "__init__", self._following),
                ]
                self.detectors.install()

    def remove(self, trails: Trails) -> None:
        """Watch no more; the last one restores everything."""
        with self._lock:
            self._open = [one for one in self._open if one is not trails]
            if not self._open and self._patches:
                self.detectors.remove()
                while self._patches:
                    self._patches.pop().remove()

    def note(self, hop: Hop, escape: Escape) -> None:
        """Add a place to the trail of a hop."""
        for trail in self._of(hop):
            trail.note(escape)

    def _of(self, hop: Hop) -> list[Trail]:
        return [trail for one in self._open if (trail := one.of(hop)) is not None]

    def _beginning(self, original: Any) -> Any:
        def begin(visit: Any, hop: Hop, *args: Any) -> None:
            for one in self._open:
                one.begun(hop)
            self.detectors.begun(hop)
            original(visit, hop, *args)

        return begin

    def _returning(self, original: Any) -> Any:
        def returned(hop: Hop) -> None:
            for trail in self._of(hop):
                trail.returned()
            original(hop)

        return returned

    def _ending(self, original: Any) -> Any:
        def end(hop: Hop, why: str) -> None:
            is_first = not hop._ended
            original(hop, why)
            if is_first:
                self.detectors.ended(hop)
                for one in self._open:
                    one.ended(hop)

        return end

    def _leaving(self, original: Any) -> Any:
        def leave(hop: Hop, thing: object, route: str, place: str, how: Any) -> None:
            original(hop, thing, route, place, how)
            if hop._ended:  # its trail is over: it is the last one with that name
                for one in self._open:
                    one._all.append(late := Trail(hop))
                    late.recorded([(route, place, how)])
                    late.hop = None

        return leave

    def _following(self, original: Any) -> Any:
        def follow(hold: Followed, hop: Hop, *args: Any, **options: Any) -> None:
            original(hold, hop, *args, **options)
            for trail in self._of(hop):
                trail.follows(hold)

        return follow


watch: HopWatch = HopWatch()


def _recorded(hop: Hop) -> list[tuple[str, str, str]]:
    return [] if not hop._left else list(dict.fromkeys(list(hop._left.values())))


def _held(node: Tree) -> Iterator[Held]:
    """Return all work that a hop waits for, wherever it is; without its handlers."""
    for held in list(node._holds.values()):
        if isinstance(held, Tree):
            yield from _held(held)
        elif isinstance(held, Bond):
            yield from _held(held.scope)
        elif not isinstance(held, Visit):
            yield held


def _escape(held: Any) -> Escape:
    """Describe what is held."""
    code = getattr(held, "_code_started", None) or getattr(held, "_code", None)
    offset: int = getattr(held, "_offset_started", 0) or getattr(held, "_offset", 0)
    function = "?" if code is None else code.co_qualname
    name = (
        getattr(held, "_name", None) or held.name
    )  # not what may change: that nobody has taken it
    return Escape("covered", held.kind, name, function, describe(code, offset) or "?")
