"""What is recorded of each hop while hops are watched: which work has left, and how.

`escapes` makes a `Trails`. A hop's trail has what the hop holds when its handler has returned, and what the hop has
recorded as untracked or opaque when it ends. The detectors (detectors.py) add places that the hop does not notice. What
holds:

1. If the hop follows the work at a place, the place is never `unseen`, although a detector reports it.
2. A trail neither holds a hop nor changes when it ends.
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
    """What is recorded of one hop."""

    def __init__(self, hop: Hop) -> None:
        self.hop: Hop | None = hop
        self.loop: object = hop.loop
        self.has_returned: bool = False
        self._covered: list[Escape] = []
        self._left: list[tuple[str, str, str]] = []
        self._noted: list[Escape] = []
        self._followed: set[str | None] = set()

    def note(self, escape: Escape) -> None:
        """Record a place that a detector reports."""
        self._noted.append(escape)

    def follows(self, hold: Followed) -> None:
        """Record work that the hop follows by itself."""
        self._followed.add(hold.where)
        if self.has_returned:
            self._covered.append(_covered_place(hold))

    def returned(self) -> None:
        """Record what the hop holds when its handler returns."""
        self.has_returned = True
        if self.hop is not None:
            self._covered += map(_covered_place, _held(self.hop))

    def recorded(self, entries: list[tuple[str, str, str]]) -> None:
        """Record what the hop has noted as untracked or opaque."""
        self._left += entries

    def found(self) -> Iterator[Escape]:
        """Yield each place; if the hop has not ended, the work that it waits for as `held`."""
        held = (
            {} if self.hop is None else {_covered_place(one): one.name for one in _held(self.hop)}
        )
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
    """The trails of all hops that begin before `close()`."""

    def __init__(self) -> None:
        self._trails: dict[int, Trail] = {}  # the trails of open hops, by the hop's id
        self.all_trails: list[Trail] = []
        self.count: int = 0
        """How many hops have begun."""
        self.served: int = 0
        """How many of these hops serve a message; the others are roots of a cascade."""
        self.errors: dict[str, None] = {}
        """The requests that were answered with an error, so that their handlers may not have run."""
        self.errors_count: int = 0
        self._changed: anyio.Event | None = None
        watch.add(self)

    def close(self) -> None:
        watch.remove(self)

    def begun(self, hop: Hop) -> None:
        """Start the trail of a hop, at the hop's first part."""
        if id(hop) not in self._trails:
            trail = self._trails[id(hop)] = Trail(hop)
            self.all_trails.append(trail)
            self.count += 1
            self.served += not hop.record.is_root

    def of(self, hop: Hop) -> Trail | None:
        """Return the trail of an open hop; None if the hop is not watched."""
        return self._trails.get(id(hop))

    def ended(self, hop: Hop) -> None:
        """Record that a hop has ended."""
        trail = self._trails.pop(id(hop), None)
        if trail is not None:
            trail.recorded(_recorded(hop))
            trail.hop = None
            if hop.end_reason.startswith("it answered "):
                name = hop.name if hop.origin is None else hop.origin.name
                self.errors[f"{name}: {hop.end_reason}"] = None
                self.errors_count += 1
            if self._changed is not None and hop.backend.here():
                self._changed.set()

    async def wait(self, seconds: float, loop: object) -> None:
        """Wait until every watched hop of this event loop has ended, or until the time is over.

        *Cancel safety*: may be cancelled at any time.
        """
        with anyio.move_on_after(seconds):
            while any(trail.loop is loop for trail in self._trails.values()):
                self._changed = anyio.Event()
                await self._changed.wait()
        self._changed = None

    def found(self) -> Iterator[Escape]:
        """Yield each place of all trails."""
        for trail in list(self.all_trails):
            yield from trail.found()


class HopWatch:
    """The patches of `Hop` and `Visit`, which are in place while any `Trails` is open."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # tests may run event loops in several threads
        self._open: list[Trails] = []
        self._patches: list[Patch] = []
        self.detectors: Detectors
        """The detectors; set by detectors.py."""

    def add(self, trails: Trails) -> None:
        """Add trails; the first one installs the patches and the detectors."""
        with self._lock:
            self._open = [*self._open, trails]
            if not self._patches:
                self._patches = [
                    Patch(Visit, "__init__", self._beginning),
                    Patch(Hop, "end_if_all", self._returning),
                    Patch(Hop, "_end", self._ending),
                    Patch(Hop, "_leave", self._leaving),
                    Patch(Followed, "__init__", self._following),
                ]
                self.detectors.install()

    def remove(self, trails: Trails) -> None:
        """Remove trails; the last one removes the patches and the detectors."""
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
            is_first = not hop.has_ended
            original(hop, why)
            if is_first:
                self.detectors.ended(hop)
                for one in self._open:
                    one.ended(hop)

        return end

    def _leaving(self, original: Any) -> Any:
        def leave(hop: Hop, thing: object, route: str, place: str, how: Any) -> None:
            original(hop, thing, route, place, how)
            if hop.has_ended:  # the hop's trail is complete, so this place gets a trail of its own
                for one in self._open:
                    one.all_trails.append(late := Trail(hop))
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
    return [] if not hop.left_sendings else list(dict.fromkeys(list(hop.left_sendings.values())))


def _held(node: Tree) -> Iterator[Held]:
    """Yield all work that a hop waits for, in nested scopes too, without its handlers."""
    for held in list(node.holds.values()):
        if isinstance(held, Tree):
            yield from _held(held)
        elif isinstance(held, Bond):
            yield from _held(held.scope)
        elif not isinstance(held, Visit):
            yield held


def _covered_place(held: Any) -> Escape:
    """Return the place of held work, as `covered`."""
    code = getattr(held, "started_code", None) or getattr(held, "place_code", None)
    offset: int = getattr(held, "started_offset", 0) or getattr(held, "place_offset", 0)
    function = "?" if code is None else code.co_qualname
    # `held.name` may change, for example when a worker takes the item.
    name = getattr(held, "name_given", None) or held.name
    return Escape("covered", held.kind, name, function, describe(code, offset) or "?")
