"""The places where work leaves a hop: the effect on the verdict, and what to write instead.

`escapes` fills an `Escapes` with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quiesce.errors import EscapeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from quiesce.testing.escaping.app_driver import AppAnswer, DrivenApp

__all__: list[str] = []

Fate = Literal["unseen", "untracked", "held", "possible", "opaque", "covered"]

FATES: dict[Fate, str] = {
    "unseen": "the verdict may come before it has ended, without a word",
    "untracked": "the verdict is Unknown, and names it",
    "held": "still at work at the end: there is no verdict while it is",
    "possible": "may leave: whether something goes on there cannot be told from here",
    "opaque": "declared: the verdict treats it as an agent that takes no part",
    "covered": "the verdict waits for it",
}
"""What each fate means for a verdict, the worst first."""
BAD: frozenset[Fate] = frozenset(("unseen", "untracked", "held"))
"""The fates that a program should not have."""

NO_HOP = "no hop was seen: nothing was looked at"
_NOT_OVER = "the block of escapes() has not ended: what leaves is listed at its end"
_ONLY_ERRORS = (
    "every request was answered with an error, or sent on to its own path, so that no handler may have run:"
    " nothing was proved"
)
_LABELS: dict[Fate, str] = {
    "untracked": "left untracked",
    "held": "held, and not over",
    "covered": "held until it ended",
}

_WORKING = 'part = current_hop().working("…") here, and `async with part:` where the work is done'
_DETACHED = "`with quiesce.detached():` around it, if it serves the process and not this request"
_OPAQUE = 'current_hop().opaque("…")'
_PLACE = re.compile(
    r"(?:handed over at )?(?P<where>\S[^\n]*?:\d+) in (?P<function>[^\s,]+?)(?=[.,]?(?:\s|$))"
)
_INSTEAD: tuple[tuple[Fate, str, str], ...] = (
    ("untracked", "daemon thread", f"daemon=False; or {_DETACHED}"),
    ("untracked", "plain ", "node.instrument(), once; or node.client()"),
    ("untracked", "raw socket", f"node.client(); or {_OPAQUE}"),
    ("untracked", "sent outside of any hop", _WORKING),
    ("untracked", "", f"{_WORKING}; or {_DETACHED}"),
    ("unseen", "fork", "subprocess.Popen, or multiprocessing.Process"),
    ("unseen", "queue.SimpleQueue", "queue.Queue"),
    ("unseen", "_thread", "threading.Thread"),
    ("unseen", "", f"an asyncio.Queue or queue.Queue; or {_WORKING}"),
    ("held", "", f"Node(services=[…]), if it is a loop and not work; or {_DETACHED}"),
    (
        "possible",
        "request",
        f"peers=[…] and node.instrument(), if an agent of the mesh is there; if another server goes on after its answer: {_OPAQUE}",
    ),
    ("possible", "connection", f"if the other side goes on after its answer: {_OPAQUE}"),
    ("possible", "", f"if other code goes on with that later: {_WORKING}; or {_OPAQUE}"),
)


@dataclass(frozen=True, slots=True)
class Escape:
    """One place where work leaves a hop."""

    fate: Fate
    """How a verdict treats the work: `unseen`, `untracked`, `held`, `possible`, `opaque` or `covered`."""
    route: str
    """How the work leaves, such as `daemon thread`."""
    name: str
    """The name of the function or task that leaves; empty without a name."""
    function: str
    """The function that starts or hands over the work."""
    where: str
    """The file and the line in that function."""

    @property
    def happens(self) -> str:
        """How a verdict treats the work, in a sentence."""
        return FATES[self.fate]

    @property
    def instead(self) -> str:
        """What to write instead; empty if nothing has to be changed."""
        for fate, route, text in _INSTEAD:
            if fate == self.fate and self.route.startswith(route):
                return text
        return ""

    def __str__(self) -> str:
        """Return a line for the place, and a second line with what to write instead."""
        name = f" {self.name!r}" if self.name else ""
        head = f"{self.fate}: {self.route}{name} at {self.where} in {self.function}: {self.happens}"
        return f"{head}\n    write: {self.instead}" if self.instead else head


def escape_of(route: str, place: str, fate: Fate) -> Escape:
    """Return the place that a hop has recorded, from the hop's text for it."""
    found = _PLACE.search(place)
    if found is None:
        return Escape(fate, route, "", "?", place)
    name, _, where = found["where"].rpartition(" started at ")
    return Escape(fate, route, name, found["function"], where)


