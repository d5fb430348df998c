"""One request of a client that is not the node's own, inside of a hop, towards a node that is known.

If the hop's node was instrumented, the request carries an edge. If not, the hop records that it left untracked.
What holds:

1. Nothing here fails a request, and no edge leaves towards a server that does not take part.
2. Edges are made in the thread of the hop's event loop. Another thread posts to it and waits, but never for
   longer than `_WAIT_SECONDS`: the loop may be blocked by the very code that waits for that thread. A request
   that got no edge in time is sent without one, and is untracked.
3. Outside of hops this costs one look at a context variable.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from quiesce.core.callsites import Frame, line_of
from quiesce.core.tree import current, logger
from quiesce.mesh.routes.following import called, handed
from quiesce.mesh.runtime.hop import current_hop
from quiesce.mesh.runtime.peers import may_start_work, peers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from quiesce.mesh.runtime.delegation import Handing
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_WAIT_SECONDS = 2.0
_ERRORS, _REDIRECTS = 400, frozenset((301, 302, 303, 307, 308))

HTTP = frozenset(
    ("aiohttp", "http", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib", "urllib3")
)
"""Packages that are HTTP clients, or parts of one."""
_PLUMBING = HTTP | frozenset(
    ("aiohappyeyeballs", "anyio", "asyncio", "concurrent", "contextlib", "functools", "multiprocessing", "quiesce",
     "socket", "ssl", "threading", "trio", "uvloop")
)  # fmt: skip
_INSTEAD = ". Write node.instrument() once, or send it with node.client()"

within: ContextVar[Hop | object | None] = ContextVar("quiesce_within_client", default=None)
"""The hop that a client around the running code sends for: that sees to edges, and its sockets are not raw ones."""
EVERY_HOP = object()
"""In the place of a hop in `within`: a task of the client sends for one hop after the other."""

instrumented: WeakKeyDictionary[Node, int] = WeakKeyDictionary()
"""How often each node was told to instrument."""


class SendTarget(NamedTuple):
    """Where a request goes."""

    method: str
    scheme: str
    host: str
    port: int | None
    path: str
    is_upgrade: bool = False
    """Whether it asks for another protocol, like that of websockets: no answer to it can carry a receipt."""


def hop_here() -> Hop | None:
    """Return the hop that the running code sends for, unless a client around it has seen to that."""
    if current.get() is None and not called:
        return None
    hop, around = current_hop(), within.get()
    return None if around is hop or around is EVERY_HOP else hop


@contextmanager
def sending_for(hop: Hop | object | None) -> Iterator[None]:
    """Set `within` for a block, and for the tasks that are started in it."""
    token = within.set(hop)
    try:
        yield
    finally:
        within.reset(token)


def outside_of_client(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return an asynchronous callback that a client calls while it sends: what the callback sends is its own."""

    async def calling(*args: Any, **options: Any) -> Any:
        with sending_for(None):
            return await callback(*args, **options)

    return calling


def begin_request(hop: Hop, target: SendTarget) -> RequestEdge | None:
    """Return the edge that a request has to carry, or None. A request that should have one, and cannot, is noticed."""
    node = hop._mesh
    to = peers_of(node).find(target.scheme, target.host, target.port, target.path)
    if to is None or not may_start_work(target.method, target.path):
        return None
    if target.is_upgrade or not instrumented.get(node):
        notice(hop, instead="" if target.is_upgrade else _INSTEAD)
        return None
    handing = _on_loop(hop, partial(hop.delegate, to))
    if handing is None:
        notice(hop)
        return None
    return RequestEdge(hop, handing)


class RequestEdge:
    """An edge of a request, from whatever thread that is sent."""

    __slots__ = ("_handing", "_hop", "header")

    def __init__(self, hop: Hop, handing: Handing) -> None:
        self._hop = hop
        self._handing = handing
        self.header: str = handing.header

    def answered(self, header: str | None, status: int) -> None:
        """Record the head of the answer."""
        is_error = status >= _ERRORS or status in _REDIRECTS
        self._resolve(partial(self._handing.answered, header, is_error=is_error, status=status))

    def failed(self, how: Literal["not sent", "in doubt"]) -> None:
        """Record that there was no answer."""
        handing = self._handing
        self._resolve(handing.not_sent if how == "not sent" else handing.in_doubt)

    def _resolve(self, step: Callable[[], None]) -> None:
        # In time: whatever ends the hop is posted to the loop after this.
        _in_loop(self._hop, partial(_tried, self._hop, step))


def notice(hop: Hop, route: str = "", instead: str = "") -> None:
    """Record in a hop that something leaves it, and what to write instead."""
    client, place = where()
    hop.untracked(route or f"plain {client}", f"{place}{instead}")


def where() -> tuple[str, str]:
    """Return the client that the running code was called through, and the place of the call."""
    client, package = "client", ""
    frame, last = sys._getframe(1).f_back, _outermost()
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        package = name.partition(".")[0]
        if package in HTTP:
            client = name if package in {"http", "urllib"} else package
        elif package not in _PLUMBING:
            code = frame.f_code
            return client, str(Frame(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = None if frame is last else frame.f_back
    hold = handed.hold if last is None else None
    if hold is not None and hold._code is not None:  # the thread runs nothing of the user's
        code = hold._code
        return client, str(Frame(code.co_filename, line_of(code, hold._offset), code.co_qualname))
    return client, f"a task or thread that {package or 'the interpreter'} started"


def _outermost() -> FrameType | None:
    """Return the outermost frame of the running task: beyond it is what runs the event loop."""
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        coroutine: Any = None if task is None else task.get_coro()
    elif "trio" in sys.modules and sys.modules["trio"].lowlevel.in_trio_task():
        coroutine = sys.modules["trio"].lowlevel.current_task().coro
    else:
        return None
    return getattr(coroutine, "cr_frame", None)


def is_http_below() -> bool:
    """Return whether an HTTP client is among the callers of the running code."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in HTTP:
            return True
        frame = frame.f_back
    return False


# Other threads (2).


def _in_loop(hop: Hop, step: Callable[[], None]) -> None:
    """Take a step in the thread of the hop's event loop, now or soon; not at all if that has ended."""
    if hop._backend.here():
        step()
    else:
        hop._backend.post(step)


def _tried(hop: Hop, step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:  # noqa: BLE001 - of the journal, which the node says itself: the request goes on (1)
        logger.warning("what %s sends could not be recorded", hop.name, exc_info=True)


def _on_loop(hop: Hop, make: Callable[[], Handing]) -> Handing | None:
    """Return what a function makes in the thread of the hop's event loop; None if it does not, or not in time."""
    errand = _Errand(make)
    if hop._backend.here():
        errand.run()
    elif not hop._backend.post(errand.run):
        return None
    return errand.result()


class _Errand:
    """A call that another thread makes, and that is made in time or not at all."""

    def __init__(self, make: Callable[[], Handing]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_abandoned = False
        self._made: Handing | None = None

    def run(self) -> None:
        with self._lock:
            if not self._is_abandoned:
                try:
                    self._made = self._make()
                except Exception:  # noqa: BLE001 - the request is sent without it (1)
                    logger.warning("a request could not be made a message", exc_info=True)
        self._done.set()

    def result(self) -> Handing | None:
        try:
            self._done.wait(_WAIT_SECONDS)
        finally:
            with self._lock:
                self._is_abandoned = True
        return self._made
