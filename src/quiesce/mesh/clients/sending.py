"""One request of a client other than the node's own, inside a hop, to a known node.

If the hop's node is instrumented, the request carries an edge. If not, the hop records the request as untracked.
These guarantees hold:

1. This module never makes a request fail, and never sends an edge to a server that does not take part in the mesh.
2. Edges are made in the thread of the hop's event loop. Another thread posts to that loop and waits for at most
   `_WAIT_SECONDS`, because the loop may be blocked by the code that waits for that thread. A request that does not get
   an edge in time is sent without one, and the hop records it as untracked.
   If the hop's node shares its store, an edge also waits for the store, which that loop writes. So a blocking request in
   the loop's own thread gets no edge.
3. Outside of hops, a request costs one read of a context variable.
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
from quiesce.core.python_private import get_frame, running_loop
from quiesce.core.tree import current, logger
from quiesce.errors import QuiesceError
from quiesce.mesh.routes.following import called, handed
from quiesce.mesh.runtime.hop import current_hop
from quiesce.mesh.runtime.peers import is_private_host, may_start_work, peers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from quiesce.mesh.runtime.delegation import Handing
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_WAIT_SECONDS = 2.0
_CHANGES = frozenset(("DELETE", "PATCH", "POST", "PUT"))
_ERRORS, _REDIRECTS = 400, frozenset((301, 302, 303, 307, 308))

HTTP = frozenset(
    ("aiohttp", "http", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib", "urllib3")
)
"""Packages that are HTTP clients, or parts of HTTP clients."""
_PLUMBING = HTTP | frozenset(
    ("aiohappyeyeballs", "anyio", "asyncio", "concurrent", "contextlib", "functools", "multiprocessing", "quiesce",
     "socket", "ssl", "threading", "trio", "uvloop", "websockets")
)  # fmt: skip
_INSTEAD = ". Write node.instrument() once, or send it with node.client()"
_BLOCKING = (
    ", which blocks the event loop: a node that shares its store cannot record it meanwhile. Send it with an async client,"
    " or in a thread"
)
_NOT_WRITTEN = ", because the shared store did not write in time"

within: ContextVar[Hop | object | None] = ContextVar("quiesce_within_client", default=None)
"""The hop for which a client around the running code sends. That client makes the edges and owns the sockets."""
EVERY_HOP = object()
"""A value for `within` in place of a hop: the task of a client that sends for many hops in turn."""

instrumented: WeakKeyDictionary[Node, int] = WeakKeyDictionary()
"""For each node, the number of its active instrumentations."""


class SendTarget(NamedTuple):
    """The method and the destination of a request."""

    method: str
    scheme: str
    host: str
    port: int | None
    path: str
    is_upgrade: bool = False
    """Whether the request upgrades to another protocol, like WebSocket. Its answer cannot carry a receipt."""


def hop_here() -> Hop | None:
    """Return the hop for which the running code sends; None if there is none or a client around the code handles it."""
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
    """Return an async callback for a client, so that requests of the callback do not count as the client's."""

    async def calling(*args: Any, **options: Any) -> Any:
        with sending_for(None):
            return await callback(*args, **options)

    return calling


def begin_request(hop: Hop, target: SendTarget, *, can_wait: bool = False) -> RequestEdge | None:
    """Return the edge for a request to carry; None if it carries none.

    A request that should carry an edge, but cannot, is recorded as untracked. If the caller can wait, it has to wait for
    `RequestEdge.written()`.
    """
    node = hop.mesh_node
    to = peers_of(node).find(target.scheme, target.host, target.port, target.path)
    if to is None:
        _suppose_no_agent(hop, target)
        return None
    if not may_start_work(target.method, target.path):
        return None
    if target.is_upgrade or not instrumented.get(node):
        notice(hop, instead="" if target.is_upgrade else _INSTEAD)
        return None
    if hop.opened.shared is not None and hop.backend.here() and not can_wait:
        notice(hop, instead=_BLOCKING)
        return None
    handing = _on_loop(hop, partial(hop.delegate, to))
    if handing is None:
        notice(hop)
        return None
    return RequestEdge(hop, handing)


def _suppose_no_agent(hop: Hop, target: SendTarget) -> None:
    """Record the assumption that a server of the same network, which is not known, is no agent of the mesh.

    Of a server elsewhere, such as a model's, it is not recorded.
    """
    if target.method.upper() not in _CHANGES or not is_private_host(target.host):
        return
    if not instrumented.get(hop.mesh_node):
        return
    host = f"[{target.host}]" if ":" in target.host else target.host
    server = f"{target.scheme}://{host}" + ("" if target.port is None else f":{target.port}")
    hop.assume_last(
        server,
        f"assumes that {target.method} {server}, sent at {where()[1]}, leaves no work behind after its answer. The server is"
        " not in peers=: if it is an agent, add it there; if not, send the request in `quiesce.detached()`",
    )