class Escapes:
    """The places where work has left hops; `escapes` fills it at the end of its block.

    Print it to see a table. Iterate over it to get each `Escape`, the worst first.
    """

    def __init__(self) -> None:
        """Start without places."""
        self._found: tuple[Escape, ...] = ()
        self.result: Any = None
        """The result of the handler of `await escapes(handler)`."""
        self.application: DrivenApp | None = None
        """The running app of `async with escapes(app)`."""
        self.hops: int = 0
        """How many hops were seen; code outside of hops was not checked."""
        self._is_complete = False

    def put(self, found: Iterable[Escape], hops: int) -> None:
        """Set the places, each once, and how many hops were seen."""
        self.hops = hops
        self._is_complete = True
        order = list(FATES)
        self._found = tuple(sorted(set(found), key=lambda one: (order.index(one.fate), one.where)))

    def __iter__(self) -> Iterator[Escape]:
        """Iterate over all places, the worst first."""
        return iter(self._found)

    def __len__(self) -> int:
        """Return the number of places, with the covered ones."""
        return len(self._found)

    def of(self, *fates: Fate) -> tuple[Escape, ...]:
        """Return the places with one of these fates."""
        return tuple(one for one in self._found if one.fate in fates)

    @property
    def covered(self) -> tuple[Escape, ...]:
        """The places whose work a verdict waits for."""
        return self.of("covered")

    @property
    def untracked(self) -> tuple[Escape, ...]:
        """The places whose work no verdict waits for, `unseen` and `untracked`."""
        return self.of("unseen", "untracked")

    def raise_if_any(self) -> None:
        """Raise an `EscapeError` that names the unseen, untracked and held places, if there are any.

        *Raises*: `UsageError` inside the block, because the places are complete only at its end; and if nothing was
        proved. Nothing is proved without a hop, or if every request was answered with an error or was redirected to
        its own path with or without a slash.
        """
        if not self._is_complete:
            message = f"{_NOT_OVER}. Dedent it: call raise_if_any() after the block"
            raise UsageError(message)
        bad = self.of(*BAD)
        if bad:
            raise EscapeError(bad)
        if not self.hops:
            message = (
                f"{NO_HOP}. Send requests to the app inside of the block, with found.request() or found.app, or call"
                " the handler there"
            )
            raise UsageError(message)
        if self._has_only_errors:
            which = "; ".join(self._turned_away())
            message = (
                f"{_ONLY_ERRORS}: {which}. Send a request in the block that its handler answers with success: look at"
                " the method, the path, the headers and the body of these"
            )
            raise UsageError(message)

    @property
    def _has_only_errors(self) -> bool:
        """Whether every hop was a request that may not have reached a handler."""
        app = self.application
        return app is not None and 0 < self.hops <= sum(app.turned_away.values())

    def _turned_away(self) -> Iterator[str]:
        app = self.application
        for told, count in () if app is None else app.turned_away.items():
            yield told if count == 1 else f"{told} ({count} times)"

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request as a hop. Pass this to clients as an ASGI app: `httpx.ASGITransport(app=found.app)`.

        *Cancel safety*: that of the app of `escapes(app)`.

        *Raises*: `UsageError` if the request did not become a hop, or if `escapes` has no app.
        """
        await self._running().serve(scope, receive, send)

    async def request(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AppAnswer:
        """Send a request to the app, and return its `status`, `headers` and `body` when the app has returned.

        *Cancel safety*: that of the app of `escapes(app)`.

        *Raises*: what the app raises; `UsageError` as `app()` does.
        """
        return await self._running().request(method, path, body=body, headers=headers)

    def _running(self) -> DrivenApp:
        if self.application is None:
            message = (
                "escapes() has no app for this request: write `async with escapes(app) as found:`"
            )
            raise UsageError(message)
        return self.application

    def __str__(self) -> str:
        """Return the table: a line for each place, below it what to write instead, and warnings at the end."""
        if not self._is_complete:
            return _NOT_OVER
        if not self.hops:
            return "\n".join([NO_HOP, *([table(self._found)] if self._found else [])])
        seen = f"{self.hops} hop{' was' if self.hops == 1 else 's were'} seen"
        app = self.application
        if app is not None:
            seen += f", {app.requests} request{'' if app.requests == 1 else 's'}"
        lines = [_ONLY_ERRORS] if self._has_only_errors else []
        lines.append(table(self._found, seen))
        lines += [
            f"warning: {one}: what its handler leaves when it succeeds was not seen"
            for one in self._turned_away()
        ]
        return "\n".join(lines)


def table(found: Iterable[Escape], seen: str = "") -> str:
    """Return the table of some places, grouped by fate and by what to write; `seen` counts the hops and requests."""
    places = list(found)
    if not places:
        return f"no work leaves: {seen}"
    more = f" ({seen})" if seen else ""
    fates = [one.fate for one in places]
    counts = ", ".join(f"{fates.count(fate)} {_label(fate)}" for fate in FATES if fate in fates)
    lines = [f"{len(places)} place{'s' * (len(places) != 1)} where work leaves{more}: {counts}"]
    cells = {one: (f"{one.route} {one.name}".rstrip(), one.function) for one in places}
    first, second = (max(len(cell[column]) for cell in cells.values()) for column in (0, 1))
    for fate, means in FATES.items():
        group = [one for one in places if one.fate == fate]
        word = "" if fate in _label(fate) else f" ({fate})"
        lines += [f"{_label(fate)}{word}: {means}"] if group else []
        for instead in dict.fromkeys(one.instead for one in group):
            lines += [
                f"  {cells[one][0]:{first}}  {cells[one][1]:{second}}  {one.where}"
                for one in group
                if one.instead == instead
            ]
            lines += [f"    write: {instead}"] if instead else []
    return "\n".join(lines)


def _label(fate: Fate) -> str:
    """Return the table's words for a fate."""
    return _LABELS.get(fate, fate)