class RequestEdge:
    """The edge that a request carries. The request may be sent from any thread."""

    __slots__ = ("_handing", "_hop", "header")

    def __init__(self, hop: Hop, handing: Handing) -> None:
        self._hop = hop
        self._handing = handing
        self.header: str = handing.header if handing.is_written else ""

    async def written(self) -> bool:
        """Wait until the request may leave; return False if it must leave without an edge.

        *Cancel safety*: if cancelled, the request is recorded as not sent.
        """
        handing = self._handing
        if not handing.is_written:
            try:
                await handing.written()
            except QuiesceError:
                notice(self._hop, instead=_NOT_WRITTEN)
                return False
            self.header = handing.header
        return True

    def answered(self, header: str | None, status: int) -> None:
        """Record the head of the answer."""
        is_error = status >= _ERRORS or status in _REDIRECTS
        self._resolve(partial(self._handing.answered, header, is_error=is_error, status=status))

    def failed(self, how: Literal["not sent", "in doubt"]) -> None:
        """Record that the request has failed without an answer."""
        handing = self._handing
        self._resolve(handing.not_sent if how == "not sent" else handing.in_doubt)

    def _resolve(self, step: Callable[[], None]) -> None:
        # This comes before the end of the hop, which is posted to the loop later.
        _in_loop(self._hop, partial(_call_logged, self._hop, step))


def notice(hop: Hop, route: str = "", instead: str = "") -> None:
    """Record in a hop that a message leaves it untracked, and what to write instead."""
    client, place = where()
    hop.untracked(route or f"plain {client}", f"{place}{instead}")


def where() -> tuple[str, str]:
    """Return the name of the client around the running code, and the place where the user's code calls the client."""
    client, package = "client", ""
    frame, last = get_frame(1).f_back, _outermost()
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
    if hold is not None and hold.place_code is not None:  # the thread does not run user code
        code = hold.place_code
        return client, str(
            Frame(code.co_filename, line_of(code, hold.place_offset), code.co_qualname)
        )
    return client, f"a task or thread that {package or 'the interpreter'} started"


def _outermost() -> FrameType | None:
    """Return the outermost frame of the running task. The frames around it run the event loop."""
    if running_loop() is not None:
        task = asyncio.current_task()
        coroutine: Any = None if task is None else task.get_coro()
    elif "trio" in sys.modules and sys.modules["trio"].lowlevel.in_trio_task():
        coroutine = sys.modules["trio"].lowlevel.current_task().coro
    else:
        return None
    return getattr(coroutine, "cr_frame", None)


def is_http_below() -> bool:
    """Return whether an HTTP client is among the callers of the running code."""
    frame = get_frame(1).f_back
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in HTTP:
            return True
        frame = frame.f_back
    return False


# Other threads (2).


def _in_loop(hop: Hop, step: Callable[[], None]) -> None:
    """Call a function in the thread of the hop's event loop, now or soon. If the loop has ended, do nothing."""
    if hop.backend.here():
        step()
    else:
        hop.backend.post(step)


def _call_logged(hop: Hop, step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:  # noqa: BLE001 - the journal failed, which the node logs: the request goes on (1)
        text = "a request of %s could not be recorded: the verdict of its cascade may be unknown"
        logger.warning(text, hop.name, exc_info=True)


def _on_loop(hop: Hop, make: Callable[[], Handing]) -> Handing | None:
    """Call a function in the thread of the hop's event loop, and return its result; None if it fails or is late."""
    if hop.backend.here():
        return _made(make)
    errand = _Errand(make)
    return errand.result() if hop.backend.post(errand.run) else None


def _made(make: Callable[[], Handing]) -> Handing | None:
    try:
        return make()
    except Exception:  # noqa: BLE001 - the request is sent without an edge (1)
        text = "an edge could not be made for a request, which is sent without one"
        logger.warning(text, exc_info=True)
        return None


class _Errand:
    """A call in another thread that is made in time or not at all."""

    def __init__(self, make: Callable[[], Handing]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_abandoned = False
        self._made: Handing | None = None

    def run(self) -> None:
        """Make the call. The thread that waits gets the result when the request may leave."""
        made = None
        with self._lock:
            if not self._is_abandoned:
                made = self._made = _made(self._make)
        if made is None or made.opened.shared is None:
            self._done.set()
        else:
            made.opened.shared.store.when_written(partial(self._written, made))

    def _written(self, made: Handing) -> None:
        with self._lock:
            made.is_written = not self._is_abandoned
        if not made.is_written:
            made.not_sent()
        self._done.set()

    def result(self) -> Handing | None:
        try:
            self._done.wait(_WAIT_SECONDS)
        finally:
            with self._lock:
                self._is_abandoned = True
                made = self._made
        if made is None or made.is_written:
            return made
        # In the loop before the hop can end: else its edge would be in doubt, and no request has carried it.
        made.opened.scope_of_hops.backend.post(made.not_sent)
        return None
